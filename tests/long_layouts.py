#!/usr/bin/env python3
"""However a batch is shared among ranks and cut into micro-batches, the training is the same, over 200 steps.

The learning rate is moderate: at three times as much, rounding grows a thousandfold within these steps.
"""
import unittest

from tensors import assert_same_first_gradients
from triax_runs import Runs, run

STEPS = 200
MODEL = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 64}


class Layouts(Runs):
    def train(self, ranks, micro_batch, steps, mask):
        name = f"{'masked' if mask else 'whole'}_{steps}_dp{ranks}_b{micro_batch}"
        run("train", self.config(name, model=MODEL, data={"document_mask": mask},
                                 train={"steps": steps, "global_batch": 16, "micro_batch": micro_batch},
                                 optimizer={"lr": 1e-3}, evaluate={"every": 0}), ranks=ranks)
        return name

    def check(self, mask):
        first = self.train(1, 1, 1, mask)
        for ranks in (2, 4):
            with self.subTest(ranks=ranks, what="first gradients"):
                many = self.train(ranks, 1, 1, mask)
                assert_same_first_gradients(self, self.checkpoint(first, 1), self.checkpoint(many, 1))

        base, worst = self.log(self.train(1, 1, STEPS, mask)), 0
        self.assertEqual(len(base), STEPS)
        self.assertLess(base[-1]["loss"], base[0]["loss"] - 1)
        for ranks, micro_batch in [(r, b) for r in (1, 2, 4) for b in (1, 2, 4) if (r, b) != (1, 1)]:
            with self.subTest(ranks=ranks, micro_batch=micro_batch):
                other = self.log(self.train(ranks, micro_batch, STEPS, mask))
                self.assertEqual([e["step"] for e in base], [e["step"] for e in other])
                for a, b in zip(base, other):
                    self.assertEqual(a["counted_tokens"], b["counted_tokens"])
                    worst = max(worst, abs(b["loss"] / a["loss"] - 1))
                    self.assertAlmostEqual(b["loss"] / a["loss"], 1, delta=1e-4, msg=f"step {a['step']}")
        print(f"losses of {STEPS} steps in 9 layouts, documents {'masked' if mask else 'not masked'}: "
              f"within {worst:.1e}", flush=True)

    def test_documents_masked(self):
        self.check(True)

    def test_documents_not_masked(self):
        self.check(False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
