// libtriax_mpi.so: the only file that includes mpi.h.
#include "comm/mpi_api.h"
#include <algorithm>
#include <cstdlib>
#define OMPI_SKIP_MPICXX // the C++ bindings, which MPI no longer has
#include <mpi.h>
#include <vector>

namespace {

using triax::MpiApi;

/// MPI counts are int: long buffers travel as several requests.
constexpr int64_t kMostElements = int64_t(1) << 28;
using Requests = std::vector<MPI_Request>;

MPI_Comm comm_of(MpiApi::Communicator c) { return *static_cast<MPI_Comm*>(c); }

MPI_Comm local_communicator() {
  static MPI_Comm local = [] {
    MPI_Comm c;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c);
    return c;
  }();
  return local;
}

int rank_in(MPI_Comm comm) {
  int rank;
  MPI_Comm_rank(comm, &rank);
  return rank;
}
int size_of(MPI_Comm comm) {
  int size;
  MPI_Comm_size(comm, &size);
  return size;
}

const char* initialise() {
  // A second connection between two hosts: on a single one, the go-ahead for a message waits behind the bytes of the
  // one before, and a busy link runs at half its rate. What the user sets wins.
  setenv("OMPI_MCA_btl_tcp_links", "2", 0);
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return "MPI_Init_thread failed";
  return provided >= MPI_THREAD_FUNNELED ? nullptr : "this MPI library has no thread support (MPI_THREAD_FUNNELED)";
}

/// Starts `start(offset, count, request)` for every piece of a long buffer.
template <class Start> Requests* in_pieces(int64_t count, Start start) {
  auto* requests = new Requests;
  for (int64_t at = 0; at < count; at += kMostElements) {
    requests->push_back(MPI_REQUEST_NULL);
    start(at, int(std::min(kMostElements, count - at)), &requests->back());
  }
  return requests;
}

