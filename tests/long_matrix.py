#!/usr/bin/env python3
"""Layouts of 2 to 16 ranks, each axis alone, in pairs and together, against one rank."""
import unittest

from layouts import WHOLE, Layouts


class Matrix(Layouts):
    def test_every_layout(self):
        self.check(WHOLE)

    def test_bf16_within_its_rounding(self):
        self.check_bf16([("llama", {"dp": 2, "zero": 3}), ("llama", {"tp": 4, "chunks": 2}), ("qwen3", {"dp": 2, "tp": 4, "zero": 2})])

    def test_the_same_layout_twice_gives_the_same_bits(self):
        layout = {"dp": 2, "tp": 2, "zero": 3, "chunks": 2}
        once, again = (self.train("qwen2", layout, suffix=s) for s in ("_once", "_again"))
        self.assert_same_files(self.checkpoint(once, 20), self.checkpoint(again, 20))


if __name__ == "__main__":
    unittest.main(verbosity=2)
