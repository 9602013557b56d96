// flashmla._native: the public C++ operations, with outputs allocated by the caller. python/flashmla/_operations.py
// gives them their Python form; arguments here are positional and complete.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "array_arg.h"
#include "flashmla/flashmla.h"
#include "gpu.h"
#ifdef FLASHMLA_HAS_RUNNER
#include "llm.h"
#include "tokenizer.h"
#endif

namespace flashmla::python {

namespace {

using Name = std::optional<std::string>;

int32_t to_int32(const char* argument, int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    return static_cast<int32_t>(value);
  }
  raise(PyExc_ValueError, std::string(argument) + ": got " + std::to_string(value) + "; want a 32-bit integer");
}

KvFormat parse_kv_format(const Name& name) {
  if (!name) return KvFormat::kFromDType;
  std::string names;
  for (const KvFormatInfo& info : kv_formats()) {
    if (*name == info.name) return info.format;
    names += std::string(names.empty() ? "'" : ", '") + info.name + "'";
  }
  raise(PyExc_ValueError, "kv_format: got '" + *name + "'; want None or one of: " + names);
}

EmptyLse parse_empty_lse(const std::string& name) {
  if (name == "+inf") return EmptyLse::kPlusInf;
  if (name == "-inf") return EmptyLse::kMinusInf;
  raise(PyExc_ValueError, "empty_lse: got '" + name + "'; want '+inf' or '-inf'");
}

DType parse_dtype(const std::string& name) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  raise(PyExc_ValueError, "dtype: got '" + name + "'; want 'fp32', 'fp16' or 'bf16'");
}

