// One test per error text of decode: the code, the argument, what was got and what is wanted.
#include <functional>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;

struct BadCall {
  const char* name;
  std::function<void(DecodeParams&)> spoil;
  StatusCode code;
  std::vector<std::string_view> parts;
};

void PrintTo(const BadCall& call, std::ostream* out) { *out << call.name; }

// The call that is spoiled: b 2, s_q 1, h_q 4, d 576, page 16.
DecodeCase good_case(bool ragged) {
  DecodeCase c = small_case();
  c.requests = requests_of({20, 40});
  c.ragged = ragged;
  c.spare_pages = 2;
  c.spare_width = 1;
  return c;
}

class BadDecode : public testing::TestWithParam<BadCall> {};
class BadRaggedDecode : public testing::TestWithParam<BadCall> {};

// Every back end refuses alike, before it writes anything.
void expect_refused(const DecodeCase& c, const BadCall& call) {
  for (const Target& target : host_targets()) {
    SCOPED_TRACE(target.name);
    DecodeProblem problem(c);
    const Result<DecodeShape> good = decode_shape(problem.params());
    ASSERT_TRUE(good.ok()) << good.status().text();
    const cases::Buffer workspace(workspace_bytes(good.value(), {}, target.context()).value());
    const TensorView out = problem.params().out;
    call.spoil(problem.params());
    expect_error(decode_shape(problem.params()).status(), call.code, call.parts);
    expect_error(decode(problem.params(), {workspace.data(), workspace.bytes()}, target.context()), call.code,
                 call.parts);
    EXPECT_TRUE(cases::is_sentinel(static_cast<const std::byte*>(out.data), c.dtype, 0)) << "out was written";
  }
}

TEST_P(BadDecode, IsRefused) { expect_refused(good_case(false), GetParam()); }
TEST_P(BadRaggedDecode, IsRefused) { expect_refused(good_case(true), GetParam()); }

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;

const std::vector<BadCall> kOptions = {
    {"no_scale", [](DecodeParams& p) { p.softmax_scale = kNaN; }, kInvalid, {"softmax_scale", "nan", "no default"}},
    {"infinite_scale", [](DecodeParams& p) { p.softmax_scale = kInf; }, kInvalid, {"softmax_scale", "got inf"}},
    {"splits_below_0",
     [](DecodeParams& p) { p.options.splits = -1; },
     kInvalid,
     {"splits", "got -1", "0 (chosen by the back end) .. 64"}},
    {"splits_above_64", [](DecodeParams& p) { p.options.splits = 65; }, kInvalid, {"splits", "got 65", "64"}},
    {"marker",
     [](DecodeParams& p) { p.options.empty_lse = EmptyLse{7}; },
     kInvalid,
     {"empty_lse", "got 7", "0 (+inf) or 1 (-inf)"}},
};

const std::vector<BadCall> kFormats = {
    {"fp8_tensor",
     [](DecodeParams& p) { p.kv_format = KvFormat::kFp8Tensor; },
     kUnsupported,
     {"kv_format", "fp8_tensor", "supported: bf16, fp16, fp32"}},
    {"fp8_tile128",
     [](DecodeParams& p) { p.kv_format = KvFormat::kFp8Tile128; },
     kUnsupported,
     {"kv_format", "fp8_tile128"}},
    {"fp8_v4", [](DecodeParams& p) { p.kv_format = KvFormat::kFp8V4; }, kUnsupported, {"kv_format", "fp8_v4"}},
    {"format_of_another_dtype",
     [](DecodeParams& p) { p.kv_format = KvFormat::kFP16; },
     kInvalid,
     {"kv_cache", "got dtype bf16", "want dtype fp16"}},
    {"no_plain_format",
     [](DecodeParams& p) { p.kv_cache.dtype = DType::kFloat8E4M3; },
     kInvalid,
     {"kv_cache", "fp8_e4m3 without a kv_format", "plain dtype (fp32, fp16, bf16)"}},
    {"unknown_dtype", [](DecodeParams& p) { p.kv_cache.dtype = DType{99}; }, kInvalid, {"kv_cache", "unknown"}},
    {"unknown_format",
     [](DecodeParams& p) { p.kv_format = KvFormat{99}; },
     kInvalid,
     {"kv_format: got 99", "a format of flashmla/kv_format.h"}},
};

