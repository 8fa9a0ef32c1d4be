#!/usr/bin/env python3
"""As long_transformers.py, for Qwen3, which needs a later `transformers`."""
import sys
import types
import unittest

from long_packages import go_on_with

go_on_with("transformers_qwen3", ["transformers==4.51.3"], {"torch": "python3-torch"})

import torch  # noqa: E402

OLD_TORCH = not hasattr(torch, "compiler")  # Debian 12's 1.13
if OLD_TORCH:  # this transformers names what came later, but computes a model without it
    torch.distributed.tensor = types.ModuleType("torch.distributed.tensor")
    torch.distributed.tensor.DTensor = type("DTensor", (), {})
    sys.modules["torch.distributed.tensor"] = torch.distributed.tensor
    torch.compiler = types.SimpleNamespace(disable=lambda f=None, **_: f or (lambda g: g))
    torch.float8_e4m3fn, torch.float8_e5m2 = object(), object()

import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from transformers_runs import TransformersRuns  # noqa: E402

# Normed heads have scores of the order of the root of their width: wide ones, for attention to matter to the loss.
SHAPE = {"qk_norm": True, "head_width": 96}
MODELS = {"qwen3": {}, "qwen3_tied": {"tied": True}}


class Qwen3(TransformersRuns):
    def load(self, folder):
        if not OLD_TORCH:
            return super().load(folder)
        config = transformers.AutoConfig.from_pretrained(folder)  # from_pretrained of a model is beyond old torches
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=config.torch_dtype)
        missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        self.assertEqual((missing, unexpected), (["lm_head.weight"] if config.tie_word_embeddings else [], []))
        model.tie_weights()
        return model

    def test_models(self):
        for name, changes in MODELS.items():
            for dtype in ("f32", "bf16"):
                with self.subTest(name, dtype=dtype), torch.no_grad():
                    self.check(f"{name}_{dtype}", "Qwen3ForCausalLM", SHAPE | changes, dtype)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    versions = sys.version.split()[0], torch.__version__, transformers.__version__
    print("Python {}, torch {}, transformers {}".format(*versions), flush=True)
    unittest.main(verbosity=2)
