// The decode calls that tests, `flashmla verify` and the benches share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/flashmla.h"

namespace flashmla::cases {

enum class Inputs {
  kRandom,       // queries and keys of unit variance
  kPeaked,       // one key of each request holds nearly all the weight
  kFlat,         // all weights nearly equal
  kAdversarial,  // large terms that cancel, both inside a score and between the values of neighbouring keys
};
const char* inputs_name(Inputs inputs);

enum class Lengths {
  kEqual,
  kVaried,    // between 1 and the longest, which occurs
  kWithZeros  // as varied, every second one 0
};
const char* lengths_name(Lengths lengths);

struct Request {
  int32_t seq_len = 0;    // keys
  int32_t seq_q = 1;      // query tokens; used by ragged cases only
  int64_t id = 0;         // what its tensors are generated from, together with the seed: equal ids, equal content
  int32_t first_key = 0;  // its key 0 has the content of this key of the same id: a shard of a longer sequence
};

struct DecodeCase {
  std::string name;
  std::vector<Request> requests;
  int64_t seq_q = 1;          // query tokens of every request, unless ragged
  bool ragged = false;        // q is [total_q, h_q, d_qk] with cu_seqlens_q
  int64_t padded_tokens = 0;  // ragged: rows past the last request
  int64_t heads_q = 16;
  int64_t heads_kv = 1;
  int64_t latent_dim = 512;
  int64_t rope_dim = 64;
  int64_t page_size = 64;
  DType dtype = DType::kBFloat16;
  float softmax_scale = 0;  // 0: (latent_dim + rope_dim)^-0.5
  bool causal = false;
  bool split_q = false;  // the RoPE part of q as a tensor of its own
  bool strided = false;  // gaps between rows, tokens and pages of every tensor; out and lse transposed in memory
  bool want_lse = true;
  Inputs inputs = Inputs::kRandom;
  DecodeOptions options{};
  bool hostile = true;      // false: zeros in place of the poison, to compare with
  uint64_t seed = 1;        // content
  uint64_t page_seed = 1;   // physical order of the pages
  int64_t spare_pages = 3;  // pages of the pool that no request owns
  int64_t spare_width = 3;  // entries of each page-table row past the longest request

  int64_t batch() const { return static_cast<int64_t>(requests.size()); }
  // Query tokens of request `index`, and of all of them (padding included).
  int64_t tokens_q(int64_t index) const { return ragged ? requests[index].seq_q : seq_q; }
  int64_t total_q() const;
};

// `batch` requests of up to `seq_k` keys, deterministic in `seed`.
std::vector<Request> make_requests(int64_t batch, int64_t seq_k, Lengths lengths, uint64_t seed);
// Gives each request of a case 0 to `most` query tokens (the first one `most`) and makes the case ragged.
void make_ragged(DecodeCase& decode_case, int64_t most, int64_t padded_tokens);
// "b2_q1_h16x1_d512x64_p64_k140_bf16..." from the case's own fields.
std::string describe(const DecodeCase& decode_case);

// Every pair of levels of every two factors (sizes, dtypes, layouts, options, inputs) occurs: about 100 small calls.
std::vector<DecodeCase> quick_cases();
// As above with longer sequences and more levels, and every head count with every dtype and page size.
std::vector<DecodeCase> full_cases();
// Batches of DeepSeek-V2-Lite (16 heads) and DeepSeek-V3 (128 heads), lengths varied up to 4096, page 64, bf16.
std::vector<DecodeCase> demo_cases();

}  // namespace flashmla::cases
