// FLASHMLA_API marks what the shared library exports; everything else is hidden.
#pragma once

#if defined(FLASHMLA_STATIC)
#define FLASHMLA_API
#else
#define FLASHMLA_API __attribute__((visibility("default")))
#endif
