// Keys shared out over several calls and merged again: Flash-Decoding, context parallelism, prefix reuse.
#include <algorithm>
#include <cmath>

#include "cases/random.h"
#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

// Views of a result as merge_states takes it: [tokens, heads, width] and [heads, tokens].
TensorView out_view(DecodeResult& result) {
  const auto tokens = static_cast<int64_t>(result.lse.size()) / result.heads_q;
  return TensorView::contiguous(result.out.data(), result.dtype, {tokens, result.heads_q, result.latent_dim});
}

TensorView lse_view(DecodeResult& result) {
  const auto tokens = static_cast<int64_t>(result.lse.size()) / result.heads_q;
  return {result.lse.data(), DType::kFloat32, 2, {result.heads_q, tokens}, {1, result.heads_q}};
}

// total = merge(total, part), in place.
void merge_into(DecodeResult& total, DecodeResult& part, EmptyLse marker, const Context& context) {
  MergeStatesParams params;
  params.out_a = out_view(total);
  params.lse_a = lse_view(total);
  params.out_b = out_view(part);
  params.lse_b = lse_view(part);
  params.out = out_view(total);
  params.lse = lse_view(total);
  params.empty_lse = marker;
  const Status status = merge_states(params, context);
  ASSERT_TRUE(status.ok()) << status.text();
}

// Largest |out| of a row over all parts: what one rounding of a merge step is relative to.
float largest(const std::vector<DecodeResult>& parts, int64_t token, int64_t head) {
  float most = 0;
  for (const DecodeResult& part : parts) {
    for (int64_t d = 0; d < part.latent_dim; ++d) most = std::fmax(most, std::fabs(part.out_at(token, head, d)));
  }
  return most;
}

// Compares merged parts with the oracle of the whole. Each part is within its own bound, and each merge step rounds the
// output once more.
void expect_merged(const DecodeProblem& whole, std::vector<DecodeResult> parts,
                   const std::vector<cases::DecodeOracle>& oracles, const Context& context) {
  cases::DecodeOracle oracle = make_oracle(whole);
  const DecodeCase& c = whole.decode_case();
  const double rounding = c.dtype == DType::kFloat32 ? 0x1p-24 : c.dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  for (int64_t row = 0; row < static_cast<int64_t>(oracle.bound.size()); ++row) {
    for (const cases::DecodeOracle& part : oracles) oracle.bound[row] = std::fmax(oracle.bound[row], part.bound[row]);
    oracle.bound[row] += static_cast<float>(rounding * static_cast<double>(parts.size()) *
                                            largest(parts, row / c.heads_q, row % c.heads_q));
  }
  DecodeResult total = parts[0];
  for (size_t p = 1; p < parts.size(); ++p) merge_into(total, parts[p], c.options.empty_lse, context);
  const cases::Comparison comparison = compare(whole, oracle, total);
  EXPECT_TRUE(comparison.ok) << parts.size() << " parts: " << comparison.text;
}

// `cuts[i]`: where request i is cut, from 0 to its length.
void expect_shards_merge(const DecodeCase& c, const std::vector<std::vector<int32_t>>& cuts) {
  const DecodeProblem whole(c);
  std::vector<DecodeProblem> shards;
  std::vector<cases::DecodeOracle> oracles;
  for (size_t p = 0; p + 1 < cuts[0].size(); ++p) {
    DecodeCase shard = c;
    for (size_t i = 0; i < c.requests.size(); ++i) {
      shard.requests[i].first_key = cuts[i][p];
      shard.requests[i].seq_len = cuts[i][p + 1] - cuts[i][p];
    }
    shards.emplace_back(shard);
    oracles.push_back(make_oracle(shards.back()));
  }
  for (const Target& target : all_targets()) {
    if (!target.takes(c)) continue;
    SCOPED_TRACE(target.name + ", " + describe(c));
    std::vector<DecodeResult> parts;
    for (DecodeProblem& shard : shards) parts.push_back(run(shard, target.context()));
    expect_merged(whole, parts, oracles, target.host_context());
  }
}

// vLLM #47079: log2 merged as natural log. Empty shards are among the random cuts.
TEST(Shard, TwoToEightPartsMergeToTheWhole) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (int parts = 2; parts <= 8; ++parts) {
      DecodeCase c = small_case();
      c.requests = requests_of({0, 1, 64, 150, 333});
      c.dtype = dtype;
      c.seed = static_cast<uint64_t>(parts);
      c.options.empty_lse = parts % 2 == 0 ? EmptyLse::kPlusInf : EmptyLse::kMinusInf;
      cases::Random random({c.seed, 0x5a4du});
      std::vector<std::vector<int32_t>> cuts;
      for (const cases::Request& request : c.requests) {
        std::vector<int32_t> places = {0, request.seq_len};
        for (int p = 1; p < parts; ++p) places.push_back(static_cast<int32_t>(random.below(request.seq_len + 1)));
        std::ranges::sort(places);
        cuts.push_back(places);
      }
      expect_shards_merge(c, cuts);
    }
  }
}

// SGLang #40903, SGLang #35045: a long cached prefix and a short new suffix, merged with the wrong base.
TEST(Shard, LongPrefixAndShortSuffix) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    DecodeCase c = small_case();
    c.requests = requests_of({3072 + 64});
    c.dtype = dtype;
    expect_shards_merge(c, {{0, 3072, 3072 + 64}});
  }
}

// SGLang #37735, SGLang #39970: each rank owns every N-th token, some ranks none. Page size 1 makes it a strided table.
TEST(Shard, InterleavedRanksWithLocalLengths) {
  DecodeCase c = small_case();
  c.requests = requests_of({1, 0, 5, 300});
  c.page_size = 1;
  constexpr int32_t kRanks = 3;
  for (const Target& target : all_targets()) {
    SCOPED_TRACE(target.name);
    const DecodeProblem whole(c);
    std::vector<DecodeResult> parts;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      DecodeProblem local(c);
      for (int64_t i = 0; i < c.batch(); ++i) {
        const int32_t length = c.requests[i].seq_len;
        local.seq_lens()[i] = (length - rank + kRanks - 1) / kRanks;
        for (int32_t k = 0; k < local.seq_lens()[i]; ++k) local.table_row(i)[k] = local.table_row(i)[rank + k * kRanks];
      }
      parts.push_back(run(local, target.context()));
    }
    EXPECT_EQ(parts[1].lse_at(0, 0), kInf) << "rank 1 owns nothing of the request of one token";
    expect_merged(whole, parts, {}, target.host_context());
  }
}

// FlashInfer #3047, SGLang #22291: a chunk without keys leaves the state before it as it was.
TEST(Shard, EmptyPartChangesNothing) {
  for (const Target& target : all_targets()) {
    DecodeProblem problem(small_case());
    const DecodeResult state = run(problem, target.context());
    DecodeCase empty_case = small_case();
    for (cases::Request& request : empty_case.requests) request.seq_len = 0;
    for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
      empty_case.options.empty_lse = marker;
      DecodeResult empty = run(empty_case, target.context());
      DecodeResult total = state;
      merge_into(total, empty, marker, target.host_context());
      EXPECT_EQ(total, state) << target.name;
      merge_into(empty, total, marker, target.host_context());
      EXPECT_EQ(empty, state) << target.name;
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
