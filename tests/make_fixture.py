#!/usr/bin/env python3
"""Writes tests/fixtures: what an independent implementation (transformers on PyTorch, CPU) says of small models.

    make_fixture.py models   a folder per model of MODELS, which `transformers` can open (each belongs to one major version
                             of it; a run writes its own), and beside the weights
        reference.safetensors
            tokens    I32 [B, T]     inputs
            labels    I32 [B, T]     labels[b, t] is the target of position t (already shifted); -1 is not counted
            loss      F32 [1]        mean over the counted labels
            rows      I32 [R]        flat rows b * T + t
            logits    F32 [R, V]     of these rows
            grad.X    F32            gradient of the loss by parameter X, X and its shape as in model.safetensors
        reference.json               seed, versions, arguments, the loss in full, and float32_error: how far the same
                                     model in float32 is off: per tensor the norm of the difference over the larger
                                     of its norm and a thousandth of the whole gradient's, the worst tensor
    make_fixture.py rope     rope.json: inverse frequencies and attention factors by transformers' functions. Each case
                             belongs to one major version of transformers (see ROPE); a run replaces its own cases

The reference is computed in float64 from the float32 weights that are saved. transformers widens some intermediate
results to float32; here these become float64 too. Only the table of cosines and sines stays float32.

On Debian 12: apt install python3-torch; in a venv with --system-site-packages transformers==4.47.1; and in a second one
of its own transformers==5.24.0 torch==2.6.0 numpy: it knows Qwen3, gives each layer of Qwen its own window, and its yarn
honours original_max_position_embeddings.
"""
import argparse
import json
import pathlib
import platform
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file

