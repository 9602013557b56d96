// Version of the library. The major number changes when an incompatible change is made (CONTRIBUTING.md, "Versions").
#pragma once

#define FLASHMLA_VERSION_MAJOR 0
#define FLASHMLA_VERSION_MINOR 1
#define FLASHMLA_VERSION_PATCH 0
#define FLASHMLA_VERSION_STRING "0.1.0"
