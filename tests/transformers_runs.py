"""What the tests against Hugging Face's `transformers` share: a trained model in both, the same loss, the same likeliest
tokens."""
import array
import json
import shutil
import struct
import subprocess

import torch
import transformers
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

from triax_runs import ENVIRONMENT, TRIAX, Runs, run

SEQUENCE, STEPS = 32, 10
SAME, OTHER = 2e-6, 1e-5  # relative distance of two losses: at most for the same model, at least for another


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


class TransformersRuns(Runs):
    def load(self, folder):
        """The model of a folder as transformers itself opens it: all tensors of the file used, none missing."""
        model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto",
                                                                          output_loading_info=True)
        self.assertFalse([v for v in report.values() if v], report)
        return model

    def loss(self, folder):
        out = run("eval", folder, "--data", self.folder / "data", "--sequence", SEQUENCE, "--json").stdout
        return json.loads(out)["loss"]

    def check(self, name, expected, changes, dtype="f32"):
        tokens, offsets, vocabulary = read_shard(next((self.folder / "data").glob("val_*.shard")))
        # Large initial weights: after few steps attention matters to the loss, which words by chance do not teach.
        shape = {"vocabulary": vocabulary, "init_std": 0.2, **changes}
        run("train", self.config(name, model=shape, train={"steps": STEPS, "dtype": dtype}))
        folder = self.checkpoint(name, STEPS)
        model = self.load(folder)
        self.assertEqual(type(model).__name__, expected)
        self.assertEqual(model.dtype, torch.float32 if dtype == "f32" else torch.bfloat16)
        self.assertEqual(model.config.tie_word_embeddings, shape.get("tied", name.startswith("gpt2")))
        model.float().eval()

        back = self.folder / f"{name} by transformers"  # in its own words, in f32
        model.save_pretrained(back)
        for file in folder.glob("*token*"):
            shutil.copy(file, back)
        theirs, ours, again = loss_of(model, tokens, offsets), self.loss(folder), self.loss(back)
        print(f"{name}: triax {ours:.7f}, transformers {theirs:.7f}, triax from its files {again:.7f}", flush=True)
        self.assertAlmostEqual(ours / theirs, 1, delta=SAME if dtype == "f32" else 1e-3)
        self.assertAlmostEqual(again / theirs, 1, delta=SAME)
        self.check_sight(model, name, theirs, tokens, offsets)
        self.check_words(model, folder, back)

    def check_sight(self, model, name, loss, tokens, offsets):
        """Would the comparison see wrong positions, or a window that is not there?"""
        wrong = loss_of(model, tokens, offsets, stretch=2 if not name.startswith("gpt2") else 0)
        self.assertGreater(abs(wrong / loss - 1), OTHER, "wrong positions")
        if getattr(model.config, "sliding_window", None) is not None:
            window, model.config.sliding_window = model.config.sliding_window, None
            self.assertGreater(abs(loss_of(model, tokens, offsets) / loss - 1), OTHER, "no window")
            model.config.sliding_window = window

    def check_words(self, model, folder, back):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        prompt = "And the LORD said unto them, that is"
        ids = tokenizer(prompt)["input_ids"]
        for _ in range(30):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        said = subprocess.run([TRIAX, "generate", back, "--prompt", prompt, "--tokens", "30", "--temperature", "0"],
                              env=ENVIRONMENT, stdout=subprocess.PIPE, check=True).stdout  # need not be UTF-8
        spoken = "".join(tokenizer.convert_ids_to_tokens(i for i in ids if i != tokenizer.eos_token_id))
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        self.assertEqual(said, bytes(byte_of[c] for c in spoken) + b"\n")
