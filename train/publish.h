// Folders that are whole or absent: written aside, synced, then published by one rename.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace triax {

/// A file being written. Every error names the path, the bytes still to be written and the bytes free. Keeps a hash
/// (XXH3, 64 bits) of every block of 4 MiB.
class HashedFile {
public:
  static constexpr int64_t kBlock = 4 << 20;
  /// `expected` bytes will be written, as far as known: only for the sentence of an error.
  explicit HashedFile(const std::string& path, int64_t expected = 0);
  ~HashedFile();
  HashedFile(const HashedFile&) = delete;
  HashedFile& operator=(const HashedFile&) = delete;
  void write(const void* data, int64_t bytes);
  void close(); ///< syncs to the disk; nothing may be written afterwards
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const std::vector<uint64_t>& hashes() const { return hashes_; } ///< complete after close

private:
  struct Hash;
  [[noreturn]] void fail_writing(int64_t bytes) const;

  std::string path_;
  int64_t expected_ = 0;
  int64_t bytes_ = 0;
  int descriptor_ = -1;
  std::unique_ptr<Hash> hash_; ///< of the block that is not full yet
  std::vector<uint64_t> hashes_;
};

/// One folder on its way. Files are made through it; `publish` adds the manifest (sizes and block hashes), syncs all
/// and renames. Destroyed before that, it removes what was written. One process at a time publishes into a folder.
class Publication {
public:
  static constexpr const char* kManifest = "manifest.json";
  /// Makes PATH.tmp-PID beside `path` (parents too). Throws when the file system has fewer than `needed` bytes free.
  explicit Publication(const std::string& path, int64_t needed = 0);
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
  HashedFile& create(const std::string& name, int64_t expected = 0); ///< a new file; lives as long as the publication
  void write_text(const std::string& name, const std::string& text);
  void copy(const std::string& name, const std::string& source);
  const std::string& folder() const { return aside_; } ///< where the files are until `publish`
  /// Replaces a folder that is already there as a whole. Afterwards nothing may be created.
  void publish();

private:
  void write_manifest();

  std::string path_, aside_;
  std::map<std::string, std::unique_ptr<HashedFile>> files_;
  bool published_ = false;
};

/// Puts the folder `from` in the place of `to`, by one exchange of names, or by two renames where the file system knows
/// no exchange (or `exchange` is false); a kill between these is mended by `clean_leftovers`.
void replace_folder(const std::string& from, const std::string& to, bool exchange = true);

/// A single file with the same promise: PATH holds the old text or the new one. Its errors are those of HashedFile.
void publish_text(const std::string& path, const std::string& text);

/// Removes what killed publications left in `folder`, and puts back a folder that was caught between two renames.
/// Returns the names of what it found. Call it while no other process publishes there.
std::vector<std::string> clean_leftovers(const std::string& folder);

/// Whether every file of the manifest is there in its size; `hashes` reads and compares every byte too. Empty, or a
/// sentence that says what is wrong.
std::string check_published(const std::string& folder, bool hashes);

/// step_00001000
std::string step_name(int64_t step);

/// All step_* folders of `folder`, lowest step first, whole or not. A folder that does not exist has none.
std::vector<std::pair<int64_t, std::string>> step_folders(const std::string& folder);

struct Newest {
  std::optional<std::string> path; ///< of the whole step_* with the highest number
  int64_t step = 0;
  std::vector<std::string> notes; ///< why higher ones were passed over, a sentence each
};
/// Whole: `check_published` without hashes.
Newest newest_complete(const std::string& folder);

} // namespace triax
