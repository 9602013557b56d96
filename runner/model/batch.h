// What one step of the model works on: new tokens of some sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace flashmla::runner {

struct SequenceChunk {
  int64_t first_token = 0;                      // index into Batch::tokens
  int64_t count = 0;                            // new tokens
  int64_t cached = 0;                           // tokens already in the cache: the first new one's position
  const std::vector<int32_t>* pages = nullptr;  // room for cached + count tokens
};

struct Batch {
  std::vector<int32_t> tokens;
  std::vector<SequenceChunk> sequences;  // in the order of their tokens, without gaps
  std::vector<int64_t> logit_rows;       // tokens whose logits are wanted
};

enum class AttentionForm { kAuto, kMqa, kMha };

}  // namespace flashmla::runner
