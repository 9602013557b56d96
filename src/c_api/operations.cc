// The operations of the C API.
#include <utility>

#include "c_api/convert.h"
#include "c_api/thread_text.h"
#include "core/guard.h"
#include "flashmla/c.h"

namespace flashmla {

namespace {

thread_local ThreadText last_error;

// Runs `body`, which returns a Status, and keeps its text for the calling thread.
template <class Body>
flashmla_status call(Body&& body) noexcept {
  const Status status = guarded(std::forward<Body>(body));
  last_error.set(status.text());
  return static_cast<flashmla_status>(status.code());
}

// Hands the value of a call to `take`, or its error to the caller.
template <class T, class Take>
Status with(const Result<T>& result, const Take& take) {
  return result.ok() ? take(result.value()) : result.status();
}

// `take(shape, options, context)` of a decode call without tensors, `take(shape, context)` of a prefill call.
template <class Take>
Status with_sizes(const flashmla_decode_shape* shape, const flashmla_decode_options* options,
                  const flashmla_context* context, const Take& take) {
  return with(decode_shape_from_c(shape), [&](const DecodeShape& s) {
    return with(options_from_c(options), [&](const DecodeOptions& o) {
      return with(context_from_c(context), [&](const Context& c) { return take(s, o, c); });
    });
  });
}

template <class Take>
Status with_sizes(const flashmla_prefill_shape* shape, const flashmla_context* context, const Take& take) {
  return with(prefill_shape_from_c(shape), [&](const PrefillShape& s) {
    return with(context_from_c(context), [&](const Context& c) { return take(s, c); });
  });
}

// What the two workspace_bytes and the two explain functions do with their sizes.
Status write_bytes(const Result<int64_t>& need, int64_t* bytes) {
  return with(need, [&](int64_t value) {
    *bytes = value;
    return Status{};
  });
}

Status write_choice(const Result<KernelChoice>& result, flashmla_kernel_choice* choice) {
  return with(result, [&](const KernelChoice& k) { return write_kernel_choice(k, choice); });
}

Status no_place_for_bytes() { return invalid("bytes", "a null pointer", "a pointer to the result"); }

}  // namespace

}  // namespace flashmla

using namespace flashmla;

const char* flashmla_last_error(void) { return last_error.get(); }

flashmla_status flashmla_decode_shape_of(const flashmla_decode_params* params, flashmla_decode_shape* shape) {
  return call([&] {
    return with(decode_params_from_c(params), [&](const DecodeParams& p) {
      return with(decode_shape(p), [&](const DecodeShape& s) { return write_decode_shape(s, shape); });
    });
  });
}

flashmla_status flashmla_decode_workspace_bytes(const flashmla_decode_shape* shape,
                                                const flashmla_decode_options* options, const flashmla_context* context,
                                                int64_t* bytes) {
  return call([&] {
    if (bytes == nullptr) return no_place_for_bytes();
    return with_sizes(shape, options, context,
                      [&](const auto&... sizes) { return write_bytes(workspace_bytes(sizes...), bytes); });
  });
}

flashmla_status flashmla_explain_decode(const flashmla_decode_shape* shape, const flashmla_decode_options* options,
                                        const flashmla_context* context, flashmla_kernel_choice* choice) {
  return call([&] {
    return with_sizes(shape, options, context,
                      [&](const auto&... sizes) { return write_choice(explain_decode(sizes...), choice); });
  });
}

flashmla_status flashmla_decode(const flashmla_decode_params* params, void* workspace, int64_t workspace_bytes,
                                const flashmla_context* context) {
  return call([&] {
    return with(decode_params_from_c(params), [&](const DecodeParams& p) {
      return with(context_from_c(context), [&](const Context& c) {
        return decode(p, Workspace{workspace, workspace_bytes}, c);
      });
    });
  });
}

flashmla_status flashmla_prefill_shape_of(const flashmla_prefill_params* params, flashmla_prefill_shape* shape) {
  return call([&] {
    return with(prefill_params_from_c(params), [&](const PrefillParams& p) {
      return with(prefill_shape(p), [&](const PrefillShape& s) { return write_prefill_shape(s, shape); });
    });
  });
}

flashmla_status flashmla_prefill_workspace_bytes(const flashmla_prefill_shape* shape, const flashmla_context* context,
                                                 int64_t* bytes) {
  return call([&] {
    if (bytes == nullptr) return no_place_for_bytes();
    return with_sizes(shape, context,
                      [&](const auto&... sizes) { return write_bytes(workspace_bytes(sizes...), bytes); });
  });
}

flashmla_status flashmla_explain_prefill(const flashmla_prefill_shape* shape, const flashmla_context* context,
                                         flashmla_kernel_choice* choice) {
  return call([&] {
    return with_sizes(shape, context,
                      [&](const auto&... sizes) { return write_choice(explain_prefill(sizes...), choice); });
  });
}

flashmla_status flashmla_prefill(const flashmla_prefill_params* params, void* workspace, int64_t workspace_bytes,
                                 const flashmla_context* context) {
  return call([&] {
    return with(prefill_params_from_c(params), [&](const PrefillParams& p) {
      return with(context_from_c(context), [&](const Context& c) {
        return prefill(p, Workspace{workspace, workspace_bytes}, c);
      });
    });
  });
}

flashmla_status flashmla_append_kv(const flashmla_append_kv_params* params, const flashmla_context* context) {
  return call([&] {
    return with(append_params_from_c(params), [&](const AppendKvParams& p) {
      return with(context_from_c(context), [&](const Context& c) { return append_kv(p, c); });
    });
  });
}

flashmla_status flashmla_merge_states(const flashmla_merge_states_params* params, const flashmla_context* context) {
  return call([&] {
    return with(merge_params_from_c(params), [&](const MergeStatesParams& p) {
      return with(context_from_c(context), [&](const Context& c) { return merge_states(p, c); });
    });
  });
}
