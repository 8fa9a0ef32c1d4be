// A checkpoint is a Hugging Face folder with the optimizer and the run's state beside the model: whole or absent.
#pragma once
#include "train/trainer.h"
#include <string>

namespace triax {

/// Where a run stands: all that is needed to go on, beside weights and moments.
struct RunState {
  int64_t step = 0;    ///< steps done
  int64_t samples = 0; ///< sequences consumed, over all ranks
};

/// Publishes FOLDER/step_NNNNNNNN, with the tokenizer of `tokenizer_folder` if it has one; afterwards the newest `keep`
/// remain (0: all). Collective: rank 0 writes what all own. The same files whatever the layout. Returns the
/// checkpoint's path.
std::string save_checkpoint(const std::string& folder, Transport& transport, Trainer& trainer, const RunConfig& config,
                            const RunState& state, const std::string& tokenizer_folder);
/// Weights, master weights, moments and state, to the bit, whatever layout has written them. Throws where a file is
/// damaged, or where the model, the dtype or the data that the samples are counted in are others.
RunState load_checkpoint(const std::string& checkpoint, Trainer& trainer, const RunConfig& config);
/// The weights alone, from a Hugging Face folder of the same model.
void load_weights(const std::string& folder, Trainer& trainer, const ModelConfig& model);

} // namespace triax