const std::vector<BadCall> kDTypes = {
    {"q", [](DecodeParams& p) { p.q.dtype = DType::kInt32; }, kInvalid, {"q: got dtype int32", "fp32, fp16 or bf16"}},
    {"cache",
     [](DecodeParams& p) { p.kv_cache.dtype = DType::kFloat16; },
     kInvalid,
     {"kv_cache: got dtype fp16", "want dtype bf16"}},
    {"out",
     [](DecodeParams& p) { p.out.dtype = DType::kFloat32; },
     kInvalid,
     {"out: got dtype fp32", "want dtype bf16"}},
    {"lse",
     [](DecodeParams& p) { p.lse.dtype = DType::kBFloat16; },
     kInvalid,
     {"lse: got dtype bf16", "want dtype fp32"}},
    {"table",
     [](DecodeParams& p) { p.page_table.dtype = DType::kInt64; },
     kInvalid,
     {"page_table: got dtype int64", "want dtype int32"}},
    {"lens",
     [](DecodeParams& p) { p.seq_lens.dtype = DType::kInt64; },
     kInvalid,
     {"seq_lens: got dtype int64", "want dtype int32"}},
};

const std::vector<BadCall> kShapes = {
    {"q_not_given",
     [](DecodeParams& p) { p.q = {}; },
     kInvalid,
     {"q: got shape []", "[b, s_q, h_q, d_qk], or [total_q, h_q, d_qk] with cu_seqlens_q"}},
    {"q_3d", [](DecodeParams& p) { p.q.ndim = 3; }, kInvalid, {"q: got shape [2, 1, 4]"}},
    {"q_batch",
     [](DecodeParams& p) { p.q.shape[0] = 3; },
     kInvalid,
     {"q: got shape [3, 1, 4, 576]", "[b, s_q, h_q, d_qk] = [2, 1, 4, 576]"}},
    {"q_width", [](DecodeParams& p) { p.q.shape[3] = 512; }, kInvalid, {"q: got shape [2, 1, 4, 512]", "576"}},
    {"q_no_heads", [](DecodeParams& p) { p.q.shape[2] = 0; }, kInvalid, {"h_q = 0", "h_q >= 1"}},
    {"heads_do_not_divide",
     [](DecodeParams& p) { p.kv_cache.shape[2] = 3; },
     kInvalid,
     {"h_q = 4 with h_kv = 3", "h_kv divides h_q"}},
    {"no_kv_heads", [](DecodeParams& p) { p.kv_cache.shape[2] = 0; }, kInvalid, {"h_kv = 0", "h_kv >= 1"}},
    {"cache_not_given",
     [](DecodeParams& p) { p.kv_cache = {}; },
     kInvalid,
     {"kv_cache: got shape []", "[pages, page, h_kv, d_qk]"}},
    {"cache_3d",
     [](DecodeParams& p) { p.kv_cache.ndim = 3; },
     kInvalid,
     {"kv_cache: got shape [", "[pages, page, h_kv, d_qk]"}},
    {"cache_narrower_than_latent",
     [](DecodeParams& p) { p.kv_cache.shape[3] = 504; },
     kInvalid,
     {"kv_cache", "504", "at least latent_dim = 512"}},
    {"page_of_0", [](DecodeParams& p) { p.kv_cache.shape[1] = 0; }, kInvalid, {"kv_cache: got page = 0", "at least 1"}},
    {"pages_negative",
     [](DecodeParams& p) { p.kv_cache.shape[0] = -1; },
     kInvalid,
     {"kv_cache: got pages = -1", "0 .. 2147483647"}},
    {"pages_above_limit",
     [](DecodeParams& p) { p.kv_cache.shape[0] = int64_t{1} << 31; },
     kInvalid,
     {"kv_cache: got pages = 2147483648", "0 .. 2147483647"}},
    {"latent_not_multiple_of_8",
     [](DecodeParams& p) { p.latent_dim = 508; },
     kInvalid,
     {"latent_dim: got 508", "multiple of 8"}},
    {"latent_0", [](DecodeParams& p) { p.latent_dim = 0; }, kInvalid, {"latent_dim: got 0", "at least 8"}},
    {"rope_not_multiple_of_8",
     [](DecodeParams& p) { p.kv_cache.shape[3] = 572; },
     kInvalid,
     {"rope_dim", "got 60", "multiple of 8"}},
    {"lens_not_given", [](DecodeParams& p) { p.seq_lens = {}; }, kInvalid, {"seq_lens: got shape []", "[b]"}},
    {"lens_2d", [](DecodeParams& p) { p.seq_lens.ndim = 2; }, kInvalid, {"seq_lens: got shape [2, 0]"}},
    {"table_not_given", [](DecodeParams& p) { p.page_table = {}; }, kInvalid, {"page_table"}},
    {"table_rows",
     [](DecodeParams& p) { p.page_table.shape[0] = 1; },
     kInvalid,
     {"page_table: got shape [1, 4]", "[b, width] = [2, any]"}},
    {"out_width",
     [](DecodeParams& p) { p.out.shape[3] = 576; },
     kInvalid,
     {"out: got shape [2, 1, 4, 576]", "[2, 1, 4, 512]"}},
    {"out_not_given", [](DecodeParams& p) { p.out = {}; }, kInvalid, {"out"}},
    {"lse_order",
     [](DecodeParams& p) { std::swap(p.lse.shape[1], p.lse.shape[2]); },
     kInvalid,
     {"lse: got shape [2, 1, 4]", "[b, h_q, s_q] = [2, 4, 1]"}},
    {"rope_query_width",
     [](DecodeParams& p) { p.q_rope = p.q; },
     kInvalid,
     {"q: got shape [2, 1, 4, 576]", "d_v", "512"}},
};

