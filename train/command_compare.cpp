// triax bench compare: are two runs alike, what differs around them, and how much faster is one.
#include "kernels/check.h"
#include "train/commands.h"
#include "train/log.h"
#include "train/receipt_compare.h"
#include <iostream>

namespace triax {
namespace {

struct Options {
  std::string a, b;
  bool across = false;
};

std::string line_of(const ReceiptComparison::Difference& d) {
  return concat("\n  ", d.path, ": ", d.a, " in A, ", d.b, " in B");
}

std::string number_text(double value) { return value >= 1000 ? with_commas(value) : concat(value); }

void print_speeds(const ReceiptComparison& c) {
  for (const ReceiptComparison::Speed& s : c.speeds) {
    const std::string unit = s.tokens ? " tokens/s" : " s";
    std::cout << concat("speed  ", s.name, ": ", number_text(s.a), unit, " in A, ", number_text(s.b), unit,
                        " in B; B is ", s.ratio, " times as fast", s.loss.empty() ? "" : "; ", s.loss, "\n");
  }
  for (const auto& [name, rows] : {std::pair{"A", &c.only_in_a}, {"B", &c.only_in_b}})
    if (!rows->empty()) std::cout << "only in " << name << ": " << listed(*rows, 8) << "\n";
}

void run_compare(const Options& options) {
  const ReceiptComparison c = compare_receipts(read_receipt(options.a), read_receipt(options.b));
  std::cout << "A  " << options.a << "\nB  " << options.b << "\n";
  std::string unlike;
  for (const ReceiptComparison::Difference& d : c.unlike) unlike += line_of(d);
  DEMAND(unlike.empty() || options.across, "bench compare: these runs are unlike, so their speeds say nothing:", unlike,
         "\nMake them alike, or compare nevertheless with --across");
  if (!unlike.empty()) std::cout << "UNLIKE runs, compared nevertheless (--across):" << unlike << "\n";
  if (!c.circumstances.empty()) std::cout << "circumstances that differ:";
  for (const ReceiptComparison::Difference& d : c.circumstances) std::cout << line_of(d);
  std::cout << (c.circumstances.empty() ? "same binary, machine and libraries\n" : "\n");
  if (!c.losses.empty()) std::cout << c.losses << "\n";
  print_speeds(c);
}

} // namespace

void add_compare(CLI::App* bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench->add_subcommand("compare", "two receipts: refuses unlike runs, says what differs");
  command->add_option("A", options->a, "a receipt, or a folder that holds one")->required();
  command->add_option("B", options->b, "another")->required();
  command->add_flag("--across", options->across, "compare unlike runs nevertheless");
  command->callback([options] { run_compare(*options); });
}

} // namespace triax
