// Boxes moved, converted and added up.
#include "kernels/rearrange.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

TEST_SUITE_BEGIN("kernels_rearrange");

/// Places of the elements of a strided box, in row-major order.
std::vector<size_t> places_of(const Tensor& box, const Tensor& in) {
  std::vector<size_t> at;
  const int64_t first = int64_t(box.address - in.address) / bytes_of(in.dtype);
  for (int64_t n = 0; n < box.size(); ++n) at.push_back(size_t(first + box.offset(n)));
  return at;
}

/// From a part of x to a part of y; what lies around it must stay.
void check(KernelCheck& k, Dtype to, Dtype from, bool accumulate, const Tensor& whole_y, const Tensor& whole_x,
           const auto& part_of_y, const auto& part_of_x) {
  const Vec before = numbers(to, whole_y.size(), 1), values = numbers(from, whole_x.size(), 2);
  const Tensor y = k.in(to, {whole_y.size()}, before), x = k.in(from, {whole_x.size()}, values);
  const Tensor to_box = part_of_y(y), from_box = part_of_x(x);
  Vec want = before;
  const auto at_y = places_of(to_box, y), at_x = places_of(from_box, x);
  REQUIRE(at_y.size() == at_x.size());
  for (size_t n = 0; n < at_y.size(); ++n)
    want[at_y[n]] = rounded(to, (accumulate ? want[at_y[n]] : 0.0) + values[at_x[n]]);
  k.run(rearrange(to_box, from_box, accumulate), &y);
  CHECK(k.read(y) == want);
}

TEST_CASE("rearrange: columns of rows, pieces of heads, every dtype") {
  for (const Dtype to : {Dtype::f32, Dtype::bf16})
    for (const Dtype from : {Dtype::f32, Dtype::bf16})
      for (const bool accumulate : {false, true})
        for (const int64_t C : {1, 7, 16, 40}) {
          if (accumulate && to == Dtype::bf16) continue;
          CAPTURE(C);
          three_ways([&](KernelCheck& k) {
            const int64_t N = 5, R = 3;
            // Columns [C, 2C) of rows of 3C to dense rows, and back.
            const auto columns = [&](const Tensor& t) { return t.view({N, 3 * C}).slice(1, C, C); };
            const auto dense = [&](const Tensor& t) { return t.view({N, C}); };
            const Tensor wide = Tensor::dense(0, Space::device, to, {N * 3 * C}),
                         narrow = Tensor::dense(0, Space::device, to, {N * C});
            check(k, to, from, accumulate, narrow, wide, dense, columns);
            check(k, to, from, accumulate, wide, narrow, columns, dense);
            // [N, R, C] to [R, N, C].
            const Tensor all = Tensor::dense(0, Space::device, to, {N * R * C});
            const auto pieces = [&](const Tensor& t) {
              Tensor box = t.view({R, N, C});
              std::swap(box.dim[0], box.dim[1]);
              std::swap(box.stride[0], box.stride[1]);
              return box;
            };
            check(k, to, from, accumulate, all, all, pieces, [&](const Tensor& t) { return t.view({N, R, C}); });
            // Four dimensions.
            const Tensor four = Tensor::dense(0, Space::device, to, {2 * 3 * 2 * C});
            check(
                k, to, from, accumulate, four, four,
                [&](const Tensor& t) {
                  Tensor box = t.view({3, 2, 2, C});
                  std::swap(box.dim[0], box.dim[2]);
                  std::swap(box.stride[0], box.stride[2]);
                  return box;
                },
                [&](const Tensor& t) {
                  return t.view({2, 2, 3, C});
                });
          });
        }
}

TEST_CASE("rearrange: shapes that do not fit are refused") {
  const Tensor x = Tensor::dense(4096, Space::device, Dtype::bf16, {4, 6}),
               y = Tensor::dense(8192, Space::device, Dtype::bf16, {6, 4}),
               i = Tensor::dense(8192, Space::device, Dtype::i32, {4, 6});
  CHECK(has(error_of([&] { rearrange(y, x); }), "rearrange: bf16[4, 6] to bf16[6, 4]"));
  CHECK(has(error_of([&] { rearrange(i, x); }), "rearrange"));
  CHECK(has(error_of([&] { rearrange(x, x, true); }), "accumulates in f32"));
  Tensor turned = x;
  std::swap(turned.dim[0], turned.dim[1]);
  std::swap(turned.stride[0], turned.stride[1]);
  CHECK(has(error_of([&] { rearrange(y, turned); }), "rearrange"));
  CHECK(error_of([&] { rearrange(x, x); }).empty());
}

TEST_SUITE_END();

} // namespace
} // namespace triax
