"""What the tests of layouts share: a training by name of its layout, and what must agree between two."""
from tensors import assert_same_first_gradients
from triax_runs import Runs, run

STEPS = 20
# Odd on purpose: a vocabulary that no number of ranks divides, fewer key/value heads than ranks.
MODELS = {
    "llama": {"family": "llama", "width": 48, "layers": 2, "heads": 8, "kv_heads": 2, "head_width": 8, "mlp": 96, "vocabulary": 401},
    "gpt2": {"family": "gpt2", "width": 64, "layers": 2, "heads": 8, "kv_heads": 8, "mlp": 128, "vocabulary": 403},
    "qwen2": {"family": "llama", "width": 48, "layers": 2, "heads": 8, "kv_heads": 1, "head_width": 8, "mlp": 96, "vocabulary": 407,
              "qkv_bias": True},
    "qwen3": {"family": "llama", "width": 48, "layers": 2, "heads": 8, "kv_heads": 4, "head_width": 8, "mlp": 96, "vocabulary": 405,
              "qk_norm": True, "tied": True},
}
MODELS["mistral"] = {**MODELS["llama"], "window": 5}
MODELS["deep"] = {**MODELS["llama"], "layers": 7}
MODELS["deep30"] = {**MODELS["llama"], "layers": 30}
MODELS["deep_tied"] = {**MODELS["gpt2"], "layers": 5, "tied": True}
REPRESENTATIVE = [("llama", {"dp": 2, "zero": 2}), ("llama", {"tp": 4, "chunks": 2}), ("gpt2", {"tp": 2}),
                  ("qwen3", {"dp": 2, "tp": 2, "zero": 3, "accumulate": 2}), ("qwen3", {"cp": 2, "tp": 2, "chunks": 2}),
                  ("gpt2", {"cp": 4, "accumulate": 2, "exchange": "all_to_all"}), ("deep_tied", {"pp": 2, "accumulate": 4}),
                  ("deep", {"pp": 2, "tp": 2, "dp": 2, "zero": 3, "accumulate": 4, "schedule": "interleaved", "parts": 2})]
WHOLE = ([("llama", {"dp": 2, "zero": z}) for z in (0, 1, 2, 3)] + [("llama", {"dp": 2, "zero": 2, "accumulate": 2})]
         + [("llama", {"dp": 4, "zero": z, "group": 2}) for z in (1, 3)]
         + [("llama", {"tp": 2}), ("llama", {"tp": 4, "chunks": 2}), ("gpt2", {"tp": 4}), ("qwen2", {"tp": 8, "chunks": 2}), ("qwen3", {"tp": 4})]
         + [("llama", {"dp": 2, "tp": 2, "order": "pod,tp,pp,cp,dp", "zero": 1})]
         + [(m, {"dp": 2, "tp": 4, "zero": z, "chunks": 2, "accumulate": 2}) for m, z in (("llama", 0), ("gpt2", 2), ("qwen2", 3), ("qwen3", 3))]
         + [("llama", {"dp": 8, "tp": 2, "zero": 3, "group": 4}), ("gpt2", {"dp": 4, "tp": 4, "zero": 1, "chunks": 2}), ("qwen3", {"dp": 16, "zero": 3})])

# Each schedule, fewer micro-batches than stages, stages without layers, uneven ones; with other axes.
PIPELINES = [("deep", {"pp": 2}), ("deep", {"pp": 2, "accumulate": 4}), ("deep", {"pp": 4, "accumulate": 4}),
             ("deep", {"pp": 4, "accumulate": 2, "schedule": "gpipe"}), ("llama", {"pp": 4, "accumulate": 2}),
             ("deep", {"pp": 3, "accumulate": 4, "schedule": "interleaved", "parts": 2}),
             ("deep_tied", {"pp": 2, "accumulate": 4}), ("deep_tied", {"pp": 4, "accumulate": 4, "layout": "1,2,1,1"}),
             ("gpt2", {"pp": 2, "tp": 2, "accumulate": 4}), ("qwen3", {"pp": 2, "dp": 2, "tp": 4, "zero": 2}),
             ("deep", {"pp": 2, "tp": 2, "dp": 2, "zero": 3, "accumulate": 4, "schedule": "interleaved", "parts": 2}),
             ("deep", {"pp": 4, "accumulate": 8, "schedule": "zb-h1"}),
             ("deep_tied", {"pp": 2, "dp": 2, "zero": 2, "accumulate": 4, "schedule": "zb-h1"}),
             ("deep", {"pp": 2, "tp": 4, "accumulate": 4, "chunks": 2, "schedule": "zb-h1"}),
             ("llama", {"pp": 4}), ("deep", {"pp": 8, "accumulate": 8}), ("llama", {"pp": 2, "dp": 2, "accumulate": 2}),
             ("llama", {"pp": 2, "dp": 2, "zero": 1, "accumulate": 2}), ("llama", {"pp": 4, "dp": 2, "zero": 3, "accumulate": 2}),
             ("qwen3", {"pp": 2, "tp": 4, "dp": 2, "zero": 3, "accumulate": 2, "order": "pod,tp,pp,cp,dp"})]

