#include "cases/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "cases/content.h"
#include "cases/random.h"
#ifdef FLASHMLA_HAS_CUDA
#include "cases/problem_gpu.h"
#endif

namespace flashmla::cases {

namespace {

constexpr int64_t kGap = 8;     // elements between neighbours of strided inputs; keeps rows 16-byte aligned
constexpr int64_t kOutGap = 3;  // elements; outputs need no alignment
constexpr int64_t kGuard = 64;  // elements before and after each output that no call may write

// Elements that a view of these strides spans.
int64_t span(const ConstTensorView& view) {
  int64_t last = 1;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] == 0) return 0;
    last += (view.shape[d] - 1) * view.stride[d];
  }
  return last;
}

// [b, s_q, h_q, width], or [total_q, h_q, width] when ragged.
TensorView query_view(const DecodeCase& c, int64_t width, int64_t gap) {
  const int64_t head_stride = width + gap;
  const int64_t token_stride = c.heads_q * head_stride + gap;
  if (c.ragged) return {nullptr, c.dtype, 3, {c.total_q(), c.heads_q, width}, {token_stride, head_stride, 1}};
  return {nullptr,
          c.dtype,
          4,
          {c.batch(), c.seq_q, c.heads_q, width},
          {c.seq_q * token_stride + gap, token_stride, head_stride, 1}};
}

// As query_view, transposed in memory when strided: all tokens of a head lie together.
TensorView out_view(const DecodeCase& c) {
  if (!c.strided) return query_view(c, c.latent_dim, 0);
  const int64_t token_stride = c.latent_dim + kOutGap;
  const int64_t head_stride = c.total_q() * token_stride + kOutGap;
  if (c.ragged) return {nullptr, c.dtype, 3, {c.total_q(), c.heads_q, c.latent_dim}, {token_stride, head_stride, 1}};
  return {nullptr,
          c.dtype,
          4,
          {c.batch(), c.seq_q, c.heads_q, c.latent_dim},
          {c.seq_q * token_stride, token_stride, head_stride, 1}};
}

// [b, h_q, s_q], or [h_q, total_q] when ragged; when strided the heads of a token lie next to each other, with gaps.
TensorView lse_view(const DecodeCase& c) {
  constexpr DType kType = DType::kFloat32;
  if (!c.strided) {
    return c.ragged ? TensorView::contiguous(nullptr, kType, {c.heads_q, c.total_q()})
                    : TensorView::contiguous(nullptr, kType, {c.batch(), c.heads_q, c.seq_q});
  }
  const int64_t token_stride = c.heads_q * kOutGap + 1;
  if (c.ragged) return {nullptr, kType, 2, {c.heads_q, c.total_q()}, {kOutGap, token_stride}};
  return {nullptr, kType, 3, {c.batch(), c.heads_q, c.seq_q}, {c.seq_q * token_stride, kOutGap, token_stride}};
}

}  // namespace

DecodeProblem::DecodeProblem(DecodeCase decode_case) : case_(std::move(decode_case)) {
  first_token_.push_back(0);
  for (int64_t i = 0; i < case_.batch(); ++i) first_token_.push_back(first_token_.back() + case_.tokens_q(i));
  params_.latent_dim = case_.latent_dim;
  params_.softmax_scale = case_.softmax_scale != 0
                              ? case_.softmax_scale
                              : 1.0f / std::sqrt(static_cast<float>(case_.latent_dim + case_.rope_dim));
  params_.causal = case_.causal;
  params_.options = case_.options;
  make_queries();
  make_cache();
  make_outputs();
}

void DecodeProblem::fill_unowned(const Buffer& buffer, DType dtype) const {
  if (case_.hostile)
    poison(buffer.data(), buffer.bytes(), dtype);
  else
    std::memset(buffer.data(), 0, static_cast<std::size_t>(buffer.bytes()));
}

void DecodeProblem::make_queries() {
  const int64_t gap = case_.strided ? kGap : 0;
  const int64_t width = case_.latent_dim + case_.rope_dim;
  const auto allocate = [&](Buffer& buffer, ConstTensorView& view, int64_t columns) {
    TensorView layout = query_view(case_, columns, gap);
    buffer = Buffer(span(layout) * dtype_bytes(case_.dtype));
    fill_unowned(buffer, case_.dtype);
    layout.data = buffer.data();
    view = layout;
  };
  // A case without RoPE part has nothing to split off.
  case_.split_q = case_.split_q && case_.rope_dim > 0;
  allocate(q_, params_.q, case_.split_q ? case_.latent_dim : width);
  if (case_.split_q) allocate(q_rope_, params_.q_rope, case_.rope_dim);
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < case_.batch(); ++i) {
    for (int64_t token = 0; token < case_.tokens_q(i); ++token) {
      for (int64_t head = 0; head < case_.heads_q; ++head) {
        fill_query(case_, case_.requests[i], token, head, values.data());
        store_elements(query(i, token, head), case_.dtype, values.data(), case_.latent_dim);
        store_elements(query_rope(i, token, head), case_.dtype, values.data() + case_.latent_dim, case_.rope_dim);
      }
    }
  }
  if (!case_.ragged) return;
  cu_ = Buffer((case_.batch() + 1) * static_cast<int64_t>(sizeof(int32_t)));
  std::ranges::copy(first_token_, reinterpret_cast<int32_t*>(cu_.data()));
  params_.cu_seqlens_q = ConstTensorView::contiguous(cu_.data(), DType::kInt32, {case_.batch() + 1});
}

