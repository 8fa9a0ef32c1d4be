#include "kernels/matmul_onednn.h"
#include <cstdlib>

namespace triax {
namespace {

Description describe_matmul(const Target& target, const Op& op) {
  const auto [m, n, k] = matmul_extent(op);
  const bool cpu = target.kind == Target::Kind::cpu;
  return {.flops = 2.0 * double(m) * double(n) * double(k),
          .bytes = operand_bytes(op),
          .scratch = cpu ? matmul_host_scratch(op) : matmul_workspace(target),
          .kernels = {cpu ? "onednn_matmul" : "cublaslt_matmul"},
          .trusted = true};
}

const OpKind kMatmul{"matmul", describe_matmul};

void ensure_matrix(const Tensor& t, const char* name) {
  ENSURE(t.rank == 2 && (t.stride[1] == 1 || t.dim[1] == 1) && (t.stride[0] >= t.dim[1] || t.dim[0] == 1),
         "matmul: ", name, " is ", t.describe(), ", expected a matrix of contiguous columns");
}

} // namespace

MatmulExtent matmul_extent(const Op& op) {
  return {op[0].dim[0], op[0].dim[1], op[1].dim[op.get<MatmulAttributes>().transpose_a ? 0 : 1]};
}

int64_t matmul_workspace(const Target& target) {
  return std::atoi(target.name.c_str() + sizeof("sm_") - 1) >= 90 ? kMatmulWorkspace : kMatmulWorkspaceBeforeSm90;
}

Op matmul(const Matmul& f) {
  ensure_matrix(f.c, "c");
  ensure_matrix(f.a, "a");
  ensure_matrix(f.b, "b");
  const int64_t m = f.c.dim[0], n = f.c.dim[1], k = f.a.dim[f.transpose_a ? 0 : 1];
  ENSURE(f.a.dim[f.transpose_a ? 1 : 0] == m && f.b.dim[f.transpose_b ? 1 : 0] == k &&
             f.b.dim[f.transpose_b ? 0 : 1] == n,
         "matmul: c ", f.c.describe(), " is not the product of a ", f.a.describe(), f.transpose_a ? "^T" : "",
         " and b ", f.b.describe(), f.transpose_b ? "^T" : "");
  ENSURE(f.a.dtype == f.b.dtype && (f.a.dtype == Dtype::f32 || f.a.dtype == Dtype::bf16), "matmul: a is ",
         f.a.describe(), " and b ", f.b.describe());
  ENSURE(f.c.dtype == f.a.dtype || f.c.dtype == Dtype::f32, "matmul: c is ", f.c.describe(), " of a ", f.a.describe());
  ENSURE(f.bias.empty() || (is(f.bias, f.a.dtype, {n}) && f.bias.dense()), "matmul: bias is ", f.bias.describe());
  ENSURE(k > 0 || (f.accumulate && f.bias.empty()) || m == 0 || n == 0,
         "matmul: nothing is summed, and c is not accumulated");
  Op op(kMatmul);
  f.accumulate ? op.update(f.c) : op.write(f.c);
  return op.read(f.a).read(f.b).read(f.bias).set(MatmulAttributes{f.transpose_a, f.transpose_b, f.accumulate});
}

} // namespace triax
