#include "data/dataset.h"
#include "data/permutation.h"
#include "data/prefetch.h"
#include "tests/helpers.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

using namespace triax;
using test::error_of;
using test::has;
using test::TemporaryFolder;

namespace {

using Ids = std::vector<int32_t>;

/// A shard of documents with the given lengths, whose tokens count up from `first`.
std::string shard(const TemporaryFolder& folder, const std::string& name, const std::vector<int64_t>& lengths,
                  int32_t first = 0, int64_t vocabulary = 60'000, uint64_t tokenizer_hash = 9) {
  ShardWriter writer(folder / name, vocabulary, tokenizer_hash);
  for (int64_t length : lengths) {
    Ids ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), first);
    first += static_cast<int32_t>(length);
    writer.add_document(ids, length);
  }
  writer.finish();
  return folder / name;
}

Dataset open(const std::vector<std::string>& shards, int64_t T, bool shuffle = true, uint64_t seed = 1,
             int64_t vocabulary = 60'000) {
  return Dataset::open({"", shards, "train", T, seed, shuffle, vocabulary});
}

bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.labels == b.labels && a.document_start == b.document_start &&
         a.token_order == b.token_order && a.counted == b.counted;
}

} // namespace

TEST_SUITE("data_dataset") {
  TEST_CASE("the permutation is one, for every size, and differs by key") {
    std::vector<int64_t> sizes = {1000, 4095, 4096, 4097, 65537};
    for (int64_t n = 1; n < 70; ++n) sizes.push_back(n);
    for (int64_t n : sizes) {
      std::vector<bool> seen(static_cast<size_t>(n));
      int64_t fixed = 0, equal = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t to = permuted(i, n, 42);
        REQUIRE(to >= 0);
        REQUIRE(to < n);
        CHECK(!seen[static_cast<size_t>(to)]);
        seen[static_cast<size_t>(to)] = true;
        fixed += to == i;
        equal += to == permuted(i, n, 43);
      }
      if (n >= 1000) {
        CHECK(fixed < 10);
        CHECK(equal < 10);
      }
    }
    const int64_t large = (int64_t{1} << 40) + 7;
    std::set<int64_t> images;
    for (int64_t i = 0; i < 10'000; ++i) images.insert(permuted(large - 1 - i, large, 5));
    CHECK(images.size() == 10'000);
    CHECK(*images.rbegin() < large);
    CHECK(*images.rbegin() > large / 2);
    // Small sizes reach all their orders, not a few.
    std::map<std::vector<int64_t>, int> orders;
    for (uint64_t key = 0; key < 6000; ++key) ++orders[{permuted(0, 3, key), permuted(1, 3, key), permuted(2, 3, key)}];
    CHECK(orders.size() == 6);
    for (const auto& [order, count] : orders) CHECK(std::abs(count - 1000) < 150);
  }

  TEST_CASE("every pair of neighbours exactly once an epoch") {
    TemporaryFolder folder;
    for (int64_t n : {65, 66, 128, 129, 1000})
      for (bool shuffle : {false, true}) {
        const std::string one = shard(folder, "one", {n / 2}),
                          two = shard(folder, "two", {n - n / 2}, static_cast<int32_t>(n / 2));
        const Dataset data = open({one, two}, 64, shuffle);
        CHECK(data.tokens() == n);
        CHECK(data.samples_per_epoch() == (n - 1 + 63) / 64);
        for (int64_t epoch : {0, 1}) {
          const int64_t samples = data.samples_per_epoch();
          const Batch batch = data.batch(epoch * samples, samples);
          std::vector<int> inputs(static_cast<size_t>(n)), labels(static_cast<size_t>(n));
          int64_t counted = 0;
          for (size_t i = 0; i < batch.tokens.size(); ++i) {
            if (batch.labels[i] < 0) {
              CHECK(batch.tokens[i] == 0);
              continue;
            }
            CHECK(batch.labels[i] == batch.tokens[i] + 1);
            ++inputs[static_cast<size_t>(batch.tokens[i])];
            ++labels[static_cast<size_t>(batch.labels[i])];
            ++counted;
          }
          CHECK(counted == n - 1);
          CHECK(batch.counted == n - 1);
          CHECK(std::all_of(inputs.begin(), inputs.end() - 1, [](int c) { return c == 1; }));
          CHECK(std::all_of(labels.begin() + 1, labels.end(), [](int c) { return c == 1; }));
        }
      }
  }

  TEST_CASE("a batch is a pure function of the sample numbers, however it is asked for") {
    TemporaryFolder folder;
    const auto path = shard(folder, "a", {100, 3, 900, 37});
    const Dataset data = open({path}, 16);
    const int64_t samples = data.samples_per_epoch();
    const Batch whole = data.batch(samples - 5, 10); // over an epoch's end
    for (int64_t s = 0; s < 10; ++s) {
      const Batch one = data.batch(samples - 5 + s, 1);
      CHECK(std::equal(one.tokens.begin(), one.tokens.end(), whole.tokens.begin() + s * 16));
      CHECK(std::equal(one.labels.begin(), one.labels.end(), whole.labels.begin() + s * 16));
      CHECK(std::equal(one.document_start.begin(), one.document_start.end(), whole.document_start.begin() + s * 16));
    }
    CHECK(same(open({path}, 16).batch(samples - 5, 10), whole));
    CHECK(!same(open({path}, 16, true, 2).batch(samples - 5, 10), whole));
    // Four shares of a global batch are disjoint and together the whole.
    std::multiset<int32_t> shares, all;
    for (int rank = 0; rank < 4; ++rank)
      for (int32_t token : data.batch(rank * 4, 4).tokens) shares.insert(token);
    for (int32_t token : data.batch(0, 16).tokens) all.insert(token);
    CHECK(shares == all);
    // Another epoch, another order.
    std::vector<int64_t> first, second;
    for (int64_t s = 0; s < samples; ++s) {
      first.push_back(data.window_start(s));
      second.push_back(data.window_start(samples + s));
    }
    CHECK(first != second);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    CHECK(first == second);
    CHECK(open({path}, 16, false).window_start(samples + 3) == 48);
  }

  TEST_CASE("batches of a sum count each sample once, whatever their size") {
    TemporaryFolder folder;
    const Dataset data = open({shard(folder, "a", {100, 3, 900, 37})}, 16, false);
    const int64_t samples = data.samples_per_epoch();
    for (int64_t count : {int64_t{1}, int64_t{7}, samples, samples + 3}) {
      int64_t counted = 0, labels = 0;
      for (int64_t first = 0; first < samples + count; first += count) { // one batch beyond the last sample, too
        const Batch batch = data.batch_once(first, count, samples);
        counted += batch.counted;
        labels += std::count_if(batch.labels.begin(), batch.labels.end(), [](int32_t label) { return label >= 0; });
      }
      CHECK(counted == data.tokens() - 1);
      CHECK(labels == data.tokens() - 1);
    }
    CHECK(same(data.batch_once(2, 4, 6), data.batch(2, 4)));
  }

  TEST_CASE("document starts") {
    TemporaryFolder folder;
    const Dataset data = open({shard(folder, "a", {3, 1, 6}), shard(folder, "b", {2, 5}, 10)}, 8, false);
    CHECK(data.samples_per_epoch() == 2);
    const Batch batch = data.batch(0, 2);
    CHECK(batch.tokens == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    CHECK(batch.document_start == Ids{0, 0, 0, 3, 4, 4, 4, 4, 0, 0, 2, 2, 4, 4, 4, 4});
    const Batch padded = open({folder / "a"}, 6, false).batch(1, 1);
    CHECK(padded.tokens == Ids{6, 7, 8, 0, 0, 0});
    CHECK(padded.labels == Ids{7, 8, 9, -1, -1, -1});
    CHECK(padded.document_start == Ids{0, 0, 0, 3, 3, 3});
    CHECK(padded.counted == 3);
    CHECK(data.documents() == 5);
    CHECK(data.text_bytes() == 17);
  }

  TEST_CASE("token order is a stable sort of positions by token") {
    TemporaryFolder folder;
    ShardWriter writer(folder / "a", 50, 1);
    Ids ids;
    for (int i = 0; i < 500; ++i) ids.push_back(i * i % 47);
    writer.add_document(ids, 500);
    writer.finish();
    const Batch batch = open({folder / "a"}, 31).batch(0, 16);
    Ids expected(batch.tokens.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      return batch.tokens[static_cast<size_t>(a)] < batch.tokens[static_cast<size_t>(b)];
    });
    CHECK(batch.token_order == expected);
  }

  TEST_CASE("rows at some positions of every sequence") {
    const Batch batch{0, 2, 4, 7, {5, 6, 7, 8, 1, 2, 3, 4}, {6, 7, 8, 1, 2, 3, 4, -1}, {0, 0, 2, 2, 0, 1, 1, 1}, {}};
    const Batch rows = rows_at(batch, {3, 0}, false);
    CHECK(rows.count == 2);
    CHECK(rows.sequence == 2);
    CHECK(rows.tokens == Ids{8, 5, 4, 1});
    CHECK(rows.labels == Ids{1, 6, -1, 2});
    CHECK(rows.counted == 3);
    CHECK(rows.document_start == Ids{2, 0, 1, 0});
    CHECK(rows.token_order == Ids{3, 2, 1, 0});
    CHECK(rows_at(batch, {3, 0}, true).document_start == batch.document_start);
  }

  TEST_CASE("shards shorter than a window: refused alone, joined with others") {
    TemporaryFolder folder;
    for (int64_t n : {0, 1, 63, 64}) {
      const auto path = shard(folder, "short", n ? std::vector<int64_t>{n} : std::vector<int64_t>{});
      const std::string sentence = error_of([&] { open({path}, 64); });
      CHECK(has(sentence, path + ": " + std::to_string(n) + " tokens found, 65 needed"));
      const auto good = shard(folder, "good", {200}, static_cast<int32_t>(n));
      CHECK(open({path, good}, 64).tokens() == n + 200);
    }
    const Dataset one = open({shard(folder, "exact", {65})}, 64);
    CHECK(one.samples_per_epoch() == 1);
    CHECK(one.batch(0, 3).counted == 192);
  }

  TEST_CASE("data that does not fit the model, or itself") {
    TemporaryFolder folder;
    const auto a = shard(folder, "a", {100}, 0, 300), b = shard(folder, "b", {100}, 0, 300, 8);
    CHECK(has(error_of([&] { open({a}, 8, true, 1, 299); }),
              a + " was made with a vocabulary of 300 entries, the model has 299"));
    CHECK(open({a}, 8, true, 1, 304).vocabulary() == 300);
    CHECK(has(error_of([&] { open({a, b}, 8); }), b + " was made with tokenizer 0000000000000008"));
    std::string bytes = read_file(a);
    bytes[128 + 50 * 2 + 1] = 7;
    write_file(a, bytes);
    const Dataset damaged = open({a}, 8, false);
    CHECK(damaged.batch(0, 1).counted == 8);
    CHECK(has(error_of([&] { damaged.batch(0, 12); }), a + ": token 50 is 1842, but the vocabulary has 300 entries"));
    CHECK(has(error_of([&] { open({a}, 0); }), "sequence length is 0"));
    CHECK(has(error_of([&] { open({a}, 8, true, 1, 0); }), "vocabulary is 0"));
    CHECK(has(error_of([&] { open({}, 8); }), "name a data folder, or a list of shards"));
  }

  TEST_CASE("folders: what dataset.json lists is what is read") {
    TemporaryFolder folder;
    const auto folder_open = [&](const std::string& split, int64_t T = 8) {
      return Dataset::open({folder / "", {}, split, T, 1, true, 300});
    };
    CHECK(has(error_of([&] { folder_open("train"); }), "is not a data folder: it holds no dataset.json"));
    shard(folder, "t.shard", {100}, 0, 300);
    const ShardHeader header = Shard::open(folder / "t.shard").header();
    const nlohmann::json entry = {{"file", "t.shard"}, {"tokens", 100}, {"content_hash", hex64(header.content_hash)}};
    const nlohmann::json listing = {
        {"splits", {{"train", {{"shards", {entry}}}}, {"val", {{"shards", nlohmann::json::array()}}}}}};
    write_file(folder / "dataset.json", listing.dump());
    CHECK(folder_open("train").tokens() == 100);
    const std::string sentence = error_of([&] { folder_open("val", 1024); });
    CHECK(has(sentence, ", split val: 0 tokens found, 1025 needed"));
    CHECK(has(sentence, "hold out more"));
    CHECK(has(error_of([&] { folder_open("test"); }), "has no split \"test\""));
    shard(folder, "t.shard", {100}, 1, 300);
    CHECK(has(error_of([&] { folder_open("train"); }), "t.shard is not the shard that"));
    std::filesystem::remove(folder / "t.shard");
    CHECK(has(error_of([&] { folder_open("train"); }), "cannot read " + (folder / "") + "t.shard"));
    write_file(folder / "dataset.json", "{");
    CHECK(has(error_of([&] { folder_open("train"); }), "dataset.json is damaged"));
  }

  TEST_CASE("bytes that the labels stand for") {
    TokenizerParts parts;
    for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
    for (const char* text : {"abc", "<|endoftext|>"}) parts.tokens.push_back(text);
    parts.added.push_back({257, "<|endoftext|>", true});
    Batch batch;
    batch.labels = {'a', 256, 257, -1, 256};
    CHECK(label_bytes(batch, Tokenizer(parts)) == 7);
  }

  TEST_CASE("prefetch gives the same batches in order, and errors where they belong") {
    TemporaryFolder folder;
    const Dataset data = open({shard(folder, "a", {1000})}, 16);
    Prefetcher ahead(data);
    ahead.ask(0, 4);
    for (int64_t step = 0; step < 50; ++step) {
      ahead.ask((step + 1) * 4, 4);
      CHECK(same(ahead.take(), data.batch(step * 4, 4)));
      CHECK(ahead.pending() == 1);
    }
    ahead.ask(-1, 4);
    ahead.ask(8, 4);
    ahead.take();
    CHECK(has(error_of([&] { ahead.take(); }), "a batch of 4 samples from -1"));
    CHECK(same(ahead.take(), data.batch(8, 4)));
    CHECK(has(error_of([&] { ahead.take(); }), "not asked for"));
    ahead.ask(0, 1); // not taken: the destructor does not wait for more than one
  }
}
