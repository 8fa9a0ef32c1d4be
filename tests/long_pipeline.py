#!/usr/bin/env python3
"""Pipelines: each schedule, with every other axis, against one rank; all pairs of eight layouts pass on checkpoints."""
import unittest

from layouts import Layouts, PIPELINES

PASSED_ON = [{}, {"dp": 4, "zero": 3}, {"pp": 2}, {"pp": 4, "dp": 2, "zero": 1}, {"tp": 2}, {"tp": 2, "dp": 2, "zero": 2}, {"tp": 2, "pp": 2},
             {"tp": 2, "pp": 2, "dp": 2, "zero": 3, "schedule": "interleaved", "parts": 2}]


class Pipelines(Layouts):
    def test_every_pipeline(self):
        self.check(PIPELINES)

    def test_30_layers_on_4_stages_train_30(self):
        """Where nothing but the stages differs, the bits do not either."""
        one, many = (self.train("deep30", {**layout, "accumulate": 2}) for layout in ({}, {"pp": 4}))
        self.assertEqual([(e["loss"], e["gradient_norm"]) for e in self.log(one)],
                         [(e["loss"], e["gradient_norm"]) for e in self.log(many)])
        self.assert_same_files(self.checkpoint(one, 20), self.checkpoint(many, 20))

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
