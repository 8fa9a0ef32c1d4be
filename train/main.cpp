// triax: trains language models from one binary. Each subcommand is in train/command_*.cpp.
#include "comm/transport.h"
#include "kernels/check.h"
#include "train/commands.h"
#include <iostream>
#include <unistd.h>

namespace {

/// The one place where an error ends the program: rank, host and sentence; the other ranks are ended too.
int report(const std::exception& e) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  if (triax::Transport* transport = triax::Transport::current(); transport && transport->size() > 1) {
    std::cerr << "triax: rank " << transport->rank() << " on " << host << ": " << e.what() << std::endl;
    transport->abort(1);
  }
  std::cerr << "triax: " << e.what() << std::endl;
  return 1;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app{"triax trains language models on a cluster from one binary."};
  app.require_subcommand(1);
  triax::add_init(app);
  triax::add_plan(app);
  triax::add_train(app, argv);
  triax::add_eval(app);
  triax::add_generate(app);
  triax::add_data(app);
  triax::add_bench(app, argv);
  triax::add_help(app);
  try {
    app.parse(argc, argv);
    triax::Transport::leave();
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    return report(e);
  }
  return 0;
}