// The names must outlive the context, which only refers to them.
Context make_context(const Name& backend, const Name& isa, int64_t threads, Device device, uint64_t stream) {
  Context context;
  context.device = device;
  // 1 is DLPack's and CUDA's other name of the null stream.
  context.stream = stream == 1 ? nullptr : reinterpret_cast<void*>(stream);  // NOLINT(performance-no-int-to-ptr)
  if (backend) context.backend = *backend;
  if (isa) context.isa = *isa;
  context.threads = to_int32("threads", threads);
  return context;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Calls run(workspace) with memory of its own. malloc keeps the freed block for the next call, so that steady use costs
// no page faults and holds no memory of its own. On a GPU `allocate(bytes)`, if it is not None, gives the address of
// memory that the caller holds until the call returns: the framework's own, in the order of the stream.
template <class Run>
Status with_workspace(const Result<int64_t>& need, const Context& context, nb::handle allocate, const Run& run) {
  if (!need.ok()) return need.status();
  Workspace workspace;
  workspace.bytes = (need.value() + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  if (context.device.type == DeviceType::kCUDA) {
    if (workspace.bytes > 0 && !allocate.is_none()) {
      {
        const nb::gil_scoped_acquire locked;
        workspace.data = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
            nb::cast<uint64_t>(allocate(workspace.bytes)));
      }
      return run(workspace);
    }
    const StreamMemory memory(workspace.bytes, context.stream);
    if (!memory.status().ok()) return memory.status();
    workspace.data = memory.data();
    return run(workspace);
  }
  const Memory memory(
      workspace.bytes == 0 ? nullptr : std::aligned_alloc(kWorkspaceAlignment, static_cast<size_t>(workspace.bytes)));
  workspace.data = memory.get();
  if (workspace.bytes > 0 && workspace.data == nullptr) {
    return {StatusCode::kOutOfMemory, "workspace: no memory for " + std::to_string(workspace.bytes) + " bytes"};
  }
  return run(workspace);
}

// Both without the interpreter lock.
Status decode_with_own_workspace(const DecodeParams& params, const Context& context, nb::handle allocate) {
  const Result<DecodeShape> shape = decode_shape(params);
  if (!shape.ok()) return shape.status();
  return with_workspace(workspace_bytes(shape.value(), params.options, context), context, allocate,
                        [&](Workspace workspace) { return decode(params, workspace, context); });
}

Status prefill_with_own_workspace(const PrefillParams& params, const Context& context, nb::handle allocate) {
  const Result<PrefillShape> shape = prefill_shape(params);
  if (!shape.ok()) return shape.status();
  return with_workspace(workspace_bytes(shape.value(), context), context, allocate,
                        [&](Workspace workspace) { return prefill(params, workspace, context); });
}

void py_decode(nb::handle q, nb::handle q_rope, nb::handle kv_cache, nb::handle page_table, nb::handle seq_lens,
               nb::handle cu_seqlens_q, nb::handle out, nb::handle lse, nb::handle status, double softmax_scale,
               bool causal, int64_t latent_dim, const Name& kv_format, const std::string& empty_lse, int64_t splits,
               bool batch_invariant, const Name& backend, const Name& isa, int64_t threads, bool uint16_is_bf16,
               uint64_t stream, nb::handle allocate) {
  const InputArray q_array("q", q, uint16_is_bf16);
  const InputArray q_rope_array("q_rope", q_rope, uint16_is_bf16);
  const InputArray cache_array("kv_cache", kv_cache, uint16_is_bf16);
  const InputArray table_array("page_table", page_table, false);
  const InputArray lens_array("seq_lens", seq_lens, false);
  const InputArray cu_array("cu_seqlens_q", cu_seqlens_q, false);
  const OutputArray out_array("out", out, uint16_is_bf16);
  const OutputArray lse_array("lse", lse, false);
  const OutputArray status_array("status", status, false);
  const DecodeParams params{
      .q = q_array.view(),
      .q_rope = q_rope_array.view(),
      .kv_cache = cache_array.view(),
      .page_table = table_array.view(),
      .seq_lens = lens_array.view(),
      .cu_seqlens_q = cu_array.view(),
      .out = out_array.view(),
      .lse = lse_array.view(),
      .status = status_array.view(),
      .latent_dim = latent_dim,
      .softmax_scale = static_cast<float>(softmax_scale),
      .causal = causal,
      .kv_format = parse_kv_format(kv_format),
      .options = {.empty_lse = parse_empty_lse(empty_lse),
                  .batch_invariant = batch_invariant,
                  .splits = to_int32("splits", splits)},
  };
  const Device device = common_device(q_array, q_rope_array, cache_array, table_array, lens_array, cu_array, out_array,
                                      lse_array, status_array);
  const Context context = make_context(backend, isa, threads, device, stream);
  const CurrentDevice current(device);
  raise_if_error(current.status());
  Status done;
  {
    const nb::gil_scoped_release unlocked;
    done = decode_with_own_workspace(params, context, allocate);
  }
  raise_if_error(done);
}

void py_prefill(nb::handle q, nb::handle k, nb::handle v, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                nb::handle out, nb::handle lse, double softmax_scale, bool causal, const std::string& empty_lse,
                const Name& backend, const Name& isa, int64_t threads, bool uint16_is_bf16, uint64_t stream,
                nb::handle allocate) {
  const InputArray q_array("q", q, uint16_is_bf16);
  const InputArray k_array("k", k, uint16_is_bf16);
  const InputArray v_array("v", v, uint16_is_bf16);
  const InputArray cu_q_array("cu_seqlens_q", cu_seqlens_q, false);
  const InputArray cu_k_array("cu_seqlens_k", cu_seqlens_k, false);
  const OutputArray out_array("out", out, uint16_is_bf16);
  const OutputArray lse_array("lse", lse, false);
  const PrefillParams params{.q = q_array.view(),
                             .k = k_array.view(),
                             .v = v_array.view(),
                             .cu_seqlens_q = cu_q_array.view(),
                             .cu_seqlens_k = cu_k_array.view(),
                             .out = out_array.view(),
                             .lse = lse_array.view(),
                             .softmax_scale = static_cast<float>(softmax_scale),
                             .causal = causal,
                             .empty_lse = parse_empty_lse(empty_lse)};
  const Device device = common_device(q_array, k_array, v_array, cu_q_array, cu_k_array, out_array, lse_array);
  const Context context = make_context(backend, isa, threads, device, stream);
  const CurrentDevice current(device);
  raise_if_error(current.status());
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = prefill_with_own_workspace(params, context, allocate);
  }
  raise_if_error(status);
}

