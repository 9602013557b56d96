// The decode kernels that this build has, and which one a call runs: host code, tested without a GPU.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cuda/decode/config.h"
#include "cuda/decode/schedule.h"
#include "cuda/device.h"
#include "flashmla/decode.h"

namespace flashmla::cuda {

enum class Family : int32_t {
  kPortable,  // kernel_sm80.cuh: every GPU, every shape
  kHopper,    // hopper/: sm_90a, widths 512 + 64, one KV head, keys by bulk tensor copies
};

struct DecodeEntry {
  const char* name;
  DType dtype;
  Family family;
  int rows;  // of a tile of queries
  Widths widths;
  int threads;
  int smem_bytes;
  int stages;               // of the portable kernels' ring in shared memory
  int panels;               // of keys that the Hopper kernels have side by side in shared memory
  uint32_t log2_unit_keys;  // of the line (schedule.h)
  SliceCosts costs;
  // Addresses of the kernels' host stubs; portable kernels have one for every kind.
  const void* (*split_kernel)(LineKind);
  const void* (*combine_kernel)(LineKind);

  bool fits(const DeviceInfo& device) const;     // its shared memory
  bool runs_on(const DeviceInfo& device) const;  // its code, shared memory aside
};

std::span<const DecodeEntry> decode_entries();

// What of a call decides beside its shape.
struct Selection {
  std::string_view named = {};   // forces an entry by its name
  bool batch_invariant = false;  // neither other requests nor the table's width may have a say
  bool bulk_copies = true;       // the cache's strides are such that a tensor map describes them (tensor_map.h)
};

// The entry for a shape on a device. kUnsupported names what is missing. On the way of every call: builds no text
// unless it refuses.
Result<const DecodeEntry*> select_decode(const DecodeShape& shape, const DeviceInfo& device,
                                         const Selection& selection = {});

// Why select_decode chose `entry`.
std::string decode_reason(const DecodeShape& shape, const DeviceInfo& device, const Selection& selection,
                          const DecodeEntry& entry);

// The largest tile that any shape whose sizes are at most this one's has rows for.
int largest_tile(const DecodeShape& shape);

// log2 of the keys that one bulk copy of the Hopper kernels brings: at most 64, never over the end of a page; -1 where
// pages are no multiple of 8 tokens.
int log2_box(const DecodeShape& shape);

// 64-wide panels that one bulk copy brings: as many as `entry` has side by side in shared memory. Fewer keys than a
// tile's do not lie side by side there.
int box_panels(const DecodeShape& shape, const DecodeEntry& entry);

}  // namespace flashmla::cuda
