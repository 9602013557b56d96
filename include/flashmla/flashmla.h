// Everything of the public C++ API.
#pragma once

#include "flashmla/backend.h"
#include "flashmla/cache.h"
#include "flashmla/context.h"
#include "flashmla/cpu.h"
#include "flashmla/decode.h"
#include "flashmla/kv_format.h"
#include "flashmla/merge.h"
#include "flashmla/prefill.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"
#include "flashmla/version.h"
