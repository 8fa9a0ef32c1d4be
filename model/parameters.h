// Where a step finds weights and leaves gradients, unit by unit of the parameter table, however they are spread over
// ranks.
#pragma once
#include "model/params.h"

namespace triax {

class Parameters {
public:
  virtual ~Parameters() = default;
  virtual Dtype dtype() const = 0; ///< of the weights, and of the activations
  /// The unit's weights [elements], there for the compute stream until `done`. `next` is the unit that will be asked
  /// for after this one, -1 if none: it may be fetched meanwhile.
  virtual Tensor weights(int unit, int next) = 0;
  virtual void done(int unit) = 0;
  /// The unit's gradients f32[elements], which this micro-batch's are added to until `finished`.
  virtual Tensor gradients(int unit) = 0;
  virtual void finished(int unit) = 0;
};

/// Flat buffers that hold all of the table; `gradients` may be empty.
class WholeParameters final : public Parameters {
public:
  WholeParameters(const ParamTable& table, const Tensor& weights, const Tensor& gradients)
      : table_(table), weights_(weights), gradients_(gradients) {}
  Dtype dtype() const override { return weights_.dtype; }
  Tensor weights(int unit, int) override { return unit_of(weights_, table_.units()[size_t(unit)]); }
  void done(int) override {}
  Tensor gradients(int unit) override { return unit_of(gradients_, table_.units()[size_t(unit)]); }
  void finished(int) override {}

private:
  const ParamTable& table_;
  Tensor weights_, gradients_;
};

} // namespace triax
