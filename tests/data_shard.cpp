#include "data/file.h"
#include "data/shard.h"
#include "tests/helpers.h"
#include <csignal>
#include <cstring>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <numeric>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace triax;
using test::error_of;
using test::has;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

using Ids = std::vector<int32_t>;

ShardHeader write(const std::string& path, int64_t vocabulary, const std::vector<Ids>& documents) {
  ShardWriter writer(path, vocabulary, 0x1234);
  for (const Ids& ids : documents) writer.add_document(ids, static_cast<int64_t>(ids.size()) * 3);
  return writer.finish();
}

Ids all(const Shard& shard, int64_t vocabulary = int64_t{1} << 31) {
  Ids ids(static_cast<size_t>(shard.tokens()));
  shard.read(0, shard.tokens(), vocabulary, ids.data());
  return ids;
}

template <class T> void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The file's bytes after `change`, opened; the sentence it throws.
std::string fault(const std::string& path, const std::function<void(std::string&)>& change, bool verify = false) {
  std::string bytes = read_file(path);
  change(bytes);
  const std::string damaged = path + ".damaged";
  write_file(damaged, bytes);
  return error_of([&] {
    const Shard shard = Shard::open(damaged);
    if (verify) shard.verify();
  });
}

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::vector<uint32_t>& ids, int width) {
  std::string bytes;
  put(bytes, magic);
  put(bytes, version);
  put(bytes, count);
  bytes.resize(1024);
  for (uint32_t id : ids) bytes.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(width));
  return bytes;
}

/// A Megatron pair with the given sequence lengths and documents (indices of sequences, from 0 to their number).
void megatron(const std::string& stem, const std::vector<int32_t>& lengths, const std::vector<int64_t>& documents,
              uint8_t type, int64_t gap = 0) {
  std::string index("MMIDIDX\0\0", 9), tokens;
  put<uint64_t>(index, 1);
  put(index, type);
  put<uint64_t>(index, lengths.size());
  put<uint64_t>(index, documents.size());
  for (int32_t length : lengths) put(index, length);
  int64_t at = 0, id = 0;
  for (int32_t length : lengths) {
    put(index, at);
    at += length * (type == 8 ? 2 : 4) + gap;
    for (int32_t i = 0; i < length; ++i, ++id) tokens.append(reinterpret_cast<const char*>(&id), type == 8 ? 2 : 4);
  }
  for (int64_t document : documents) put(index, document);
  write_file(stem + ".idx", index);
  write_file(stem + ".bin", tokens);
}

} // namespace

