#!/usr/bin/env python3
"""What a run goes on from: only its own whole checkpoints and its own data; and what it never does to them."""
import json
import shutil
import unittest

from triax_runs import Runs, run


class Resume(Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("train", cls.config(cls, "base", train={"steps": 4}, checkpoint={"every": 2, "keep": 0}))

    def copy_of_base(self, name):
        shutil.copytree(self.folder / "base", self.folder / name)
        return self.folder / name

    def refused(self, path, *says):
        done = run("train", path, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for words in says:
            self.assertIn(words, done.stderr)

    def test_other_data_is_refused_by_name(self):
        self.copy_of_base("other")
        for change in ({"data": {"seed": 9}}, {"data": {"sequence": 16}}, {"data": {"shuffle": False}}):
            key = "data." + next(iter(change["data"]))
            self.refused(self.config("other", train={"steps": 6}, **change), "samples of other data", key)

    def test_a_damaged_checkpoint_is_refused(self):
        folder = self.copy_of_base("damaged")
        file = folder / "checkpoints" / "step_00000004" / "optimizer.safetensors"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        self.refused(self.config("damaged", train={"steps": 6}), "optimizer.safetensors", "remove that checkpoint")

    def test_an_older_checkpoint_is_not_mixed_with_what_came_after(self):
        folder = self.copy_of_base("older")
        older = str(folder / "checkpoints" / "step_00000002")
        self.refused(self.config("older", train={"steps": 6}, checkpoint={"resume": older}), "up to step 4", "run.folder")
        self.refused(self.config("older", train={"steps": 6}, checkpoint={"resume": "never"}), "up to step 4")
        branch = self.config("branch", train={"steps": 6}, checkpoint={"resume": older, "keep": 1, "every": 2})
        run("train", branch)
        self.assertEqual([p.name for p in (self.folder / "branch" / "checkpoints").iterdir()], ["step_00000006"])

    def test_a_finished_run_is_left_as_it_is(self):
        folder = self.copy_of_base("finished")
        before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != ".lock"}
        done = run("train", self.config("finished", train={"steps": 4}, checkpoint={"every": 2, "keep": 0}))
        self.assertIn("nothing to do", done.stdout)
        self.assertEqual(before, {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != ".lock"})

    def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_checkpoints(self):
        folder = self.copy_of_base("broken")
        path = self.config("broken", train={"steps": 30}, optimizer={"lr": 1e30, "min_lr": 1e30, "clip": 0},
                           checkpoint={"every": 1, "keep": 2})
        self.refused(path, "the loss of step", "optimizer.lr")
        left = sorted(p.name for p in (folder / "checkpoints").iterdir())
        self.assertTrue(left)
        last = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()][-1]
        self.assertIsNone(last["loss"])

    def test_a_line_of_the_log_that_is_no_event_is_dropped(self):
        folder = self.copy_of_base("lines")
        with open(folder / "log.jsonl", "a") as log:
            log.write('[1]\n{"event":"step"}\n{"event":"st')
        run("train", self.config("lines", train={"steps": 5}, checkpoint={"every": 2, "keep": 0}))
        self.assertEqual([e["step"] for e in self.log("lines")], [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
