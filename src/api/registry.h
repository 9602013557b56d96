// How a call finds its back end.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/env.h"
#include "flashmla/backend.h"

namespace flashmla {

// Highest priority first. The list never changes once it was handed out: registering publishes a new one.
const std::vector<const Backend*>& registered_backends();

std::string_view device_name(DeviceType type);
Status no_backend_named(std::string_view name);
Status no_backend_for(DeviceType type);
Status wrong_device(const Backend& backend, DeviceType type);

// Asks the back ends of the context's device, highest priority first, and returns the first answer that is not
// kUnsupported; when all refuse, the first refusal. A back end that the context or FLASHMLA_BACKEND names is asked
// alone. One of priority 0 (the oracle) is only run by name: a refusal never turns into a slow path. `ask(backend)`
// returns a Status or a Result.
template <class Ask>
auto ask_backends(const Context& context, const Ask& ask) -> decltype(ask(std::declval<const Backend&>())) {
  const std::string_view name = context.backend.empty() ? env_backend() : context.backend;
  if (!name.empty()) {
    const Backend* backend = find_backend(name);
    if (backend == nullptr) return no_backend_named(name);
    if (backend->device_type() != context.device.type) return wrong_device(*backend, context.device.type);
    return ask(*backend);
  }
  const auto code = [](const auto& answer) {
    if constexpr (requires { answer.code(); })
      return answer.code();
    else
      return answer.status().code();
  };
  std::optional<decltype(ask(std::declval<const Backend&>()))> refusal;
  for (const Backend* backend : registered_backends()) {
    if (backend->device_type() != context.device.type || backend->priority() <= 0) continue;
    auto answer = ask(*backend);
    if (code(answer) != StatusCode::kUnsupported) return answer;
    if (!refusal) refusal = std::move(answer);
  }
  if (refusal) return *std::move(refusal);
  return no_backend_for(context.device.type);
}

}  // namespace flashmla
