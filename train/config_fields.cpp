// The one list of all settings: key, member, sentence, limits.
#include "train/config.h"

namespace triax {

namespace {

using List = std::vector<Setting>;

// Upper limits far above any use, so that sums and products of settings cannot overflow.
constexpr double kMost = 1e12, kMostSequences = 1e9;

void add_model(ModelConfig& m, List& list) {
  list.insert(
      list.end(),
      {{"model.family", choice(m.family),
        "how Hugging Face files spell it: llama (also Mistral, Qwen2, Qwen3) or gpt2"},
       {"model.width", &m.width, "C, the width of the residual stream", at_least(1)},
       {"model.layers", &m.layers, "L, blocks of attention and MLP", at_least(1)},
       {"model.heads", &m.heads, "H, query heads", at_least(1)},
       {"model.kv_heads", &m.kv_heads, "G, key/value heads; not given: as many as query heads", at_least(1)},
       {"model.head_width", &m.head_width, "D, width of a head; not given: width / heads", at_least(1)},
       {"model.mlp", &m.mlp, "F, width of the MLP; not given: 4 C for gpt2, 8/3 C up to a multiple of 64 for llama",
        at_least(1)},
       {"model.vocabulary", &m.vocabulary, "V, rows of the embedding, not padded", at_least(1)},
       {"model.context", &m.context, "the longest sequence that the model is made for", at_least(1)},
       {"model.norm", choice(m.norm), "normalisation, fixed by the family"},
       {"model.norm_eps", &m.norm_eps, "added to the variance in the normalisation", above(0)},
       {"model.activation", choice(m.activation), "of the MLP: swiglu in llama, a gelu in gpt2"},
       {"model.position", choice(m.position), "rotary or learned positions, fixed by the family"},
       {"model.tied", &m.tied, "the output head is the embedding"},
       {"model.qkv_bias", &m.qkv_bias, "biases on query, key and value (Qwen2)"},
       {"model.qk_norm", &m.qk_norm, "norm of each query and key head before the rotary embedding (Qwen3)"},
       {"model.window", &m.window, "positions that a position attends to, itself among them; 0: all (Mistral has one)",
        at_least(0)},
       {"model.full_layers", &m.full_layers, "the first layers, which have no window (Qwen2, Qwen3)", at_least(0)},
       {"model.bias", &m.bias, "biases on all linear layers and norms (gpt2)"},
       {"model.init_std", &m.init_std, "standard deviation of the initial weights", at_least(0)}});
}

void add_rope(RopeConfig& r, List& list) {
  list.insert(
      list.end(),
      {{"model.rope.kind", choice(r.kind), "how frequencies are scaled for a longer context"},
       {"model.rope.theta", &r.theta, "base of the frequencies", above(0)},
       {"model.rope.factor", &r.factor, "linear, llama3, yarn: how much longer the context became", at_least(1)},
       {"model.rope.low_freq_factor", &r.low_freq_factor, "llama3: below this, frequencies are divided", above(0)},
       {"model.rope.high_freq_factor", &r.high_freq_factor, "llama3: above this, frequencies stay", above(0)},
       {"model.rope.original_context", &r.original_context, "llama3, yarn: context before", at_least(0)},
       {"model.rope.beta_fast", &r.beta_fast, "yarn: above this many turns, frequencies stay", above(0)},
       {"model.rope.beta_slow", &r.beta_slow, "yarn: below this many turns, they are divided", above(0)},
       {"model.rope.attention_factor", &r.attention_factor,
        "yarn: factor on cosine and sine; not given: 0.1 ln(factor) + 1", above(0)},
       {"model.rope.truncate", &r.truncate, "yarn: the blend begins and ends at whole pairs"}});
}

void add_data(DataConfig& d, List& list) {
  list.insert(list.end(),
              {{"data.folder", &d.folder, "token shards made by `triax data prepare`; must be given"},
               {"data.sequence", &d.sequence,
                "T, tokens in a training sequence; not given: the default, or the model's context if that is shorter",
                from_to(1, kMost)},
               {"data.seed", &d.seed, "of the order of the samples", at_least(0)},
               {"data.shuffle", &d.shuffle, "false: samples come in the order of the shards"},
               {"data.document_mask", &d.document_mask, "attention stops at the beginning of a document"}});
}

void add_train(TrainConfig& t, List& list) {
  list.insert(
      list.end(),
      {{"train.steps", &t.steps, "updates of the weights in the whole run", from_to(1, kMost)},
       {"train.global_batch", &t.global_batch, "sequences in a step, over all ranks", from_to(1, kMostSequences)},
       {"train.micro_batch", &t.micro_batch,
        "sequences that a rank computes at a time; not given: the largest divisor of its share up to the default",
        from_to(1, kMostSequences)},
       {"train.seed", &t.seed, "of the initial weights and of stochastic rounding", at_least(0)},
       {"train.repro", &t.repro,
        "losses and weights are the same bits for every mesh.dp up to 8, mesh.pp, ZeRO stage and micro-batch, at the "
        "cost that "
        "`triax bench training --repro` measures; with the same threads"},
       {"train.dtype", choice(t.dtype), "of parameters and activations; auto: bf16 where the device has it"}});
}

void add_optimizer(OptimizerConfig& o, List& list) {
  list.insert(
      list.end(),
      {{"optimizer.lr", &o.lr, "peak learning rate of AdamW", above(0)},
       {"optimizer.min_lr", &o.min_lr, "rate at the end of cosine or cooldown; not given: a tenth of lr", at_least(0)},
       {"optimizer.beta1", &o.beta1, "decay of the first moment", from_below(0, 1)},
       {"optimizer.beta2", &o.beta2, "decay of the second moment", from_below(0, 1)},
       {"optimizer.eps", &o.eps, "added to the root of the second moment", above(0)},
       {"optimizer.weight_decay", &o.weight_decay, "times the rate, on matrices only", at_least(0)},
       {"optimizer.clip", &o.clip, "largest norm of the whole gradient; 0 clips nothing", at_least(0)},
       {"optimizer.stochastic_rounding", &o.stochastic_rounding, "master weights to bf16 by chance, without bias"},
       {"optimizer.schedule", choice(o.schedule), "of the rate after warm-up; wsd: constant, then a cooldown"},
       {"optimizer.warmup_steps", &o.warmup_steps,
        "steps of linear rise; not given: the default, or a tenth of the steps if that is less", from_to(0, kMost)},
       {"optimizer.cooldown_steps", &o.cooldown_steps,
        "wsd: steps of the final fall; not given: a fifth of the steps, or what warm-up leaves", from_to(0, kMost)},
       {"optimizer.cooldown", choice(o.cooldown),
        "wsd: what is left of the rate at u of the cooldown: 1-u, sqrt(1-u), 1-sqrt(u)"}});
}

void add_rest(RunConfig& c, List& list) {
  list.insert(
      list.end(),
      {{"evaluate.every", &c.evaluate.every, "steps between evaluations on held-out text; 0: only at the end",
        from_to(0, kMost)},
       {"evaluate.samples", &c.evaluate.samples, "held-out sequences used; 0: all", from_to(0, kMost)},
       {"checkpoint.every", &c.checkpoint.every, "steps between checkpoints; 0: only at the end", from_to(0, kMost)},
       {"checkpoint.keep", &c.checkpoint.keep, "newest checkpoints kept; 0: all", from_to(0, kMost)},
       {"checkpoint.resume", &c.checkpoint.resume,
        "auto: from the run's newest whole checkpoint, if any; never; or a checkpoint's folder"},
       {"checkpoint.initial", &c.checkpoint.initial,
        "Hugging Face folder whose weights a fresh run starts from; empty: random weights"},
       {"run.folder", &c.run.folder, "log, curves and checkpoints; not given: runs/ and the configuration's name"},
       {"run.log_every", &c.run.log_every, "steps between lines of the log", from_to(1, kMost)},
       {"mesh.pod", &c.mesh.pod, "axis of slow links; only 1 is offered", from_to(1, double(kMostRanks))},
       {"mesh.pp", &c.mesh.pp, "pipeline stages: ranks that share the layers", from_to(1, double(kMostRanks))},
       {"mesh.dp", &c.mesh.dp, "copies that share a batch; not given: as many as there are ranks",
        from_to(1, double(kMostRanks))},
       {"mesh.cp", &c.mesh.cp, "ranks that share the positions of each sequence", from_to(1, double(kMostRanks))},
       {"mesh.tp", &c.mesh.tp, "ranks that share each layer's matrices, and the rows between them",
        from_to(1, double(kMostRanks))},
       {"mesh.order", &c.mesh.order, "the axes, the one whose neighbours are closest last"},
       {"pipeline.schedule", choice(c.pipeline.schedule), "the order of micro-batches on each stage of mesh.pp"},
       {"pipeline.chunks", &c.pipeline.chunks, "interleaved: parts of the model on each stage", from_to(1, 1024)},
       {"pipeline.layout", &c.pipeline.layout,
        "layers of every part, in the order of the model, as in 7,8,8,7; empty: even, where embedding and head count "
        "as "
        "a layer"},
       {"context.exchange", choice(c.context.exchange),
        "how the ranks of mesh.cp meet in attention: keys and values around a ring, or each has some heads of all "
        "positions"},
       {"zero.stage", &c.zero.stage,
        "what the ranks of dp cut among them: 1 the optimizer's state, 2 gradients too, 3 weights too", from_to(0, 3)},
       {"zero.group", &c.zero.group,
        "ranks of dp that share one copy of what is cut, neighbours on a node for instance; 0: all",
        from_to(0, double(kMostRanks))},
       {"comm.transport", choice(c.comm.transport),
        "what carries exchanges between GPUs; auto: NCCL where it loads and each rank has a GPU of its own, else MPI"},
       {"comm.timeout", &c.comm.timeout,
        "seconds that a rank waits for others before it asks where they are and ends the run; 0: for ever",
        from_to(0, 1e9)},
       {"comm.overlap", &c.comm.overlap,
        "false: computing waits for every exchange of gradients and weights, to see what overlap is worth"},
       {"comm.tensor_chunks", &c.comm.tensor_chunks,
        "parts in which rows are exchanged between tensor-parallel ranks while other parts are multiplied; 1: no "
        "overlap",
        from_to(1, 64)},
       {"kernels.matmul_algorithms", &c.matmul_algorithms,
        "a file that another run left as matmul_algorithms.json in its folder: its cuBLASLt algorithms are taken; "
        "empty: "
        "those of the run's own folder, where it goes on"},
       {"threads", &c.threads, "of one rank; 0: the cores that it may use", from_to(0, 4096)}});
}

void add_kernels(std::map<std::string, std::string>& kernels, List& list) {
  for (auto& [family, name] : kernels)
    list.push_back({"kernels." + family, &name,
                    family == "attention"
                        ? "the implementation that runs, compared with triax; auto: on a GPU cuDNN's, without windows "
                          "and document boundaries, in bf16; elsewhere triax"
                        : "the implementation that runs; another than triax is compared with it"});
}

} // namespace

std::vector<Setting> settings(RunConfig& config) {
  List list;
  add_model(config.model, list);
  add_rope(config.model.rope, list);
  add_data(config.data, list);
  add_train(config.train, list);
  add_optimizer(config.optimizer, list);
  add_rest(config, list);
  add_kernels(config.kernels, list);
  return list;
}

} // namespace triax
