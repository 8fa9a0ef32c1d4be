#!/usr/bin/env python3
"""train.repro: the same bits over dp, pp, ZeRO stage, group and micro-batch."""
import unittest

from layouts import Layouts

REPRO = [{}, {"micro_batch": 2}] + [{"dp": dp, "zero": zero} for dp in (2, 4, 8) for zero in (0, 1, 2, 3)] \
    + [{"dp": 8, "zero": 3, "group": 2}, {"dp": 4, "zero": 2, "group": 2, "micro_batch": 2}]

STAGES = [{}] + [{"pp": pp, "dp": dp, "zero": 2 * (dp - 1), "schedule": schedule} for pp in (2, 4) for dp in (1, 2)
                 for schedule in ("gpipe", "1f1b")] + [{"pp": 2, "schedule": "interleaved", "parts": 2}]


class Repro(Layouts):
    def test_f32(self):
        self.check_repro(REPRO, "f32")

    def test_bf16_rounded_by_chance(self):
        self.check_repro(REPRO[::3], "bf16", optimizer={"stochastic_rounding": True})

    def test_stages_of_a_pipeline(self):
        self.check_repro(STAGES, "f32", "deep")
        self.check_repro(STAGES, "f32", "deep_tied")

    def test_stages_in_bf16_rounded_by_chance(self):
        self.check_repro(STAGES[::2], "bf16", "deep_tied", optimizer={"stochastic_rounding": True})


if __name__ == "__main__":
    unittest.main(verbosity=2)
