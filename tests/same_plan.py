#!/usr/bin/env python3
"""The plan of a GPU run is the same from the CPU binary and from the CUDA binary, on a machine without a GPU."""
import os
import subprocess
import sys
import unittest

SKIPPED = 77
CPU = os.path.abspath(sys.argv.pop(1))
CUDA = os.path.abspath("build/cuda/triax")
RUNS = [("gpt2", []), ("llama3-8b", ["--set", "mesh.dp=8", "--set", "data.sequence=4096"]),
        ("llama3-8b", ["--set", "mesh.dp=8", "--set", "data.document_mask=false"])]  # attention: by cuDNN on a GPU


def plan(binary, model, target, more):
    sets = ["--set", f"model={model}", "--set", "data.folder=unused", "--set", "train.global_batch=8", "--set", "train.dtype=bf16"]
    config = os.path.join(os.path.dirname(__file__), "empty.json")
    return subprocess.run([binary, "plan", config, "--target", target, "--operations", *sets, *more], check=True, stdout=subprocess.PIPE, text=True).stdout


class SamePlan(unittest.TestCase):
    def test_both_binaries_print_the_same_plan(self):
        for model, more in RUNS:
            for target in ("cpu", "sm_80", "sm_90a", "sm_100a"):
                with self.subTest(model=model, target=target):
                    self.assertEqual(plan(CPU, model, target, more), plan(CUDA, model, target, more))


if __name__ == "__main__":
    if not os.path.exists(CUDA):
        print("build/cuda/triax is not built: make cuda")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
