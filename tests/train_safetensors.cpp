// Safetensors: what is written is read, and what is damaged is refused before a tensor is used.
#include "tests/helpers.h"
#include "train/safetensors.h"
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>
#include <nlohmann/json.hpp>

using namespace triax;
using namespace triax::test;
namespace fs = std::filesystem;

namespace {

std::string framed(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string error_reading(const std::string& bytes) {
  const TemporaryFolder folder;
  put(folder / "x.safetensors", bytes);
  return error_of([&] { SafetensorsFile(folder / "x.safetensors"); });
}

std::string error_of_header(const std::string& header, const std::string& data = std::string(8, '\0')) {
  return error_reading(framed(header, data));
}

const std::vector<TensorHeader> kTensors = {{"b.weight", StoredType::f32, {2, 3}},
                                            {"a", StoredType::bf16, {5}},
                                            {"empty", StoredType::f32, {0, 7}},
                                            {"scalar", StoredType::i64, {}},
                                            {"bytes", StoredType::u8, {3}}};

std::string some_bytes(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += char(i * 37 + 11);
  return bytes;
}

/// kTensors under `path`/model*, in pieces of `chunk` bytes.
void write_some(const std::string& path, int64_t limit, int64_t chunk) {
  Publication out(path);
  SafetensorsWriter writer(out, "model", kTensors, {{"format", "pt"}}, limit);
  int64_t total = 0;
  for (const TensorHeader& tensor : kTensors) total += bytes_of(tensor);
  const std::string bytes = some_bytes(total);
  for (int64_t at = 0; at < total; at += chunk) writer.write(bytes.data() + at, std::min(chunk, total - at));
  writer.close();
  out.publish();
}

} // namespace

TEST_SUITE("train_safetensors") {

  TEST_CASE("a file is written as the format says, and read back") {
    const TemporaryFolder folder;
    write_some(folder / "a", SafetensorsWriter::kLimit, 5);
    const std::string bytes = content(folder / "a/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    CHECK(length % 8 == 0);
    const auto header = nlohmann::json::parse(bytes.substr(8, length));
    CHECK(header["__metadata__"]["format"] == "pt");
    CHECK(header["a"]["dtype"] == "BF16");
    CHECK(header["a"]["data_offsets"] == nlohmann::json({24, 34}));
    CHECK(header["empty"]["shape"] == nlohmann::json({0, 7}));
    CHECK(header["scalar"]["shape"] == nlohmann::json::array());
    CHECK(bytes.substr(8 + length) == some_bytes(24 + 10 + 0 + 8 + 3));

    const SafetensorsFile file(folder / "a/model.safetensors");
    REQUIRE(file.tensors().size() == kTensors.size());
    int64_t offset = 0;
    for (size_t i = 0; i < kTensors.size(); ++i) {
      const StoredTensor& tensor = file.tensors()[i];
      CHECK(tensor.name == kTensors[i].name);
      CHECK(tensor.type == kTensors[i].type);
      CHECK(tensor.shape == kTensors[i].shape);
      CHECK(tensor.bytes == bytes_of(kTensors[i]));
      CHECK(std::string(reinterpret_cast<const char*>(tensor.data), size_t(tensor.bytes)) ==
            some_bytes(45).substr(size_t(offset), size_t(tensor.bytes)));
      offset += tensor.bytes;
    }
    CHECK(file.find("a") == &file.tensors()[1]);
    CHECK(file.find("c") == nullptr);
    CHECK(file.metadata().at("format") == "pt");
  }

  TEST_CASE("the same tensors give the same bytes, however they arrive") {
    const TemporaryFolder folder;
    write_some(folder / "a", SafetensorsWriter::kLimit, 1);
    write_some(folder / "b", SafetensorsWriter::kLimit, 1000);
    CHECK(content(folder / "a/model.safetensors") == content(folder / "b/model.safetensors"));
  }

  TEST_CASE("tensors beyond the limit go to several files and an index") {
    const TemporaryFolder folder;
    write_some(folder / "a", 20, 7);
    const auto index = nlohmann::json::parse(content(folder / "a/model.safetensors.index.json"));
    CHECK(index["metadata"]["total_size"] == 45);
    CHECK(index["weight_map"]["b.weight"] == "model-00001-of-00003.safetensors"); // alone beyond the limit
    CHECK(index["weight_map"]["scalar"] == "model-00002-of-00003.safetensors");
    CHECK(index["weight_map"]["bytes"] == "model-00003-of-00003.safetensors");
    const SafetensorsFolder tensors(folder / "a");
    CHECK(tensors.names() == std::vector<std::string>{"a", "b.weight", "bytes", "empty", "scalar"});
    CHECK(tensors.at("bytes").data[2] == uint8_t(some_bytes(45)[44]));
    CHECK(tensors.notes().empty());
    CHECK(tensors.metadata().at("format") == "pt");
  }

  TEST_CASE("no tensors, and misuse of the writer") {
    const TemporaryFolder folder;
    Publication out(folder / "a");
    SafetensorsWriter none(out, "none", {});
    none.close();
    SafetensorsWriter writer(out, "model", {{"x", StoredType::f32, {2}}});
    writer.write("1234", 4);
    CHECK(has(error_of([&] { writer.close(); }), "are missing"));
    CHECK(has(error_of([&] { writer.write("123456", 6); }), "more bytes than"));
    CHECK(has(error_of([&] {
                SafetensorsWriter(out, "twice", {{"x", StoredType::u8, {1}}, {"x", StoredType::u8, {1}}});
              }),
              "tensor x is written twice"));
    out.publish();
    CHECK(SafetensorsFolder(folder / "a", "none").names().empty());
    CHECK(none.total_bytes() == int64_t(fs::file_size(folder / "a/none.safetensors")));
  }

  TEST_CASE("F32, BF16 and F16 are read exactly as floats") {
    const TemporaryFolder folder;
    const uint16_t halves[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7e00};
    const uint16_t bfloats[] = {0x3f80, 0xc040, 0x0001};
    const float floats[] = {1.5f, -0.0f};
    {
      Publication out(folder / "a");
      SafetensorsWriter writer(out, "model",
                               {{"odd", StoredType::u8, {1}},
                                {"half", StoredType::f16, {11}},
                                {"bf", StoredType::bf16, {3}},
                                {"float", StoredType::f32, {2}}});
      writer.write("x", 1); // all that follows is unaligned
      writer.write(halves, sizeof halves);
      writer.write(bfloats, sizeof bfloats);
      writer.write(floats, sizeof floats);
      writer.close();
      out.publish();
    }
    const SafetensorsFolder tensors(folder / "a");
    float out[11];
    read_floats(tensors.at("half"), 0, 11, out);
    const float expected[] = {0, -0.0f, 1, -2, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504, INFINITY, -INFINITY};
    CHECK(std::memcmp(out, expected, sizeof expected) == 0);
    CHECK(std::isnan(out[10]));
    read_floats(tensors.at("bf"), 1, 2, out);
    CHECK(out[0] == -3);
    CHECK(out[1] == std::ldexp(1.0f, -133));
    read_floats(tensors.at("float"), 0, 2, out);
    CHECK(out[0] == 1.5f);
    CHECK(std::signbit(out[1]));
    CHECK(has(error_of([&] { read_floats(tensors.at("odd"), 0, 1, out); }), "is of type U8, but must be F32"));
    CHECK(has(error_of([&] { read_floats(tensors.at("float"), 1, 2, out); }), "outside of float"));
    CHECK(has(error_of([&] { tensors.at("halv"); }), "has no tensor \"halv\"; the nearest is \"half\""));
  }

  TEST_CASE("a file cut off anywhere is refused") {
    const TemporaryFolder folder;
    write_some(folder / "a", SafetensorsWriter::kLimit, 1000);
    const std::string bytes = content(folder / "a/model.safetensors");
    for (size_t size = 0; size < bytes.size(); ++size)
      if (!has(error_reading(bytes.substr(0, size)), "cut off")) FAIL("cut to ", size, " of ", bytes.size());
    CHECK(has(error_reading(bytes + "x"), "has 1 bytes behind its last tensor"));
    CHECK(error_reading(bytes) == "");
  }

  TEST_CASE("a header that lies is refused") {
    const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
      return "{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
    };
    CHECK(error_of_header(tensor("\"F32\"", "[2]", "[0,8]")) == "");
    CHECK(error_of_header(tensor("\"F32\"", "[2]", "[0,8]") + "     ") == "");
    CHECK(has(error_of_header(tensor("\"F31\"", "[2]", "[0,8]")), "tensor \"x\" has the unknown dtype \"F31\""));
    CHECK(has(error_of_header(tensor("3", "[2]", "[0,8]")), "has no dtype"));
    CHECK(has(error_of_header(tensor("\"F32\"", "2", "[0,8]")), "has no shape"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[-2]", "[0,8]")), "has the shape [-2]"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[2.0]", "[0,8]")), "has the shape [2.0]"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[4294967296,4294967296]", "[0,8]")), "more than can be counted"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[0,18446744073709551615]", "[0,0]")), "has the shape"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[2]", "[0]")), "no pair of data_offsets"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[2]", "[8,0]")), "has the data_offsets [8,0]"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[2]", "[-8,0]")), "has the data_offsets"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[3]", "[0,8]")),
              "has 12 bytes by its shape, but 8 by its data_offsets"));
    CHECK(has(error_of_header(tensor("\"F32\"", "[2]", "[4,12]"), std::string(12, 'x')), "there is a hole"));
    CHECK(has(error_of_header("{\"x\":3}"), "tensor \"x\" is 3, but must be an object"));
    CHECK(has(error_of_header("{\"__metadata__\":{\"a\":1}}"), "__metadata__ \"a\" is 1"));
    CHECK(has(error_of_header("{\"__metadata__\":[]}"), "__metadata__ is []"));
    CHECK(has(error_of_header("{\"x\":{},\"x\":{}}"), "the key \"x\" is given twice"));
    CHECK(has(error_of_header("{\"x\":"), "header:1:"));
    CHECK(has(error_of_header("[]"), "does not begin with {"));
    CHECK(has(error_of_header(""), "does not begin with {"));
    const std::string two = "{\"x\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},"
                            "\"y\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[2,8]}}";
    CHECK(has(error_of_header(two), "tensor \"y\" begins at 2, but the one before it ends at 6: they overlap"));
    std::string huge = framed("{}", "");
    huge[7] = 0x7f;
    CHECK(has(error_reading(huge), "more than the format allows"));
    CHECK(has(error_reading("version https://git-lfs.github.com/spec/v1\n"), "it is no safetensors file"));
    CHECK(has(error_of([] { SafetensorsFile("/nowhere/x"); }), "cannot read /nowhere/x"));
  }

  TEST_CASE("an index rules its folder") {
    const TemporaryFolder folder;
    const std::string path = folder / "a", index = path + "/model.safetensors.index.json";
    write_some(path, 20, 1000);
    const auto original = nlohmann::json::parse(content(index));
    const auto error_with = [&](const nlohmann::json& changed) {
      put(index, changed.dump());
      const std::string error = error_of([&] { const SafetensorsFolder tensors(path); });
      put(index, original.dump());
      return error;
    };
    put(path + "/model.safetensors", framed("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x"));
    const SafetensorsFolder tensors(path);
    CHECK(tensors.at("a").type == StoredType::bf16); // not the stray file's
    REQUIRE(tensors.notes().size() == 1);
    CHECK(has(tensors.notes()[0], "left aside, since nothing refers to them: model.safetensors"));

    for (const char* bad : {"../a/model-00002-of-00003.safetensors", "/etc/passwd", "..", ".", "", "sub/x"}) {
      auto changed = original;
      changed["weight_map"]["a"] = bad;
      CHECK(has(error_with(changed), concat("tensor \"a\" is \"", bad, "\", but must be a name inside")));
    }
    auto changed = original;
    changed["weight_map"]["a"] = 3;
    CHECK(has(error_with(changed), "tensor \"a\" is 3"));
    changed = original;
    changed["weight_map"]["z"] = "model-00001-of-00003.safetensors";
    CHECK(has(error_with(changed), "tensor \"z\" is not in model-00001-of-00003.safetensors"));
    CHECK(has(error_with({{"weight_map", 3}}), "has no object \"weight_map\""));
    CHECK(has(error_with(3), "has no object \"weight_map\""));
    changed = original;
    changed["weight_map"].erase("empty");
    put(index, changed.dump());
    CHECK(has(SafetensorsFolder(path).notes()[0], "the index does not name them: empty"));
    put(index, original.dump());
    fs::remove(path + "/model-00002-of-00003.safetensors");
    fs::remove(path + "/model-00003-of-00003.safetensors");
    const std::string error = error_of([&] { const SafetensorsFolder missing(path); });
    CHECK(has(error,
              "2 files that it names are missing: model-00002-of-00003.safetensors, model-00003-of-00003.safetensors"));
  }

  TEST_CASE("a folder without tensors says what it has") {
    const TemporaryFolder folder;
    CHECK(has(error_of([&] { SafetensorsFolder(folder / "none"); }), "none: is no folder"));
    CHECK(has(error_of([&] { SafetensorsFolder(folder / ""); }), "has neither model.safetensors nor"));
    put(folder / "model-00001-of-00002.safetensors", "");
    put(folder / "pytorch_model.bin", "");
    const std::string error = error_of([&] { SafetensorsFolder(folder / ""); });
    CHECK(has(error, "though parts of one: model-00001-of-00002.safetensors"));
    CHECK(has(error, "pytorch_model.bin must first be saved as safetensors"));
  }

} // TEST_SUITE