// vLLM #50842: strides that are no multiple of 16 bytes give a clean error with the offending value.
const std::vector<BadCall> kLayouts = {
    {"q_last_stride",
     [](DecodeParams& p) { p.q.stride[3] = 2; },
     kInvalid,
     {"q: got stride 2 of the last dimension", "1 (contiguous)"}},
    {"q_row_stride",
     [](DecodeParams& p) { p.q.stride[2] = 577; },
     kInvalid,
     {"q: got stride 577 of dimension 2 (2-byte elements)", "multiple of 16 bytes"}},
    {"cache_page_stride",
     [](DecodeParams& p) { p.kv_cache.stride[0] += 4; },
     kInvalid,
     {"kv_cache: got stride 9220 of dimension 0", "multiple of 16 bytes"}},
    {"cache_row_stride",
     [](DecodeParams& p) { p.kv_cache.stride[1] = 580; },
     kInvalid,
     {"kv_cache: got stride 580 of dimension 1", "multiple of 16 bytes"}},
    {"q_address",
     [](DecodeParams& p) { p.q.data = static_cast<const std::byte*>(p.q.data) + 2; },
     kInvalid,
     {"q: got a base address that is 2 bytes past", "aligned to 16 bytes"}},
    {"cache_address",
     [](DecodeParams& p) { p.kv_cache.data = static_cast<const std::byte*>(p.kv_cache.data) + 8; },
     kInvalid,
     {"kv_cache: got a base address that is 8 bytes past", "aligned to 16 bytes"}},
    {"lse_address",
     [](DecodeParams& p) { p.lse.data = static_cast<std::byte*>(p.lse.data) + 2; },
     kInvalid,
     {"lse: got a base address that is 2 bytes past", "aligned to 4 bytes"}},
    {"q_null",
     [](DecodeParams& p) { p.q.data = nullptr; },
     kInvalid,
     {"q: got a null pointer for shape [2, 1, 4, 576]"}},
    {"cache_null", [](DecodeParams& p) { p.kv_cache.data = nullptr; }, kInvalid, {"kv_cache: got a null pointer"}},
    {"table_null", [](DecodeParams& p) { p.page_table.data = nullptr; }, kInvalid, {"page_table: got a null pointer"}},
    {"lens_null", [](DecodeParams& p) { p.seq_lens.data = nullptr; }, kInvalid, {"seq_lens: got a null pointer"}},
    {"out_null", [](DecodeParams& p) { p.out.data = nullptr; }, kInvalid, {"out: got a null pointer"}},
    {"lse_null", [](DecodeParams& p) { p.lse.data = nullptr; }, kInvalid, {"lse: got a null pointer"}},
    {"out_overlaps",
     [](DecodeParams& p) { p.out.stride[2] = 0; },
     kInvalid,
     {"out: got stride 0 of dimension 2 (size 4)", "do not overlap"}},
    {"status_dtype",
     [](DecodeParams& p) {
       static int64_t code = 0;
       p.status = TensorView::contiguous(&code, DType::kInt64, {1});
     },
     kInvalid,
     {"status: got dtype int64", "want dtype int32"}},
    {"status_shape",
     [](DecodeParams& p) {
       static int32_t codes[2];
       p.status = TensorView::contiguous(codes, DType::kInt32, {2});
     },
     kInvalid,
     {"status: got shape [2]", "[1]"}},
    {"status_null",
     [](DecodeParams& p) { p.status = TensorView::contiguous(nullptr, DType::kInt32, {1}); },
     kInvalid,
     {"status: got a null pointer"}},
    {"lse_overlaps",
     [](DecodeParams& p) { p.lse.stride[1] = 0; },
     kInvalid,
     {"lse: got stride 0 of dimension 1", "do not overlap"}},
    {"strides_leave_memory",
     [](DecodeParams& p) { p.kv_cache.stride[0] = int64_t{1} << 61; },
     kInvalid,
     {"kv_cache", "past 2^62 bytes", "address space"}},
    {"table_last_stride",
     [](DecodeParams& p) { p.page_table.stride[1] = 2; },
     kInvalid,
     {"page_table: got stride 2", "contiguous"}},
    {"lens_stride",
     [](DecodeParams& p) { p.seq_lens.stride[0] = 2; },
     kInvalid,
     {"seq_lens: got stride 2", "contiguous"}},
};

