#!/usr/bin/env python3
"""Bad input gets a sentence that names the thing and the remedy, a non-zero exit, and loses nothing."""
import json
import shutil
import unittest

from triax_runs import Runs, run


class BadInput(Runs):
    def refused(self, *arguments, says, ranks=1, **options):
        done = run(*arguments, ranks=ranks, check=False, **options)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for words in says:
            self.assertIn(words, done.stderr)
        self.assertNotIn("terminate called", done.stderr)
        return done

    def test_missing_and_unreadable_files(self):
        self.refused("train", self.folder / "none.json", says=["none.json"])
        self.refused("train", self.config("no_data", data={"folder": str(self.folder / "nowhere")}), says=["nowhere"])
        self.refused("data", "prepare", "--input", self.folder / "none.txt", "--tokenizer", self.folder / "tok", "--out", self.folder / "x", says=["none.txt"])
        self.refused("eval", self.folder / "nowhere", "--data", self.folder / "data", says=["nowhere"])
        (self.folder / "broken.json").write_text('{"model": "tiny", }')
        self.refused("train", self.folder / "broken.json", says=["broken.json"])

    def test_empty_files_and_short_texts(self):
        (self.folder / "empty.jsonl").write_text("")
        self.refused("data", "prepare", "--input", self.folder / "empty.jsonl", "--tokenizer", self.folder / "tok", "--out", self.folder / "empty",
                     says=["document"])
        self.assertFalse((self.folder / "empty").exists())
        (self.folder / "short.jsonl").write_text('{"text":"too short"}\n')
        run("data", "prepare", "--input", self.folder / "short.jsonl", "--tokenizer", self.folder / "tok", "--held-out", 0, "--out", self.folder / "short")
        self.refused("train", self.config("short_run", data={"folder": str(self.folder / "short")}), says=["short", "33"])
        self.assertFalse((self.folder / "short_run").exists())

    def test_vocabulary_mismatch_and_truncated_shard(self):
        self.refused("train", self.config("small_vocabulary", model={"vocabulary": 300}), says=["vocabulary", "has 300"])
        cut = self.folder / "cut"
        shutil.copytree(self.folder / "data", cut)
        shard = next(cut.glob("train_*.shard"))
        shard.write_bytes(shard.read_bytes()[:-1000])
        self.refused("train", self.config("cut_run", data={"folder": str(cut)}), says=[shard.name])
        self.assertFalse((self.folder / "cut_run").exists())

    def test_settings(self):
        path = self.config("settings")
        self.refused("train", path, "--set", "optimizer.lrr=1", says=["optimizer.lrr", "optimizer.lr"])
        self.refused("train", path, "--set", "train.steps=many", says=["train.steps", "many"])
        self.refused("train", self.config("heads", model={"heads": 5}), says=["heads"])
        self.refused("train", self.config("kv", model={"kv_heads": 3}), says=["4", "3"])
        self.refused("train", self.config("batch", train={"global_batch": 7}), says=["global_batch", "7"])
        self.refused("train", path, "--set", "mesh.tp=2", says=["mesh.tp"])
        self.refused("train", path, "--target", "sm_90a", says=["sm_90a"])
        self.refused("train", path, "--set", "mesh.dp=3", ranks=2, says=["3", "2"])

    def test_not_enough_memory(self):
        path = self.config("huge", model={"width": 65536, "layers": 200, "heads": 512, "kv_heads": 512, "mlp": 262144})
        self.refused("train", path, says=["not enough", "MiB", "triax plan"])
        self.assertFalse((self.folder / "huge").exists())

    def test_a_lone_rank_of_an_announced_many(self):
        import triax_runs
        kept = triax_runs.ENVIRONMENT
        triax_runs.ENVIRONMENT = dict(kept, SLURM_NTASKS="4", SLURM_PROCID="2", SLURM_JOB_ID="1")
        try:
            self.refused("train", self.config("lone"), says=["4 tasks", "--mpi=pmix"])
        finally:
            triax_runs.ENVIRONMENT = kept

    def test_another_model_is_not_resumed(self):
        run("train", self.config("model_a", train={"steps": 2}))
        path = self.config("model_b", model={"layers": 3}, run={"folder": str(self.folder / "model_a")})
        before = (self.folder / "model_a" / "log.jsonl").read_text()
        self.refused("train", path, says=["another model"])
        self.assertEqual(before, (self.folder / "model_a" / "log.jsonl").read_text())

    def test_files_of_another_model_and_a_missing_tensor(self):
        run("train", self.config("source", train={"steps": 1}))
        self.refused("train", self.config("other_shape", model={"mlp": 192}, checkpoint={"initial": str(self.checkpoint("source", 1))}), says=["shape"])
        self.refused("train", self.config("other_layers", model={"layers": 3}, checkpoint={"initial": str(self.checkpoint("source", 1))}),
                     says=["model.layers.2."])

    def test_two_runs_do_not_write_one_folder(self):
        import fcntl
        path = self.config("locked", train={"steps": 1})
        (self.folder / "locked").mkdir()
        with open(self.folder / "locked" / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refused("train", path, says=["another process trains in", "locked"])
        run("train", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
