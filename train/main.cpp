// triax: trains language models from one binary. Each subcommand is in train/command_*.cpp.
#include "comm/transport.h"
#include "kernels/check.h"
#include "train/commands.h"
#include <filesystem>
#include <iostream>
#include <new>
#include <unistd.h>

namespace {

/// What went wrong: triax's own sentence as it is; of a library's error what a person can act on.
std::string sentence_of(const std::exception& e) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&e))
    return triax::concat("cannot use ", file->path1().string(), ": ", file->code().message(),
                         "; check that each part of this path is a folder that you may read and write");
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return "the memory of this machine is used up; `triax plan` shows what a run needs";
  if (dynamic_cast<const triax::Error*>(&e)) return e.what();
  return triax::concat("an error that triax did not foresee: ", e.what(), "; please report it");
}

/// The one place where an error ends the program: rank, host and sentence; the other ranks are ended too.
int report(const std::exception& e, int code) {
  const std::string sentence = sentence_of(e);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  if (triax::Transport* transport = triax::Transport::current(); transport && transport->size() > 1) {
    // In one piece: a launcher writes between what comes in several.
    std::cerr << triax::concat("triax: rank ", transport->rank(), " on ", host, ": ", sentence, "\n") << std::flush;
    transport->abort(code);
  }
  std::cerr << "triax: " << sentence << std::endl;
  return code;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app{"triax trains language models on a cluster from one binary.", "triax"};
  app.require_subcommand(1);
  triax::add_init(app);
  triax::add_plan(app);
  triax::add_train(app, argv);
  triax::add_eval(app);
  triax::add_generate(app);
  triax::add_data(app);
  triax::add_bench(app, argv);
  triax::ExitCodes codes;
  triax::add_diff(app, codes);
  triax::add_help(app);
  try {
    app.parse(argc, argv);
    triax::Transport::leave();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e); // help was asked for
    std::cerr << triax::refusal(app, e) << std::endl;
    return 2;
  } catch (const std::exception& e) {
    return report(e, codes.error);
  }
  return codes.done;
}
