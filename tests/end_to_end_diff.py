#!/usr/bin/env python3
"""triax diff: layouts that agree, to the bit or nearly; and the first tensor of those that do not, faults planted among them."""
import json
import shutil
import unittest
from pathlib import Path
from unittest import mock

import triax_runs
from layouts import MODELS
from triax_runs import TRIAX, Runs, run

BINARY = Path(TRIAX).read_bytes()
PLANTS = b"TRIAX_PLANT" in BINARY  # a build for tests


class EndToEndDiff(Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.a = cls().config("one", model={**MODELS["llama"], "context": 16}, data={"sequence": 16},
                             train={"steps": 20, "global_batch": 8, "micro_batch": 2}, evaluate={"every": 0})
        cls.temporary = cls.folder / "tmp"
        cls.temporary.mkdir()

    def diff(self, *arguments, says, code, **environment):
        with mock.patch.dict(triax_runs.ENVIRONMENT, {"TMPDIR": str(self.temporary), **environment}):
            done = run("diff", self.a, self.a, *arguments, check=False)
        for words in says:
            self.assertIn(words, done.stdout + done.stderr)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(list(self.temporary.glob("triax-diff-*")), [])
        self.assertFalse((self.folder / "one").exists())

    def test_repro_is_the_same_to_the_bit(self):
        self.diff("--set", "train.repro=true", "--set-b", "mesh.dp=2", "--set-b", "zero.stage=2", "--steps", 2, code=0,
                  says=["mesh.dp: 1 in A, 2 in B", "the same to the bit over", "tensors of 2 steps"])

    def test_tensor_parallel_is_the_same_but_for_roundings(self):
        # With so large an eps a step is proportional to the gradient: else Adam makes a whole step of a rounding near zero.
        tensor = ("--set-b", "mesh.tp=2", "--set-b", "comm.tensor_chunks=2", "--set", "train.micro_batch=8", "--steps", 1,
                  "--set", "optimizer.eps=1")
        self.diff(*tensor, code=1, says=["first difference: step 1, forward, layer 0: stream into the MLP [128, 48]", "units in the last place (f32)"])
        self.diff(*tensor, "--within", 1e-5, code=0, says=["the same within 1e-05 of their norms over", "furthest: step 1"])

    def test_another_learning_rate_is_seen_in_the_weights_whatever_becomes_of_them(self):
        self.diff("--set-b", "optimizer.lr=1e30", "--steps", 2, code=1,
                  says=["first difference: step 1, weights: lm_head.weight [401, 48]", "optimizer.lr: 0.003 in A, 1e+30 in B", "of 2 steps differ"])

    def test_what_cannot_be_compared_is_refused(self):
        for setting, key in (("model.width=64", "model.width is 48 in A"), ("data.seed=2", "data.seed is 1 in A"),
                             ("train.global_batch=16", "train.global_batch is 8 in A")):
            self.diff("--set-b", setting, code=2, says=[key, "nothing to compare"])
        other = self.folder / "other"
        shutil.copytree(self.folder / "data", other)
        description = json.loads((other / "dataset.json").read_text())
        for shard in description["splits"]["train"]["shards"]:
            shard["content_hash"] = shard["content_hash"][::-1]
        (other / "dataset.json").write_text(json.dumps(description))
        self.diff("--set-b", f"data.folder={other}", code=2, says=["data.folder holds other tokens"])

    def test_bad_command_lines_and_machines(self):
        self.diff("--within", "-1", code=2, says=["--within"])
        self.diff("--set-b", "train.dtype=f64", code=2, says=["train.dtype"])
        self.diff("--set", "model.vocabulary=300", code=2, says=["the run of A", "ended with exit code 1", "has 300"])
        self.diff(code=2, says=["without mpirun"], OMPI_COMM_WORLD_SIZE="2")
        self.diff(code=2, says=["cannot make a folder in /proc"], TMPDIR="/proc")
        self.diff("--set-a", "mesh.dp=2", code=2, says=["mpirun cannot be started"], PATH="/nowhere")
        (self.folder / "used").mkdir()
        (self.folder / "used" / "file").touch()
        done = run("train", self.a, "--capture", self.folder / "used", check=False)
        self.assertIn("is not empty", done.stderr)
        self.assertEqual(done.returncode, 1)

    def test_a_build_for_tests_plants_faults(self):
        self.assertEqual(b"__asan_init" in BINARY and not PLANTS, False)

    @unittest.skipUnless(PLANTS, "this build plants no faults")
    def test_a_skipped_reduction_is_found(self):
        self.diff("--set-b", "mesh.dp=2", "--set", "train.micro_batch=4", "--within", 1e-5, "--steps", 1, code=1,
                  TRIAX_PLANT="skip_reduction:layer 1",
                  says=["first difference: step 1, gradients, layer 1: model.layers.1.mlp.down_proj.weight [48, 96]"])

    @unittest.skipUnless(PLANTS, "this build plants no faults")
    def test_a_deviation_from_the_plan_stops_all_ranks(self):
        with mock.patch.dict(triax_runs.ENVIRONMENT, {"TRIAX_PLANT": "deviate:1:3"}):
            done = run("train", self.a, "--capture", self.folder / "deviating", "--capture-steps", 10, ranks=2, check=False)
        self.assertNotEqual(done.returncode, 0)
        for words in ("rank 1 on ", "step 3: this rank leaves its plan: step train, instruction ", "planned #", "issued fill"):
            self.assertIn(words, done.stderr)
        self.assertIn(len(self.log("deviating")), (1, 2))  # rank 0 may be ended before it has logged step 2
        self.assertEqual(list((self.folder / "deviating").glob("rank_*.bin")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
