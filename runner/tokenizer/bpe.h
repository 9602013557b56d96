// Byte-pair encoding of one word: its bytes' tokens are joined, the pair of the lowest rank first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

// What two neighbouring tokens become, and how early.
struct Merge {
  int32_t rank = -1;  // lower goes first; -1: the pair is no merge
  int32_t id = -1;
};

// Pairs of ids to merges: open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merges);
  void set(int32_t left, int32_t right, Merge merge);  // the last of equal pairs counts
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  size_t mask_;
};

struct BpeModel {
  std::array<int32_t, 256> byte_ids{};  // the token of each byte
  MergeTable merges{0};
  bool ignore_merges = false;                      // a word that is a token is taken whole
  std::unordered_map<std::string, int32_t> words;  // bytes to id; filled only with ignore_merges
};

// Memory of one thread's work, kept between words.
class BpeWorkspace {
 public:
  // Appends the ids of `word` (any bytes). n log n in its length.
  void encode(const BpeModel& model, std::string_view word, std::vector<int32_t>& ids);

 private:
  struct Symbol {
    int32_t id;  // -1: joined into the one before
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t at;  // the left symbol; of equal ranks the leftmost goes first
    int32_t left;
    int32_t right;
    int32_t id;
  };
  void offer(const BpeModel& model, int32_t at);
  void join(const BpeModel& model, const Candidate& candidate);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace flashmla::runner
