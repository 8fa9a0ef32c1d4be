#!/usr/bin/env python3
"""Sequences shared by ranks: both exchanges, with every other axis, against one rank."""
import unittest

from layouts import CONTEXTS, Layouts


class Contexts(Layouts):
    def test_every_context(self):
        self.check(CONTEXTS)

    def test_bf16_within_its_rounding(self):
        self.check_bf16([("llama", {"cp": 4}), ("llama", {"cp": 2, "exchange": "all_to_all"})])

    def test_the_same_layout_twice_gives_the_same_bits(self):
        layout = {"cp": 4, "tp": 2, "accumulate": 2}
        once, again = (self.train("qwen3", layout, suffix=s) for s in ("_once", "_again"))
        self.assert_same_files(self.checkpoint(once, 20), self.checkpoint(again, 20))

    def test_without_document_boundaries(self):
        one, *others = (self.log(self.train("llama", layout, steps=3, suffix="_no_documents", data={"document_mask": False}))
                        for layout in ({}, {"cp": 4}, {"cp": 2, "exchange": "all_to_all"}))
        for other in others:
            for a, b in zip(one, other, strict=True):
                self.assertAlmostEqual(b["loss"] / a["loss"], 1, delta=1e-6)
        with_documents = self.log(self.train("llama", {}, steps=3))
        self.assertNotEqual(one[0]["loss"], with_documents[0]["loss"])

    def test_a_checkpoint_goes_from_and_to_other_layouts(self):
        first = self.checkpoint(self.train("deep_tied", {"cp": 2, "pp": 2}, steps=2, checkpoint={"every": 1, "keep": 0}), 1)
        losses = [self.log(self.train("deep_tied", layout, steps=2, suffix="_gone_on", checkpoint={"every": 0, "resume": str(first)}))[0]["loss"]
                  for layout in ({}, {"cp": 4}, {"tp": 2, "dp": 2, "zero": 3}, {"cp": 2, "dp": 2, "zero": 1, "exchange": "all_to_all"})]
        for loss in losses:
            self.assertAlmostEqual(loss / losses[0], 1, delta=1e-6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
