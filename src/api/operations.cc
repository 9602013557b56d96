// The public operations: check the call, find its back end, hand it over.
#include <cstdint>

#include "api/registry.h"
#include "core/decode_shape.h"
#include "core/guard.h"
#include "core/host_cache.h"
#include "core/prefill_shape.h"
#include "core/text.h"
#include "flashmla/backend.h"

namespace flashmla {

namespace {

Status check_workspace(const Workspace& workspace, int64_t need) {
  if (need == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < need) {
    return {StatusCode::kWorkspaceTooSmall, concat("workspace: got ", workspace.data == nullptr ? 0 : workspace.bytes,
                                                   " bytes; want at least ", need, " (workspace_bytes of this shape)")};
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % static_cast<uintptr_t>(kWorkspaceAlignment) != 0) {
    return {StatusCode::kWorkspaceTooSmall,
            concat("workspace: got a base address that is not aligned; want ", kWorkspaceAlignment, "-byte alignment")};
  }
  return {};
}

Status check_status_place(const TensorView& status, const Context& context) {
  if (!status.given() || context.device.type != DeviceType::kCPU) return {};
  return unsupported("status", "a tensor in a call on the CPU",
                     "calls on CUDA (on the CPU bad values are errors of the call itself)");
}

}  // namespace

Result<int64_t> workspace_bytes(const DecodeShape& shape, const DecodeOptions& options, const Context& context) {
  return guarded([&]() -> Result<int64_t> {
    FLASHMLA_RETURN_IF_ERROR(check_decode_sizes(shape, options));
    return ask_backends(
        context, [&](const Backend& backend) { return backend.decode_workspace_bytes(shape, options, context); });
  });
}

Result<KernelChoice> explain_decode(const DecodeShape& shape, const DecodeOptions& options, const Context& context) {
  return guarded([&]() -> Result<KernelChoice> {
    FLASHMLA_RETURN_IF_ERROR(check_decode_sizes(shape, options));
    return ask_backends(context,
                        [&](const Backend& backend) { return backend.choose_decode(shape, options, context); });
  });
}

Result<DecodeShape> decode_shape(const DecodeParams& params) {
  return guarded([&] { return checked_decode_shape(params); });
}

Status decode(const DecodeParams& params, Workspace workspace, const Context& context) {
  return guarded([&]() -> Status {
    const Result<DecodeShape> shape = checked_decode_shape(params);
    if (!shape.ok()) return shape.status();
    FLASHMLA_RETURN_IF_ERROR(check_status_place(params.status, context));
    return ask_backends(context, [&](const Backend& backend) -> Status {
      const Result<int64_t> need = backend.decode_workspace_bytes(shape.value(), params.options, context);
      if (!need.ok()) return need.status();
      FLASHMLA_RETURN_IF_ERROR(check_workspace(workspace, need.value()));
      return backend.decode(params, shape.value(), workspace, context);
    });
  });
}

Result<PrefillShape> prefill_shape(const PrefillParams& params) {
  return guarded([&] { return checked_prefill_shape(params); });
}

Result<int64_t> workspace_bytes(const PrefillShape& shape, const Context& context) {
  return guarded([&]() -> Result<int64_t> {
    FLASHMLA_RETURN_IF_ERROR(check_prefill_sizes(shape));
    return ask_backends(context,
                        [&](const Backend& backend) { return backend.prefill_workspace_bytes(shape, context); });
  });
}

Result<KernelChoice> explain_prefill(const PrefillShape& shape, const Context& context) {
  return guarded([&]() -> Result<KernelChoice> {
    FLASHMLA_RETURN_IF_ERROR(check_prefill_sizes(shape));
    return ask_backends(context, [&](const Backend& backend) { return backend.choose_prefill(shape, context); });
  });
}

Status prefill(const PrefillParams& params, Workspace workspace, const Context& context) {
  return guarded([&]() -> Status {
    const Result<PrefillShape> shape = checked_prefill_shape(params);
    if (!shape.ok()) return shape.status();
    return ask_backends(context, [&](const Backend& backend) -> Status {
      const Result<int64_t> need = backend.prefill_workspace_bytes(shape.value(), context);
      if (!need.ok()) return need.status();
      FLASHMLA_RETURN_IF_ERROR(check_workspace(workspace, need.value()));
      return backend.prefill(params, shape.value(), workspace, context);
    });
  });
}

Status append_kv(const AppendKvParams& params, const Context& context) {
  return guarded([&]() -> Status {
    const Result<AppendShape> shape = append_shape(params);
    if (!shape.ok()) return shape.status();
    FLASHMLA_RETURN_IF_ERROR(check_status_place(params.status, context));
    return ask_backends(context, [&](const Backend& backend) { return backend.append_kv(params, context); });
  });
}

Status merge_states(const MergeStatesParams& params, const Context& context) {
  return guarded([&]() -> Status {
    const Result<MergeShape> shape = merge_shape(params);
    if (!shape.ok()) return shape.status();
    return ask_backends(context, [&](const Backend& backend) { return backend.merge_states(params, context); });
  });
}

}  // namespace flashmla
