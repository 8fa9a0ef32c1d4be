#!/usr/bin/env python3
"""A layout changes who computes what, never the training: first gradients, losses and norms against one rank's."""
import unittest

from layouts import Layouts, REPRESENTATIVE


class EndToEndLayouts(Layouts):
    def test_representative_layouts(self):
        self.check(REPRESENTATIVE)

    def test_a_checkpoint_is_gone_on_from_in_any_layout(self):
        whole = self.train("llama", {"tp": 2}, steps=4, repro=True, checkpoint={"every": 2, "keep": 0})
        losses = [e["loss"] for e in self.log(whole)][2:]
        for layout, to_the_bit in (({"tp": 2, "dp": 2, "zero": 3}, True), ({"tp": 2, "pp": 2}, True), ({"tp": 4}, False), ({"dp": 4, "zero": 1}, False)):
            with self.subTest(layout=layout):
                other = self.train("llama", layout, steps=4, repro=True, suffix="_resumed",
                                   checkpoint={"every": 0, "resume": str(self.checkpoint(whole, 2))})
                self.assertEqual([e["step"] for e in self.log(other)], [3, 4])
                for a, b in zip(losses, (e["loss"] for e in self.log(other)), strict=True):
                    self.assertAlmostEqual(a / b, 1, delta=0 if to_the_bit else 1e-5)
                if to_the_bit:
                    self.assert_same_files(self.checkpoint(whole, 4), self.checkpoint(other, 4))

    def test_what_no_layout_can_be_is_refused_with_the_arithmetic(self):
        for layout, words in (({"tp": 3}, "mesh.tp is 3, but must divide model.heads, which is 8"),
                              ({"dp": 3}, "train.global_batch is 16, but must be a multiple of mesh.dp, which is 3"),
                              ({"dp": 2, "zero": 1, "group": 3}, "zero.group is 3, but must divide mesh.dp, which is 2"),
                              ({"dp": 2, "order": "dp,tp"}, "must name each of pod, pp, dp, cp, tp once"),
                              ({"pp": 2, "layout": "1,2"}, "pipeline.layout"), ({"pp": 2, "parts": 2}, "pipeline.chunks is 2, but only"),
                              ({"pp": 8}, "mesh.pp"),
                              ({"tp": 2, "chunks": 5}, "must be a multiple of mesh.tp * comm.tensor_chunks = 10")):
            with self.subTest(layout=layout), self.assertRaises(AssertionError) as refused:
                self.train("llama", layout)
            self.assertIn(words, str(refused.exception))

    def test_repro(self):
        self.check_repro([{}, {"dp": 2, "zero": 2, "micro_batch": 2}, {"dp": 8, "zero": 3}, {"pp": 2, "dp": 2, "zero": 1}], "f32")


if __name__ == "__main__":
    unittest.main(verbosity=2)
