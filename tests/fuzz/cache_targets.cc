#include <algorithm>

#include "core/host_cache.h"
#include "flashmla/flashmla.h"
#include "targets.h"
#include "views.h"

namespace flashmla::fuzz {

namespace {

constexpr int64_t kArenaBytes = int64_t{1} << 18;
constexpr int kMostTensors = 6;
constexpr DType kFloats[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};

const Placer& placer(int slot) {
  static const Placer placers[kMostTensors] = {Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes),
                                               Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes)};
  return placers[slot];
}

// Calls `visit(slot, view)` for every tensor of a call.
template <class Visit>
void for_each_view(AppendKvParams& p, const Visit& visit) {
  visit(0, p.latent);
  visit(1, p.rope);
  visit(2, p.slot_mapping);
  visit(3, p.kv_cache);
}

template <class Visit>
void for_each_view(MergeStatesParams& p, const Visit& visit) {
  visit(0, p.out_a);
  visit(1, p.lse_a);
  visit(2, p.out_b);
  visit(3, p.lse_b);
  visit(4, p.out);
  visit(5, p.lse);
}

// Points every tensor at forbidden memory and damages up to three of them.
template <class Params>
void forbid_and_damage(Bytes& bytes, Params& p) {
  for_each_view(p, [&](int slot, auto& view) {
    if (view.given()) placer(slot).forbid(view);
  });
  for (int64_t damages = bytes.below(2) * bytes.below(4); damages > 0; --damages) {
    const int64_t place = bytes.below(kMostTensors);
    for_each_view(p, [&](int slot, auto& view) {
      if (slot == place) damage(bytes, view);
    });
  }
}

template <class Params>
bool place_all(Bytes& bytes, Params& p) {
  bool fits = true;
  for_each_view(p, [&](int slot, auto& view) { fits = placer(slot).place(bytes, view) && fits; });
  return fits;
}

AppendKvParams any_append(Bytes& bytes) {
  const DType dtype = bytes.pick(kFloats);
  const int64_t tokens = bytes.below(5);
  const int64_t d_v = bytes.between(1, 24);
  const int64_t d_rope = bytes.below(2) * bytes.between(1, 9);
  const int64_t pages = bytes.below(4);
  const int64_t page = bytes.below(5);
  AppendKvParams p;
  p.latent = any_view<const void>(bytes, dtype, {tokens + bytes.below(3), d_v});
  if (d_rope > 0) p.rope = any_view<const void>(bytes, dtype, {tokens + bytes.below(3), d_rope});
  p.slot_mapping = ConstTensorView::contiguous(nullptr, DType::kInt64, {tokens});
  const ViewKind cache{.align = 1, .written = true};
  p.kv_cache = bytes.below(2) == 0 ? any_view<void>(bytes, dtype, {pages, page, d_v + d_rope}, cache)
                                   : any_view<void>(bytes, dtype, {pages, page, 1, d_v + d_rope}, cache);
  forbid_and_damage(bytes, p);
  if (bytes.one_in(16)) p.kv_format = static_cast<KvFormat>(hostile_int(bytes));
  return p;
}

// Slots, mostly right ones; returns whether all are.
bool write_slots(Bytes& bytes, const AppendKvParams& p) {
  const int64_t slots = p.kv_cache.shape[0] * p.kv_cache.shape[1];
  auto* mapping = static_cast<int64_t*>(const_cast<void*>(p.slot_mapping.data));
  bool right = true;
  for (int64_t t = 0; t < p.slot_mapping.shape[0]; ++t) {
    mapping[t] = bytes.below(std::clamp<int64_t>(slots + 1, 1, 65536)) - 1;
    if (bytes.one_in(32)) mapping[t] = bytes.below(2) == 0 ? slots : hostile_int(bytes);
    right = right && mapping[t] < slots;
  }
  return right;
}

}  // namespace

std::string fuzz_append_kv(Bytes& bytes, Counts& counts) {
  AppendKvParams p = any_append(bytes);
  const Result<AppendShape> shape = append_shape(p);
  const Context context = any_context(bytes);
  if (!shape.ok()) {
    // The public function must give the same answer, before it looks at any memory.
    return append_kv(p, context).code() == shape.status().code() ? "" : "append_kv: not the answer of its checks";
  }
  ++counts.accepted;
  if (!place_all(bytes, p)) return "";
  ++counts.run;
  const bool right = write_slots(bytes, p);
  const Status status = append_kv(p, context);
  if (status.code() == (right ? StatusCode::kOk : StatusCode::kOutOfRange)) return "";
  return std::string("append_kv answered '") + status.text() + "' to " + (right ? "right" : "wrong") + " slots";
}

std::string fuzz_merge_states(Bytes& bytes, Counts& counts) {
  const DType dtype = bytes.pick(kFloats);
  const int64_t tokens = bytes.below(4);
  const int64_t heads = bytes.below(4);
  const int64_t width = bytes.between(1, 40);
  const ViewKind lse_in{.align = 1, .written = false, .free_last = true};
  const ViewKind lse_out{.align = 1, .written = true, .free_last = true};
  MergeStatesParams p;
  p.out_a = any_view<const void>(bytes, dtype, {tokens, heads, width});
  p.out_b = any_view<const void>(bytes, dtype, {tokens, heads, width});
  p.out = any_view<void>(bytes, dtype, {tokens, heads, width}, {.align = 1, .written = true});
  p.lse_a = any_view<const void>(bytes, DType::kFloat32, {heads, tokens}, lse_in);
  p.lse_b = any_view<const void>(bytes, DType::kFloat32, {heads, tokens}, lse_in);
  if (!bytes.one_in(4)) p.lse = any_view<void>(bytes, DType::kFloat32, {heads, tokens}, lse_out);
  forbid_and_damage(bytes, p);
  if (bytes.one_in(16)) p.empty_lse = static_cast<EmptyLse>(hostile_int(bytes));

  const Result<MergeShape> shape = merge_shape(p);
  const Context context = any_context(bytes);
  if (!shape.ok()) {
    return merge_states(p, context).code() == shape.status().code() ? "" : "merge_states: not the answer of its checks";
  }
  ++counts.accepted;
  if (!place_all(bytes, p)) return "";
  ++counts.run;
  const Status status = merge_states(p, context);
  return status.ok() ? "" : "merge_states refused a call that its checks accepted: " + status.text();
}

}  // namespace flashmla::fuzz
