#!/usr/bin/env python3
"""Layouts of 2 to 16 ranks, each axis alone, in pairs and together, against one rank; and repro to the bit."""
import unittest

from layouts import WHOLE, Layouts

REPRO = [{}, {"micro_batch": 2}] + [{"dp": dp, "zero": zero} for dp in (2, 4, 8) for zero in (0, 1, 2, 3)] \
    + [{"dp": 8, "zero": 3, "group": 2}, {"dp": 4, "zero": 2, "group": 2, "micro_batch": 2}]


class Matrix(Layouts):
    def test_every_layout(self):
        self.check(WHOLE)

    def test_bf16_within_its_rounding(self):
        self.check_bf16([("llama", {"dp": 2, "zero": 3}), ("llama", {"tp": 4, "chunks": 2}), ("qwen3", {"dp": 2, "tp": 4, "zero": 2})])

    def test_repro_f32(self):
        self.check_repro(REPRO, "f32")

    def test_repro_bf16(self):
        self.check_repro(REPRO[::3], "bf16", optimizer={"stochastic_rounding": True})

    def test_the_same_layout_twice_gives_the_same_bits(self):
        layout = {"dp": 2, "tp": 2, "zero": 3, "chunks": 2}
        once, again = (self.train("qwen2", layout, suffix=s) for s in ("_once", "_again"))
        self.assert_same_files(self.checkpoint(once, 20), self.checkpoint(again, 20))


if __name__ == "__main__":
    unittest.main(verbosity=2)
