// Instruction sets of the "cpu" back end: what was compiled, what this processor has, what a call uses.
#pragma once

#include <string_view>
#include <vector>

#include "flashmla/context.h"
#include "flashmla/status.h"

namespace flashmla {

enum class Isa : int32_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

std::string_view isa_name(Isa isa);
// Usable here, best first.
const std::vector<Isa>& usable_isas();
// The context's, else FLASHMLA_ISA's, else the best. kInvalidArgument for an unknown name or one this processor lacks.
Result<Isa> choose_isa(const Context& context);

}  // namespace flashmla
