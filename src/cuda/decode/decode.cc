#include "cuda/decode/decode.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/text.h"
#include "cuda/decode/params.h"
#include "cuda/decode/tensor_map.h"
#include "cuda/launch.h"
#include "cuda/vectors.h"

namespace flashmla::cuda {

namespace {

// Batch-invariant mode: splits of at least this many keys, and no more of them than this.
constexpr uint32_t kLog2InvariantKeys = 10;
constexpr uint32_t kInvariantSplits = 32;

// Longest sequence that the page table has room for.
int64_t max_keys_of(const DecodeShape& shape) { return std::min(shape.table_width * shape.page_size, kMaxCount); }

UnitRule unit_rule(const DecodeShape& shape, const DecodeOptions& options, const DecodeEntry& entry) {
  const uint32_t grain = entry.log2_unit_keys;
  if (options.splits > 0) return {static_cast<uint32_t>(options.splits), grain, grain};
  if (options.batch_invariant) {
    // Fewer, and so less workspace, where no sequence can be long enough for more: the cuts are the same.
    const int64_t most = std::max<int64_t>((max_keys_of(shape) - 1) >> kLog2InvariantKeys, 0) + 1;
    return {static_cast<uint32_t>(std::min<int64_t>(most, kInvariantSplits)), kLog2InvariantKeys, grain};
  }
  return {0, grain, grain};
}

int64_t partial_slots(const DecodeShape& shape, const UnitRule& rule, const DecodeEntry& entry, int blocks) {
  if (rule.max_splits == 0) return 2 * static_cast<int64_t>(blocks);
  const int64_t requests = shape.batch + (shape.ragged_q ? 1 : 0);
  const int64_t group = shape.heads_q / shape.heads_kv;
  const int64_t tiles = shape.heads_kv * (shape.total_q * group / entry.rows + requests + 1);
  return tiles * rule.max_splits;
}

// Of each kernel; never depends on lengths.
int blocks_of(const DeviceInfo& device) { return std::min(device.multiprocessors, kMaxBlocks); }

// Row tiles of a request that blocks take side by side, so that its keys are read from memory once; 1 where that would
// leave too many blocks without work, or requests have tiles of their own number.
int lanes_of(const DecodeShape& shape, const DecodeEntry& entry, const UnitRule& units, int blocks) {
  if (entry.family != Family::kHopper || shape.ragged_q || units.max_splits != 0) return 1;
  const int64_t tiles = (shape.seq_q * shape.heads_q + entry.rows - 1) / entry.rows;
  if (tiles > blocks) return 1;
  const auto lanes = static_cast<int>(tiles);
  return blocks % lanes <= blocks / 16 ? lanes : 1;
}

int64_t round_up(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

int64_t partial_out_bytes(const DecodeShape& shape, const DecodeEntry& entry, int64_t slots) {
  return round_up(slots * entry.rows * shape.latent_dim * static_cast<int64_t>(sizeof(float)));
}

int64_t partial_ml_bytes(const DecodeEntry& entry, int64_t slots) {
  return round_up(slots * entry.rows * static_cast<int64_t>(sizeof(float2)));
}

// [b, s_q, h, ..] or [total_q, h, ..]
template <class View>
QueryStrides query_strides(const View& view) {
  if (view.ndim == 4) return {view.stride[0], view.stride[1], view.stride[2]};
  return {0, view.stride[0], view.stride[1]};
}

DecodeKernelParams kernel_params(const DecodeParams& params, const DecodeShape& shape, const DecodeEntry& entry,
                                 const DeviceInfo& device, Workspace workspace) {
  DecodeKernelParams p;
  p.q = params.q.data;
  p.q_stride = query_strides(params.q);
  if (params.q_rope.given()) {
    p.q_rope = params.q_rope.data;
    p.q_rope_stride = query_strides(params.q_rope);
  } else {
    p.q_rope = static_cast<const char*>(params.q.data) + shape.latent_dim * kElementBytes;
    p.q_rope_stride = p.q_stride;
  }
  p.kv = params.kv_cache.data;
  p.kv_page_stride = params.kv_cache.stride[0];
  p.kv_token_stride = params.kv_cache.stride[1];
  p.kv_head_stride = params.kv_cache.stride[2];
  p.page_table = static_cast<const int32_t*>(params.page_table.data);
  p.table_stride = params.page_table.stride[0];
  p.seq_lens = static_cast<const int32_t*>(params.seq_lens.data);
  p.cu_seqlens_q = shape.ragged_q ? static_cast<const int32_t*>(params.cu_seqlens_q.data) : nullptr;
  p.out = params.out.data;
  p.out_stride = query_strides(params.out);
  p.out_aligned = aligned_rows(params.out);
  if (params.lse.given()) {
    p.lse = static_cast<float*>(params.lse.data);
    const auto& stride = params.lse.stride;
    p.lse_stride =
        shape.ragged_q ? QueryStrides{0, stride[1], stride[0]} : QueryStrides{stride[0], stride[2], stride[1]};
  }
  p.batch = static_cast<int32_t>(shape.batch);
  p.requests = p.batch + (shape.ragged_q ? 1 : 0);
  p.seq_q = static_cast<int32_t>(shape.ragged_q ? 0 : shape.seq_q);
  p.total_q = static_cast<int32_t>(shape.total_q);
  p.heads_kv = static_cast<int32_t>(shape.heads_kv);
  p.group = FastDivisor(static_cast<uint32_t>(shape.heads_q / shape.heads_kv));
  p.latent_dim = static_cast<int32_t>(shape.latent_dim);
  p.rope_dim = static_cast<int32_t>(shape.rope_dim);
  p.page_size = FastDivisor(static_cast<uint32_t>(shape.page_size));
  p.pages = static_cast<int32_t>(shape.pages);
  p.max_keys = static_cast<int32_t>(max_keys_of(shape));
  p.units = unit_rule(shape, params.options, entry);
  const int blocks = blocks_of(device);
  const int lanes = lanes_of(shape, entry, p.units, blocks);
  p.lanes = FastDivisor(static_cast<uint32_t>(lanes));
  p.positions = blocks / lanes;
  p.blocks = p.positions * lanes;
  p.stages = entry.stages;
  p.log2_box = static_cast<uint32_t>(std::max(log2_box(shape), 0));
  p.box_panels = box_panels(shape, entry);
  p.costs = entry.costs;

  p.scale_log2 = static_cast<float>(params.softmax_scale * 1.4426950408889634);
  const float infinity = std::numeric_limits<float>::infinity();
  p.empty_lse = params.options.empty_lse == EmptyLse::kPlusInf ? infinity : -infinity;
  p.causal = shape.causal;
  auto* memory = static_cast<char*>(workspace.data);
  const int64_t slots = partial_slots(shape, p.units, entry, blocks);
  p.partial_out = reinterpret_cast<float*>(memory);
  p.partial_ml = reinterpret_cast<float2*>(memory + partial_out_bytes(shape, entry, slots));
  return p;
}

LineKind line_kind(const DecodeKernelParams& p) {
  if (p.cu_seqlens_q != nullptr || p.units.max_splits != 0) return LineKind::kAny;
  return p.batch == 1 ? LineKind::kOne : LineKind::kPlain;
}

}  // namespace

int64_t decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options, const DecodeEntry& entry,
                               const DeviceInfo& device) {
  if (shape.total_q == 0) return 0;
  const auto bytes = [&](const DecodeEntry& of) {
    const int64_t slots = partial_slots(shape, unit_rule(shape, options, of), of, blocks_of(device));
    return partial_out_bytes(shape, of, slots) + partial_ml_bytes(of, slots);
  };
  int64_t most = bytes(entry);
  const int tile = largest_tile(shape);
  for (const DecodeEntry& other : decode_entries()) {
    if (other.dtype != shape.dtype || other.rows > tile) continue;
    if (other.runs_on(device) && other.fits(device)) most = std::max(most, bytes(other));
  }
  return most;
}

Status launch_decode(const DecodeParams& params, const DecodeShape& shape, const DecodeEntry& entry,
                     const DeviceInfo& device, Workspace workspace, void* stream) {
  if (shape.total_q == 0) return {};
  DecodeKernelParams p = kernel_params(params, shape, entry, device, workspace);
  CUtensorMap kv_map;
  if (entry.family == Family::kHopper) {
    const Result<CUtensorMap> made = kv_tensor_map(params, shape, entry, workspace);
    if (!made.ok()) return made.status();
    kv_map = made.value();
  }
  const LineKind kind = line_kind(p);
  void* arguments[] = {&p, &kv_map};  // portable kernels take the first one alone
  FLASHMLA_RETURN_IF_ERROR(launch("decode (split kernel)", entry.split_kernel(kind),
                                  {p.blocks, entry.threads, entry.smem_bytes}, arguments, stream));
  return launch("decode (combine kernel)", entry.combine_kernel(kind), {p.blocks, kCombineThreads, 0}, arguments,
                stream);
}

}  // namespace flashmla::cuda
