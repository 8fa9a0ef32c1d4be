// cuDNN's attention as an implementation beside our own: what kernels.attention=auto is on a GPU where the run can use
// it (attention.cpp). Its library is opened when first used, so that a binary with it runs where there is none.
// Deterministic; without document boundaries, which its masks do not know.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include "kernels/attention_shape.h"
#include "kernels/choice.h"
#include "kernels/simt.h"
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <map>
#include <mutex>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr; // what the front end looks its symbols up in
}

namespace triax {
inline namespace SIMT_NS {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(fe::error_t error, const Op& op) {
  if (error.is_bad())
    fail(concat("cuDNN: ", error.get_message(), " in ", op.describe(), "; kernels.attention=triax does without it"));
}

cudnnHandle_t handle_for(cudaStream_t stream) {
  static cudnnHandle_t handle = [] {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
    DEMAND(fe::cudnn_dlhandle, "attention is to run by cuDNN 9, which is not to be found (", dlerror(),
           "); install it, put its folder into LD_LIBRARY_PATH, or set kernels.attention=triax");
    cudnnHandle_t made = nullptr;
    const cudnnStatus_t status = fe::detail::create_handle(&made);
    DEMAND(status == CUDNN_STATUS_SUCCESS, "cuDNN does not start: ", fe::detail::get_error_string(status));
    return made;
  }();
  ENSURE(fe::detail::set_stream(handle, stream) == CUDNN_STATUS_SUCCESS, "cuDNN: the stream is refused");
  return handle;
}

/// Names of the graphs' tensors.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Graph {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

/// [B, heads, T, D] of rows with a pitch, `heads` side by side.
fe::graph::Tensor_attributes rows(const AttentionAttributes& a, Uid uid, int64_t heads, int64_t pitch) {
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_data_type(fe::DataType_t::BFLOAT16)
      .set_dim({a.batch, heads, a.sequence, a.head_width})
      .set_stride({a.sequence * pitch, a.head_width, pitch, 1});
}
fe::graph::Tensor_attributes lse_of(const AttentionAttributes& a) {
  return fe::graph::Tensor_attributes()
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({a.batch, a.heads, a.sequence, 1})
      .set_stride({a.heads * a.sequence, a.sequence, 1, 1});
}
/// An output takes its uid, shape and strides from `like`.
void output(const GraphTensor& tensor, const fe::graph::Tensor_attributes& like) {
  tensor->set_output(true)
      .set_uid(like.get_uid())
      .set_data_type(like.get_data_type())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride());
}

template <class Options> void mask(Options& options, const AttentionAttributes& a) {
  options.set_causal_mask(true).set_attn_scale(a.scale);
  if (a.window > 0) options.set_diagonal_band_left_bound(a.window);
}

void begin(fe::graph::Graph& graph) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

void finish(Graph& g, cudnnHandle_t handle, const Op& op, int64_t planned) {
  check(g.graph.build(handle, {fe::HeurMode_t::A}), op);
  check(g.graph.get_workspace_size(g.workspace), op);
  DEMAND(g.workspace <= planned, "cuDNN asks for ", g.workspace, " bytes of workspace for ", op.describe(), ", and ",
         planned, " were planned; set kernels.attention=triax");
}

void build_forward(Graph& g, const Op& op, const AttentionAttributes& a) {
  begin(g.graph);
  const int64_t keys = op[3].stride[0];
  auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  mask(options, a);
  const auto q = g.graph.tensor(rows(a, kQ, a.heads, op[2].stride[0])),
             k = g.graph.tensor(rows(a, kK, a.kv_heads, keys)), v = g.graph.tensor(rows(a, kV, a.kv_heads, keys));
  const auto [out, lse] = g.graph.sdpa(q, k, v, options);
  output(out, rows(a, kOut, a.heads, op[0].stride[0]));
  output(lse, lse_of(a));
}

void build_backward(Graph& g, const Op& op, const AttentionAttributes& a) {
  begin(g.graph);
  const int64_t keys = op[6].stride[0], gradient = op[1].stride[0];
  auto options = fe::graph::SDPA_backward_attributes().set_name("attention backward").set_deterministic_algorithm(true);
  mask(options, a);
  const auto q = g.graph.tensor(rows(a, kQ, a.heads, op[5].stride[0])),
             k = g.graph.tensor(rows(a, kK, a.kv_heads, keys)), v = g.graph.tensor(rows(a, kV, a.kv_heads, keys)),
             out = g.graph.tensor(rows(a, kOut, a.heads, op[3].stride[0])),
             dout = g.graph.tensor(rows(a, kDout, a.heads, op[2].stride[0])), lse = g.graph.tensor(lse_of(a));
  const auto [dq, dk, dv] = g.graph.sdpa_backward(q, k, v, out, dout, lse, options);
  output(dq, rows(a, kDq, a.heads, op[0].stride[0]));
  output(dk, rows(a, kDk, a.kv_heads, gradient));
  output(dv, rows(a, kDv, a.kv_heads, gradient));
}

/// The graph of this shape, built when first met and kept for the life of the process.
Graph& graph_of(const Op& op, cudnnHandle_t handle, int64_t planned,
                void (*build)(Graph&, const Op&, const AttentionAttributes&)) {
  static std::map<std::string, std::unique_ptr<Graph>> graphs;
  std::string key = op.kind->name;
  key.append(reinterpret_cast<const char*>(op.attributes.data()), op.attributes.size());
  for (int i = 0; i < op.operand_count; ++i) key += concat(' ', op[i].stride[0]);
  auto& graph = graphs[key];
  if (!graph) {
    auto made = std::make_unique<Graph>();
    build(*made, op, op.get<AttentionAttributes>());
    finish(*made, handle, op, planned);
    graph = std::move(made);
  }
  return *graph;
}

/// Values, or their gradients, behind the keys.
void* values(const Tensor& kv, const AttentionAttributes& a) { return kv.data<bf16>() + a.kv_heads * a.head_width; }

void run(const Op& op, const LaunchContext& context, std::unordered_map<int64_t, void*> pointers,
         void (*build)(Graph&, const Op&, const AttentionAttributes&)) {
  static std::mutex mutex; // a handle serves one thread at a time
  const std::lock_guard lock(mutex);
  const int64_t planned = context.scratch.empty() ? 0 : context.scratch.bytes();
  const cudnnHandle_t handle = handle_for(static_cast<cudaStream_t>(context.native_stream));
  Graph& g = graph_of(op, handle, planned, build);
  check(g.graph.execute(handle, pointers, context.scratch.data<void>()), op);
}

void launch_forward(const Op& op, const LaunchContext& context) {
  const auto a = op.get<AttentionAttributes>();
  if (op[0].size() == 0) return;
  run(op, context,
      {{kQ, op[2].data<void>()},
       {kK, op[3].data<void>()},
       {kV, values(op[3], a)},
       {kOut, op[0].data<void>()},
       {kLse, op[1].data<void>()}},
      build_forward);
}

void launch_backward(const Op& op, const LaunchContext& context) {
  const auto a = op.get<AttentionAttributes>();
  if (op[0].size() == 0) return;
  run(op, context,
      {{kQ, op[5].data<void>()},
       {kK, op[6].data<void>()},
       {kV, values(op[6], a)},
       {kOut, op[3].data<void>()},
       {kDout, op[2].data<void>()},
       {kLse, op[4].data<void>()},
       {kDq, op[0].data<void>()},
       {kDk, op[1].data<void>()},
       {kDv, values(op[1], a)}},
      build_backward);
}

/// Asked before a run is planned, on its machine.
std::string obstacle() {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL); // stays open
  return library ? "" : concat("cuDNN 9 is not to be found (", dlerror(), ")");
}
const ObstacleRegistration kObstacle("attention_forward", obstacle);

REGISTER_IMPLEMENTATION("attention_forward", "cudnn", launch_forward);
REGISTER_IMPLEMENTATION("attention_backward", "cudnn", launch_backward);

} // namespace
} // namespace SIMT_NS
} // namespace triax
