// Causal attention on the host by blocked products in f32 (Dao et al. 2022, arXiv 2205.14135, with the roles of rows
// and lanes exchanged). Bound by the rate of multiply-adds: of f32, or of pairs of bf16 where the operands are and the
// CPU has them. Then s and dp, whose factors are given, are rounded no more than before; p and ds are rounded to bf16
// for their products, as on tensor cores, and sums stay f32.
//
// A tile of 64 queries lies across the lanes of the vectors: scores are kept as s[key][query], so that the softmax of a
// query is a plain loop over keys without sums across lanes, and all products have one form,
//   c[row][lane] += sum over k of a(row, k) b[k][lane],
// where a is read element by element and b in whole vectors:
//   s[key][query]  = k[key][d] q^T[d][query]         dp[key][query] = v[key][d] dout^T[d][query]
//   o^T[d][query] += v^T[d][key] p[key][query]       dq^T[d][query] += k^T[d][key] ds[key][query]
//   dv[key][d]    += p[key][query] dout[query][d]    dk[key][d]     += ds[key][query] q[query][d]
//
// The unit of work is a key/value head of one sequence with its group of query heads, so each sum has one owner, taken
// in one order whatever the number of threads. Nothing here may have external linkage outside of this level's
// namespace: the linker would merge it with code for lesser CPUs.
#include "kernels/host/attention_products.h"
#include <omp.h>

