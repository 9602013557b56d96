// What a back end answers for the operations that it does not override.
#include "flashmla/backend.h"

#include "core/text.h"

namespace flashmla {

namespace {

Status not_offered(const Backend& backend, std::string_view operation) {
  return {StatusCode::kUnsupported, concat(operation, ": back end '", backend.name(), "' does not offer it")};
}

}  // namespace

Backend::~Backend() = default;

Result<KernelChoice> Backend::choose_decode(const DecodeShape&, const DecodeOptions&, const Context&) const {
  return not_offered(*this, "decode");
}

Result<int64_t> Backend::decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options,
                                                const Context& context) const {
  const Result<KernelChoice> choice = choose_decode(shape, options, context);
  if (!choice.ok()) return choice.status();
  return int64_t{0};
}

Status Backend::decode(const DecodeParams&, const DecodeShape&, Workspace, const Context&) const {
  return not_offered(*this, "decode");
}

Result<KernelChoice> Backend::choose_prefill(const PrefillShape&, const Context&) const {
  return not_offered(*this, "prefill");
}

Result<int64_t> Backend::prefill_workspace_bytes(const PrefillShape& shape, const Context& context) const {
  const Result<KernelChoice> choice = choose_prefill(shape, context);
  if (!choice.ok()) return choice.status();
  return int64_t{0};
}

Status Backend::prefill(const PrefillParams&, const PrefillShape&, Workspace, const Context&) const {
  return not_offered(*this, "prefill");
}

Status Backend::append_kv(const AppendKvParams&, const Context&) const { return not_offered(*this, "append_kv"); }

Status Backend::merge_states(const MergeStatesParams&, const Context&) const {
  return not_offered(*this, "merge_states");
}

}  // namespace flashmla
