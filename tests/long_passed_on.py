#!/usr/bin/env python3
"""Checkpoints of eight layouts, gone on from by each of them: 64 pairs."""
import unittest

from layouts import Layouts

PASSED_ON = [{}, {"dp": 4, "zero": 3}, {"pp": 2}, {"pp": 4, "dp": 2, "zero": 1}, {"tp": 2}, {"tp": 2, "dp": 2, "zero": 2}, {"tp": 2, "pp": 2},
             {"tp": 2, "pp": 2, "dp": 2, "zero": 3, "schedule": "interleaved", "parts": 2}]


class PassedOn(Layouts):
    def test_a_checkpoint_goes_from_any_layout_to_any(self):
        """Of the same mesh.tp the training goes on to the bit, else to rounding."""
        second = {}
        for a in PASSED_ON:
            first = self.checkpoint(self.train("deep_tied", a, steps=2, repro=True, checkpoint={"every": 1, "keep": 0}), 1)
            for b in PASSED_ON:
                with self.subTest(of=a, to=b):
                    name = self.train("deep_tied", b, steps=2, repro=True, suffix=f"_from_{PASSED_ON.index(a)}",
                                      checkpoint={"every": 0, "resume": str(first)})
                    loss = self.log(name)[0]["loss"]
                    key = (a.get("tp", 1), b.get("tp", 1))
                    self.assertEqual(loss, second.setdefault(key, loss))
        losses = list(second.values())
        self.assertEqual(len(losses), 4)
        for loss in losses:
            self.assertAlmostEqual(loss / losses[0], 1, delta=1e-5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
