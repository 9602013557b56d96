// Back ends and their registry. A back end of your own is a class derived from Backend and one register_backend call.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashmla/cache.h"
#include "flashmla/context.h"
#include "flashmla/decode.h"
#include "flashmla/merge.h"
#include "flashmla/prefill.h"

namespace flashmla {

// Parameters reach a back end already checked by the public functions (decode_shape and the like); what it alone knows,
// and the values inside tensors, it checks itself. Every member may be called from several threads at once.
class FLASHMLA_API Backend {
 public:
  virtual ~Backend();

  virtual std::string_view name() const = 0;
  virtual DeviceType device_type() const = 0;
  // Of the back ends that take a call, the one with the highest priority runs it. Ours: reference 0, cpu 100.
  virtual int priority() const = 0;

  // Ok with the kernel's name and the reason for it, or kUnsupported that names what is missing.
  virtual Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions& options,
                                             const Context& context) const;
  virtual Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options,
                                                 const Context& context) const;
  virtual Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace workspace,
                        const Context& context) const;
  virtual Result<KernelChoice> choose_prefill(const PrefillShape& shape, const Context& context) const;
  virtual Result<int64_t> prefill_workspace_bytes(const PrefillShape& shape, const Context& context) const;
  virtual Status prefill(const PrefillParams& params, const PrefillShape& shape, Workspace workspace,
                         const Context& context) const;
  virtual Status append_kv(const AppendKvParams& params, const Context& context) const;
  virtual Status merge_states(const MergeStatesParams& params, const Context& context) const;
};

// Takes ownership. kInvalidArgument when the name is empty or taken. The back end lives until the process ends.
FLASHMLA_API Status register_backend(std::unique_ptr<Backend> backend);

// Registered back ends, highest priority first.
FLASHMLA_API std::vector<const Backend*> backends();

// By name; nullptr when there is none.
FLASHMLA_API const Backend* find_backend(std::string_view name);

}  // namespace flashmla
