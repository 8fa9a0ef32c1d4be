#include "train/subprocess.h"
#include "kernels/check.h"
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>

namespace triax {
namespace {

namespace fs = std::filesystem;
constexpr int kNotStarted = 127;

/// In the child: never returns.
[[noreturn]] void become(char* const* words, int output) {
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) _exit(kNotStarted);
  execvp(words[0], words);
  _exit(kNotStarted);
}

/// What Open MPI 4 and 5 need to start more ranks than there are cores, and to bind none of them.
void allow_many_ranks() {
  for (const auto& [name, value] : {std::pair{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                    {"PRTE_MCA_hwloc_default_binding_policy", "none"}})
    setenv(name, value, 0);
}

/// As system(3): an interrupt ends the child, and this process learns it from its status.
int wait_for(pid_t child) {
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &before);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  sigaction(SIGINT, &before, nullptr);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

} // namespace

int run_triax(const std::vector<std::string>& arguments, int ranks, const std::string& output) {
  std::vector<std::string> words{fs::read_symlink("/proc/self/exe").string()};
  if (ranks > 1) words.insert(words.begin(), {"mpirun", "-n", std::to_string(ranks)});
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  DEMAND(file >= 0, "cannot write ", output, ": ", std::strerror(errno));
  if (ranks > 1) allow_many_ranks();
  const pid_t child = fork();
  if (child == 0) become(pointers.data(), file);
  close(file);
  DEMAND(child > 0, "cannot start another process: ", std::strerror(errno));
  const int code = wait_for(child);
  DEMAND(code != kNotStarted, words[0], " cannot be started",
         ranks > 1 ? ": install Open MPI, or compare configurations of one rank" : "");
  return code;
}

ScratchFolder::ScratchFolder(const std::string& prefix) {
  path_ = (fs::temp_directory_path() / (prefix + "-XXXXXX")).string();
  DEMAND(mkdtemp(path_.data()), "cannot make a folder in ", fs::temp_directory_path().string(), ": ",
         std::strerror(errno), "; TMPDIR names another place");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

} // namespace triax
