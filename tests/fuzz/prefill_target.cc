#include <algorithm>

#include "flashmla/flashmla.h"
#include "targets.h"
#include "views.h"

namespace flashmla::fuzz {

namespace {

constexpr int64_t kArenaBytes = int64_t{1} << 18;
constexpr int64_t kWorkspaceBytes = int64_t{1} << 22;
constexpr int64_t kMostPairs = 1 << 16;  // query-key pairs that a run may take, to stay quick

enum Slot { kQ, kK, kV, kStartsQ, kStartsK, kOut, kLse, kSlots };

const Placer& placer(int slot) {
  static const Placer placers[kSlots] = {Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes),
                                         Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes),
                                         Placer(kArenaBytes)};
  return placers[slot];
}

template <class Visit>
void for_each_view(PrefillParams& p, const Visit& visit) {
  visit(kQ, p.q);
  visit(kK, p.k);
  visit(kV, p.v);
  visit(kStartsQ, p.cu_seqlens_q);
  visit(kStartsK, p.cu_seqlens_k);
  visit(kOut, p.out);
  visit(kLse, p.lse);
}

PrefillParams any_prefill(Bytes& bytes) {
  constexpr DType kFloats[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
  const DType dtype = bytes.pick(kFloats);
  const ViewKind input{.align = 16 / dtype_bytes(dtype)};
  const int64_t b = bytes.below(4);
  const int64_t total_q = bytes.below(8);
  const int64_t total_k = bytes.below(8);
  const int64_t h_kv = bytes.between(1, 2);
  const int64_t h_q = h_kv * bytes.between(1, 3);
  const int64_t d_qk = 8 * bytes.between(1, 4);
  const int64_t d_v = 8 * bytes.between(1, 4);
  PrefillParams p;
  p.q = any_view<const void>(bytes, dtype, {total_q, h_q, d_qk}, input);
  p.k = any_view<const void>(bytes, dtype, {total_k, h_kv, d_qk}, input);
  p.v = any_view<const void>(bytes, dtype, {total_k, h_kv, d_v}, input);
  p.cu_seqlens_q = ConstTensorView::contiguous(nullptr, DType::kInt32, {b + 1});
  p.cu_seqlens_k = ConstTensorView::contiguous(nullptr, DType::kInt32, {b + 1});
  p.out = any_view<void>(bytes, dtype, {total_q, h_q, d_v}, {.align = 1, .written = true});
  const ViewKind lse{.align = 1, .written = true, .free_last = true};
  if (!bytes.one_in(4)) p.lse = any_view<void>(bytes, DType::kFloat32, {h_q, total_q}, lse);
  p.softmax_scale = 0.25F;
  p.causal = bytes.below(2) != 0;
  for_each_view(p, [&](int slot, auto& view) {
    if (view.given()) placer(slot).forbid(view);
  });
  for (int64_t damages = bytes.below(2) * bytes.below(4); damages > 0; --damages) {
    const int64_t place = bytes.below(kSlots + 1);
    for_each_view(p, [&](int slot, auto& view) {
      if (slot == place) damage(bytes, view);
    });
    if (place == kSlots) p.empty_lse = static_cast<EmptyLse>(hostile_int(bytes));
  }
  return p;
}

// Sequence starts, mostly right ones; returns whether the contract holds for what lies in memory.
bool write_starts(Bytes& bytes, const ConstTensorView& view, int64_t total) {
  auto* starts = static_cast<int32_t*>(const_cast<void*>(view.data));
  int64_t start = 0;
  bool right = true;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    starts[i] = static_cast<int32_t>(bytes.one_in(64) ? hostile_int(bytes) : start);
    right = right && (i == 0 ? starts[i] == 0 : starts[i] >= starts[i - 1]) && starts[i] <= total;
    start += bytes.below(std::min<int64_t>(total - start, 4) + 1);
  }
  return right;
}

}  // namespace

std::string fuzz_prefill(Bytes& bytes, Counts& counts) {
  PrefillParams p = any_prefill(bytes);
  const Result<PrefillShape> shape = prefill_shape(p);
  if (!shape.ok()) return shape.status().text().empty() ? "refused without a text" : "";
  ++counts.accepted;
  const Context context = any_context(bytes);
  const Result<int64_t> need = workspace_bytes(shape.value(), context);
  if (need.status().code() == StatusCode::kUnsupported) return "";  // wider than this back end computes
  if (!need.ok()) return "workspace_bytes refused an accepted shape: " + need.status().text();
  static const Arena arena(kWorkspaceBytes);
  std::byte* workspace = arena.place(need.value(), kWorkspaceAlignment, true);
  bool fits = workspace != nullptr;
  for_each_view(p, [&](int slot, auto& view) { fits = placer(slot).place(bytes, view) && fits; });
  if (!fits || shape.value().total_q * std::min<int64_t>(shape.value().total_k, kMostPairs) > kMostPairs) return "";
  ++counts.run;
  const bool right_q = write_starts(bytes, p.cu_seqlens_q, shape.value().total_q);
  const bool right = write_starts(bytes, p.cu_seqlens_k, shape.value().total_k) && right_q;
  const Status status = prefill(p, {workspace, need.value()}, context);
  if (status.code() == (right ? StatusCode::kOk : StatusCode::kOutOfRange)) return "";
  return "prefill answered '" + status.text() + "' to " + (right ? "right" : "wrong") + " sequence starts";
}

}  // namespace flashmla::fuzz
