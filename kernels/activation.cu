// SwiGLU, one row per block, and GELU, elementwise. Bound by memory on the GPU and by exp on the host.
#include "kernels/activation.h"
#include "kernels/each.h"
#include "kernels/exp.h"

namespace triax {
inline namespace SIMT_NS {

constexpr float kLog2E = 1.44269504f;

/// 1 / (1 + exp(-x)) for x = y / log2(e). Of NaN it is any number: each caller multiplies by x.
template <class T> SIMT_DEV float sigmoid2(float y) { return 1.0f / (1.0f + exp2_bounded<T>(-y)); }
template <class T> SIMT_DEV float sigmoid(float x) { return sigmoid2<T>(x * kLog2E); }

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    swiglu_forward_kernel(T* __restrict__ y, const T* __restrict__ x, int64_t F) {
  const int64_t row = blockIdx.x;
  const T *gate = x + row * 2 * F, *up = gate + F;
  T* out = y + row * F;
  each<Block, V>(
      0, F,
      [=](auto width, int64_t i) {
        constexpr int W = decltype(width)::value;
        float g[W], u[W];
        load<W>(g, gate + i);
        load<W>(u, up + i);
        for (int k = 0; k < W; ++k) g[k] *= sigmoid<T>(g[k]) * u[k];
        store<W>(out + i, g);
      },
      Row<T>{gate, 2 * F}, Row<T>{up, 2 * F});
}

template <int Block, int V, class T> __global__ void __launch_bounds__(Block, 4)
    swiglu_backward_kernel(T* __restrict__ dx, const T* __restrict__ dy, const T* __restrict__ x, int64_t F) {
  const int64_t row = blockIdx.x;
  const T *gate = x + row * 2 * F, *up = gate + F, *d = dy + row * F;
  T *dgate = dx + row * 2 * F, *dup = dgate + F;
  each<Block, V>(
      0, F,
      [=](auto width, int64_t i) {
        constexpr int W = decltype(width)::value;
        float g[W], u[W], dv[W];
        load<W>(g, gate + i);
        load<W>(u, up + i);
        load<W>(dv, d + i);
        for (int k = 0; k < W; ++k) {
          const float s = sigmoid<T>(g[k]), silu = g[k] * s;
          g[k] = dv[k] * u[k] * (s + silu * (1.0f - s));
          u[k] = dv[k] * silu;
        }
        store<W>(dgate + i, g);
        store<W>(dup + i, u);
      },
      Row<T>{gate, 2 * F}, Row<T>{up, 2 * F}, Row<T>{d, F});
}

constexpr float kGelu1 = 1.5957691216f, kGelu3 = 0.0713548163f; // 2 sqrt(2 / pi), and times 0.044715

/// (1 + tanh u) / 2 = sigmoid(2u)
template <class T> struct GeluTanh {
  static SIMT_DEV float half(float x, float x2) { return sigmoid2<T>(x * (kGelu1 * kLog2E + kGelu3 * kLog2E * x2)); }
  static SIMT_DEV float value(float x) { return x * half(x, x * x); }
  static SIMT_DEV float slope(float x) {
    const uint32_t u = bits_of(x * x), most = 0x42c80000u; // 100: beyond |x| = 10 the slope is 0 or 1
    const float x2 = float_of(u < most ? u : most), s = half(x, x2);
    return s + x * s * (1.0f - s) * (kGelu1 + 3.0f * kGelu3 * x2);
  }
};

/// With the normal distribution's tail Q(|x|) = exp(-x^2 / 2) t p(t), t = 1 / (1 + 0.3 |x|): p is the polynomial of
/// least relative error for |x| <= 13: 1.2e-7, and for bf16 7e-6.
template <class T> struct GeluErf {
  static SIMT_DEV float density(float x) { return exp2_bounded<T>(-0.5f * kLog2E * x * x); }
  static SIMT_DEV float tail(float x) {
    const float t = 1.0f / (1.0f + 0.3f * fabsf(x));
    if constexpr (sizeof(T) == 2) {
      float p = -0.07792990655f;
      p = p * t + 0.21854525805f;
      p = p * t - 0.01982231252f;
      p = p * t + 0.14575131238f;
      p = p * t + 0.11334755272f;
      return t * (p * t + 0.12011153251f);
    }
    float p = 0.03608881969f;
    p = p * t - 0.15893366014f;
    p = p * t + 0.20934628608f;
    p = p * t - 0.05645001557f;
    p = p * t + 0.13003258405f;
    p = p * t + 0.09946507170f;
    p = p * t + 0.12082631377f;
    return t * (p * t + 0.11962454096f);
  }
  static SIMT_DEV float cumulative(float x, float density) {
    const float q = density * tail(x);
    return x > 0.0f ? 1.0f - q : q;
  }
  static SIMT_DEV float value(float x) { return x * cumulative(x, density(x)); }
  static SIMT_DEV float slope(float x) {
    const float d = density(x);
    return cumulative(x, d) + x * 0.3989422804f * d;
  }
};

template <class T, class Form> struct GeluForward {
  T* y;
  const T* x;
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float v[V];
    load<V>(v, x + i);
    for (int k = 0; k < V; ++k) v[k] = Form::value(v[k]);
    store<V>(y + i, v);
  }
};

template <class T, class Form> struct GeluBackward {
  T* dx;
  const T *dy, *x;
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float v[V], d[V];
    load<V>(v, x + i);
    load<V>(d, dy + i);
    for (int k = 0; k < V; ++k) v[k] = d[k] * Form::slope(v[k]);
    store<V>(dx + i, v);
  }
};

