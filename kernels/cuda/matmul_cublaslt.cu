// Matrix products on the GPU by cuBLASLt, whose header is included here alone.
//
// cuBLASLt stores by columns: our row-major c[m, n] is its c'[n, m]. So c = op(a) op(b) is asked for as c' = op(b')
// op(a') with the roles of a and b exchanged and every leading dimension and transposition as it is.
#include "kernels/algorithms.h"
#include "kernels/matmul_shape.h"
#include "kernels/simt.h"
#include <cublasLt.h>
#include <map>
#include <mutex>

namespace triax {
inline namespace SIMT_NS {
namespace {

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(concat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status), " (", cublasLtGetStatusName(status), ")"));
}

void check_blas(cublasStatus_t status, const Op& op) {
  if (status != CUBLAS_STATUS_SUCCESS) check_blas(status, op.describe().c_str());
}

cudaDataType_t type_of(Dtype dtype) { return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// Elements from a row to the next; of a single row the stride means nothing.
int64_t pitch(const Tensor& t) { return t.dim[0] > 1 ? t.stride[0] : t.dim[1]; }

/// The largest power of two, up to 256, that divides the address: what an algorithm may rely on.
uint32_t alignment(const Tensor& t) {
  uint32_t bytes = 256;
  while (t.address % bytes) bytes /= 2;
  return bytes;
}

/// What was prepared for one shape: kept for the life of the process.
struct Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

cublasLtMatrixLayout_t layout_of(const Tensor& t) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&layout, type_of(t.dtype), uint64_t(t.dim[1]), uint64_t(t.dim[0]), pitch(t)),
             "layout");
  return layout;
}

template <class T> void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)), "operation");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "preference");
}

/// The best algorithm by cuBLASLt's own judgement, among those that add partial sums in f32 and in a fixed order.
cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, const Product& p, const Op& op, uint64_t workspace) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&preference), "preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(op[2]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(op[1]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(op[0]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(op[0]));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, p.operation, p.b, p.a, p.c, p.c, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  check_blas(status, op);
  check_blas(found ? result.state : CUBLAS_STATUS_NOT_SUPPORTED, op);
  return result.algo;
}

/// The algorithm that an earlier process took for this, where this library still offers it.
bool take_kept(cublasLtHandle_t handle, Product& p, const std::string& what, uint64_t workspace) {
  if (!find_algorithm(what, &p.algorithm, sizeof p.algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, p.operation, p.b, p.a, p.c, p.c, &p.algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace;
}

Product prepare(cublasLtHandle_t handle, const Op& op, bool bias, uint64_t workspace, const std::string& what) {
  const auto attributes = op.get<MatmulAttributes>();
  Product p;
  check_blas(cublasLtMatmulDescCreate(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
  set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(attributes.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(attributes.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (bias) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
  p.a = layout_of(op[1]);
  p.b = layout_of(op[2]);
  p.c = layout_of(op[0]);
  if (take_kept(handle, p, what, workspace)) return p;
  p.algorithm = choose(handle, p, op, workspace);
  keep_algorithm(what, &p.algorithm, sizeof p.algorithm);
  return p;
}

/// Everything that the choice of an algorithm depends on.
using Key = std::array<int64_t, 16>;
Key key_of(const Op& op, bool bias, bool accumulate, int64_t workspace) {
  const auto attributes = op.get<MatmulAttributes>();
  const MatmulExtent e = matmul_extent(op);
  return {e.m,
          e.n,
          e.k,
          pitch(op[0]),
          pitch(op[1]),
          pitch(op[2]),
          alignment(op[0]),
          alignment(op[1]),
          alignment(op[2]),
          int64_t(op[0].dtype),
          int64_t(op[1].dtype),
          attributes.transpose_a,
          attributes.transpose_b,
          accumulate,
          bias,
          workspace};
}

/// "matmul m n k ...", which other processes understand.
std::string text_of(const Key& key) {
  std::string text = "matmul";
  for (const int64_t part : key) text += concat(' ', part);
  return text;
}

const AlgorithmRegistration kDepends{"cuBLASLt", "GPU"};

/// c[m, n] = bias[n] (+ c[m, n]): before a product that accumulates, where the epilogue cannot add the bias.
template <int Block, class C, class B> __global__ void __launch_bounds__(Block)
    matmul_bias_kernel(C* c, const B* bias, int64_t pitch, int n, bool accumulate) {
  C* row = c + blockIdx.x * pitch;
  for (int i = threadIdx.x; i < n; i += Block) row[i] = to<C>(float(bias[i]) + (accumulate ? float(row[i]) : 0.0f));
}

void launch_bias(const Op& op, const LaunchContext& context) {
  constexpr int B = 256;
  with_float_type(op[0].dtype, [&](auto c) {
    with_float_type(op[3].dtype, [&](auto bias) {
      using C = decltype(c);
      using Bias = decltype(bias);
      launch(context, dim3(unsigned(op[0].dim[0])), dim3(B), 0, &matmul_bias_kernel<B, C, Bias>, op[0].data<C>(),
             op[3].data<Bias>(), pitch(op[0]), int(op[0].dim[1]), op.get<MatmulAttributes>().accumulate != 0);
    });
  });
}

void launch_matmul(const Op& op, const LaunchContext& context) {
  const MatmulExtent e = matmul_extent(op);
  if (e.m == 0 || e.n == 0 || e.k == 0) return; // a sum over nothing was asked to be added
  // The epilogue takes a bias of c's dtype only, and reads it in vectors.
  const bool epilogue = op.has(3) && op[3].dtype == op[0].dtype && op[3].address % 16 == 0;
  if (op.has(3) && !epilogue) launch_bias(op, context);
  const bool accumulate = op.get<MatmulAttributes>().accumulate || (op.has(3) && !epilogue);
  const int64_t workspace = context.scratch.empty() ? 0 : context.scratch.bytes();

  static std::mutex mutex; // a product's description holds the bias while it is launched
  const std::lock_guard lock(mutex);
  static cublasLtHandle_t handle = nullptr;
  static std::map<Key, Product> products;
  if (!handle) check_blas(cublasLtCreate(&handle), "start");
  const Key key = key_of(op, epilogue, accumulate, workspace);
  auto at = products.find(key);
  if (at == products.end())
    at = products.emplace(key, prepare(handle, op, epilogue, uint64_t(workspace), text_of(key))).first;
  const Product& p = at->second;
  if (epilogue) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, op[3].data<const void>());
  const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  check_blas(cublasLtMatmul(handle, p.operation, &alpha, op[2].data<void>(), p.b, op[1].data<void>(), p.a, &beta,
                            op[0].data<void>(), p.c, op[0].data<void>(), p.c, &p.algorithm,
                            context.scratch.data<void>(), size_t(workspace),
                            static_cast<cudaStream_t>(context.native_stream)),
             op);
}

REGISTER_LAUNCH("matmul", launch_matmul);

} // namespace
} // namespace SIMT_NS
} // namespace triax
