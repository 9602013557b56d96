// Values of queries and keys for each kind of input.
#pragma once

#include <cstdint>

#include "cases/shapes.h"

namespace flashmla::cases {

// Each fills latent_dim + rope_dim floats, from the seed, the request's id and the named element alone. `token` and
// `position` count from the id's first query token and first key.
void fill_query(const DecodeCase& decode_case, const Request& request, int64_t token, int64_t head, float* values);
void fill_key(const DecodeCase& decode_case, const Request& request, int64_t position, int64_t head_kv, float* values);

}  // namespace flashmla::cases
