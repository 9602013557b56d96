// Back end "reference": scalar, double accumulation, straight from the contract. The oracle of every test; run by name.
#pragma once

#include <memory>

#include "flashmla/backend.h"

namespace flashmla {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace flashmla
