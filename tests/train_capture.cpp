// Captured steps: what a rank's file holds, how files of several ranks are put together, and how two runs compare.
#include "model/tensor_parallel.h"
#include "tests/helpers.h"
#include "train/capture_compare.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

using namespace triax;
using namespace triax::test;

namespace {

CapturedTensor tensor(const std::string& name, Phase phase, int64_t order, int64_t rows, int64_t columns,
                      int64_t step = 1) {
  CapturedTensor t;
  t.step = step, t.phase = phase, t.order = order, t.rows = rows, t.columns = columns, t.name = name;
  return t;
}

struct Part {
  CapturedTensor tensor;
  std::vector<ElementRun> runs;
  std::vector<float> values;
};

void write_rank(const std::string& folder, int rank, const std::vector<Part>& parts) {
  CaptureFile file(folder, rank);
  for (const Part& part : parts) file.write(part.tensor, part.runs, part.values);
  file.close();
}

std::string problem_of(const std::string& folder) {
  return error_of([&] {
    const CapturedRun run(folder);
    for (size_t i = 0; i < run.tensors().size(); ++i) run.values(i);
  });
}

} // namespace

TEST_SUITE("train_capture") {

  TEST_CASE("the parts of several ranks become whole tensors in the order of a step") {
    const TemporaryFolder folder;
    const CapturedTensor weight = tensor("w", Phase::weights, 0, 2, 3), stream = tensor("x", Phase::forward, 7, 4, 1);
    write_rank(folder / "run", 0, {{weight, {{0, 2, 3}, {1, 1, 1}}, {1, 4, 2}}, {stream, {{2, 2, 1}}, {12, 13}}});
    write_rank(folder / "run", 1, {{weight, {{4, 2, 1}, {2, 1, 1}}, {5, 6, 3}}, {stream, {{0, 2, 1}}, {10, 11}}});
    const CapturedRun run(folder / "run");
    REQUIRE(run.tensors().size() == 2);
    CHECK(run.tensors()[0].describe() == "step 1, forward: x [4]");
    CHECK(run.values(0) == std::vector<float>{10, 11, 12, 13});
    CHECK(run.tensors()[1].describe() == "step 1, weights: w [2, 3]");
    CHECK(run.values(1) == std::vector<float>{1, 2, 3, 4, 5, 6});
  }

  TEST_CASE("an element that no rank gave, or two, is an error; so are damaged files and none") {
    const TemporaryFolder folder;
    const CapturedTensor x = tensor("x", Phase::forward, 0, 4, 1);
    write_rank(folder / "hole", 0, {{x, {{0, 3, 1}}, {1, 2, 3}}});
    CHECK(has(problem_of(folder / "hole"), "no rank gave 1 of the elements"));
    write_rank(folder / "twice", 0, {{x, {{0, 4, 1}}, {1, 2, 3, 4}}});
    write_rank(folder / "twice", 1, {{x, {{3, 1, 1}}, {4}}});
    CHECK(has(problem_of(folder / "twice"), "element 3"));
    write_rank(folder / "beyond", 0, {{x, {{1, 4, 1}}, {1, 2, 3, 4}}});
    CHECK(has(problem_of(folder / "beyond"), "element 4"));
    write_rank(folder / "names", 0, {{x, {{0, 2, 1}}, {1, 2}}});
    write_rank(folder / "names", 1, {{tensor("y", Phase::forward, 0, 4, 1), {{2, 2, 1}}, {3, 4}}});
    CHECK(has(problem_of(folder / "names"), "where another rank has"));
    write_rank(folder / "cut", 0, {{x, {{0, 4, 1}}, {1, 2, 3, 4}}});
    const std::string path = folder / "cut/rank_00000.bin";
    put(path, content(path).substr(0, content(path).size() - 1));
    CHECK(has(problem_of(folder / "cut"), path + ": byte 0 begins no whole record"));
    std::filesystem::create_directories(folder / "empty");
    CHECK(has(problem_of(folder / "empty"), "holds no rank_*"));
    CHECK_FALSE(std::filesystem::exists(folder / "unfinished/rank_00000.bin"));
    { CaptureFile(folder / "unfinished", 0).write(x, {{0, 4, 1}}, {1, 2, 3, 4}); }
    CHECK(has(problem_of(folder / "unfinished"), "holds no rank_*"));
  }

  TEST_CASE("units in the last place count the numbers between two") {
    const float one = 1, above = std::nextafter(one, 2.0f), tiny = std::numeric_limits<float>::denorm_min();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto ulps = [](float a, float b, Dtype dtype = Dtype::f32) { return compare_values({a}, {b}, dtype).ulps; };
    CHECK(ulps(one, above) == 1);
    CHECK(ulps(-above, -one) == 1);
    CHECK(ulps(1, 2) == 1 << 23);
    CHECK(ulps(1, 1.0078125f, Dtype::bf16) == 1);
    CHECK(ulps(0.0f, -0.0f) == 1);
    CHECK(ulps(tiny, -tiny) == 3);
    CHECK(std::isinf(ulps(1, nan)));

    const ValueDifference d = compare_values({3, 4, 0, nan}, {3, 4, 0, nan}, Dtype::f32);
    CHECK(d.elements == 0);
    CHECK_FALSE(d.exceeds(0));
    const ValueDifference e = compare_values({3, 4, 0}, {3, 4.5f, 0.5f}, Dtype::f32);
    CHECK(e.elements == 2);
    CHECK(e.at == 2);
    CHECK(e.b == 0.5f);
    CHECK(e.relative == doctest::Approx(std::sqrt(0.5) / 5));
    CHECK(e.exceeds(0.14));
    CHECK_FALSE(e.exceeds(0.15));
    CHECK(e.exceeds(0));
    CHECK(compare_values({1, 2}, {1, nan}, Dtype::f32).exceeds(1e6));
    CHECK(compare_values({0}, {1}, Dtype::f32).exceeds(1e6));
    CHECK(compare_values({0.0f}, {-0.0f}, Dtype::f32).exceeds(0));
  }

  TEST_CASE("two runs: the first that differs, the furthest within, and steps that do not match") {
    const TemporaryFolder folder;
    const auto run = [&](const std::string& name, float stream, float gradient, int64_t steps) {
      std::vector<Part> parts;
      for (int64_t step = 1; step <= steps; ++step) {
        parts.push_back({tensor("g", Phase::gradients, 0, 1, 1, step), {{0, 1, 1}}, {gradient}});
        parts.push_back({tensor("x", Phase::forward, 0, 1, 1, step), {{0, 1, 1}}, {stream}});
      }
      write_rank(folder / name, 0, parts);
    };
    run("a", 1, 1, 2);
    run("b", 1.25f, 1.5f, 2);
    run("short", 1, 1, 1);
    const CapturedRun a(folder / "a"), b(folder / "b"), shorter(folder / "short");
    const CaptureComparison same = compare_captures(a, a, 0);
    CHECK(same.tensors == 4);
    CHECK(same.steps == 2);
    CHECK(same.equal == 4);
    const CaptureComparison any = compare_captures(a, b, 0);
    REQUIRE(any.differing.size() == 4);
    CHECK(any.differing[0].tensor.describe() == "step 1, forward: x [1]");
    const CaptureComparison some = compare_captures(a, b, 0.3);
    REQUIRE(some.differing.size() == 2);
    CHECK(some.differing[0].tensor.describe() == "step 1, gradients: g [1]");
    CHECK(some.largest.tensor.name == "x");
    for (const auto& [left, right] : {std::pair{&a, &shorter}, {&shorter, &a}})
      CHECK(has(error_of([&] { compare_captures(*left, *right, 0); }), "did not run the same steps"));
  }

  TEST_CASE("rows of tensor-parallel ranks are those of the whole, chunk by chunk") {
    // 12 rows on 2 ranks in 3 chunks: rank 0 holds 0 1, 4 5, 8 9.
    std::vector<int64_t> rows;
    for (int rank : {0, 1})
      for (int64_t own = 0; own < 6; ++own) rows.push_back(TensorParallel::row_of(own, 6, rank, 2, 3));
    CHECK(rows == std::vector<int64_t>{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11});
    CHECK(TensorParallel::row_of(5, 7, 0, 1, 3) == 5);
  }

} // TEST_SUITE
