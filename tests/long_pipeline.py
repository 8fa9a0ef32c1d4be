#!/usr/bin/env python3
"""Pipelines: each schedule, with every other axis, against one rank."""
import unittest

from layouts import Layouts, PIPELINES


class Pipelines(Layouts):
    def test_every_pipeline(self):
        self.check(PIPELINES)

    def test_30_layers_on_4_stages_train_30(self):
        """Where nothing but the stages differs, the bits do not either."""
        one, many = (self.train("deep30", {**layout, "accumulate": 2}) for layout in ({}, {"pp": 4}))
        self.assertEqual([(e["loss"], e["gradient_norm"]) for e in self.log(one)],
                         [(e["loss"], e["gradient_norm"]) for e in self.log(many)])
        self.assert_same_files(self.checkpoint(one, 20), self.checkpoint(many, 20))


if __name__ == "__main__":
    unittest.main(verbosity=2)