TEST_SUITE("data_shard") {
  TEST_CASE("bytes of a shard, read by hand") {
    TemporaryFolder folder;
    const std::string path = folder / "a.shard";
    const ShardHeader header = write(path, 300, {{5, 6, 7, 8, 9, 299}, {1, 2, 3, 4, 5, 6, 7, 299}});
    const std::string bytes = read_file(path);
    CHECK(bytes.substr(0, 8) == "TRIAXTOK");
    const auto u32 = [&](size_t at) {
      uint32_t v;
      std::memcpy(&v, &bytes[at], 4);
      return v;
    };
    const auto u64 = [&](size_t at) {
      uint64_t v;
      std::memcpy(&v, &bytes[at], 8);
      return v;
    };
    CHECK(u32(8) == 1);
    CHECK(u32(12) == 2);
    CHECK(u64(16) == 14);
    CHECK(u64(24) == 2);
    CHECK(u64(32) == 300);
    CHECK(u64(40) == 0x1234);
    CHECK(u64(48) == header.content_hash);
    CHECK(u64(56) == 42);
    CHECK(bytes.size() == 128 + 32 + 24); // 28 bytes of tokens, aligned to 32
    CHECK(u64(160) == 0);
    CHECK(u64(168) == 6);
    CHECK(u64(176) == 14);
    uint16_t last;
    std::memcpy(&last, &bytes[128 + 5 * 2], 2);
    CHECK(last == 299); // each document's length counts its end-of-text token
  }

  TEST_CASE("round trip, documents, verification") {
    TemporaryFolder folder;
    write(folder / "a.shard", 300, {{5, 6, 299}, {1}, {2, 299}});
    const Shard shard = Shard::open(folder / "a.shard");
    CHECK(all(shard) == Ids{5, 6, 299, 1, 2, 299});
    CHECK(shard.documents() == 3);
    CHECK(shard.document_offset(2) == 4);
    for (const auto& [position, document] : {std::pair(0, 0), {2, 0}, {3, 1}, {4, 2}, {5, 2}})
      CHECK(shard.document_of(position) == document);
    shard.verify();
    write(folder / "empty.shard", 300, {});
    const Shard empty = Shard::open(folder / "empty.shard");
    CHECK(empty.tokens() == 0);
    empty.verify();
  }

  TEST_CASE("two bytes hold 65,536 entries, beyond they are four") {
    TemporaryFolder folder;
    for (int64_t vocabulary : {65'535, 65'536, 65'537, 70'000}) {
      Ids ids;
      for (int32_t id : {0, 65'534, 65'535, 65'536, 69'999})
        if (id < vocabulary) ids.push_back(id);
      const std::string path = folder / std::to_string(vocabulary);
      write(path, vocabulary, {ids});
      const Shard shard = Shard::open(path);
      CHECK(shard.header().width == (vocabulary <= 65'536 ? 2 : 4));
      CHECK(all(shard) == ids);
      CHECK(shard.header().vocabulary == vocabulary);
      shard.verify();
    }
  }

  TEST_CASE("offsets beyond 2^31 tokens") {
    TemporaryFolder folder;
    const std::string path = folder / "large.shard";
    ShardHeader header;
    header.tokens = (int64_t{1} << 31) + 4096;
    header.documents = 2;
    header.vocabulary = 1000;
    const int64_t second = (int64_t{1} << 31) + 7, marker = (int64_t{1} << 31) + 5;
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0666);
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, 128 + header.tokens * 2 + 24) == 0);
    const auto write_at = [&](int64_t at, const void* data, size_t size) {
      REQUIRE(pwrite(fd, data, size, at) == static_cast<ssize_t>(size));
    };
    const std::string bytes = encode_shard_header(header);
    write_at(0, bytes.data(), bytes.size());
    std::vector<uint16_t> ids(64);
    std::iota(ids.begin(), ids.end(), uint16_t{111});
    write_at(128 + marker * 2, ids.data(), 128);
    const int64_t offsets[] = {0, second, header.tokens};
    write_at(128 + header.tokens * 2, offsets, sizeof offsets);
    close(fd);

    const Shard shard = Shard::open(path);
    CHECK(shard.tokens() == header.tokens);
    Ids window(65);
    shard.read(marker, 65, 1000, window.data());
    CHECK(window.front() == 111);
    CHECK(window[63] == 174);
    CHECK(window[64] == 0);
    CHECK(shard.document_of(second - 1) == 0);
    CHECK(shard.document_of(second) == 1);
    CHECK(shard.document_offset(1) == second);
    const std::string refused = error_of([&] { shard.read(marker, 65, 174, window.data()); });
    CHECK(has(refused, "token " + std::to_string(marker + 63) + " is 174"));
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK(status.st_blocks * 512 < 1 << 20); // stays sparse
  }

  TEST_CASE("damaged shards are named with what was found and needed") {
    TemporaryFolder folder;
    const std::string path = folder / "a.shard";
    write(path, 300, {{5, 6, 299}, {1, 2, 3, 299}});
    const auto u64 = [](size_t at, uint64_t value) { return [=](std::string& b) { std::memcpy(&b[at], &value, 8); }; };
    const auto u32 = [](size_t at, uint32_t value) { return [=](std::string& b) { std::memcpy(&b[at], &value, 4); }; };
    CHECK(has(fault(path, [](auto& b) { b.pop_back(); }), "is cut off: 167 bytes found, 168 needed for the 7 tokens"));
    CHECK(has(fault(path, [](auto& b) { b += "x"; }), "is too long: 169 bytes found, 168 needed"));
    CHECK(has(fault(path, [](auto& b) { b.resize(100); }), "is cut off: 100 bytes found"));
    CHECK(has(fault(path, [](auto& b) { b.clear(); }), "(0 bytes) is not a token shard"));
    CHECK(has(fault(path, [](auto& b) { b[0] = 'x'; }), "is not a token shard"));
    CHECK(has(fault(path, u32(8, 2)), "version 2; this triax reads version 1"));
    CHECK(has(fault(path, u32(12, 3)), "token width of 3 bytes, needed 2 or 4"));
    CHECK(has(fault(path, u32(12, 4)), "is cut off: 168 bytes found")); // the width of the header counts
    CHECK(has(fault(path, u64(16, ~uint64_t{0})), "tokens in 2 documents, which cannot be"));
    CHECK(has(fault(path, u64(24, 8)), "7 tokens in 8 documents"));
    CHECK(has(fault(path, u64(32, 0)), "vocabulary of 0"));
    CHECK(has(fault(path, u64(32, 65537)), "vocabulary of 65537, which a token width of 2"));
    CHECK(has(fault(path, u64(64, 1)), "header bytes 64..127"));
    CHECK(has(fault(path, u64(160, 6)), "span tokens 0..6, needed 0..7"));
    CHECK(fault(path, u64(152, 7)).empty());
    CHECK(has(fault(path, u64(152, 7), true), "document 1 spans tokens 7..7"));
    CHECK(has(fault(path, u64(152, 2), true), "its content hashes to"));
    CHECK(has(fault(
                  path, [](auto& b) { b[128] = 4; }, true),
              "its content hashes to"));
    CHECK(has(fault(path, u64(40, 1), true), "its content hashes to"));
    CHECK(has(fault(
                  path,
                  [](auto& b) {
                    b[130] = '\xff';
                    b[131] = 1;
                  },
                  true),
              "token 1 is 511, but the vocabulary has 300 entries"));
    CHECK(has(error_of([&] { Shard::open(folder / "none"); }), "cannot read"));
    CHECK(has(error_of([&] { Shard::open(folder / ""); }), "not a regular file"));
  }

  TEST_CASE("four-byte ids that no int32 holds") {
    TemporaryFolder folder;
    write(folder / "a.shard", 70'000, {{1, 2, 3}});
    const auto negative = [](std::string& b) { std::memset(&b[132], 0xff, 4); };
    CHECK(has(fault(folder / "a.shard", negative, true), "token 1 is 4294967295"));
  }

  TEST_CASE("the writer refuses bad ids and leaves nothing behind") {
    TemporaryFolder folder;
    const std::string path = folder / "a.shard";
    CHECK(has(error_of([&] { write(path, 300, {{1, 300}}); }), "token 1 is 300, outside the vocabulary of 300"));
    CHECK(has(error_of([&] { write(path, 300, {{-1}}); }), "token 0 is -1"));
    CHECK(has(error_of([&] { write(path, 0, {}); }), "vocabulary of 0"));
    CHECK(fs::is_empty(folder / ""));
    CHECK(has(error_of([&] { write(folder / "no/such/a.shard", 300, {}); }), "cannot write"));
  }

  TEST_CASE("a write that fails names the file and leaves nothing") {
    TemporaryFolder folder;
    write(folder / "old.shard", 300, {{1}});
    const std::string before = read_file(folder / "old.shard");
    struct rlimit old {};
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = old;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string sentence = error_of([&] { write(folder / "old.shard", 300, {Ids(10'000, 1)}); });
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(has(sentence, "cannot write"));
    CHECK(has(sentence, "old.shard.partial: File too large"));
    CHECK(!fs::exists(folder / "old.shard.partial"));
    CHECK(read_file(folder / "old.shard") == before);
  }

  TEST_CASE("llm.c shards") {
    TemporaryFolder folder;
    const std::string path = folder / "a.bin";
    write_file(path, llmc(20240520, 1, 3, {50256, 1, 65535}, 2));
    CHECK(all(Shard::open(path)) == Ids{50256, 1, 65535});
    CHECK(Shard::open(path).documents() == 1);
    Shard::open(path).verify();
    write_file(path, llmc(20240801, 7, 2, {128000, 5}, 4));
    CHECK(all(Shard::open(path)) == Ids{128000, 5});
    write_file(path, llmc(20240520, 1, 0, {}, 2));
    CHECK(Shard::open(path).documents() == 0);
    write_file(path, llmc(20240520, 2, 0, {}, 2));
    CHECK(has(error_of([&] { Shard::open(path); }), "version 2"));
    write_file(path, llmc(20240520, 1, 3, {1, 2}, 2));
    CHECK(has(error_of([&] { Shard::open(path); }), "1028 bytes found, 1030 needed for the 3 tokens"));
    write_file(path, llmc(20240520, 1, -1, {}, 2));
    CHECK(has(error_of([&] { Shard::open(path); }), "-1 tokens"));
    write_file(path, llmc(20240520, 1, 3, {1, 2}, 2).substr(0, 500));
    CHECK(has(error_of([&] { Shard::open(path); }), "500 bytes found"));
  }

  TEST_CASE("Megatron shards") {
    TemporaryFolder folder;
    const std::string stem = folder / "m";
    for (uint8_t type : {8, 4}) {
      megatron(stem, {3, 2, 4}, {0, 2, 3}, type);
      for (const char* name : {"", ".bin", ".idx"}) {
        const Shard shard = Shard::open(stem + name);
        CHECK(all(shard) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8});
        CHECK(shard.documents() == 2);
        CHECK(shard.document_offset(1) == 5);
        CHECK(shard.document_offset(2) == 9);
        shard.verify();
      }
    }
    megatron(stem, {3, 0, 4}, {0, 1, 2, 3}, 8); // an empty document is none
    CHECK(Shard::open(stem).documents() == 2);
    megatron(stem, {3}, {0, 1}, 6);
    CHECK(has(error_of([&] { Shard::open(stem); }), "type code 6"));
    megatron(stem, {3, 2}, {0, 2}, 8, 2);
    CHECK(has(error_of([&] { Shard::open(stem); }), "sequence 1 of 2 tokens lies at byte 8"));
    megatron(stem, {3, 2}, {0, 1}, 8);
    CHECK(has(error_of([&] { Shard::open(stem); }), "list of documents does not rise"));
    megatron(stem, {3, 2}, {0, 2}, 8);
    fs::resize_file(stem + ".bin", 9);
    CHECK(has(error_of([&] { Shard::open(stem); }), "9 bytes found, 10 needed"));
    fs::resize_file(stem + ".idx", 50);
    CHECK(has(error_of([&] { Shard::open(stem); }), "is cut off"));
    write_file(stem + ".idx", "MMIDIDX");
    CHECK(has(error_of([&] { Shard::open(stem); }), "not a Megatron index"));
  }
}
