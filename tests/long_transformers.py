#!/usr/bin/env python3
"""Checkpoints of triax, as they are, in Hugging Face's `transformers`, and what that writes in triax."""
import sys
import unittest

from long_packages import go_on_with

go_on_with("transformers", ["transformers==4.47.1"], {"torch": "python3-torch"})

import torch  # noqa: E402
import transformers  # noqa: E402

from transformers_runs import TransformersRuns  # noqa: E402

# Name: the class that transformers must choose, and what differs from the model of triax_runs.py. This version has the
# same window in all layers of Qwen2; layers of both kinds are in tests/fixtures/qwen2_window.
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama_tied": ("LlamaForCausalLM", {"tied": True}),
    "llama_scaled_rope": ("LlamaForCausalLM", {"rope": {"kind": "llama3", "theta": 500000, "factor": 4,
                                                        "original_context": 16}}),
    "mistral": ("MistralForCausalLM", {"window": 9}),
    "mistral_tied": ("MistralForCausalLM", {"window": 9, "tied": True}),
    "qwen2": ("Qwen2ForCausalLM", {"qkv_bias": True}),
    "qwen2_tied": ("Qwen2ForCausalLM", {"qkv_bias": True, "tied": True}),
    "qwen2_window": ("Qwen2ForCausalLM", {"qkv_bias": True, "window": 7}),
    "gpt2": ("GPT2LMHeadModel", {"family": "gpt2", "kv_heads": 4}),
}
IN_BF16 = ["llama", "mistral", "mistral_tied", "qwen2", "qwen2_tied", "gpt2"]


class Transformers(TransformersRuns):
    def test_models(self):
        for name, (expected, changes) in MODELS.items():
            with self.subTest(name), torch.no_grad():
                self.check(name, expected, changes)

    def test_models_in_bf16(self):
        for name in IN_BF16:
            with self.subTest(name), torch.no_grad():
                self.check(f"{name}_bf16", *MODELS[name], dtype="bf16")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    versions = sys.version.split()[0], torch.__version__, transformers.__version__
    print("Python {}, torch {}, transformers {}".format(*versions), flush=True)
    unittest.main(verbosity=2)
