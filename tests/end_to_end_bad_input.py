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

    def test_words_of_the_command_line(self):
        for words, says in ((["trian", "x"], ["no command triax trian", "did you mean train?"]),
                            (["help", "confg"], ["no command triax help confg", "did you mean config?"]),
                            (["data", "tokenizer", "trian"], ["triax data tokenizer trian", "did you mean train?"]),
                            (["train", "x.json", "y.json"], ["triax train", '"y.json"', "one argument too many"]),
                            (["eval", "x", "--dta", "y"], ["no option triax eval --dta", "did you mean --data?"]),
                            (["data"], ["triax data: a command is missing: tokenizer or prepare"]),
                            (["train"], ["triax train", "config", "required"]),
                            (["init", "nosuch"], ['no model size "nosuch"; known are tiny'])):
            self.refused(*words, says=says)

    def test_numbers_of_the_command_line(self):
        evaluate, generate = ["eval", "m", "--data", "d"], ["generate", "m"]
        teach = ["data", "tokenizer", "train", "--input", "x", "--out", "y"]
        for command, option, value in ((evaluate, "--batch", 0), (evaluate, "--sequence", -1), (evaluate, "--sequence", 1.5), (evaluate, "--threads", 1000000),
                                       (generate, "--tokens", -1), (generate, "--top-k", -1), (generate, "--temperature", "nan"),
                                       (generate, "--temperature", -0.1), (generate, "--seed", -1), (generate, "--seed", "1x"),
                                       (["init", "tiny"], "--tokens-per-step", -5), (["init", "tiny"], "--ranks", 0),
                                       (teach, "--held-out", 2), (teach, "--held-out", "nan"), (teach, "--vocab", 10), (teach, "--seed", -1),
                                       (["bench", "training"], "--batch", 0), (["bench", "training"], "--steps", -1)):
            done = self.refused(*command, f"{option}={value}", says=[option, f"{value} is not a ", " number from "])
            self.assertLess(len(done.stderr), 160, done.stderr)

    def test_folders_that_are_not_there_or_are_files(self):
        nowhere, file = self.folder / "nowhere", self.folder / "text.jsonl"
        self.refused("eval", nowhere, "--data", self.folder / "data", says=["there is no folder", "nowhere"])
        self.refused("eval", nowhere, "--data", self.folder / "no_data", says=["--data", "there is no", "no_data"])
        self.refused("generate", nowhere, says=["there is no folder", "nowhere"])
        self.refused("data", "prepare", "--input", file, "--tokenizer", nowhere, "--out", self.folder / "x", says=["--tokenizer", "there is no", "nowhere"])
        self.refused("data", "tokenizer", "train", "--input", file, "--out", file, says=["--out", "text.jsonl is a file", "name a folder"])
        self.refused("data", "tokenizer", "train", "--input", file, "--out", file / "tok", "--vocab", 260, says=["--out", "text.jsonl", "name another folder"])
        self.refused("data", "tokenizer", "train", "--input", file, "--out", self.folder / "tok", says=["--out", "tokenizer.json exists already"])
        self.refused("train", self.config("file_run", run={"folder": str(file)}), says=["run.folder", "text.jsonl"])
        self.refused("train", self.config("below_file", run={"folder": str(file / "run")}), says=["run.folder", "text.jsonl"])
        self.refused("train", self.config("file_data", data={"folder": str(file)}), says=["no data folder", "text.jsonl"])

    def test_a_failed_prepare_leaves_nothing(self):
        (self.folder / "blank.jsonl").write_text("")
        self.refused("data", "prepare", "--input", self.folder / "blank.jsonl", "--tokenizer", self.folder / "tok", "--out", self.folder / "nodir/sub/px",
                     says=["document"])
        self.assertFalse((self.folder / "nodir").exists())
        self.refused("data", "prepare", "--input", self.folder / "text.jsonl", "--tokenizer", self.folder / "tok", "--out", self.folder / "text.jsonl/px",
                     says=["text.jsonl/px", "name another"])

    def test_dataset_json(self):
        folder = self.folder / "index"
        shutil.copytree(self.folder / "data", folder)
        index = json.loads((folder / "dataset.json").read_text())

        def changed(change):
            copy = json.loads(json.dumps(index))
            change(copy)
            return json.dumps(copy)
        for text, says in (("{}", "is damaged: it has no splits;"), ("[1]", "it has no splits;"), ("{", "is damaged: parse error"),
                           (changed(lambda i: i.update(splits=3)), "splits is of type number, but must be of type object"),
                           (changed(lambda i: i["splits"].pop("train")), 'has no split "train"'),
                           (changed(lambda i: i["splits"]["train"].update(shards={})), "splits.train.shards is of type object, but must be of type array"),
                           (changed(lambda i: i["splits"]["train"]["shards"][0].pop("file")), "it has no splits.train.shards[0].file"),
                           (changed(lambda i: i["splits"]["train"]["shards"][0].update(tokens="9")), "splits.train.shards[0].tokens is of type string")):
            (folder / "dataset.json").write_text(text)
            done = self.refused("train", self.config("index_run", data={"folder": str(folder)}), says=["dataset.json", says, "prepare the data again"])
            self.assertNotIn("json.exception", done.stderr)

    def test_tokenizers_that_do_not_belong(self):
        run("train", self.config("padded", model={"vocabulary": 512}, train={"steps": 1}))
        model = self.checkpoint("padded", 1)
        # Ids from 400 on have no token: at this temperature a fifth of all draws would be of them.
        said = run("generate", model, "--prompt", "the", "--tokens", 60, "--temperature", 1000, "--top-k", 0, "--seed", 3, errors="replace")
        self.assertTrue(said.stdout.startswith("the"))
        run("data", "tokenizer", "train", "--input", self.folder / "text.jsonl", "--vocab", 300, "--out", self.folder / "tok300")
        run("data", "prepare", "--input", self.folder / "text.jsonl", "--tokenizer", self.folder / "tok300", "--held-out", 0.1, "--out", self.folder / "data300")
        self.refused("eval", model, "--data", self.folder / "data300", says=["another tokenizer", "data300"])
        swapped = self.folder / "swapped"
        shutil.copytree(self.folder / "data", swapped)
        shutil.copy(self.folder / "tok300" / "tokenizer.json", swapped)
        self.refused("eval", model, "--data", swapped, says=["--data", "swapped", "not the one that its shards were made with"])
        run("eval", model, "--data", self.folder / "data", "--batch", 3, "--sequence", 32)
        self.refused("eval", model, "--data", self.folder / "data", "--batch", 1 << 20, "--sequence", 64, says=["1048576", "memory"])

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
        self.refused("train", self.config("other_shape", model={"mlp": 192}, checkpoint={"initial": str(self.checkpoint("source", 1))}), says=["describes another model"])
        for key, value, field, says in (("intermediate_size", 192, "mlp", "shape"), ("num_hidden_layers", 3, "layers", "model.layers.2.")):
            other = self.folder / key  # config.json and the tensors beside it disagree
            shutil.copytree(self.checkpoint("source", 1), other)
            (other / "manifest.json").unlink()
            described = json.loads((other / "config.json").read_text())
            (other / "config.json").write_text(json.dumps({**described, key: value}))
            self.refused("train", self.config(f"other_{field}", model={field: value}, checkpoint={"initial": str(other)}), says=[says])

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
