#include "runner/tokenizer/bpe.h"

#include <algorithm>

namespace flashmla::runner {

namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};  // no pair: ids are not negative

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t merges) {
  size_t slots = 16;
  while (slots < 2 * merges) slots *= 2;
  slots_.assign(slots, Slot{kNoKey, {}});
  mask_ = slots - 1;
}

size_t MergeTable::slot_of(uint64_t key) const {
  size_t slot = static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> 20) & mask_;
  while (slots_[slot].key != key && slots_[slot].key != kNoKey) slot = (slot + 1) & mask_;
  return slot;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  slots_[slot_of(key)] = {key, merge};
}

Merge MergeTable::find(int32_t left, int32_t right) const { return slots_[slot_of(pair_key(left, right))].merge; }

namespace {

// For the standard heap, whose top is the largest.
constexpr auto kGoesLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
};

}  // namespace

void BpeWorkspace::offer(const BpeModel& model, int32_t at) {
  const Symbol& left = symbols_[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const Symbol& right = symbols_[static_cast<size_t>(left.next)];
  const Merge merge = model.merges.find(left.id, right.id);
  if (merge.rank < 0) return;
  heap_.push_back({merge.rank, at, left.id, right.id, merge.id});
  std::push_heap(heap_.begin(), heap_.end(), kGoesLater);
}

void BpeWorkspace::join(const BpeModel& model, const Candidate& candidate) {
  Symbol& left = symbols_[static_cast<size_t>(candidate.at)];
  // Candidates are not taken back when a neighbour changes; such a one is recognised here.
  if (left.id != candidate.left || left.next < 0) return;
  Symbol& right = symbols_[static_cast<size_t>(left.next)];
  if (right.id != candidate.right) return;
  left.id = candidate.id;
  right.id = -1;
  left.next = right.next;
  if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = candidate.at;
  if (left.previous >= 0) offer(model, left.previous);
  offer(model, candidate.at);
}

void BpeWorkspace::encode(const BpeModel& model, std::string_view word, std::vector<int32_t>& ids) {
  if (model.ignore_merges) {
    if (const auto found = model.words.find(std::string(word)); found != model.words.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  const auto count = static_cast<int32_t>(word.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols_.push_back(
        {model.byte_ids[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1, i + 1 == count ? -1 : i + 1});
  }
  for (int32_t i = 0; i < count; ++i) offer(model, i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), kGoesLater);
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    join(model, candidate);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = symbols_[static_cast<size_t>(i)].next) {
    ids.push_back(symbols_[static_cast<size_t>(i)].id);
  }
}

}  // namespace flashmla::runner
