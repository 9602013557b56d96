#include "cases/shapes.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "cases/pairwise.h"
#include "cases/random.h"

namespace flashmla::cases {

const char* inputs_name(Inputs inputs) {
  switch (inputs) {
    case Inputs::kRandom: return "random";
    case Inputs::kPeaked: return "peaked";
    case Inputs::kFlat: return "flat";
    case Inputs::kAdversarial: return "adversarial";
  }
  return "unknown";
}

const char* lengths_name(Lengths lengths) {
  switch (lengths) {
    case Lengths::kEqual: return "equal";
    case Lengths::kVaried: return "varied";
    case Lengths::kWithZeros: return "zeros";
  }
  return "unknown";
}

int64_t DecodeCase::total_q() const {
  if (!ragged) return batch() * seq_q;
  int64_t total = padded_tokens;
  for (const Request& request : requests) total += request.seq_q;
  return total;
}

std::vector<Request> make_requests(int64_t batch, int64_t seq_k, Lengths lengths, uint64_t seed) {
  Random random({seed, 0x1e6u});
  std::vector<Request> requests(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    Request& request = requests[i];
    request.id = i;
    const int64_t varied = seq_k == 0 || i == batch / 2 ? seq_k : 1 + random.below(seq_k);
    request.seq_len = static_cast<int32_t>(lengths == Lengths::kEqual ? seq_k : varied);
    if (lengths == Lengths::kWithZeros && i % 2 == 0) request.seq_len = 0;
  }
  return requests;
}

void make_ragged(DecodeCase& decode_case, int64_t most, int64_t padded_tokens) {
  Random random({decode_case.seed, 0x4a6u});
  decode_case.ragged = true;
  decode_case.padded_tokens = padded_tokens;
  for (Request& request : decode_case.requests) request.seq_q = static_cast<int32_t>(random.below(most + 1));
  if (!decode_case.requests.empty()) decode_case.requests[0].seq_q = static_cast<int32_t>(most);
}

std::string describe(const DecodeCase& c) {
  int64_t longest = 0;
  bool equal = true;
  for (const Request& request : c.requests) {
    longest = std::max<int64_t>(longest, request.seq_len);
    equal = equal && request.seq_len == c.requests[0].seq_len;
  }
  std::ostringstream text;
  text << "b" << c.batch() << "_q" << (c.ragged ? c.total_q() : c.seq_q) << (c.ragged ? "ragged" : "") << "_h"
       << c.heads_q << "x" << c.heads_kv << "_d" << c.latent_dim << "x" << c.rope_dim << "_p" << c.page_size << "_k"
       << longest << (equal ? "" : "varied") << "_" << dtype_name(c.dtype) << "_" << inputs_name(c.inputs);
  if (c.causal) text << "_causal";
  if (c.split_q) text << "_splitq";
  if (c.strided) text << "_strided";
  if (!c.want_lse) text << "_nolse";
  if (c.options.splits != 0) text << "_s" << c.options.splits;
  if (c.options.empty_lse == EmptyLse::kMinusInf) text << "_minusinf";
  if (c.options.batch_invariant) text << "_invariant";
  text << "_seed" << c.seed;
  return text.str();
}

namespace {

struct Heads {
  int64_t q, kv;
};
struct Widths {
  int64_t latent, rope;
};

// Levels of every factor; the pairwise list picks one of each.
struct Factors {
  std::vector<int64_t> batch, seq_q, seq_k, page_size;
  std::vector<Heads> heads;
  std::vector<Widths> widths;
  std::vector<int32_t> splits;
};

constexpr std::array kDTypes = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
constexpr std::array kLengths = {Lengths::kVaried, Lengths::kEqual, Lengths::kWithZeros};
constexpr std::array kInputs = {Inputs::kRandom, Inputs::kPeaked, Inputs::kFlat, Inputs::kAdversarial};
constexpr int64_t kWholeSequence = 0;  // as page size: one page holds the longest sequence

std::vector<DecodeCase> covering_cases(const Factors& factors, uint64_t seed) {
  const auto size = [](const auto& list) { return static_cast<int>(list.size()); };
  const std::vector<int> levels = {size(factors.batch),
                                   size(factors.seq_q),
                                   size(factors.seq_k),
                                   size(factors.page_size),
                                   size(factors.heads),
                                   size(factors.widths),
                                   size(factors.splits),
                                   size(kDTypes),
                                   size(kLengths),
                                   size(kInputs),
                                   2 /* causal */,
                                   3 /* q: batched, ragged, padded */,
                                   2 /* split_q */,
                                   2 /* strided */,
                                   3 /* lse: +inf, -inf, none */,
                                   2 /* batch_invariant */};
  std::vector<DecodeCase> list;
  for (const std::vector<int>& row : pairwise(levels, seed)) {
    DecodeCase c;
    c.seed = seed * 1000 + list.size();
    c.page_seed = c.seed;
    const int64_t seq_k = factors.seq_k[row[2]];
    c.requests = make_requests(factors.batch[row[0]], seq_k, kLengths[row[8]], c.seed);
    c.seq_q = factors.seq_q[row[1]];
    const int64_t page = factors.page_size[row[3]];
    c.page_size = page == kWholeSequence ? seq_k : page;
    c.heads_q = factors.heads[row[4]].q;
    c.heads_kv = factors.heads[row[4]].kv;
    c.latent_dim = factors.widths[row[5]].latent;
    c.rope_dim = factors.widths[row[5]].rope;
    c.options.splits = factors.splits[row[6]];
    c.dtype = kDTypes[row[7]];
    c.inputs = kInputs[row[9]];
    c.causal = row[10] == 1;
    if (row[11] > 0) make_ragged(c, c.seq_q, row[11] == 2 ? 3 : 0);
    c.split_q = row[12] == 1;
    c.strided = row[13] == 1;
    c.options.empty_lse = row[14] == 1 ? EmptyLse::kMinusInf : EmptyLse::kPlusInf;
    c.want_lse = row[14] != 2;
    c.options.batch_invariant = row[15] == 1;
    c.name = describe(c);
    list.push_back(std::move(c));
  }
  return list;
}

DecodeCase model_case(std::string name, int64_t heads_q, int64_t batch, int64_t seq_q) {
  DecodeCase c;
  c.name = std::move(name);
  c.heads_q = heads_q;
  c.seq_q = seq_q;
  c.causal = seq_q > 1;
  c.requests = make_requests(batch, 4096, Lengths::kVaried, 7);
  return c;
}

}  // namespace

std::vector<DecodeCase> quick_cases() {
  return covering_cases({.batch = {1, 2, 5},
                         .seq_q = {1, 2, 4},
                         .seq_k = {1, 20, 65, 140, 300},
                         .page_size = {1, 16, 61, 64, kWholeSequence},
                         .heads = {{1, 1}, {3, 3}, {8, 1}, {9, 3}, {16, 1}, {20, 1}, {32, 2}, {64, 8}, {128, 1}},
                         .widths = {{512, 64}, {256, 64}, {256, 32}, {512, 0}, {24, 8}},
                         .splits = {0, 1, 3, 64}},
                        1);
}

std::vector<DecodeCase> full_cases() {
  std::vector<DecodeCase> list =
      covering_cases({.batch = {1, 2, 6, 17},
                      .seq_q = {1, 2, 4, 7},
                      .seq_k = {1, 20, 140, 700, 1025},
                      .page_size = {1, 3, 16, 61, 64, 128, kWholeSequence},
                      .heads = {{1, 1},
                                {3, 1},
                                {3, 3},
                                {9, 1},
                                {9, 3},
                                {16, 1},
                                {16, 2},
                                {20, 1},
                                {32, 1},
                                {63, 1},
                                {64, 8},
                                {126, 2},
                                {128, 1},
                                {130, 1}},
                      .widths = {{512, 64}, {256, 64}, {256, 32}, {512, 0}, {448, 64}, {128, 8}, {24, 8}, {8, 0}},
                      .splits = {0, 1, 2, 3, 7, 64}},
                     2);
  for (int64_t heads :
       {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 126, 127, 128}) {
    for (DType dtype : kDTypes) {
      for (int64_t page : {1, 16, 61, 64}) {
        DecodeCase c;
        c.seed = 3000 + list.size();
        c.requests = make_requests(2, 150, Lengths::kVaried, c.seed);
        c.seq_q = 1 + static_cast<int64_t>(list.size() % 3);
        c.causal = list.size() % 2 == 0;
        c.heads_q = heads;
        c.page_size = page;
        c.dtype = dtype;
        c.name = describe(c);
        list.push_back(std::move(c));
      }
    }
  }
  for (DecodeCase& c : demo_cases()) list.push_back(std::move(c));
  return list;
}

std::vector<DecodeCase> demo_cases() {
  return {model_case("DeepSeek-V2-Lite", 16, 8, 1), model_case("DeepSeek-V2-Lite, 2 tokens", 16, 8, 2),
          model_case("DeepSeek-V3", 128, 4, 1), model_case("DeepSeek-V3, 2 tokens", 128, 2, 2)};
}

}  // namespace flashmla::cases
