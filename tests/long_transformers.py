#!/usr/bin/env python3
"""Checkpoints of triax, as they are, in Hugging Face's `transformers`: the same loss, the same likeliest tokens."""
import array
import json
import struct
import subprocess
import sys
import unittest

from long_packages import go_on_with

go_on_with("transformers", ["transformers==4.47.1"], {"torch": "python3-torch"})

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode  # noqa: E402

from triax_runs import ENVIRONMENT, TRIAX, Runs, run  # noqa: E402

SEQUENCE, STEPS = 32, 10
# Name: the class that transformers must choose, and what differs from the model of triax_runs.py.
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama_tied": ("LlamaForCausalLM", {"tied": True}),
    "llama_scaled_rope": ("LlamaForCausalLM", {"rope": {"kind": "llama3", "theta": 500000, "factor": 4,
                                                        "original_context": 16}}),
    "qwen2": ("Qwen2ForCausalLM", {"qkv_bias": True, "tied": True}),
    "gpt2": ("GPT2LMHeadModel", {"family": "gpt2", "kv_heads": 4}),
}


def read_shard(path):
    """(tokens, document offsets, vocabulary); data/shard.h has the format."""
    data = path.read_bytes()
    width, = struct.unpack_from("<I", data, 12)
    count, documents, vocabulary = struct.unpack_from("<QQQ", data, 16)
    tokens = array.array("H" if width == 2 else "I", data[128:128 + count * width])
    return list(tokens), list(array.array("Q", data[-8 * (documents + 1):])), vocabulary


def loss_of(model, tokens, offsets, stretch=1):
    """Mean over every token but the first, in windows of SEQUENCE where nothing attends to an earlier document. Each
    document's part of a window goes through the model by itself, at its own positions times `stretch`."""
    nats = 0.0
    for begin in range(0, len(tokens) - 1, SEQUENCE):
        end = min(begin + SEQUENCE, len(tokens) - 1)
        cuts = [begin, *(o for o in offsets if begin < o < end), end]
        for first, last in zip(cuts, cuts[1:]):
            logits = model(input_ids=torch.tensor([tokens[first:last]]), use_cache=False,
                           position_ids=stretch * torch.arange(first - begin, last - begin)[None]).logits[0]
            labels = torch.tensor(tokens[first + 1:last + 1])
            nats += torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum").item()
    return nats / (len(tokens) - 1)


class Transformers(Runs):
    def check(self, name, expected, changes):
        tokens, offsets, vocabulary = read_shard(next((self.folder / "data").glob("val_*.shard")))
        # Large initial weights: after few steps attention matters to the loss, which words by chance do not teach.
        shape = {"vocabulary": vocabulary, "init_std": 0.2, **changes}
        run("train", self.config(name, model=shape, train={"steps": STEPS}))
        folder = self.checkpoint(name, STEPS)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        self.assertEqual(type(model).__name__, expected)
        self.assertFalse([v for v in report.values() if v], report)
        self.assertEqual(model.dtype, torch.float32)
        model.eval()

        ours = json.loads(run("eval", folder, "--data", self.folder / "data", "--sequence", SEQUENCE, "--json").stdout)
        self.assertEqual(ours["tokens"], len(tokens) - 1)
        theirs = loss_of(model, tokens, offsets)
        print(f"{name}: triax {ours['loss']:.7f}, transformers {theirs:.7f}", flush=True)
        self.assertAlmostEqual(ours["loss"] / theirs, 1, delta=1e-4)
        wrong = loss_of(model, tokens, offsets, stretch=2 if name != "gpt2" else 0)
        self.assertGreater(abs(wrong / theirs - 1), 5e-4, "this comparison would not see wrong positions")

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        prompt = "And the LORD said unto them, that is"
        ids = tokenizer(prompt)["input_ids"]
        for _ in range(30):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        said = subprocess.run([TRIAX, "generate", folder, "--prompt", prompt, "--tokens", "30", "--temperature", "0"],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, check=True).stdout  # need not be UTF-8
        spoken = "".join(tokenizer.convert_ids_to_tokens(i for i in ids if i != tokenizer.eos_token_id))
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        self.assertEqual(said, bytes(byte_of[c] for c in spoken) + b"\n")

    def test_models(self):
        for name, (expected, changes) in MODELS.items():
            with self.subTest(name), torch.no_grad():
                self.check(name, expected, changes)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    versions = sys.version.split()[0], torch.__version__, transformers.__version__
    print("Python {}, torch {}, transformers {}".format(*versions), flush=True)
    unittest.main(verbosity=2)
