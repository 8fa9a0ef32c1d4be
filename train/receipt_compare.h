// Two receipts held against each other: `triax bench compare`.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace triax {

/// A receipt's file, or a folder that holds one: receipt.json, or else the only *.receipt. Throws a sentence with the
/// path where there is none, several, or the file is none.
nlohmann::json read_receipt(const std::string& path);

struct ReceiptComparison {
  struct Difference {
    std::string path, a, b; ///< "configuration.train.steps", "20", "30"; "absent" where one has none
  };
  /// In what must be equal for the speeds to mean something: what was measured, configuration, ranks, mesh, type,
  /// seeds, contents of the data. Of the configuration these may differ: run.folder, run.log_every, checkpoint.every,
  /// checkpoint.keep, and data.folder, since its contents count.
  std::vector<Difference> unlike;
  std::vector<Difference> circumstances; ///< binary, machine, libraries, and those of the configuration
  std::string losses;                    ///< a sentence; empty where neither has any
  struct Speed {
    std::string name; ///< of a benchmark's row; "training" of a run
    double a, b;      ///< tokens a second, or seconds
    bool tokens;
    double ratio;     ///< how many times as fast b is
    std::string loss; ///< a row's last loss in both, in words; empty where they have none
  };
  std::vector<Speed> speeds;                     ///< of what both have
  std::vector<std::string> only_in_a, only_in_b; ///< rows
};

ReceiptComparison compare_receipts(const nlohmann::json& a, const nlohmann::json& b);

} // namespace triax