namespace triax {
inline namespace SIMT_NS {
namespace {

/// Everything that is read and written, and the shape.
template <class T> struct Arguments {
  AttentionAttributes shape;
  AttentionContext context;
  int64_t W; ///< D, padded
  const T *q, *kv;
  T* out;
  float* lse;
  const int32_t* start;
  const T* dout;
  T *dq, *dkv;
  int64_t q_pitch, kv_pitch, out_pitch, dout_pitch, dq_pitch, dkv_pitch;
  bool pairs; ///< are s and dp products of pairs of bf16?
  const T* query(int64_t row, int64_t head) const { return q + row * q_pitch + head * shape.head_width; }
  /// Of a key/value head; values have the heads behind those of keys.
  const T* key(int64_t row, int64_t head) const { return kv + row * kv_pitch + head * shape.head_width; }
  float* lse_of(int64_t b, int64_t h, int64_t t) const { return lse + (b * shape.heads + h) * shape.sequence + t; }
};

/// The running softmax of a tile of queries (Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3), in base 2.
struct Softmax {
  alignas(64) float largest[kQ], total[kQ], kept[kQ];
  Softmax() {
    for (int q = 0; q < kQ; ++q) {
      largest[q] = -1e30f; // finite: a difference of two is never NaN
      total[q] = 0.0f;
    }
  }
  /// Scores become weights, relative to the largest so far; what was summed before counts `kept` times.
  template <bool Masked> void add(float* s, int64_t keys, int64_t key, const Queries& t) {
    constexpr int kTogether = 4; // vectors, so that their maxima and sums do not wait for one another
    for (int64_t at = 0; at < kQ / kLanes; at += kTogether) {
      Vector larger[kTogether], sum[kTogether] = {};
      for (int c = 0; c < kTogether; ++c) larger[c] = vector(largest, at + c);
      for (int64_t j = 0; j < keys; ++j)
        for (int c = 0; c < kTogether; ++c) {
          Vector score = vector(s + j * kQ, at + c);
          if (Masked) score = sees(t, at + c, key + j) ? score : larger[c];
          larger[c] = score > larger[c] ? score : larger[c];
        }
      for (int64_t j = 0; j < keys; ++j)
        for (int c = 0; c < kTogether; ++c) {
          Vector weight = exp2_of(vector(s + j * kQ, at + c) - larger[c]);
          if (Masked) weight = sees(t, at + c, key + j) ? weight : Vector{};
          vector(s + j * kQ, at + c) = weight;
          sum[c] += weight;
        }
      for (int c = 0; c < kTogether; ++c) {
        const Vector keep = exp2_of(vector(largest, at + c) - larger[c]);
        vector(kept, at + c) = keep;
        vector(total, at + c) = vector(total, at + c) * keep + sum[c];
        vector(largest, at + c) = larger[c];
      }
    }
  }
  float lse(int64_t q) const { return total[q] > 0.0f ? (largest[q] + log2f(total[q])) * kLn2 : -INFINITY; }
};

/// Memory of floats that holds pairs.
int32_t* words(float* at) { return reinterpret_cast<int32_t*>(at); }
const int32_t* words(const float* at) { return reinterpret_cast<const int32_t*>(at); }

/// A whole sequence of a head's keys or values as f32, for all tiles of the group.
template <class T> void load_keys(const Arguments<T>& a, int64_t row, int64_t head, float* to) {
  widen(to, a.shape.sequence, a.W, a.key(row, head), a.kv_pitch, a.shape.sequence, a.shape.head_width);
}
/// The same in pairs of keys.
template <class T> void load_key_pairs(const Arguments<T>& a, int64_t row, int64_t head, float* to) {
  pairs_of_rows(words(to), a.shape.sequence, a.W, a.key(row, head), a.kv_pitch, a.shape.sequence, a.shape.head_width);
}
template <class T> void load_pairs(const Arguments<T>& a, int64_t row, int64_t head, float* to) {
  pairs_of(words(to), a.shape.sequence, a.W, a.key(row, head), a.kv_pitch, a.shape.sequence, a.shape.head_width);
}

/// x *= factor, for all of count floats.
SIMT_FN void scale(float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

template <class T> void forward_tile(const Arguments<T>& a, int64_t b, int64_t h, const Queries& t, const float* k,
                                     const float* v, float* tiles) {
  const int64_t W = a.W, D = a.shape.head_width, row = b * a.shape.sequence + t.first;
  float* const q = tiles;
  float* const o = q + kQ * W;
  float* const s = o + kQ * W;
  if (a.pairs) {
    pairs_of(words(o), kQ, W, a.query(row, h), a.q_pitch, t.count, D);
    transpose(q, o, kQ, W / 2);
  } else {
    widen(o, kQ, W, a.query(row, h), a.q_pitch, t.count, D);
    transpose(q, o, kQ, W);
    scale(q, a.shape.scale * kLog2E, kQ * W);
  }
  memset(o, 0, size_t(kQ * W) * sizeof(float));
  Softmax softmax;
  for (int64_t key = t.begin(); key < t.end; key += kK) {
    const int64_t keys = least(kK, t.end - key);
    if (a.pairs)
      multiply_scores(s, words(k) + key * W / 2, words(q), t, key, keys, W, a.shape.scale * kLog2E);
    else
      multiply_scores(s, k + key * W, q, t, key, keys, W);
    if (t.masks(key, keys))
      softmax.add<true>(s, keys, key, t);
    else
      softmax.add<false>(s, keys, key, t);
    for (int64_t d = 0; d < W; ++d)
      for (int i = 0; i < kQ; ++i) o[d * kQ + i] *= softmax.kept[i];
    if (a.pairs) {
      pair_keys(s, keys);
      sum_over_keys(o, words(v) + key / 2 * W, words(s), t, key, keys, W);
    } else {
      sum_over_keys(o, v + key * W, s, t, key, keys, W);
    }
  }
  transpose(q, o, W, kQ);
  float factor[kQ];
  for (int i = 0; i < kQ; ++i) factor[i] = softmax.total[i] > 0.0f ? 1.0f / softmax.total[i] : 0.0f;
  narrow(a.out + row * a.out_pitch + h * D, a.out_pitch, q, W, factor, t.count, D);
  for (int64_t i = 0; i < t.count; ++i) *a.lse_of(b, h, t.first + i) = softmax.lse(i);
}

template <class T> void forward_group(const Arguments<T>& a, int64_t unit, float* scratch) {
  const auto& shape = a.shape;
  const int64_t b = unit / shape.kv_heads, g = unit % shape.kv_heads, group = shape.heads / shape.kv_heads;
  const int64_t row = b * shape.sequence, size = shape.sequence * a.W;
  if (a.pairs) {
    load_pairs(a, row, g, scratch);
    load_key_pairs(a, row, shape.kv_heads + g, scratch + size);
  } else {
    load_keys(a, row, g, scratch);
    load_keys(a, row, shape.kv_heads + g, scratch + size);
  }
  for (int64_t h = g * group; h < (g + 1) * group; ++h)
    for (int64_t first = 0; first < shape.sequence; first += kQ)
      forward_tile(a, b, h, Queries(a.start + row, first, shape, a.context), scratch, scratch + size,
                   scratch + 2 * size);
}

/// The parts of a thread's scratch in the backward pass.
struct Tiles {
  float *k, *v, *dk, *dv; ///< [T, W]; in pairs k is of keys, and dk lacks the scale
  float *q, *q_rows, *dout, *dout_rows,
      *dq;                              ///< q, dout, dq [W, kQ]; rows [kQ, W]; q_rows are times the scale, but pairs
  float *p, *dp;                        ///< [kK, kQ]
  alignas(64) float lse[kQ], delta[kQ]; ///< lse in base 2; delta: rows of dout times rows of out
  int64_t half;                         ///< where pairs of v take the first half of it, those of k the second
  float* k_pairs() const { return v + half; }
  Tiles(float* scratch, int64_t sequence, int64_t tile) : half(sequence / 2) {
    const auto take = [&](int64_t floats) {
      scratch += floats;
      return scratch - floats;
    };
    k = take(sequence), v = take(sequence), dk = take(sequence), dv = take(sequence);
    q = take(tile), q_rows = take(tile), dout = take(tile), dout_rows = take(tile), dq = take(tile);
    p = take(kK * kQ), dp = take(kK * kQ);
  }
};

/// p = 2^(s - lse), ds = p (dp - delta), both 0 where a query does not see a key; p is given as s, ds as dp.
template <bool Masked> void differentiate(Tiles& x, int64_t keys, int64_t key, const Queries& t) {
  for (int64_t j = 0; j < keys; ++j)
    for (int c = 0; c < kQ / kLanes; ++c) {
      Vector weight = exp2_of(vector(x.p + j * kQ, c) - vector(x.lse, c));
      Vector gradient = weight * (vector(x.dp + j * kQ, c) - vector(x.delta, c));
      if (Masked) {
        const Integers seen = sees(t, c, key + j);
        weight = seen ? weight : Vector{};
        gradient = seen ? gradient : Vector{};
      }
      vector(x.p + j * kQ, c) = weight;
      vector(x.dp + j * kQ, c) = gradient;
    }
}

template <class T> void load_queries(const Arguments<T>& a, int64_t b, int64_t h, const Queries& t, Tiles& x) {
  const int64_t W = a.W, D = a.shape.head_width, row = b * a.shape.sequence + t.first;
  const T* const dout = a.dout + row * a.dout_pitch + h * D;
  if (a.pairs) {
    pairs_of_rows(words(x.q_rows), kQ, W, a.query(row, h), a.q_pitch, t.count, D);
    pairs_of_rows(words(x.dout_rows), kQ, W, dout, a.dout_pitch, t.count, D);
    pairs_of(words(x.dq), kQ, W, a.query(row, h), a.q_pitch, t.count, D);
    transpose(x.q, x.dq, kQ, W / 2);
    pairs_of(words(x.dq), kQ, W, dout, a.dout_pitch, t.count, D);
    transpose(x.dout, x.dq, kQ, W / 2);
  } else {
    widen(x.q_rows, kQ, W, a.query(row, h), a.q_pitch, t.count, D);
    widen(x.dout_rows, kQ, W, dout, a.dout_pitch, t.count, D);
    scale(x.q_rows, a.shape.scale, kQ * W);
    transpose(x.q, x.q_rows, kQ, W);
    transpose(x.dout, x.dout_rows, kQ, W);
    scale(x.q, kLog2E, kQ * W);
  }
  for (int64_t i = 0; i < kQ; ++i) x.lse[i] = x.delta[i] = 0.0f;
  for (int64_t i = 0; i < t.count; ++i) {
    x.lse[i] = *a.lse_of(b, h, t.first + i) * kLog2E;
    const T* const out = a.out + (row + i) * a.out_pitch + h * D;
    for (int64_t d = 0; d < D; ++d) x.delta[i] += float(dout[i * a.dout_pitch + d]) * float(out[d]);
  }
}

template <class T> void backward_tile(const Arguments<T>& a, int64_t b, int64_t h, const Queries& t, Tiles& x) {
  const int64_t W = a.W;
  load_queries(a, b, h, t, x);
  memset(x.dq, 0, size_t(kQ * W) * sizeof(float));
  for (int64_t key = t.begin(); key < t.end; key += kK) {
    const int64_t keys = least(kK, t.end - key), at = key * W;
    if (a.pairs) {
      multiply_scores(x.p, words(x.k_pairs()) + at / 2, words(x.q), t, key, keys, W, a.shape.scale * kLog2E);
      multiply_scores(x.dp, words(x.v) + at / 2, words(x.dout), t, key, keys, W, 1.0f);
    } else {
      multiply_scores(x.p, x.k + at, x.q, t, key, keys, W);
      multiply_scores(x.dp, x.v + at, x.dout, t, key, keys, W);
    }
    if (t.masks(key, keys))
      differentiate<true>(x, keys, key, t);
    else
      differentiate<false>(x, keys, key, t);
    if (a.pairs) {
      pair_queries(x.p, x.dp, keys);
      sum_over_queries(x.dv + at, words(x.p), words(x.dout_rows), t, key, keys, W);
      sum_over_queries(x.dk + at, words(x.p) + kQ / 2, words(x.q_rows), t, key, keys, W);
      pair_keys(x.dp, keys);
      sum_over_keys(x.dq, words(x.k) + at / 2, words(x.dp), t, key, keys, W);
    } else {
      sum_over_queries(x.dv + at, x.p, x.dout_rows, t, key, keys, W);
      sum_over_queries(x.dk + at, x.dp, x.q_rows, t, key, keys, W);
      sum_over_keys(x.dq, x.k + at, x.dp, t, key, keys, W);
    }
  }
  transpose(x.q, x.dq, W, kQ);
  float factor[kQ];
  for (int i = 0; i < kQ; ++i) factor[i] = a.shape.scale;
  T* const dq = a.dq + (b * a.shape.sequence + t.first) * a.dq_pitch + h * a.shape.head_width;
  narrow(dq, a.dq_pitch, x.q, W, factor, t.count, a.shape.head_width);
}

template <class T> void backward_group(const Arguments<T>& a, int64_t unit, float* scratch) {
  const auto& shape = a.shape;
  const int64_t b = unit / shape.kv_heads, g = unit % shape.kv_heads, group = shape.heads / shape.kv_heads;
  const int64_t row = b * shape.sequence, D = shape.head_width;
  Tiles x(scratch, shape.sequence * a.W, kQ * a.W);
  if (a.pairs) {
    load_key_pairs(a, row, g, x.k);
    load_pairs(a, row, shape.kv_heads + g, x.v);
    load_pairs(a, row, g, x.k_pairs());
  } else {
    load_keys(a, row, g, x.k);
    load_keys(a, row, shape.kv_heads + g, x.v);
  }
  memset(x.dk, 0, 2 * size_t(shape.sequence * a.W) * sizeof(float)); // and dv behind it
  for (int64_t h = g * group; h < (g + 1) * group; ++h)
    for (int64_t first = 0; first < shape.sequence; first += kQ)
      backward_tile(a, b, h, Queries(a.start + row, first, shape, a.context), x);
  for (int64_t i = 0; i < shape.sequence; ++i) {
    T* const dk = a.dkv + (row + i) * a.dkv_pitch + g * D;
    T* const dv = dk + shape.kv_heads * D;
    const float factor = a.pairs ? shape.scale : 1.0f;
    for (int64_t d = 0; d < D; ++d) dk[d] = to<T>(x.dk[i * a.W + d] * factor);
    for (int64_t d = 0; d < D; ++d) dv[d] = to<T>(x.dv[i * a.W + d]);
  }
}

/// Each thread takes a unit at a time, with its own part of the scratch.
template <class T> void run_groups(const Arguments<T>& a, const LaunchContext& context, bool backward,
                                   void (*group)(const Arguments<T>&, int64_t, float*)) {
  const int64_t units = a.shape.batch * a.shape.kv_heads, part = attention_host_floats(a.shape, backward);
  const int64_t parts = context.scratch.size() / (part * int64_t(sizeof(float)));
  const int team = int(least(context.threads, least(units, parts)));
#pragma omp parallel num_threads(team)
  {
    float* const scratch = context.scratch.data<float>() + omp_get_thread_num() * part;
#pragma omp for schedule(dynamic)
    for (int64_t unit = 0; unit < units; ++unit) group(a, unit, scratch);
  }
}

/// Of the operands that both passes have, from `q` on in the same order.
template <class T> Arguments<T> arguments(const Op& op, const Tensor& out, const Tensor& lse, int q) {
  const auto shape = op.get<AttentionAttributes>();
  const auto* const state = op.has(q + 3) ? op[q + 3].data<StepState>() : nullptr;
  Arguments<T> a{};
  a.shape = shape;
  a.context = {state, shape.ring_ranks, shape.ring_step, shape.sequence};
  a.W = attention_padded_width(shape);
  a.q = op[q].data<T>();
  a.kv = op[q + 1].data<T>();
  a.out = out.data<T>();
  a.lse = lse.data<float>();
  a.start = op[q + 2].data<int32_t>();
  a.q_pitch = op[q].stride[0];
  a.kv_pitch = op[q + 1].stride[0];
  a.out_pitch = out.stride[0];
  a.pairs = sizeof(T) == 2 && a.W % (2 * kLanes) == 0 && multiplies_pairs();
  return a;
}

void launch_attention_forward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    run_groups<T>(arguments<T>(op, op[0], op[1], 2), context, false, &forward_group<T>);
  });
}

void launch_attention_backward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    Arguments<T> a = arguments<T>(op, op[3], op[4], 5);
    a.dq = op[0].data<T>();
    a.dkv = op[1].data<T>();
    a.dout = op[2].data<T>();
    a.dq_pitch = op[0].stride[0];
    a.dkv_pitch = op[1].stride[0];
    a.dout_pitch = op[2].stride[0];
    run_groups<T>(a, context, true, &backward_group<T>);
  });
}

REGISTER_LAUNCH("attention_forward", launch_attention_forward);
REGISTER_LAUNCH("attention_backward", launch_attention_backward);

} // namespace
} // namespace SIMT_NS
} // namespace triax
