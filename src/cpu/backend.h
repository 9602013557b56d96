// Back end "cpu": vectorised, threaded, for real use.
#pragma once

#include <memory>

#include "flashmla/backend.h"

namespace flashmla {

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace flashmla