const std::vector<BadCall> kRagged = {
    {"q_4d",
     [](DecodeParams& p) { p.q.ndim = 4; },
     kInvalid,
     {"q: got shape [2, 4, 576, 0]", "[total_q, h_q, d_qk], because cu_seqlens_q is given"}},
    {"cu_length",
     [](DecodeParams& p) { p.cu_seqlens_q.shape[0] = 2; },
     kInvalid,
     {"cu_seqlens_q: got shape [2]", "[b + 1] = [3]"}},
    {"cu_dtype",
     [](DecodeParams& p) { p.cu_seqlens_q.dtype = DType::kInt64; },
     kInvalid,
     {"cu_seqlens_q: got dtype int64", "want dtype int32"}},
    {"out_rows",
     [](DecodeParams& p) { p.out.shape[0] = 1; },
     kInvalid,
     {"out: got shape [1, 4, 512]", "[total_q, h_q, d_v] = [2, 4, 512]"}},
    {"lse_order",
     [](DecodeParams& p) { std::swap(p.lse.shape[0], p.lse.shape[1]); },
     kInvalid,
     {"lse: got shape [2, 4]", "[h_q, total_q] = [4, 2]"}},
    {"rope_query_rows",
     [](DecodeParams& p) {
       p.q.shape[2] = 512;
       p.q_rope = p.q;
       p.q_rope.shape[2] = 32;
     },
     kInvalid,
     {"q_rope: got shape [2, 4, 32]", "[2, 4, 64]"}},
};

std::string bad_call_name(const testing::TestParamInfo<BadCall>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Options, BadDecode, testing::ValuesIn(kOptions), bad_call_name);
INSTANTIATE_TEST_SUITE_P(Formats, BadDecode, testing::ValuesIn(kFormats), bad_call_name);
INSTANTIATE_TEST_SUITE_P(DTypes, BadDecode, testing::ValuesIn(kDTypes), bad_call_name);
INSTANTIATE_TEST_SUITE_P(Shapes, BadDecode, testing::ValuesIn(kShapes), bad_call_name);
INSTANTIATE_TEST_SUITE_P(Layouts, BadDecode, testing::ValuesIn(kLayouts), bad_call_name);
INSTANTIATE_TEST_SUITE_P(Ragged, BadRaggedDecode, testing::ValuesIn(kRagged), bad_call_name);

}  // namespace
}  // namespace flashmla::tests
