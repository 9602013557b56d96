// What GPUs that are not here allow a decode call by their data sheets: floors, modelled and not measured.
#pragma once

#include <string>
#include <vector>

#include "cases/shapes.h"
#include "cost.h"
#include "run_header.h"

namespace flashmla::cli {

struct DeviceModel {
  const char* name;   // as --model-device takes it
  const char* title;  // the product
  int multiprocessors;
  Ceilings peak;  // dense bf16 with fp32 sums, and memory
};

// Known names, the H200 first.
const std::vector<std::string>& device_model_names();
// `name` is one of them.
const DeviceModel& device_model(const std::string& name);

// The table of floors of the cases, and the same as JSON.
std::string floors_text(const DeviceModel& device, const std::vector<cases::DecodeCase>& list);
Json floors_json(const DeviceModel& device, const std::vector<cases::DecodeCase>& list, const std::string& commit);

}  // namespace flashmla::cli
