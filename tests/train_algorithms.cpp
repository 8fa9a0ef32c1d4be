// What a library chose in one process is what it takes in the next: the book in kernels/, its file in train/. The
// library is a pretended one, since those that run on a CPU have no choice.
#include "kernels/check.h"
#include "kernels/libraries.h"
#include "train/algorithms_file.h"
#include <array>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace triax;
namespace fs = std::filesystem;

namespace {

std::string version = "1.0";
const LibraryRegistration kLibrary("a library with a choice", [] { return version; });
const AlgorithmRegistration kDepends{"a library with a choice"};
using Bytes = std::array<unsigned char, 3>;

struct Folder {
  const fs::path path = fs::temp_directory_path() / concat("triax-algorithms-", getpid());
  const std::string file = (path / kAlgorithmsName).string();
  Folder() {
    fs::create_directories(path);
    forget_algorithms();
    version = "1.0";
  }
  ~Folder() {
    fs::remove_all(path);
    forget_algorithms();
  }
  void write(const std::string& text) const { std::ofstream(file) << text; }
};

} // namespace

TEST_SUITE("train_algorithms") {

  TEST_CASE("what one process chose, the next one takes") {
    const Folder folder;
    const auto alone = Transport::ghost(0, 1);
    Bytes bytes{}, chosen{1, 0xa2, 255};
    CHECK(take_algorithms(*alone, folder.file, false) == "");
    CHECK_FALSE(find_algorithm("matmul 1 2 3", bytes.data(), bytes.size()));
    save_algorithms(*alone, folder.file);
    CHECK_FALSE(fs::exists(folder.file)); // nothing was chosen
    keep_algorithm("matmul 1 2 3", chosen.data(), chosen.size());
    save_algorithms(*alone, folder.file);
    CHECK_FALSE(has_new_algorithms());

    forget_algorithms(); // another process
    CHECK(take_algorithms(*alone, folder.file, true) == "");
    CHECK(find_algorithm("matmul 1 2 3", bytes.data(), bytes.size()));
    CHECK(bytes == chosen);
    CHECK_FALSE(find_algorithm("matmul 1 2 3", bytes.data(), 2)); // of another library's size
    CHECK_FALSE(find_algorithm("matmul 3 2 1", bytes.data(), bytes.size()));
    fs::remove(folder.file);
    save_algorithms(*alone, folder.file);
    CHECK_FALSE(fs::exists(folder.file)); // nothing new
    keep_algorithm("matmul 3 2 1", chosen.data(), chosen.size());
    save_algorithms(*alone, folder.file);
    std::ifstream written(folder.file);
    CHECK(parse_algorithms({std::istreambuf_iterator<char>(written), {}}, "the file").chosen.size() == 2);
  }

  TEST_CASE("of another version nothing is taken, and a sentence says so") {
    const Folder folder;
    const auto alone = Transport::ghost(0, 1);
    Bytes bytes{7, 8, 9};
    keep_algorithm("matmul 1 2 3", bytes.data(), bytes.size());
    save_algorithms(*alone, folder.file);
    forget_algorithms();
    version = "1.1";
    CHECK(take_algorithms(*alone, folder.file, false) ==
          concat(folder.file,
                 " is not used, and algorithms are chosen anew: it was made with a library with a choice 1.0, "
                 "and here it is 1.1"));
    CHECK_FALSE(find_algorithm("matmul 1 2 3", bytes.data(), bytes.size()));
    Algorithms silent = parse_algorithms(R"({"made_by": {}, "chosen": {"matmul 1 2 3": "07"}})", "silent");
    CHECK(offer_algorithms(silent).find("does not say with which a library with a choice") == 0);
  }

  TEST_CASE("each rank's choices are in the file") {
    const std::string first = text_of({{{"x", "1"}}, {{"a", "01"}, {"b", "02"}}}),
                      second = text_of({{{"x", "1"}}, {{"b", "03"}, {"c", "04"}}});
    const Algorithms all = merged(first + second, {first.size(), second.size()});
    CHECK(all.made_by == std::map<std::string, std::string>{{"x", "1"}});
    CHECK(all.chosen == std::map<std::string, std::string>{{"a", "01"}, {"b", "02"}, {"c", "04"}});
  }

  TEST_CASE("a file that is none is refused") {
    const Folder folder;
    const auto alone = Transport::ghost(0, 1);
    const auto take = [&] { take_algorithms(*alone, folder.file, true); };
    CHECK_THROWS_WITH_AS(take(), doctest::Contains(kAlgorithmsName), Error);
    folder.write(R"({"chosen": {}})");
    CHECK_THROWS_WITH_AS(take(), doctest::Contains("has no object \"made_by\""), Error);
    folder.write(R"({"made_by": {}, "chosen": {"a": 1}})");
    CHECK_THROWS_WITH_AS(take(), doctest::Contains("chosen: a is 1, but must be a string"), Error);
    folder.write(R"({"made_by": {"a library with a choice": "1.0"}, "chosen": {"a": "0x"}})");
    CHECK_THROWS_WITH_AS(take(), doctest::Contains("the algorithm for a is '0x', which is not hex"), Error);
  }

} // TEST_SUITE