void DecodeProblem::make_cache() {
  const int64_t page = case_.page_size;
  const int64_t gap = case_.strided ? kGap : 0;
  const int64_t width = case_.latent_dim + case_.rope_dim;
  int64_t used = 0;
  int64_t table_width = case_.spare_width;
  for (const Request& request : case_.requests) {
    const int64_t pages = (request.seq_len + page - 1) / page;
    used += pages;
    table_width = std::max(table_width, pages + case_.spare_width);
  }
  std::vector<int32_t> order(static_cast<size_t>(used + case_.spare_pages));  // physical pages, the used ones first
  std::iota(order.begin(), order.end(), 0);
  Random random({case_.page_seed, 0x9a9eu});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(static_cast<int64_t>(i))]);

  const int64_t row_stride = case_.heads_kv * (width + gap);
  const int64_t page_stride = case_.strided ? 3 * page * row_stride + gap : page * row_stride;
  TensorView cache{nullptr,
                   case_.dtype,
                   4,
                   {used + case_.spare_pages, page, case_.heads_kv, width},
                   {page_stride, row_stride, width + gap, 1}};
  cache_ = Buffer(span(cache) * dtype_bytes(case_.dtype));
  fill_unowned(cache_, case_.dtype);
  cache.data = cache_.data();
  params_.kv_cache = cache;

  const int64_t table_stride = table_width + (case_.strided ? 5 : 0);
  table_ = Buffer(case_.batch() * table_stride * static_cast<int64_t>(sizeof(int32_t)));
  params_.page_table = {table_.data(), DType::kInt32, 2, {case_.batch(), table_width}, {table_stride, 1}};
  lens_ = Buffer(case_.batch() * static_cast<int64_t>(sizeof(int32_t)));
  params_.seq_lens = ConstTensorView::contiguous(lens_.data(), DType::kInt32, {case_.batch()});
  // What stands past a length: never an address, whether it looks like one or not.
  const std::array<int32_t, 4> garbage = {-1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min(),
                                          order.empty() ? 0 : order.back()};
  int64_t next = 0;
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < case_.batch(); ++i) {
    const Request& request = case_.requests[i];
    seq_lens()[i] = request.seq_len;
    const int64_t pages = (request.seq_len + page - 1) / page;
    for (int64_t p = 0; p < table_stride; ++p)
      table_row(i)[p] = p < pages ? order[next++] : case_.hostile ? garbage[p % 4] : 0;
    for (int64_t k = 0; k < request.seq_len; ++k) {
      for (int64_t head = 0; head < case_.heads_kv; ++head) {
        fill_key(case_, request, request.first_key + k, head, values.data());
        store_elements(key(i, k, head), case_.dtype, values.data(), width);
      }
    }
  }
}

void DecodeProblem::make_outputs() {
  const auto allocate = [&](Buffer& buffer, TensorView& view, TensorView layout) {
    const int64_t bytes = dtype_bytes(layout.dtype);
    buffer = Buffer((span(layout) + 2 * kGuard) * bytes);
    // Strided outputs start at an address that only their own elements align.
    layout.data = buffer.data() + (kGuard + (case_.strided ? 1 : 0)) * bytes;
    view = layout;
  };
  allocate(out_, params_.out, out_view(case_));
  if (case_.want_lse) allocate(lse_, params_.lse, lse_view(case_));
  reset_outputs();
}

void DecodeProblem::reset_outputs() {
  fill_sentinel(out_.data(), out_.bytes(), case_.dtype);
  if (case_.want_lse) fill_sentinel(lse_.data(), lse_.bytes(), DType::kFloat32);
}

Status DecodeProblem::run(const Context& context) {
  reset_outputs();
  const Result<DecodeShape> shape = decode_shape(params_);
  if (!shape.ok()) return shape.status();
  const Result<int64_t> bytes = workspace_bytes(shape.value(), params_.options, context);
  if (!bytes.ok()) return bytes.status();
  const Buffer workspace(bytes.value());
  fill_unowned(workspace, DType::kFloat32);
  if (context.device.type == DeviceType::kCUDA) return run_on_device(workspace, context);
  return decode(params_, {workspace.data(), workspace.bytes()}, context);
}

// The tensors as they are now go to the device, and the outputs with all that lies between and around them come back.
Status DecodeProblem::run_on_device([[maybe_unused]] const Buffer& workspace, const Context& context) {
#ifdef FLASHMLA_HAS_CUDA
  std::vector<DeviceBuffer> copies;
  for (const Buffer* buffer :
       std::initializer_list<const Buffer*>{&q_, &q_rope_, &cache_, &table_, &lens_, &cu_, &out_, &lse_, &workspace})
    copies.emplace_back(*buffer);
  const auto move = [&](auto& view) {
    if (!view.given()) return;
    for (const DeviceBuffer& copy : copies) {
      if (!copy.holds(view.data)) continue;
      view.data = copy.at(view.data);
      break;
    }
  };
  DecodeParams on_device = params_;
  move(on_device.q);
  move(on_device.q_rope);
  move(on_device.kv_cache);
  move(on_device.page_table);
  move(on_device.seq_lens);
  move(on_device.cu_seqlens_q);
  move(on_device.out);
  move(on_device.lse);
  const Status status = decode(on_device, {copies.back().at(workspace.data()), workspace.bytes()}, context);
  if (!status.ok()) return status;
  const Status ended = device_status();
  if (!ended.ok()) return ended;
  for (const DeviceBuffer& copy : copies) {
    if (copy.holds(out_.data()) || (case_.want_lse && copy.holds(lse_.data()))) copy.download();
  }
  return {};
#else
  return decode(params_, {}, context);  // says that there is no back end
#endif
}

}  // namespace flashmla::cases