void py_append_kv(nb::handle latent, nb::handle rope, nb::handle kv_cache, nb::handle slot_mapping, nb::handle status,
                  const Name& kv_format, const Name& backend, const Name& isa, int64_t threads, bool uint16_is_bf16,
                  uint64_t stream) {
  const InputArray latent_array("latent", latent, uint16_is_bf16);
  const InputArray rope_array("rope", rope, uint16_is_bf16);
  const InputArray slots_array("slot_mapping", slot_mapping, false);
  const OutputArray cache_array("kv_cache", kv_cache, uint16_is_bf16);
  const OutputArray status_array("status", status, false);
  const AppendKvParams params{.latent = latent_array.view(),
                              .rope = rope_array.view(),
                              .slot_mapping = slots_array.view(),
                              .kv_cache = cache_array.view(),
                              .kv_format = parse_kv_format(kv_format),
                              .status = status_array.view()};
  const Device device = common_device(cache_array, latent_array, rope_array, slots_array, status_array);
  const Context context = make_context(backend, isa, threads, device, stream);
  const CurrentDevice current(device);
  raise_if_error(current.status());
  Status done;
  {
    const nb::gil_scoped_release unlocked;
    done = append_kv(params, context);
  }
  raise_if_error(done);
}

void py_merge_states(nb::handle out_a, nb::handle lse_a, nb::handle out_b, nb::handle lse_b, nb::handle out,
                     nb::handle lse, const std::string& empty_lse, const Name& backend, const Name& isa,
                     int64_t threads, bool uint16_is_bf16, uint64_t stream) {
  const InputArray out_a_array("out_a", out_a, uint16_is_bf16);
  const InputArray lse_a_array("lse_a", lse_a, false);
  const InputArray out_b_array("out_b", out_b, uint16_is_bf16);
  const InputArray lse_b_array("lse_b", lse_b, false);
  const OutputArray out_array("out", out, uint16_is_bf16);
  const OutputArray lse_array("lse", lse, false);
  const MergeStatesParams params{.out_a = out_a_array.view(),
                                 .lse_a = lse_a_array.view(),
                                 .out_b = out_b_array.view(),
                                 .lse_b = lse_b_array.view(),
                                 .out = out_array.view(),
                                 .lse = lse_array.view(),
                                 .empty_lse = parse_empty_lse(empty_lse)};
  const Device device = common_device(out_a_array, lse_a_array, out_b_array, lse_b_array, out_array, lse_array);
  const Context context = make_context(backend, isa, threads, device, stream);
  const CurrentDevice current(device);
  raise_if_error(current.status());
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = merge_states(params, context);
  }
  raise_if_error(status);
}

std::tuple<std::string, std::string, std::string, int64_t> py_explain_decode(
    int64_t batch, int64_t seq_q, int64_t heads_q, int64_t heads_kv, int64_t latent_dim, int64_t rope_dim,
    int64_t page_size, int64_t table_width, const std::string& dtype, bool causal, int64_t splits, bool batch_invariant,
    const Name& backend, const Name& isa, int64_t threads, std::optional<int64_t> cuda_index) {
  const DecodeShape shape{.batch = batch,
                          .seq_q = seq_q,
                          .total_q = static_cast<int64_t>(static_cast<uint64_t>(batch) * static_cast<uint64_t>(seq_q)),
                          .heads_q = heads_q,
                          .heads_kv = heads_kv,
                          .latent_dim = latent_dim,
                          .rope_dim = rope_dim,
                          .page_size = page_size,
                          .pages = table_width,  // requests may share pages, and the choice does not depend on them
                          .table_width = table_width,
                          .dtype = parse_dtype(dtype),
                          .kv_format = plain_kv_format(parse_dtype(dtype)),
                          .causal = causal};
  const DecodeOptions options{.batch_invariant = batch_invariant, .splits = to_int32("splits", splits)};
  Device device;
  if (cuda_index) device = {DeviceType::kCUDA, to_int32("device", *cuda_index)};
  const Context context = make_context(backend, isa, threads, device, 0);
  const CurrentDevice current(device);
  raise_if_error(current.status());
  const Result<KernelChoice> choice = explain_decode(shape, options, context);
  raise_if_error(choice.status());
  const Result<int64_t> bytes = workspace_bytes(shape, options, context);
  raise_if_error(bytes.status());
  return {choice.value().backend, choice.value().kernel, choice.value().reason, bytes.value()};
}

