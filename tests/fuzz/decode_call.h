// A decode call from a fuzzer's bytes, its tensors not yet in memory.
#pragma once

#include <array>

#include "flashmla/decode.h"
#include "views.h"

namespace flashmla::fuzz {

struct DecodeCall {
  DecodeParams params;

  // Legal, then damaged in up to three places; all data pointers lead to forbidden memory.
  static DecodeCall make(Bytes& bytes);
  // Moves the tensors of a call that the checks accepted into guarded memory and writes lengths, page ids and query
  // starts, mostly right ones. False: some tensor is too large for that.
  bool place(Bytes& bytes, const DecodeShape& shape);
};

// Whether lengths, page ids and query starts, as they lie in memory, are within the contract. An independent reading of
// it.
bool values_are_right(const DecodeParams& params, const DecodeShape& shape);

}  // namespace flashmla::fuzz