static void launch_swiglu_forward(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[0].dim[0], F = op[0].dim[1];
  if (rows == 0 || F == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>, W = EachWidth<T>::value;
    T *y = op[0].data<T>(), *x = op[1].data<T>();
    launch(context, dim3(unsigned(rows)), dim3(B), 0,
           kIsHost || (F % W == 0 && wide(y, x)) ? &swiglu_forward_kernel<B, W, T> : &swiglu_forward_kernel<B, 1, T>, y,
           x, F);
  });
}

static void launch_swiglu_backward(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[1].dim[0], F = op[1].dim[1];
  if (rows == 0 || F == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>, W = EachWidth<T>::value;
    T *dx = op[0].data<T>(), *dy = op[1].data<T>(), *x = op[2].data<T>();
    launch(context, dim3(unsigned(rows)), dim3(B), 0,
           kIsHost || (F % W == 0 && wide(dx, dy, x)) ? &swiglu_backward_kernel<B, W, T>
                                                      : &swiglu_backward_kernel<B, 1, T>,
           dx, dy, x, F);
  });
}

template <class F> static void with_gelu(const Op& op, F&& go) {
  with_float_type(op[0].dtype, [&](auto element) {
    if (op.get<Gelu>() == Gelu::tanh)
      go(element, GeluTanh<decltype(element)>{});
    else
      go(element, GeluErf<decltype(element)>{});
  });
}

static void launch_gelu_forward(const Op& op, const LaunchContext& context) {
  with_gelu(op, [&](auto element, auto form) {
    using T = decltype(element);
    const GeluForward<T, decltype(form)> f{op[0].data<T>(), op[1].data<T>()};
    launch_each<T>(context, 0, op[0].size(), wide(f.y, f.x), f);
  });
}

static void launch_gelu_backward(const Op& op, const LaunchContext& context) {
  with_gelu(op, [&](auto element, auto form) {
    using T = decltype(element);
    const GeluBackward<T, decltype(form)> f{op[0].data<T>(), op[1].data<T>(), op[2].data<T>()};
    launch_each<T>(context, 0, op[0].size(), wide(f.dx, f.dy, f.x), f);
  });
}

REGISTER_LAUNCH("swiglu_forward", launch_swiglu_forward);
REGISTER_LAUNCH("swiglu_backward", launch_swiglu_backward);
REGISTER_LAUNCH("gelu_forward", launch_gelu_forward);
REGISTER_LAUNCH("gelu_backward", launch_gelu_backward);

} // namespace SIMT_NS
} // namespace triax
