#!/usr/bin/env python3
"""comm.timeout: a rank that stays away is named by those that wait for it, and the run ends; one that works for long is not."""
import re
import time
import unittest
from pathlib import Path
from unittest import mock

import triax_runs
from triax_runs import MODEL, TRIAX, Runs, run

PLANTS = b"TRIAX_PLANT" in Path(TRIAX).read_bytes()  # a build for tests


@unittest.skipUnless(PLANTS, "this build plants no faults")
class EndToEndTimeout(Runs):
    def train(self, name, plant, **changes):
        config = self.config(name, model={**MODEL, "layers": 1}, evaluate={"every": 0}, comm={"timeout": 3},
                             train={"steps": 4, "global_batch": 6, "micro_batch": 2, "dtype": "f32"}, **changes)
        began = time.monotonic()
        with mock.patch.dict(triax_runs.ENVIRONMENT, {"TRIAX_PLANT": plant}):
            done = run("train", config, ranks=3, check=False)  # returns when all of its processes have ended
        return done, time.monotonic() - began

    def ends(self, name, plant, pattern):
        done, seconds = self.train(name, plant)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"rank ([01]) on [^ ]+: step 3: rank \1 has waited 3 s for \w+ #\d+ of [\w+]+ \(ranks 0, 1, 2\), "
                                      r"(f32|bf16)\[[\d, ]+\], \w+/\w+\.cpp:\d+: ranks 0 and 1 are in it, " + pattern +
                                      "; look at those that are not in it, or raise comm.timeout")
        self.assertEqual(re.findall("rank 2 on", done.stderr), [])
        self.assertLess(seconds, 60)
        return done

    def test_a_rank_that_sleeps_is_named_with_the_last_that_it_did(self):
        self.ends("sleeps", "sleep:2:3", r"rank 2 is only past \w+ #\d+, waiting for nobody")

    def test_a_process_that_stands_still_does_not_answer(self):
        self.ends("stops", "stop:2:3", "rank 2 does not answer")

    def test_a_slow_checkpoint_is_waited_for(self):
        done, seconds = self.train("slow", "slow_save")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(seconds, 6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
