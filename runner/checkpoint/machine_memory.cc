#include "runner/checkpoint/machine_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace flashmla::runner {

namespace {

constexpr int64_t kUnknown = INT64_MAX;

// A line "name:  N kB" of /proc/meminfo, in bytes.
int64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == name && file >> kib) return kib * 1024;
    file.ignore(256, '\n');
  }
  return kUnknown;
}

// The only number of a control-group file; "max" and absent files are unknown.
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : kUnknown;
}

// Inside a container the own group is mounted at the root. The name of the value in version 2, then in version 1.
int64_t group_value(const char* v2, const char* v1) {
  const int64_t value = number_in((std::string("/sys/fs/cgroup/") + v2).c_str());
  return value != kUnknown ? value : number_in((std::string("/sys/fs/cgroup/memory/") + v1).c_str());
}

int64_t group_limit() { return group_value("memory.max", "memory.limit_in_bytes"); }

// File pages that a group holds are given up before it runs out.
int64_t group_file_bytes() {
  for (const char* path : {"/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat"}) {
    std::ifstream file(path);
    std::string key;
    for (int64_t value = 0; file >> key >> value;) {
      if (key == "inactive_file") return value;
    }
  }
  return 0;
}

}  // namespace

int64_t total_memory() { return std::min(meminfo("MemTotal:"), group_limit()); }

int64_t available_memory() {
  const int64_t machine = meminfo("MemAvailable:");
  const int64_t limit = group_limit();
  const int64_t used = group_value("memory.current", "memory.usage_in_bytes");
  if (limit == kUnknown || used == kUnknown) return std::min(machine, limit);
  return std::min(machine, std::max<int64_t>(limit - used + group_file_bytes(), 0));
}

std::string memory_text(int64_t needed, int64_t available) {
  char text[96];
  std::snprintf(text, sizeof text, "need %.2f GB, this machine has %.2f GB to give", static_cast<double>(needed) * 1e-9,
                static_cast<double>(available) * 1e-9);
  return text;
}

}  // namespace flashmla::runner
