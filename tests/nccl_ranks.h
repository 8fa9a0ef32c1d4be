// Ranks as threads, each with an Nccl of its own over the stand-in for the library.
#pragma once
#include "comm/nccl.h"
#include "tests/nccl_standin.h"
#include <condition_variable>
#include <cstdlib>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <map>
#include <mutex>
#include <thread>

namespace triax::test {

using namespace std::chrono_literals;

inline std::string library_at(const char* name) { return concat(TRIAX_BINARY_DIR "/lib", name, ".so"); }

inline const StandinControl& standin(const char* name = "nccl_standin") {
  void* library = dlopen(library_at(name).c_str(), RTLD_NOW);
  REQUIRE_MESSAGE(library, dlerror());
  return *reinterpret_cast<const StandinControl* (*)()>(dlsym(library, "nccl_standin_control"))();
}

/// Gives bytes from a group's first rank to the others, as MPI does between processes.
class Board {
public:
  void spread(const Group& group, void* data, int64_t bytes) {
    std::unique_lock lock(mutex_);
    auto& all = posted_[group.describe()];
    if (group.index() == 0) all.emplace_back(static_cast<char*>(data), static_cast<char*>(data) + bytes);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !all.empty(); });
    std::copy(all.front().begin(), all.front().end(), static_cast<char*>(data));
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::vector<char>>> posted_; ///< by group
};

struct Rank {
  Rank(const char* library, const MeshShape& shape, int number, Board& given, std::chrono::milliseconds patience)
      : rank(number), mesh(shape, number, int(shape.ranks())), nccl(library_at(library), number, patience),
        stream(standin(library).make_stream()), board(given) {}
  Group group(Axes axes) {
    const Group group(axes, mesh.group(axes), mesh.index(axes), nullptr);
    return join(group);
  }
  Group link(int first, bool back) {
    const Axes axes = Axes::link(Axis::pp, first, back);
    const std::vector<int> ranks = mesh.group(axes);
    const Group group(axes, ranks, int(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()), nullptr);
    return ranks.size() > 1 ? join(group) : group;
  }
  void synchronize() {
    REQUIRE(standin().synchronize(stream, 5000));
    nccl.check();
  }
  int rank;
  Mesh mesh;
  Nccl nccl;
  void* stream;
  Board& board;

private:
  Group join(const Group& group) {
    nccl.join(group, [&](void* data, int64_t bytes) { board.spread(group, data, bytes); });
    return group;
  }
};

inline MeshShape shape_of(int pp, int dp, int tp = 1) {
  MeshShape shape;
  shape.pp = pp, shape.dp = dp, shape.tp = tp;
  return shape;
}

/// What each rank threw; empty where it did not.
using Outcome = std::vector<std::string>;
inline Outcome on_ranks(const MeshShape& shape, const std::function<void(Rank&)>& act,
                        const char* library = "nccl_standin", std::chrono::milliseconds patience = 5s) {
  const int n = int(shape.ranks());
  Board board;
  Outcome outcome(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      try {
        Rank rank(library, shape, r, board, patience);
        act(rank);
      } catch (const Error& error) {
        outcome[size_t(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

/// A run that must go well, and leave nothing.
inline void check_ranks(const MeshShape& shape, const std::function<void(Rank&)>& act,
                        const char* library = "nccl_standin") {
  for (const std::string& sentence : on_ranks(shape, act, library)) CHECK(sentence == "");
  CHECK(std::string(standin(library).first_fault()) == "");
  CHECK(standin(library).open() == 0);
  CHECK(standin(library).registered() == 0);
  standin(library).forget();
}

/// Every rank must say all of these words.
inline void check_failure(const Outcome& outcome, std::initializer_list<const char*> words) {
  for (const std::string& sentence : outcome)
    for (const char* word : words)
      CHECK_MESSAGE(sentence.find(word) != std::string::npos, std::string(word), " in: ", sentence);
  CHECK(standin().open() == 0);
  standin().forget();
}

} // namespace triax::test
