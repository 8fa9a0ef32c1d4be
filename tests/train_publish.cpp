// Folders that are whole or absent.
#include "tests/helpers.h"
#include "train/publish.h"
#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

using namespace triax;
using namespace triax::test;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

void publish(const std::string& path, const std::vector<std::pair<std::string, std::string>>& files) {
  Publication out(path);
  for (const auto& [name, text] : files) out.write_text(name, text);
  out.publish();
}

} // namespace

TEST_SUITE("train_publish") {

  TEST_CASE("a folder appears whole, with a manifest") {
    const TemporaryFolder folder;
    const std::string path = folder / "a b/it's/step_00000010";
    {
      Publication out(path, 100);
      out.write_text("x.json", "{}");
      HashedFile& big = out.create("big", 5 << 20);
      const std::string part(1 << 20, 'x');
      for (int i = 0; i < 5; ++i) big.write(part.data(), int64_t(part.size())); // closed by publish
      put(folder / "tokenizer.json", "tokens");
      out.copy("tokenizer.json", folder / "tokenizer.json");
      CHECK_FALSE(fs::exists(path));
      out.publish();
    }
    CHECK(names_in(folder / "a b/it's") == Names{"step_00000010"});
    CHECK(names_in(path) == Names{"big", "manifest.json", "tokenizer.json", "x.json"});
    CHECK(content(path + "/tokenizer.json") == "tokens");
    CHECK(check_published(path, true) == "");
  }

  TEST_CASE("an abandoned folder leaves nothing") {
    const TemporaryFolder folder;
    {
      Publication out(folder / "step_00000010");
      out.write_text("x", "text");
      CHECK(names_in(folder / "").size() == 1);
    }
    CHECK(names_in(folder / "").empty());
  }

  TEST_CASE("a folder of that name is replaced as a whole") {
    const TemporaryFolder folder;
    const std::string path = folder / "step_00000020/"; // a last slash changes nothing
    publish(path, {{"model-00001-of-00002", "old"}, {"model-00002-of-00002", "old"}});
    publish(path, {{"model", "new"}});
    CHECK(names_in(path) == Names{"manifest.json", "model"});
    CHECK(names_in(folder / "") == Names{"step_00000020"});
    put(folder / "step_00000030", "a file");
    CHECK(has(error_of([&] { publish(folder / "step_00000030", {}); }), "a file of that name is there"));
  }

  TEST_CASE("a folder is replaced where names cannot be exchanged") {
    const TemporaryFolder folder;
    for (const char* name : {"a", "b"}) {
      fs::create_directories(folder / name);
      put(folder / concat(name, "/", name), name);
    }
    replace_folder(folder / "a", folder / "b", false);
    CHECK(names_in(folder / "") == Names{"b"});
    CHECK(names_in(folder / "b") == Names{"a"});
    CHECK(has(error_of([&] { replace_folder(folder / "none", folder / "b"); }), "cannot exchange"));
  }

  TEST_CASE("the same files give the same manifest") {
    const TemporaryFolder folder;
    publish(folder / "a", {{"x", "1"}, {"y", "2"}});
    publish(folder / "b", {{"y", "2"}, {"x", "1"}});
    CHECK(content(folder / "a/manifest.json") == content(folder / "b/manifest.json"));
  }

  TEST_CASE("damage is found: a missing file, another size, another byte") {
    const TemporaryFolder folder;
    const std::string path = folder / "a";
    std::string text(size_t(HashedFile::kBlock) + 100, 'x');
    const auto fresh = [&] { publish(path, {{"x", text}, {"empty", ""}}); };
    fresh();
    CHECK(check_published(path, true) == "");
    text[size_t(HashedFile::kBlock) + 50] = 'y';
    put(path + "/x", text);
    CHECK(check_published(path, false) == "");
    CHECK(has(check_published(path, true), "/x is damaged in its bytes 4194304 to 4194404"));
    put(path + "/x", text.substr(1));
    CHECK(has(check_published(path, false), "/x has 4194403 bytes, not 4194404"));
    fs::remove(path + "/x");
    CHECK(has(check_published(path, false), "/x is missing"));
    put(path + "/manifest.json", "{\"files\": 3}");
    CHECK(has(check_published(path, false), "is no manifest"));
    put(path + "/manifest.json", "{\"bl");
    CHECK(has(check_published(path, false), "manifest.json:1:"));
    put(path + "/manifest.json", "{\"block\": 7, \"files\": {}}");
    CHECK(has(check_published(path, false), "blocks of another size"));
    fs::remove(path + "/manifest.json");
    CHECK(has(check_published(path, false), "has no manifest.json"));
  }

  TEST_CASE("a folder that does not fit is refused before it is begun") {
    const TemporaryFolder folder;
    const std::string error = error_of([&] { Publication(folder / "a", int64_t(1) << 60); });
    CHECK(has(error, "it needs 1152921504606846976 bytes, but "));
    CHECK(has(error, "bytes are free"));
    CHECK(names_in(folder / "").empty());
  }

  TEST_CASE("a full device is named with what is needed and free") {
    if (!fs::exists("/dev/full")) return;
    HashedFile file("/dev/full", 5000);
    const std::string error = error_of([&] { file.write("0123456789", 10); });
    CHECK(has(error, "cannot write /dev/full: No space left on device; 5000 bytes are still to be written; "));
    CHECK(has(error, "bytes are free"));
  }

  TEST_CASE("a write that fails half-way leaves the old folder alone") {
    const TemporaryFolder folder;
    const std::string path = folder / "step_00000010";
    publish(path, {{"x", "old"}});
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{100000, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string error = error_of([&] { publish(path, {{"x", "new"}, {"y", std::string(200000, 'y')}}); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(has(error, "/y: File too large; 100000 bytes are still to be written"));
    CHECK(names_in(folder / "") == Names{"step_00000010"});
    CHECK(content(path + "/x") == "old");
    CHECK(check_published(path, true) == "");
  }

  TEST_CASE("folders that cannot be made or written are named") {
    const TemporaryFolder folder;
    put(folder / "file", "");
    CHECK(has(error_of([&] { Publication(folder / "file/sub/a"); }), "cannot make the folder"));
    CHECK(has(error_of([&] { Publication(""); }), "names no folder"));
    CHECK(has(error_of([&] { HashedFile(folder / "none/a"); }), "none/a: No such file or directory"));
    Publication out(folder / "a");
    CHECK(has(error_of([&] { out.copy("x", folder / "none"); }), "none: No such file"));
    CHECK(has(error_of([&] { out.create("sub/x"); }), "nested"));
    out.write_text("x", "");
    CHECK(has(error_of([&] { out.create("x"); }), "second"));
    out.publish();
    CHECK(has(error_of([&] { out.create("y"); }), "is published"));
    CHECK(has(error_of([&] { out.publish(); }), "is published"));
    HashedFile closed(folder / "closed");
    closed.close();
    CHECK(has(error_of([&] { closed.write("x", 1); }), "is closed"));
  }

  TEST_CASE("leftovers of killed processes are cleaned") {
    const TemporaryFolder folder;
    const pid_t child = fork();
    if (child == 0) { // dies in the middle
      auto* out = new Publication(folder / "step_00000020");
      out->write_text("x", "half");
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    publish(folder / "step_00000010", {{"x", "10"}});
    fs::create_directories(folder / "step_00000030.old-77/sub"); // killed between two renames
    fs::create_directories(folder / "step_00000010.old-78");     // killed after them
    fs::create_directories(folder / "notes.tmp-mine");           // somebody else's
    put(folder / "run.json.tmp-5", "half");
    const auto found = clean_leftovers(folder / "");
    CHECK(found ==
          Names{"run.json.tmp-5", "step_00000010.old-78", concat("step_00000020.tmp-", child), "step_00000030.old-77"});
    CHECK(names_in(folder / "") == Names{"notes.tmp-mine", "step_00000010", "step_00000030"});
    CHECK(clean_leftovers(folder / "").empty());
    CHECK(clean_leftovers(folder / "none").empty());
  }

  TEST_CASE("a leftover of this process's own number is written over") {
    const TemporaryFolder folder;
    fs::create_directories(folder / concat("a.tmp-", getpid()));
    put(folder / concat("a.tmp-", getpid(), "/stray"), "x");
    publish(folder / "a", {{"x", "1"}});
    CHECK(names_in(folder / "a") == Names{"manifest.json", "x"});
  }

  TEST_CASE("the newest whole checkpoint is found") {
    const TemporaryFolder folder;
    CHECK_FALSE(newest_complete(folder / "none").path.has_value());
    CHECK_FALSE(newest_complete(folder / "").path.has_value());
    for (const int64_t step : {999, 1000, 100000000, 5}) publish(folder / step_name(step), {{"x", "whole"}});
    fs::create_directories(folder / "step_00002000.tmp-1");
    fs::create_directories(folder / "step_3000");                    // not the name of a step
    fs::create_directories(folder / "step_99999999999999999999999"); // nor this
    put(folder / "step_00004000", "a file");
    CHECK(step_name(1000) == "step_00001000");
    CHECK(step_folders(folder / "").size() == 4);
    CHECK(newest_complete(folder / "").step == 100000000);
    fs::remove(folder / "step_100000000/x");
    const Newest newest = newest_complete(folder / "");
    CHECK(newest.step == 1000);
    CHECK(has(*newest.path, "step_00001000"));
    REQUIRE(newest.notes.size() == 1);
    CHECK(has(newest.notes[0], "step_100000000 is passed over"));
  }

  TEST_CASE("a text is replaced or stays") {
    const TemporaryFolder folder;
    publish_text(folder / "x", "old");
    publish_text(folder / "x", "new");
    CHECK(content(folder / "x") == "new");
    fs::create_directories(folder / "y/full");
    CHECK(has(error_of([&] { publish_text(folder / "y", "text"); }), "cannot rename"));
    CHECK(names_in(folder / "") == Names{"x", "y"});
  }

} // TEST_SUITE
