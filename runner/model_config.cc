#include "runner/model_config.h"