/// MPI counts are int: what is long travels as blocks.
struct Count {
  int count;
  MPI_Datatype type;
};
Count count_of(int64_t bytes) {
  constexpr int64_t kMostBytes = int64_t(1) << 30, kBlock = 256;
  if (bytes <= kMostBytes || bytes % kBlock != 0) return {int(bytes), MPI_BYTE};
  static const MPI_Datatype block = [] {
    MPI_Datatype type;
    MPI_Type_contiguous(int(kBlock), MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
  }();
  return {int(bytes / kBlock), block};
}

Requests* sent(const void* data, int64_t bytes, int to, MpiApi::Communicator comm) {
  return in_pieces(bytes, [&](int64_t at, int n, MPI_Request* request) {
    MPI_Isend(static_cast<const char*>(data) + at, n, MPI_BYTE, to, 0, comm_of(comm), request);
  });
}
Requests* received(void* data, int64_t bytes, int from, MpiApi::Communicator comm) {
  return in_pieces(bytes, [&](int64_t at, int n, MPI_Request* request) {
    MPI_Irecv(static_cast<char*>(data) + at, n, MPI_BYTE, from, 0, comm_of(comm), request);
  });
}

const MpiApi kApi{
    .initialise = initialise,
    .rank = [] { return rank_in(MPI_COMM_WORLD); },
    .size = [] { return size_of(MPI_COMM_WORLD); },
    .local_size = [] { return size_of(local_communicator()); },
    .local_first =
        [] {
          MPI_Group all, local;
          MPI_Comm_group(MPI_COMM_WORLD, &all);
          MPI_Comm_group(local_communicator(), &local);
          int first = 0, rank = 0;
          MPI_Group_translate_ranks(local, 1, &first, all, &rank); // the local one keeps the world's order
          MPI_Group_free(&local);
          MPI_Group_free(&all);
          return rank;
        },
    .world = []() -> MpiApi::Communicator {
      static MPI_Comm world = MPI_COMM_WORLD;
      return &world;
    },
    .communicator = [](const int* ranks, int count) -> MpiApi::Communicator {
      MPI_Group all, some;
      MPI_Comm_group(MPI_COMM_WORLD, &all);
      MPI_Group_incl(all, count, ranks, &some);
      auto* comm = new MPI_Comm;
      MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, comm);
      MPI_Group_free(&some);
      MPI_Group_free(&all);
      return comm;
    },
    .sum = [](double* value, MpiApi::Communicator comm) -> MpiApi::Request {
      auto* requests = new Requests{MPI_REQUEST_NULL};
      MPI_Iallreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_SUM, comm_of(comm), requests->data());
      return requests;
    },
    .combine = [](void* data, int64_t bytes, int root, MpiApi::Communicator comm) -> MpiApi::Request {
      const bool is_root = rank_in(comm_of(comm)) == root;
      return in_pieces(bytes, [&](int64_t at, int n, MPI_Request* request) {
        char* piece = static_cast<char*>(data) + at;
        MPI_Ireduce(is_root ? MPI_IN_PLACE : piece, is_root ? piece : nullptr, n, MPI_BYTE, MPI_BOR, root,
                    comm_of(comm), request);
      });
    },
    .broadcast = [](void* data, int64_t bytes, int root, MpiApi::Communicator comm) -> MpiApi::Request {
      return in_pieces(bytes, [&](int64_t at, int n, MPI_Request* request) {
        MPI_Ibcast(static_cast<char*>(data) + at, n, MPI_BYTE, root, comm_of(comm), request);
      });
    },
    .all_gather = [](const void* mine, void* all, int64_t bytes_each, MpiApi::Communicator comm) -> MpiApi::Request {
      auto* requests = new Requests{MPI_REQUEST_NULL};
      const auto [count, type] = count_of(bytes_each);
      const bool in_place = mine == static_cast<char*>(all) + rank_in(comm_of(comm)) * bytes_each;
      MPI_Iallgather(in_place ? MPI_IN_PLACE : mine, count, type, all, count, type, comm_of(comm), requests->data());
      return requests;
    },
    .all_to_all = [](const void* send, void* receive, int64_t bytes_each,
                     MpiApi::Communicator comm) -> MpiApi::Request {
      auto* requests = new Requests{MPI_REQUEST_NULL};
      const auto [count, type] = count_of(bytes_each);
      MPI_Ialltoall(send, count, type, receive, count, type, comm_of(comm), requests->data());
      return requests;
    },
    .shift = [](const void* send, int to, void* receive, int from, int64_t bytes,
                MpiApi::Communicator comm) -> MpiApi::Request {
      auto* both = received(receive, bytes, from, comm);
      auto* sends = sent(send, bytes, to, comm);
      both->insert(both->end(), sends->begin(), sends->end());
      delete sends;
      return both;
    },
    .send = [](const void* data, int64_t bytes, int to, MpiApi::Communicator comm) -> MpiApi::Request {
      return sent(data, bytes, to, comm);
    },
    .receive = [](void* data, int64_t bytes, int from, MpiApi::Communicator comm) -> MpiApi::Request {
      return received(data, bytes, from == MpiApi::kAny ? MPI_ANY_SOURCE : from, comm);
    },
    .barrier = [](MpiApi::Communicator comm) -> MpiApi::Request {
      auto* requests = new Requests{MPI_REQUEST_NULL};
      MPI_Ibarrier(comm_of(comm), requests->data());
      return requests;
    },
    .test =
        [](MpiApi::Request* request) {
          auto* requests = static_cast<Requests*>(*request);
          int done = 0;
          MPI_Testall(int(requests->size()), requests->data(), &done, MPI_STATUSES_IGNORE);
          if (done) {
            delete requests;
            *request = nullptr;
          }
          return done != 0;
        },
    .cancel =
        [](MpiApi::Request* request) {
          auto* requests = static_cast<Requests*>(*request);
          for (MPI_Request& one : *requests) {
            MPI_Cancel(&one);
            MPI_Request_free(&one);
          }
          delete requests;
          *request = nullptr;
        },
    .finalise = [] { MPI_Finalize(); },
    .abort = [](int code) { MPI_Abort(MPI_COMM_WORLD, code); },
    .library =
        [] {
          static char text[MPI_MAX_LIBRARY_VERSION_STRING];
          int length = 0;
          MPI_Get_library_version(text, &length);
          return static_cast<const char*>(text);
        },
};

} // namespace

const triax::MpiApi* triax_mpi_api() { return &kApi; }
