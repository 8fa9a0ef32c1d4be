// A model small enough to count by hand.
#pragma once
#include "model/config.h"

namespace triax::test {

inline ModelConfig small(Family family = Family::llama) {
  ModelConfig config = family_defaults(family);
  config.width = 64;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_width = 16;
  config.mlp = 96;
  config.vocabulary = 100;
  config.context = 32;
  return config;
}

} // namespace triax::test
