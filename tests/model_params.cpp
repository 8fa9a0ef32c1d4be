// The parameter table as ranks hold it: every element of the model in exactly as many places as it should be.
#include "kernels/check.h"
#include "model/params.h"
#include "tests/small_model.h"
#include <algorithm>
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
            CHECK(unit.number == int(u));
            CHECK((unit.copied_from <= unit.whole_from && unit.whole_from <= unit.length));
            CHECK((unit.copied_from < unit.whole_from) == (table.cut().copies > 1 && unit.name.find("layer") < 20));
            at += unit.elements;
          }
          CHECK(at == table.elements());
          CHECK(table.all_units() == int64_t(table.units().size()));
          for (const Parameter& p : table.rows()) {
            const Unit& unit = table.units()[size_t(p.unit)];
            CAPTURE(p.name);
            CHECK((p.offset >= unit.begin && p.offset + p.size() <= unit.begin + unit.length));
            CHECK(p.offset % kParamAlignment == 0);
            CHECK(p.decay == (p.offset - unit.begin < unit.decay_to));
            const bool whole = tensor > 1 && p.pieces[0].parted == Parted::whole;
            CHECK((p.offset - unit.begin >= unit.whole_from) == whole);
            if (p.role != Role::qkv && p.role != Role::qkv_bias && !whole)
              CHECK(p.offset - unit.begin < unit.copied_from);
          }
        }
  }

  TEST_CASE("stages of a pipeline have the whole model's parameters between them, each as one rank has it") {
    for (const Family family : {Family::llama, Family::gpt2})
      for (const bool head_copy : {false, true}) {
        ModelConfig config = odd(family);
        config.layers = 3;
        config.tied = head_copy;
        const ParamTable whole(config, {.head_copy = head_copy});
        const std::vector<std::vector<LayerRange>> stages = {{{0, 1, true, false}, {2, 1, false, true}},
                                                             {{1, 1, false, false}}};
        std::vector<int> seen(whole.units().size(), 0);
        for (const auto& chunks : stages) {
          const ParamTable table(config, {.chunks = chunks, .head_copy = head_copy});
          CHECK(table.all_units() == whole.all_units());
          CHECK(table.count() == whole.count());
          for (const Unit& unit : table.units()) {
            const auto same = std::find_if(whole.units().begin(), whole.units().end(),
                                           [&](const Unit& u) { return u.name == unit.name; });
            REQUIRE(same != whole.units().end());
            ++seen[size_t(same - whole.units().begin())];
            CHECK(unit.canonical == same->canonical);
            CHECK(unit.number == same->number);
            CHECK(unit.length == same->length);
            CHECK(unit.is_copy == same->is_copy);
          }
          for (size_t i = 0; i < whole.rows().size(); ++i) {
            CHECK(table.rows()[i].name == whole.rows()[i].name);
            CHECK(table.rows()[i].number == whole.rows()[i].number);
          }
        }
        for (int times : seen) CHECK(times == 1);
        if (head_copy) {
          CHECK(whole.units().back().is_copy);
          CHECK(whole.units().back().canonical == whole.units()[0].canonical);
          CHECK(whole.find(Role::head)->number == whole.find(Role::embedding)->number);
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
