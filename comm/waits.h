// Who waits for whom: the operations between ranks that are under way here, and what other ranks say of theirs.
#pragma once
#include "comm/transport.h"
#include <chrono>
#include <optional>
#include <vector>

namespace triax {

/// Made and used by the one thread that calls MPI.
class Waits {
public:
  using Clock = std::chrono::steady_clock;
  /// How often `look` is to be called, also where nothing is under way: others may ask.
  static constexpr auto kEvery = std::chrono::seconds(1);

  Waits(const MpiApi* mpi, int rank, int size); ///< collective over all ranks
  void finish();                                ///< before MPI ends

  /// What this rank last did in a group, and whether it is still in it.
  struct Place {
    std::string group; ///< "shard (ranks 0, 1)"
    uint32_t axes = 0;
    uint64_t name = 0; ///< the same on all of its ranks
    std::vector<int> ranks;
    const char* kind = nullptr;
    Origin origin;
    int64_t number = 0; ///< of the operation, from 1; all ranks of the group count the same
    bool open = false;
    Clock::time_point since{};
  };
  Place* begin(const char* kind, const Group* group, const Origin& origin);

  /// What tasks refer to is gone; they stay as they are to those who ask.
  void forget_origins();

  /// Answers those who have asked; asks about what takes longer than `timeout` (0: nothing does). Returns a sentence
  /// where the answers are there, or do not come. `long_work`: see Transport::LongWork; null: none.
  std::string look(std::chrono::seconds timeout, const char* long_work);

private:
  /// What travels, to ask or to answer.
  struct Message {
    enum class What : int32_t { question, answer, long_work };
    What what;
    int32_t rank; ///< that sends it
    uint64_t group;
    int64_t number;
    char text[176]; ///< of an answer: what the rank is
  };
  struct Sent {
    Message message;
    void* request;
  };
  struct Question {
    const Place* about;
    int64_t number;
    Clock::time_point asked;
    std::map<int, std::string> answers; ///< by rank
  };
  void receive();
  void send(const Message& message, int to);
  void take(const Message& message, const char* long_work);
  std::string whereabouts(uint64_t group, int64_t number) const;
  std::string conclude(std::chrono::seconds timeout);

  const MpiApi* mpi_;
  const int rank_, size_;
  void* communicator_;
  std::map<const void*, Place> places_; ///< by communicator; null: that of all ranks
  std::optional<Question> question_;
  Message received_{};
  void* receiving_ = nullptr;
  std::vector<std::unique_ptr<Sent>> sent_; ///< until MPI has done with them
};

} // namespace triax
