#include <sstream>

#include "decode_call.h"
#include "flashmla/flashmla.h"
#include "targets.h"

namespace flashmla::fuzz {

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{1} << 22;

// What the checks promise of a view that they accepted.
std::string broken_promise(const char* name, const ConstTensorView& view) {
  bool empty = !view.given();
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] < 0 || view.shape[d] > INT32_MAX)
      return std::string(name) + ": accepted with a size out of limits";
    empty = empty || view.shape[d] == 0;
  }
  if (empty) return "";
  const std::optional<Extent> extent = extent_of(view);
  if (!extent || extent->low < -(int64_t{1} << 62) || extent->high > (int64_t{1} << 62) + 8) {
    return std::string(name) + ": accepted though its strides leave the address space";
  }
  return view.data == nullptr ? std::string(name) + ": accepted without memory" : "";
}

std::string broken_promises(const DecodeParams& p) {
  std::string problem;
  const auto look = [&](const char* name, const ConstTensorView& view) {
    if (problem.empty()) problem = broken_promise(name, view);
  };
  look("q", p.q);
  look("q_rope", p.q_rope);
  look("kv_cache", p.kv_cache);
  look("page_table", p.page_table);
  look("seq_lens", p.seq_lens);
  look("cu_seqlens_q", p.cu_seqlens_q);
  look("out", p.out);
  look("lse", p.lse);
  return problem;
}

}  // namespace

Context any_context(Bytes& bytes) {
  static const std::vector<std::string> isas = cpu_info().isas;
  static const auto all = backends();
  Context context{.backend = all[static_cast<size_t>(bytes.below(static_cast<int64_t>(all.size())))]->name()};
  if (context.backend == "cpu") {
    context.isa = isas[static_cast<size_t>(bytes.below(static_cast<int64_t>(isas.size())))];
    context.threads = bytes.one_in(16) ? 2 : 1;  // waking the second thread takes longer than the call
  }
  return context;
}

std::string fuzz_decode(Bytes& bytes, Counts& counts) {
  DecodeCall call = DecodeCall::make(bytes);
  const Result<DecodeShape> shape = decode_shape(call.params);
  if (!shape.ok()) return shape.status().text().empty() ? "refused without a text" : "";
  ++counts.accepted;
  if (std::string problem = broken_promises(call.params); !problem.empty()) return problem;

  const Context context = any_context(bytes);
  const Result<int64_t> need = workspace_bytes(shape.value(), call.params.options, context);
  if (need.status().code() == StatusCode::kUnsupported) return "";  // wider than this back end computes
  if (!need.ok()) return "workspace_bytes refused an accepted shape: " + need.status().text();
  static const Arena arena(kWorkspaceBytes);
  std::byte* workspace = arena.place(need.value(), kWorkspaceAlignment, true);
  if (workspace == nullptr || !call.place(bytes, shape.value())) return "";
  ++counts.run;
  const Status status = decode(call.params, {workspace, need.value()}, context);
  const bool right = values_are_right(call.params, shape.value());
  if (status.code() == (right ? StatusCode::kOk : StatusCode::kOutOfRange)) return "";
  std::ostringstream problem;
  problem << "back end " << context.backend << " (" << context.isa << ") answered '" << status_code_name(status.code())
          << ": " << status.text() << "' to a call whose values are " << (right ? "right" : "wrong");
  return problem.str();
}

std::string fuzz_decode_sizes(Bytes& bytes, Counts& counts) {
  static const auto all = backends();
  DecodeShape shape{.batch = bytes.below(4), .seq_q = bytes.below(4), .heads_q = 16, .pages = 5, .table_width = 3};
  shape.total_q = shape.batch * shape.seq_q;
  int64_t* const sizes[] = {&shape.batch,      &shape.seq_q,    &shape.total_q,   &shape.heads_q, &shape.heads_kv,
                            &shape.latent_dim, &shape.rope_dim, &shape.page_size, &shape.pages,   &shape.table_width};
  for (int64_t damages = bytes.below(4); damages > 0; --damages) {
    switch (bytes.below(8)) {
      case 0: shape.dtype = static_cast<DType>(bytes.below(8)); break;
      case 1: shape.kv_format = static_cast<KvFormat>(bytes.below(8)); break;
      case 2: shape.ragged_q = !shape.ragged_q; break;
      default: *bytes.pick(sizes) = hostile_int(bytes); break;
    }
  }
  DecodeOptions options;
  if (bytes.one_in(4)) options.splits = static_cast<int32_t>(hostile_int(bytes));
  for (const Backend* backend : all) {
    const Context context{.backend = backend->name()};
    const Result<int64_t> need = workspace_bytes(shape, options, context);
    const Result<KernelChoice> choice = explain_decode(shape, options, context);
    if (need.ok()) ++counts.accepted;
    if (need.ok() && need.value() < 0) return "workspace_bytes is negative: an overflow";
    if (need.ok() != choice.ok()) return "workspace_bytes and explain_decode disagree about a shape";
  }
  return "";
}

}  // namespace flashmla::fuzz