std::vector<std::tuple<std::string, std::string, int>> py_backends() {
  std::vector<std::tuple<std::string, std::string, int>> rows;
  for (const Backend* backend : backends()) {
    rows.emplace_back(std::string(backend->name()), backend->device_type() == DeviceType::kCPU ? "cpu" : "cuda",
                      backend->priority());
  }
  return rows;
}

std::tuple<std::string, int, std::vector<std::string>, int64_t, int64_t> py_cpu_info() {
  CpuInfo info = cpu_info();
  return {std::move(info.model), info.threads, std::move(info.isas), info.l2_bytes, info.l3_bytes};
}

}  // namespace

}  // namespace flashmla::python

NB_MODULE(_native, module) {
  namespace nb = nanobind;
  using namespace flashmla::python;  // NOLINT(google-build-using-namespace)
  module.doc() = "The C++ side of flashmla; use the functions of the package `flashmla`.";
  module.attr("__version__") = FLASHMLA_VERSION_STRING;
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  module.def("decode", &py_decode, "q"_a.none(), "q_rope"_a.none(), "kv_cache"_a.none(), "page_table"_a.none(),
             "seq_lens"_a.none(), "cu_seqlens_q"_a.none(), "out"_a.none(), "lse"_a.none(), "status"_a.none(),
             "softmax_scale"_a, "causal"_a, "latent_dim"_a, "kv_format"_a.none(), "empty_lse"_a, "splits"_a,
             "batch_invariant"_a, "backend"_a.none(), "isa"_a.none(), "threads"_a, "uint16_is_bf16"_a = false,
             "stream"_a = 0, "allocate"_a.none() = nb::none());
  module.def("prefill", &py_prefill, "q"_a.none(), "k"_a.none(), "v"_a.none(), "cu_seqlens_q"_a.none(),
             "cu_seqlens_k"_a.none(), "out"_a.none(), "lse"_a.none(), "softmax_scale"_a, "causal"_a, "empty_lse"_a,
             "backend"_a.none(), "isa"_a.none(), "threads"_a, "uint16_is_bf16"_a = false, "stream"_a = 0,
             "allocate"_a.none() = nb::none());
  module.def("append_kv", &py_append_kv, "latent"_a.none(), "rope"_a.none(), "kv_cache"_a.none(),
             "slot_mapping"_a.none(), "status"_a.none(), "kv_format"_a.none(), "backend"_a.none(), "isa"_a.none(),
             "threads"_a, "uint16_is_bf16"_a = false, "stream"_a = 0);
  module.def("merge_states", &py_merge_states, "out_a"_a.none(), "lse_a"_a.none(), "out_b"_a.none(), "lse_b"_a.none(),
             "out"_a.none(), "lse"_a.none(), "empty_lse"_a, "backend"_a.none(), "isa"_a.none(), "threads"_a,
             "uint16_is_bf16"_a = false, "stream"_a = 0);
  module.def("explain_decode", &py_explain_decode);
  module.def("backends", &py_backends);
  module.def("cpu_info", &py_cpu_info);
#ifdef FLASHMLA_HAS_RUNNER
  add_tokenizer(module);
  add_llm(module);
#endif
}
