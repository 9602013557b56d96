#include "cuda/decode/table.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/text.h"
#include "cuda/decode/hopper/few_rows_layout.h"
#include "cuda/decode/hopper/rows64_layout.h"
#include "cuda/decode/instances/instances.h"
#include "cuda/decode/schedule.h"
#include "cuda/decode/tile_cost.h"

namespace flashmla::cuda {

static_assert(kMostSplits == kMaxSplits);

namespace {

constexpr DecodeEntry portable(const char* name, DType dtype, const DecodeConfig& config, int stages,
                               const void* (*split)(LineKind), const void* (*combine)(LineKind)) {
  return {.name = name,
          .dtype = dtype,
          .family = Family::kPortable,
          .rows = config.rows,
          .widths = config.widths,
          .threads = config.threads(),
          .smem_bytes = config.smem_bytes(stages),
          .stages = stages,
          .panels = 0,
          .log2_unit_keys = kLog2UnitKeys,
          .costs = {.few_units = config.few_units(), .least_units = config.least_units()},
          .split_kernel = split,
          .combine_kernel = combine};
}

// Found by trying on an H200 (docs/kernels/decode-hopper.md).
constexpr SliceCosts kFewRowsCosts = {.few_units = kMaxBlocks, .least_units = 1, .visit_price = 1};
constexpr SliceCosts kRows64Costs = {.few_units = 16, .least_units = 2, .visit_price = 3, .split_price = 10};

constexpr DecodeEntry hopper_entry(const char* name, DType dtype, int rows, int threads, int smem_bytes, int panels,
                                   const void* (*split)(LineKind), const void* (*combine)(LineKind)) {
  return {.name = name,
          .dtype = dtype,
          .family = Family::kHopper,
          .rows = rows,
          .widths = Widths::kTuned,
          .threads = threads,
          .smem_bytes = smem_bytes,
          .stages = 0,
          .panels = panels,
          .log2_unit_keys = 6,  // the keys of a tile
          .costs = rows < 64 ? kFewRowsCosts : kRows64Costs,
          .split_kernel = split,
          .combine_kernel = combine};
}

// Best first among those that fit.
constexpr std::array kEntries = {
    hopper_entry("hopper_r8", DType::kBFloat16, 8, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(8),
                 hopper::kGroupPanels, bf16_hopper_8_split, bf16_hopper_8_combine),
    hopper_entry("hopper_r16", DType::kBFloat16, 16, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(16),
                 hopper::kGroupPanels, bf16_hopper_16_split, bf16_hopper_16_combine),
    hopper_entry("hopper_r32", DType::kBFloat16, 32, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(32),
                 hopper::kGroupPanels, bf16_hopper_32_split, bf16_hopper_32_combine),
    hopper_entry("hopper_r64", DType::kBFloat16, rows64::kRows, kRows64Threads, kRows64SmemBytes, 1,
                 bf16_hopper_64_split, bf16_hopper_64_combine),
    portable("portable_r16", DType::kBFloat16, k16Rows, 5, bf16_16_split, bf16_16_combine),
    portable("portable_r32", DType::kBFloat16, k32Rows, 5, bf16_32_split, bf16_32_combine),
    portable("portable_r16_163k", DType::kBFloat16, k16Rows, 3, bf16_16_split, bf16_16_combine),
    portable("portable_r32_163k", DType::kBFloat16, k32Rows, 3, bf16_32_split, bf16_32_combine),
    portable("portable_r16_99k", DType::kBFloat16, k16Rows, 2, bf16_16_split, bf16_16_combine),
    portable("portable_any", DType::kBFloat16, k16RowsAny, 2, bf16_16_any_split, bf16_16_any_combine),
    hopper_entry("hopper_r8", DType::kFloat16, 8, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(8),
                 hopper::kGroupPanels, fp16_hopper_8_split, fp16_hopper_8_combine),
    hopper_entry("hopper_r16", DType::kFloat16, 16, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(16),
                 hopper::kGroupPanels, fp16_hopper_16_split, fp16_hopper_16_combine),
    hopper_entry("hopper_r32", DType::kFloat16, 32, hopper::kFewRowsThreads, hopper::few_rows_smem_bytes(32),
                 hopper::kGroupPanels, fp16_hopper_32_split, fp16_hopper_32_combine),
    hopper_entry("hopper_r64", DType::kFloat16, rows64::kRows, kRows64Threads, kRows64SmemBytes, 1,
                 fp16_hopper_64_split, fp16_hopper_64_combine),
    portable("portable_r16", DType::kFloat16, k16Rows, 5, fp16_16_split, fp16_16_combine),
    portable("portable_r32", DType::kFloat16, k32Rows, 5, fp16_32_split, fp16_32_combine),
    portable("portable_r16_163k", DType::kFloat16, k16Rows, 3, fp16_16_split, fp16_16_combine),
    portable("portable_r32_163k", DType::kFloat16, k32Rows, 3, fp16_32_split, fp16_32_combine),
    portable("portable_r16_99k", DType::kFloat16, k16Rows, 2, fp16_16_split, fp16_16_combine),
    portable("portable_any", DType::kFloat16, k16RowsAny, 2, fp16_16_any_split, fp16_16_any_combine),
};

bool tuned_widths(const DecodeShape& shape) { return shape.latent_dim == kMaxLatent && shape.rope_dim == kMaxRope; }

// Query rows of one KV head in a request; with ragged q the mean, or one token's where other requests must not matter.
int64_t rows_per_request(const DecodeShape& shape, bool batch_invariant) {
  const int64_t mean = (shape.total_q + shape.batch - 1) / std::max<int64_t>(shape.batch, 1);
  const int64_t ragged = batch_invariant ? 1 : mean;
  return (shape.ragged_q ? ragged : shape.seq_q) * (shape.heads_q / shape.heads_kv);
}

// Rows that decide the tile: those of a request; where a tile of fewer or more rows is cheaper, that tile's.
int64_t deciding_rows(const DecodeShape& shape, const DeviceInfo& device, bool batch_invariant) {
  const int64_t rows = rows_per_request(shape, batch_invariant);
  if (batch_invariant || shape.ragged_q) return rows;
  return cheapest_tile({.rows = rows,
                        .requests = shape.batch,
                        .keys = std::min(shape.table_width * shape.page_size, kMaxCount),
                        .multiprocessors = device.multiprocessors});
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
  constexpr int64_t kMaxTotalRows = int64_t{1} << 40;  // workspaces of splits are counted in 64 bits
  if (shape.total_q > kMaxTotalRows / std::max<int64_t>(shape.heads_q, 1)) {
    return unsupported("q", concat(shape.total_q, " query tokens x ", shape.heads_q, " heads"),
                       concat("up to ", kMaxTotalRows, " rows in a call on back end 'cuda'"));
  }
  if (tokens * (shape.heads_q / shape.heads_kv) > kMaxRows) {
    return unsupported("q", concat(tokens, " query tokens x ", shape.heads_q / shape.heads_kv, " heads of a KV head"),
                       concat("up to ", kMaxRows, " rows in a request on back end 'cuda'"));
  }
  return {};
}

// What the Hopper kernels' bulk copies ask of a shape, widths aside.
bool bulk_copies(const DecodeShape& shape) { return shape.heads_kv == 1 && log2_box(shape) >= 0; }

// The same however wide the page table is.
bool pages_hold_boxes(const DecodeShape& shape) { return shape.page_size % 8 == 0; }

// Why an entry that was asked for cannot run.
Status refused(const DecodeShape& shape, const DeviceInfo& device, const DecodeEntry& entry) {
  if (entry.widths == Widths::kTuned && !tuned_widths(shape)) {
    return unsupported("kernel", concat(entry.name, " for widths ", shape.latent_dim, " + ", shape.rope_dim),
                       concat("this kernel takes ", kMaxLatent, " + ", kMaxRope));
  }
  if (!entry.runs_on(device)) {
    return unsupported("kernel", concat(entry.name, " on ", device.name),
                       entry.family == Family::kHopper ? "GPUs of compute capability 9.0, in a build for sm_90a"
                                                       : "GPUs of compute capability below 10.0");
  }
  if (!entry.fits(device)) {
    return unsupported("kernel", concat(entry.name, ", which needs ", entry.smem_bytes, " bytes of shared memory"),
                       concat("up to ", device.smem_per_block, " on ", device.name));
  }
  if (entry.family == Family::kHopper && !bulk_copies(shape)) {
    return unsupported("kernel",
                       concat(entry.name, " for ", shape.heads_kv, " KV heads and pages of ", shape.page_size),
                       "one KV head, and pages of a multiple of 8 tokens or one page a request");
  }
  return {};
}

Result<const DecodeEntry*> named_entry(const DecodeShape& shape, const DeviceInfo& device, std::string_view named) {
  std::string names;
  for (const DecodeEntry& entry : kEntries) {
    if (entry.dtype != shape.dtype) continue;
    names += concat(names.empty() ? "" : ", ", entry.name);
    if (named != entry.name) continue;
    FLASHMLA_RETURN_IF_ERROR(refused(shape, device, entry));
    return &entry;
  }
  return {Status{StatusCode::kNotFound, concat("kernel: got '", named, "'; want one of: ", names)}};
}

// Of two entries that can run: the family made for the GPU; then the smallest tile that holds all rows, or the largest,
// as each tile reads the keys again; then the first in the table.
bool better(const DecodeEntry& a, const DecodeEntry& b, int64_t rows) {
  if (a.family != b.family) return a.family == Family::kHopper;
  if (a.rows == b.rows) return false;
  return a.rows < b.rows ? a.rows >= rows : b.rows < rows;
}

}  // namespace

bool DecodeEntry::fits(const DeviceInfo& device) const {
  return smem_bytes + (family == Family::kPortable ? DecodeConfig::static_bytes() : 0) <= device.smem_per_block;
}

bool DecodeEntry::runs_on(const DeviceInfo& device) const {
  if (family == Family::kHopper) return device.hopper_code;
  return DecodeConfig{rows, widths}.runs_on(device.compute_capability);
}

int log2_box(const DecodeShape& shape) {
  if (shape.table_width == 1) return 6;  // a page holds a whole sequence: what lies past its end arrives as zeros
  for (int log2 = 6; log2 >= 3; --log2) {
    if (shape.page_size % (1 << log2) == 0) return log2;
  }
  return -1;
}

int box_panels(const DecodeShape& shape, const DecodeEntry& entry) { return log2_box(shape) == 6 ? entry.panels : 1; }

std::span<const DecodeEntry> decode_entries() { return kEntries; }

int largest_tile(const DecodeShape& shape) {
  const int64_t rows = (shape.ragged_q ? shape.total_q : shape.seq_q) * shape.heads_q;
  if (rows <= 16) return 16;  // of 8 rows there is no portable kernel
  return rows <= 32 ? 32 : 64;
}

Result<const DecodeEntry*> select_decode(const DecodeShape& shape, const DeviceInfo& device,
                                         const Selection& selection) {
  FLASHMLA_RETURN_IF_ERROR(check_shape(shape));
  if (!selection.named.empty()) return named_entry(shape, device, selection.named);
  bool hopper_serves = selection.bulk_copies && device.hopper_code && tuned_widths(shape) && bulk_copies(shape);
  if (selection.batch_invariant && !pages_hold_boxes(shape)) hopper_serves = false;
  const int64_t rows = hopper_serves ? deciding_rows(shape, device, selection.batch_invariant)
                                     : rows_per_request(shape, selection.batch_invariant);
  const DecodeEntry* best = nullptr;
  for (const DecodeEntry& entry : kEntries) {
    if (entry.dtype != shape.dtype || tuned_widths(shape) != (entry.widths == Widths::kTuned)) continue;
    if (entry.family == Family::kHopper && !hopper_serves) continue;
    if (!entry.runs_on(device) || !entry.fits(device)) continue;
    if (best == nullptr || better(entry, *best, rows)) best = &entry;
  }
  if (best != nullptr) return best;
  return unsupported("device", concat(device.name, " with ", device.smem_per_block, " bytes of shared memory a block"),
                     concat("at least ", kEntries.back().smem_bytes));
}

std::string decode_reason(const DecodeShape& shape, const DeviceInfo& device, const Selection& selection,
                          const DecodeEntry& entry) {
  if (!selection.named.empty()) return "it was asked for";
  const int64_t rows = rows_per_request(shape, selection.batch_invariant);
  const bool estimated = entry.family == Family::kHopper && !selection.batch_invariant && !shape.ragged_q &&
                         has_estimate(rows, device.multiprocessors);
  return concat(rows, " query rows a KV head in tiles of ", entry.rows,
                estimated ? concat(", the cheapest for ", shape.batch, " requests of at most ",
                                   shape.table_width * shape.page_size, " keys")
                          : "",
                "; ", entry.smem_bytes, " of ", device.smem_per_block, " bytes of shared memory on ", device.name);
}

}  // namespace flashmla::cuda
