#include "train/run.h"

namespace triax {

void train(Run& run) {
  run.start();
  while (!run.finished()) {
    run.load_batch();
    run.update_weights();
    run.log_step();
    if (run.evaluation_due()) run.evaluate();
    if (run.checkpoint_due()) run.save();
  }
  run.finish();
}

} // namespace triax
