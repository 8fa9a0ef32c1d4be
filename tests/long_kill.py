#!/usr/bin/env python3
"""A run that SIGKILL ends again and again, and is started again each time, ends as the run that was left alone."""
import os
import random
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from triax_runs import ENVIRONMENT, TRIAX, Runs, run

KILLS = 12
FIELDS = ("step", "samples", "loss", "gradient_norm", "learning_rate")


def children(parent):
    """Process numbers of what `parent` started and what runs triax."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                if os.path.samefile(entry / "exe", TRIAX):
                    found.append(int(entry.name))
        except OSError:  # it ended meanwhile
            pass
    return sorted(found)


class Kill(Runs):
    def ends(self, name, ranks, delay, rng):
        """Starts the run and kills one of its ranks after `delay` seconds; whether it was through before."""
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        process = subprocess.Popen([*launcher, TRIAX, "train", str(self.folder / f"{name}.json")], env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            victims = [process.pid] if ranks == 1 else children(process.pid)
            while not victims and process.poll() is None:  # mpirun has not come to start them
                time.sleep(0.01)
                victims = children(process.pid)
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
            output, _ = process.communicate(timeout=120)
            return process.returncode == 0
        self.assertEqual(process.returncode, 0, output)
        return True

    def names(self, name):
        return sorted(str(path.relative_to(self.folder / name)) for path in (self.folder / name).rglob("*"))

    def check(self, ranks, **changes):
        whole, killed = f"whole_{ranks}", f"killed_{ranks}"
        settings = dict(train={"steps": 100, **changes}, checkpoint={"every": 2, "keep": 2},
                        evaluate={"every": 10, "samples": 8})
        began = time.monotonic()
        run("train", self.config(whole, **settings), ranks=ranks)
        seconds = time.monotonic() - began
        began = time.monotonic()
        self.assertIn("nothing to do", run("train", self.folder / f"{whole}.json", ranks=ranks).stdout)
        start_up = time.monotonic() - began
        latest = start_up + max(0, seconds - start_up) / 8
        self.config(killed, **settings)
        rng, kills, reached, ended = random.Random(ranks), 0, [], False
        while kills < KILLS or not ended:  # where it ends sooner it is begun anew
            if ended:
                shutil.rmtree(self.folder / killed)
            delay = rng.uniform(start_up / 3, latest) if kills < KILLS else 200
            ended = self.ends(killed, ranks, delay, rng)
            kills += not ended
            if kills == KILLS // 2 and not ended:  # as if killed within a write of run.json, which chance seldom hits
                (self.folder / killed).mkdir(exist_ok=True)
                (self.folder / killed / "run.json.tmp-1").write_text("{")
            steps = sorted((self.folder / killed / "checkpoints").glob("step_*"))
            reached.append(steps[-1].name if steps else "nothing")
            if ended:
                self.assert_same_files(self.checkpoint(whole, 100), self.checkpoint(killed, 100))
                self.assertEqual(self.names(whole), self.names(killed))
                for event, fields in (("step", FIELDS), ("eval", ("step", "loss"))):
                    self.assertEqual(*([[e[f] for f in fields] for e in self.log(name, event)]
                                       for name in (whole, killed)))
        print(f"{ranks} ranks, {seconds:.1f} s alone, {start_up:.1f} s of them to start; killed {kills} times; "
              f"each time it had come to: {', '.join(reached)}", flush=True)

    def test_one_rank(self):
        self.check(1)

    def test_one_of_two_ranks_in_bf16(self):
        self.check(2, dtype="bf16")


if __name__ == "__main__":
    unittest.main(verbosity=2)