# Head counts, widths and lengths are small but odd, so that a wrong stride or a swapped dim cannot pass. The first has
# position limits far below real ones: its four frequencies then fall into all three bands of llama3.
MODELS = {
    "llama": dict(major=4, B=2, T=33, masked=[(0, 5), (0, 6), (1, 0), (1, 32)], config=dict(
        model_type="llama", hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=112, vocab_size=101, tie_word_embeddings=False, rope_theta=500000.0, rms_norm_eps=1e-5,
        max_position_embeddings=2048, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=256))),
    "llama_tied": dict(major=4, B=3, T=17, masked=[(0, 0), (2, 16)], config=dict(
        model_type="llama", hidden_size=40, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
        intermediate_size=72, vocab_size=101, tie_word_embeddings=True, rope_theta=10000.0, rms_norm_eps=1e-6,
        max_position_embeddings=64)),
    "gpt2": dict(major=4, B=2, T=29, masked=[(0, 28), (1, 3), (1, 4), (1, 5)], config=dict(
        model_type="gpt2", n_embd=48, n_layer=2, n_head=4, n_positions=47, vocab_size=101, tie_word_embeddings=True,
        activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    # The third sequence has no label at all.
    "qwen2": dict(major=4, B=3, T=23, masked=[(0, 7)] + [(2, t) for t in range(23)], config=dict(
        model_type="qwen2", hidden_size=40, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
        intermediate_size=72, vocab_size=101, tie_word_embeddings=True, rope_theta=1000000.0, rms_norm_eps=1e-6,
        max_position_embeddings=128)),
    # Windows much shorter than the sequence, of neither a divisor nor a multiple of anything.
    "mistral": dict(major=5, B=2, T=37, masked=[(0, 0), (0, 1), (1, 36)], config=dict(
        model_type="mistral", hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=80, vocab_size=101, tie_word_embeddings=False, rope_theta=10000.0, rms_norm_eps=1e-5,
        max_position_embeddings=64, sliding_window=11)),
    # The first layer sees everything, the others three positions.
    "qwen2_window": dict(major=5, B=2, T=31, masked=[(0, 9), (1, 0)], config=dict(
        model_type="qwen2", hidden_size=40, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
        intermediate_size=56, vocab_size=101, tie_word_embeddings=False, rope_theta=1000000.0, rms_norm_eps=1e-6,
        max_position_embeddings=128, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
    # Heads that together are wider than the stream.
    "qwen3": dict(major=5, B=3, T=19, masked=[(0, 7), (1, 18), (2, 0)], config=dict(
        model_type="qwen3", hidden_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=22, intermediate_size=72, vocab_size=101, tie_word_embeddings=True, rope_theta=1000000.0,
        rms_norm_eps=1e-6, max_position_embeddings=128)),
}

# name: (major version of transformers, head width, rope_theta, max_position_embeddings, rope_scaling)
ROPE = {
    "default_64": (4, 64, 10000.0, 4096, None),
    "default_128": (4, 128, 500000.0, 8192, None),
    "linear_64": (4, 64, 10000.0, 4096, dict(rope_type="linear", factor=2.5)),
    "linear_128": (4, 128, 100000.0, 16384, dict(rope_type="linear", factor=4.0)),
    "llama3_64": (4, 64, 500000.0, 131072, dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama3_128": (4, 128, 500000.0, 131072, dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "yarn_64": (5, 64, 10000.0, 65536, dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=4096)),
    "yarn_128": (5, 128, 1000000.0, 131072, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "yarn_unchanged_max_128": (5, 128, 1000000.0, 32768, dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "yarn_attention_factor_128": (5, 128, 10000.0, 65536, dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=8192, attention_factor=1.5)),
    "yarn_beta_64": (5, 64, 10000.0, 32768, dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=4096, beta_fast=16.0, beta_slow=2.0)),
    "yarn_mscale_64": (5, 64, 10000.0, 163840, dict(
        rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0,
        mscale=1.0, mscale_all_dim=0.707)),
    "yarn_not_truncated_64": (5, 64, 150000.0, 131072, dict(
        rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0,
        truncate=False)),
}


class Wide:
    """The torch module, but float32 means float64: given to a modelling file, its widening casts widen to float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def weights(model, rng, std):
    """Large enough that no gradient is degenerate: norm weights around 1 and different, biases not zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = rng.standard_normal(tuple(parameter.shape))
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            is_bias = name.endswith("bias")
            values = 1 + 0.3 * values if is_norm else 0.1 * values if is_bias else std * values
            parameter.copy_(torch.tensor(values, dtype=torch.float32))


def step(model, tokens, labels):
    """(loss, logits[N, V], gradients by name)"""
    model.zero_grad()
    logits = model(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-1)
    loss.backward()
    return loss.item(), logits.detach(), {n: p.grad.detach().clone() for n, p in model.named_parameters()}


def error(got, want):
    whole = sum(g.square().sum() for g in want.values()).sqrt()
    return max(((got[n].double() - g).norm() / max(g.norm(), whole / 1000)).item() for n, g in want.items())


def check_own_loss(model, stream, labels, loss):
    """The loss that transformers itself computes when given T + 1 tokens and unshifted labels."""
    unshifted = torch.cat([torch.full_like(labels[:, :1], -100), labels.masked_fill(labels == -1, -100)], dim=1)
    own = model(input_ids=stream, labels=unshifted, use_cache=False).loss.item()
    assert abs(own - loss) < 1e-6 * loss, (own, loss)


def make_model(name, case, seed, std, root):
    torch.manual_seed(seed)
    rng = numpy.random.default_rng(seed)
    settings = dict(case["config"], bos_token_id=0, eos_token_id=0, torch_dtype="float32")
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    weights(model, rng, std)

    B, T, V = case["B"], case["T"], config.vocab_size
    stream = torch.tensor(rng.integers(0, V, (B, T + 1)))
    tokens, labels = stream[:, :-1].contiguous(), stream[:, 1:].clone()
    for at in case["masked"]:
        labels[at] = -1

    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    _, _, narrow = step(model, tokens, labels)
    model.double()
    sys.modules[type(model).__module__].torch = Wide()
    loss, logits, gradients = step(model, tokens, labels)
    assert logits.dtype == torch.float64 and all(g.abs().max() > 0 for g in gradients.values())
    check_own_loss(model, stream, labels, loss)
    float32_error = error(narrow, gradients)
    assert float32_error < 5e-6, float32_error

    rows = torch.tensor([0, 1, T - 1, T, (B - 1) * T + T // 2, B * T - 1], dtype=torch.int32)
    tensors = {"tokens": tokens.int(), "labels": labels.int(), "loss": torch.tensor([loss]), "rows": rows,
               "logits": logits[rows.long()].float(), **{"grad." + n: g.float() for n, g in gradients.items()}}
    save_file({n: t.contiguous() for n, t in tensors.items()}, str(folder / "reference.safetensors"))
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
    write_json(folder / "reference.json", dict(
        seed=seed, std=std, arguments=sys.argv[1:], versions=versions(), batch=B, sequence=T,
        labels="labels[b, t] is the target of position t; -1 is not counted",
        counted=int((labels != -1).sum()), loss=loss,
        gradient_norm=sum(g.square().sum() for g in gradients.values()).sqrt().item(), float32_error=float32_error))
    print(f"{name}: loss {loss:.9f}, float32 error {float32_error:.1e}, "
          f"{sum(p.numel() for p in model.parameters())} parameters")


def make_rope(root):
    from transformers import modeling_rope_utils
    modeling_rope_utils.torch = torch  # transformers 5 leaves it out where it finds torch too old for its models
    path = root / "rope.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    for name, (major, D, theta, longest, scaling) in ROPE.items():
        if major != int(transformers.__version__.split(".")[0]):
            continue
        config = transformers.LlamaConfig(hidden_size=4 * D, num_attention_heads=4, head_dim=D, rope_theta=theta,
                                          max_position_embeddings=longest, rope_scaling=scaling and dict(scaling))
        kind = scaling["rope_type"] if scaling else "default"
        inv_freq, attention_factor = modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        assert inv_freq.dtype == torch.float32
        cases[name] = dict(head_dim=D, rope_theta=theta, max_position_embeddings=longest, rope_scaling=scaling,
                           attention_factor=attention_factor, inv_freq=[float("%.9g" % f) for f in inv_freq.tolist()],
                           versions=versions())
    write_json(path, dict(about="inv_freq[D/2] in float32, as transformers computes it",
                          cases={n: cases[n] for n in ROPE if n in cases}))
    missing = [n for n in ROPE if n not in cases]
    print(f"rope: {len(cases)} cases" + (f", run with the other transformers for {missing}" if missing else ""))


def versions():
    return dict(python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
                numpy=numpy.__version__)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["models", "rope"])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "fixtures")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--std", type=float, default=0.12, help="of the weight matrices and embeddings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "models":
        for name, case in MODELS.items():
            if case["major"] == int(transformers.__version__.split(".")[0]):
                make_model(name, case, args.seed, args.std, args.out)
    else:
        make_rope(args.out)


if __name__ == "__main__":
    main()
