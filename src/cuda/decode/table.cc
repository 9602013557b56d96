#include "cuda/decode/table.h"

#include <algorithm>
#include <array>

#include "core/text.h"
#include "cuda/decode/instances/instances.h"
#include "cuda/decode/schedule.h"

namespace flashmla::cuda {

static_assert(kMostSplits == kMaxSplits);

namespace {

// Best first among those that fit.
constexpr std::array kEntries = {
    DecodeEntry{"portable_r16", DType::kBFloat16, k16Rows, 5, bf16_16_split, bf16_16_combine},
    DecodeEntry{"portable_r32", DType::kBFloat16, k32Rows, 5, bf16_32_split, bf16_32_combine},
    DecodeEntry{"portable_r16_163k", DType::kBFloat16, k16Rows, 3, bf16_16_split, bf16_16_combine},
    DecodeEntry{"portable_r32_163k", DType::kBFloat16, k32Rows, 3, bf16_32_split, bf16_32_combine},
    DecodeEntry{"portable_r16_99k", DType::kBFloat16, k16Rows, 2, bf16_16_split, bf16_16_combine},
    DecodeEntry{"portable_any", DType::kBFloat16, k16RowsAny, 2, bf16_16_any_split, bf16_16_any_combine},
    DecodeEntry{"portable_r16", DType::kFloat16, k16Rows, 5, fp16_16_split, fp16_16_combine},
    DecodeEntry{"portable_r32", DType::kFloat16, k32Rows, 5, fp16_32_split, fp16_32_combine},
    DecodeEntry{"portable_r16_163k", DType::kFloat16, k16Rows, 3, fp16_16_split, fp16_16_combine},
    DecodeEntry{"portable_r32_163k", DType::kFloat16, k32Rows, 3, fp16_32_split, fp16_32_combine},
    DecodeEntry{"portable_r16_99k", DType::kFloat16, k16Rows, 2, fp16_16_split, fp16_16_combine},
    DecodeEntry{"portable_any", DType::kFloat16, k16RowsAny, 2, fp16_16_any_split, fp16_16_any_combine},
};

bool tuned_widths(const DecodeShape& shape) { return shape.latent_dim == kMaxLatent && shape.rope_dim == kMaxRope; }

// Query rows of one KV head in a request; with ragged q the mean.
int64_t rows_per_request(const DecodeShape& shape) {
  const int64_t tokens =
      shape.ragged_q ? (shape.total_q + shape.batch - 1) / std::max<int64_t>(shape.batch, 1) : shape.seq_q;
  return tokens * (shape.heads_q / shape.heads_kv);
}

Status check_shape(const DecodeShape& shape) {
  if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16)
    return unsupported("dtype", dtype_name(shape.dtype), "bf16 and fp16 on back end 'cuda' (fp32: 'cpu', 'reference')");
  if (shape.latent_dim > kMaxLatent)
    return unsupported("latent_dim", concat(shape.latent_dim), concat("up to ", kMaxLatent, " on back end 'cuda'"));
  if (shape.rope_dim > kMaxRope)
    return unsupported("rope_dim", concat(shape.rope_dim), concat("up to ", kMaxRope, " on back end 'cuda'"));
  constexpr int64_t kMaxRows = (int64_t{1} << 31) - 64;  // rows of a request are counted in 32 bits
  const int64_t tokens = shape.ragged_q ? shape.total_q : shape.seq_q;
  if (tokens * (shape.heads_q / shape.heads_kv) > kMaxRows) {
    return unsupported("q", concat(tokens, " query tokens x ", shape.heads_q / shape.heads_kv, " heads of a KV head"),
                       concat("up to ", kMaxRows, " rows in a request on back end 'cuda'"));
  }
  return {};
}

Result<const DecodeEntry*> named_entry(const DecodeShape& shape, const DeviceInfo& device, std::string_view named) {
  std::string names;
  for (const DecodeEntry& entry : kEntries) {
    if (entry.dtype != shape.dtype) continue;
    names += concat(names.empty() ? "" : ", ", entry.name);
    if (named != entry.name) continue;
    if (entry.config.widths == Widths::kTuned && !tuned_widths(shape)) {
      return unsupported("kernel", concat(named, " for widths ", shape.latent_dim, " + ", shape.rope_dim),
                         concat("this kernel takes ", kMaxLatent, " + ", kMaxRope));
    }
    if (!entry.config.fits(entry.stages, device.smem_per_block)) {
      return unsupported("kernel", concat(named, ", which needs ", entry.smem_bytes(), " bytes of shared memory"),
                         concat("up to ", device.smem_per_block, " on ", device.name));
    }
    if (!entry.config.runs_on(device.compute_capability)) {
      return unsupported("kernel", concat(named, " on ", device.name), "GPUs of compute capability below 10.0");
    }
    return &entry;
  }
  return {Status{StatusCode::kNotFound, concat("kernel: got '", named, "'; want one of: ", names)}};
}

}  // namespace

std::span<const DecodeEntry> decode_entries() { return kEntries; }

Result<const DecodeEntry*> select_decode(const DecodeShape& shape, const DeviceInfo& device, std::string_view named) {
  FLASHMLA_RETURN_IF_ERROR(check_shape(shape));
  if (!named.empty()) return named_entry(shape, device, named);
  // Tiles of 32 rows read each key once for twice the rows; where 16 suffice they would be half empty.
  const int wanted_rows = rows_per_request(shape) > 16 ? 32 : 16;
  const DecodeEntry* otherwise = nullptr;
  for (const DecodeEntry& entry : kEntries) {
    if (entry.dtype != shape.dtype || tuned_widths(shape) != (entry.config.widths == Widths::kTuned)) continue;
    if (!entry.config.fits(entry.stages, device.smem_per_block)) continue;
    if (!entry.config.runs_on(device.compute_capability)) continue;
    if (entry.config.rows == wanted_rows) return &entry;
    if (otherwise == nullptr) otherwise = &entry;
  }
  if (otherwise != nullptr) return otherwise;
  return unsupported("device", concat(device.name, " with ", device.smem_per_block, " bytes of shared memory a block"),
                     concat("at least ", kEntries.back().smem_bytes()));
}

std::string decode_reason(const DecodeShape& shape, const DeviceInfo& device, std::string_view named,
                          const DecodeEntry& entry) {
  if (!named.empty()) return "it was asked for";
  return concat(rows_per_request(shape), " query rows a KV head in tiles of ", entry.config.rows, "; a ring of ",
                entry.stages, " stages takes ", entry.smem_bytes(), " of ", device.smem_per_block,
                " bytes of shared memory on ", device.name);
}

}  // namespace flashmla::cuda
