// The parameter table as ranks hold it: every element of the model in exactly as many places as it should be.
#include "kernels/check.h"
#include "model/params.h"
#include "tests/small_model.h"
#include <doctest/doctest.h>

using namespace triax;
using namespace triax::test;

namespace {

ModelConfig odd(Family family) {
  ModelConfig c = small(family);
  c.heads = 8;
  c.kv_heads = family == Family::gpt2 ? 8 : 2;
  c.head_width = family == Family::gpt2 ? 8 : 10;
  c.mlp = 96;
  c.vocabulary = 101;
  c.qkv_bias = family == Family::llama;
  return c;
}

} // namespace

TEST_SUITE("model_params") {

  TEST_CASE("ranks of a tensor-parallel group hold each element once, what they share each") {
    for (const Family family : {Family::llama, Family::gpt2})
      for (const int tensor : {1, 2, 4, 8}) {
        const ModelConfig config = odd(family);
        const int copies = kv_copies(config, tensor);
        const ParamTable whole(config), table(config, {tensor, copies, 1});
        CHECK(table.count() == parameters(config));
        for (size_t i = 0; i < table.rows().size(); ++i) {
          const Parameter &p = table.rows()[i], &w = whole.rows()[i];
          CAPTURE(p.name);
          std::vector<int> seen(size_t(w.size()), 0);
          for (int rank = 0; rank < tensor; ++rank)
            for (const Piece& piece : p.pieces)
              for (int64_t r = 0; r < piece.rows_at(rank); ++r)
                for (int64_t c = 0; c < p.columns; ++c)
                  ++seen[size_t((piece.first_of_all + piece.first_row_at(rank) + r) * piece.all_columns +
                                p.first_column_at(rank) + c)];
          for (size_t e = 0; e < seen.size(); ++e) {
            const int64_t row = int64_t(e) / p.pieces[0].all_columns;
            const Piece* of = nullptr;
            for (const Piece& piece : p.pieces)
              if (row >= piece.first_of_all && row < piece.first_of_all + piece.all_rows) of = &piece;
            REQUIRE(of != nullptr);
            REQUIRE(seen[e] == (of->parted == Parted::whole ? tensor : int(of->copies)));
          }
        }
      }
  }

  TEST_CASE("units hold all parameters, in whole blocks for every shard, and shared ones last") {
    for (const Family family : {Family::llama, Family::gpt2})
      for (const int tensor : {1, 4})
        for (const int shards : {1, 3, 8}) {
          const ModelConfig config = odd(family);
          const ParamTable table(config, {tensor, kv_copies(config, tensor), shards});
          const ParamTable plain(config, {tensor, kv_copies(config, tensor), 1});
          int64_t at = 0;
          for (size_t u = 0; u < table.units().size(); ++u) {
            const Unit& unit = table.units()[u];
            CAPTURE(unit.name);
            CHECK(unit.begin == at);
            CHECK(unit.elements % (shards * kShardBlock) == 0);
            CHECK(unit.canonical == plain.units()[u].begin);
            CHECK(unit.length == plain.units()[u].elements);
            CHECK((unit.shared_by == 1 || unit.shared_from < unit.length));
            at += unit.elements;
          }
          CHECK(at == table.elements());
          CHECK(table.blocks() * kShardBlock == plain.elements());
          for (const Parameter& p : table.rows()) {
            const Unit& unit = table.units()[size_t(p.unit)];
            CAPTURE(p.name);
            CHECK((p.offset >= unit.begin && p.offset + p.size() <= unit.begin + unit.length));
            CHECK(p.offset % kParamAlignment == 0);
            CHECK(p.decay == unit.decay);
            const bool shared = tensor > 1 && p.pieces[0].parted == Parted::whole;
            if (p.role != Role::qkv && p.role != Role::qkv_bias)
              CHECK((p.offset - unit.begin >= unit.shared_from) == shared);
          }
        }
  }

  TEST_CASE("groups that would part a head are refused with the numbers") {
    ModelConfig config = odd(Family::llama);
    CHECK(kv_copies(config, 1) == 1);
    CHECK(kv_copies(config, 2) == 1);
    CHECK(kv_copies(config, 8) == 4);
    CHECK_THROWS_WITH_AS(kv_copies(config, 3),
                         doctest::Contains("mesh.tp is 3, but must divide model.heads, which is 8"), Error);
    config.heads = 12, config.kv_heads = 4;
    CHECK_THROWS_WITH_AS(kv_copies(config, 6), doctest::Contains("mesh.tp is 6, and model.kv_heads 4"), Error);
    config.mlp = 97;
    CHECK_THROWS_WITH_AS(kv_copies(config, 2), doctest::Contains("must divide model.mlp, which is 97"), Error);
  }

} // TEST_SUITE