# Both exchanges, learned positions, tied embeddings; with other axes, and all of them.
CONTEXTS = [("llama", {"cp": 2}), ("llama", {"cp": 4, "accumulate": 2}), ("llama", {"cp": 2, "exchange": "all_to_all"}),
            ("gpt2", {"cp": 8, "exchange": "all_to_all", "accumulate": 4}), ("mistral", {"cp": 4, "dp": 2}),
            ("qwen3", {"cp": 2, "tp": 2, "chunks": 2}), ("qwen2", {"cp": 4, "dp": 2, "zero": 3, "accumulate": 2}),
            ("gpt2", {"cp": 2, "tp": 2, "dp": 2, "zero": 2, "exchange": "all_to_all"}), ("deep_tied", {"cp": 2, "pp": 2, "accumulate": 4}),
            ("deep", {"cp": 2, "pp": 2, "tp": 2, "dp": 2, "zero": 3, "accumulate": 4}),
            ("deep", {"cp": 2, "pp": 2, "tp": 2, "dp": 2, "zero": 1, "accumulate": 4, "schedule": "zb-h1", "order": "pod,cp,tp,dp,pp"}),
            ("gpt2", {"cp": 4, "pp": 2, "tp": 2, "exchange": "all_to_all", "accumulate": 4, "chunks": 2})]


def title(layout):
    return "_".join(f"{key}{value}".replace(",", "-") for key, value in sorted(layout.items())) or "one"


class Layouts(Runs):
    def train(self, model, layout, steps=STEPS, dtype="f32", repro=False, **more):
        """The name of the run; the same layout is trained once."""
        name = f"{model}_{dtype}_{'repro_' if repro else ''}{steps}_{title(layout)}" + more.pop("suffix", "")
        if (self.folder / name).exists():
            return name
        dp, tp, pp, cp = (layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp"))
        micro_batch = layout.get("micro_batch", 16 // dp // layout.get("accumulate", 1))
        mesh = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, **({"order": layout["order"]} if "order" in layout else {})}
        run("train", self.config(name, model={**MODELS[model], "context": 32}, data={"sequence": 16, **more.pop("data", {})}, mesh=mesh,
                                 zero={"stage": layout.get("zero", 0), "group": layout.get("group", 0)},
                                 pipeline={"schedule": layout.get("schedule", "1f1b"), "chunks": layout.get("parts", 1),
                                           "layout": layout.get("layout", "")},
                                 context={"exchange": layout.get("exchange", "ring")},
                                 comm={"tensor_chunks": layout.get("chunks", 1)},
                                 train={"steps": steps, "global_batch": 16, "micro_batch": micro_batch, "dtype": dtype, "repro": repro},
                                 optimizer={"lr": 1e-3, "warmup_steps": 0, **more.pop("optimizer", {})}, evaluate={"every": 0}, **more),
            ranks=dp * tp * pp * cp)
        return name

    def check(self, layouts, losses=1e-4):
        """First gradients as everywhere; losses and gradient norms over STEPS within `losses`."""
        worst = {"loss": 0, "gradient_norm": 0}
        for model, layout in layouts:
            with self.subTest(model=model, layout=layout):
                one, many = (self.train(model, l, steps=1) for l in ({}, layout))
                assert_same_first_gradients(self, self.checkpoint(one, 1), self.checkpoint(many, 1))
                one, many = (self.log(self.train(model, l)) for l in ({}, layout))
                self.assertEqual((len(one), len(many)), (STEPS, STEPS))
                for a, b in zip(one, many):
                    self.assertEqual(a["counted_tokens"], b["counted_tokens"])
                    for key in worst:
                        worst[key] = max(worst[key], abs(b[key] / a[key] - 1))
                        self.assertAlmostEqual(b[key] / a[key], 1, delta=losses, msg=f"{key} of step {a['step']}")
        print(f"{len(layouts)} layouts, {STEPS} steps: losses within {worst['loss']:.1e}, gradient norms within "
              f"{worst['gradient_norm']:.1e}", flush=True)

    def check_bf16(self, layouts):
        """A layout may round where one rank does not (partial sums of tensor-parallel ranks travel in bf16), but not more
        than bf16 itself does: its losses and norms over 20 steps lie no further from one rank's than twice what lies
        between one rank's bf16 and f32, which must itself be small (2^-10 and 2^-6: bf16 keeps 8 bits, a loss averages
        over 240 tokens)."""
        def furthest(a, b, key):
            return max(abs(y[key] / x[key] - 1) for x, y in zip(a, b, strict=True))

        for model, layout in layouts:
            with self.subTest(model=model, layout=layout):
                one, many = (self.log(self.train(model, l, dtype="bf16")) for l in ({}, layout))
                exact = self.log(self.train(model, {}))
                for key, most in (("loss", 2**-10), ("gradient_norm", 2**-6)):
                    rounding = furthest(exact, one, key)
                    self.assertLess(rounding, most, key)
                    self.assertLessEqual(furthest(one, many, key), 2 * rounding, key)

    def check_repro(self, layouts, dtype, model="llama", **more):
        names = [self.train(model, layout, dtype=dtype, repro=True, **more) for layout in layouts]
        first = self.log(names[0])
        for name in names[1:]:
            for a, b in zip(first, self.log(name)):
                self.assertEqual((a["loss"], a["gradient_norm"]), (b["loss"], b["gradient_norm"]), f"{name}, step {a['step']}")
            self.assert_same_files(self.checkpoint(names[0], STEPS), self.checkpoint(name, STEPS))
