#!/usr/bin/env python3
"""Training as a person runs it: layouts give the same training, the same command the same bits, a killed run goes on exactly."""
import json
import shutil
import unittest

from tensors import assert_same_first_gradients
from triax_runs import Runs, run


class Train(Runs):
    def test_ranks_share_a_batch_and_train_the_same(self):
        """1, 2 and 4 ranks on the same global batch: losses within 1e-5 over 20 steps, first gradient to rounding."""
        for ranks in (1, 2, 4):
            run("train", self.config(f"dp{ranks}"), ranks=ranks)
            run("train", self.config(f"first{ranks}", train={"steps": 1}, evaluate={"samples": 0}), ranks=ranks)
        one = self.log("dp1")
        self.assertEqual(len(one), 20)
        self.assertLess(one[-1]["loss"], one[0]["loss"])
        for ranks in (2, 4):
            assert_same_first_gradients(self, self.checkpoint("first1", 1), self.checkpoint(f"first{ranks}", 1))
            many = self.log(f"dp{ranks}")
            self.assertEqual([e["counted_tokens"] for e in one], [e["counted_tokens"] for e in many])
            self.assertAlmostEqual(many[0]["gradient_norm"] / one[0]["gradient_norm"], 1, delta=2e-6)
            for a, b in zip(one, many):
                self.assertAlmostEqual(b["loss"] / a["loss"], 1, delta=1e-5)
            for a, b in zip(self.log("dp1", "eval"), self.log(f"dp{ranks}", "eval")):
                self.assertAlmostEqual(b["bits_per_byte"] / a["bits_per_byte"], 1, delta=1e-5)

    def test_the_same_command_twice_gives_the_same_bits(self):
        for name in ("twice_a", "twice_b"):
            run("train", self.config(name, train={"steps": 6, "dtype": "bf16"}, optimizer={"stochastic_rounding": True}, threads=2), ranks=2)
        self.assert_same_files(self.checkpoint("twice_a", 6), self.checkpoint("twice_b", 6))

    def test_a_run_that_was_stopped_goes_on_to_the_same_bits(self):
        for dtype in ("f32", "bf16"):
            name = f"whole_{dtype}"
            run("train", self.config(name, train={"steps": 8, "dtype": dtype}, checkpoint={"every": 3, "keep": 0}), ranks=2)
            # As if killed in step 5: the checkpoint of step 3 is the last whole one, the log runs ahead, a save was half done.
            stopped = self.folder / f"stopped_{dtype}"
            shutil.copytree(self.folder / name, stopped)
            for step in (6, 8):
                shutil.rmtree(stopped / "checkpoints" / f"step_{step:08d}")
            half = stopped / "checkpoints" / "step_00000006.tmp-1"
            half.mkdir()
            (half / "model.safetensors").write_bytes(b"half")
            log = (stopped / "log.jsonl").read_text()
            (stopped / "log.jsonl").write_text(log + '{"event":"step","st')
            done = run("train", self.config(f"stopped_{dtype}", train={"steps": 8, "dtype": dtype}, checkpoint={"every": 3, "keep": 0}), ranks=2)
            self.assertIn("at step 3", done.stdout)
            self.assert_same_files(self.checkpoint(name, 8), self.checkpoint(f"stopped_{dtype}", 8))
            self.assertFalse(half.exists())
            fields = ("step", "samples", "loss", "gradient_norm", "learning_rate")
            self.assertEqual([[e[f] for f in fields] for e in self.log(name)], [[e[f] for f in fields] for e in self.log(f"stopped_{dtype}")])

    def test_resume_at_an_epoch_boundary_and_with_other_ranks(self):
        """The order of samples is a function of their number: a resumed run with another number of ranks sees the same batches."""
        run("train", self.config("epochs", train={"steps": 12}, checkpoint={"every": 6, "keep": 0}))
        again = self.folder / "epochs_again"
        shutil.copytree(self.folder / "epochs", again)
        shutil.rmtree(again / "checkpoints" / "step_00000012")
        run("train", self.config("epochs_again", train={"steps": 12}, checkpoint={"every": 6, "keep": 0}), ranks=4)
        for a, b in zip(self.log("epochs"), self.log("epochs_again")):
            self.assertAlmostEqual(b["loss"] / a["loss"], 1, delta=1e-5)

    def test_a_checkpoint_is_a_model_to_start_from_to_evaluate_and_to_generate(self):
        run("train", self.config("base", train={"steps": 10}))
        checkpoint = self.checkpoint("base", 10)
        self.assertEqual({p.name for p in checkpoint.iterdir()},
                         {"config.json", "model.safetensors", "optimizer.safetensors", "run_state.json", "tokenizer.json",
                          "tokenizer_config.json", "manifest.json"})
        start = self.config("tuned", checkpoint={"initial": str(checkpoint)}, train={"steps": 4}, evaluate={"samples": 0})
        config = json.loads(start.read_text())
        config["model"] = f"hf:{checkpoint}"
        start.write_text(json.dumps(config))
        run("train", start)
        self.assertLess(self.log("tuned")[0]["loss"], self.log("base")[0]["loss"] - 0.3)
        report = json.loads(run("eval", self.folder / "tuned", "--data", self.folder / "data", "--sequence", 32, "--json").stdout)
        self.assertAlmostEqual(report["bits_per_byte"], self.log("tuned", "eval")[-1]["bits_per_byte"], delta=1e-5)
        texts = {run("generate", self.folder / "base", "--prompt", "And the", "--tokens", 20, "--seed", 3).stdout for _ in range(2)}
        self.assertEqual(len(texts), 1)
        self.assertTrue(texts.pop().startswith("And the"))

    def test_gpt2_trains(self):
        model = {"family": "gpt2", "width": 64, "layers": 2, "heads": 4, "kv_heads": 4, "mlp": 128, "vocabulary": 400, "context": 64}
        path = self.config("gpt2", train={"steps": 10})
        config = json.loads(path.read_text())
        config["model"] = model
        path.write_text(json.dumps(config))
        run("train", path, ranks=2)
        losses = [e["loss"] for e in self.log("gpt2")]
        self.assertLess(losses[-1], losses[0] - 0.3)

    def test_one_batch_is_learned_by_heart(self):
        """An epoch of one batch: the loss goes to nearly nothing."""
        with open(self.folder / "one.jsonl", "w") as out:
            out.write(json.dumps({"text": "In the beginning God created the heaven and the earth, and darkness was upon the face."}) + "\n")
            out.write(json.dumps({"text": "Thou shalt not covet thy neighbour's house, nor his ox, nor his ass, nor any thing of his."}) + "\n")
        run("data", "prepare", "--input", self.folder / "one.jsonl", "--tokenizer", self.folder / "tok", "--held-out", 0, "--out", self.folder / "one")
        path = self.config("heart", train={"steps": 200, "global_batch": 4, "micro_batch": 4}, data={"folder": str(self.folder / "one"), "sequence": 16},
                           optimizer={"lr": 5e-3, "weight_decay": 0})
        run("train", path)
        self.assertLess(self.log("heart")[-1]["loss"], 0.05)

    def test_the_plan_of_a_gpu_run_needs_no_gpu(self):
        path = self.config("planned")
        for target in ("cpu", "sm_90a"):
            out = run("plan", path, "--target", target, "--operations").stdout
            self.assertIn(f"arena on {target}", out)
            self.assertIn("streams ok, arena ok", out)
            self.assertIn("optimizer", out)
        self.assertFalse((self.folder / "planned").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
