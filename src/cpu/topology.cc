#include "cpu/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "core/env.h"
#include "cpu/isa.h"
#include "flashmla/cpu.h"

namespace flashmla {

namespace {

int32_t affinity_processors() {
  cpu_set_t set;
  if (process_affinity(&set)) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN)));  // more processors than cpu_set_t holds
}

// CPUs that `quota` microseconds in every `period` amount to; 0 when there is no limit.
double quota_cpus(const std::string& quota, const std::string& period) {
  if (quota.empty() || quota == "max" || quota.front() == '-' || period.empty()) return 0;
  const double limit = std::strtod(quota.c_str(), nullptr);
  const double each = std::strtod(period.c_str(), nullptr);
  return each > 0 ? limit / each : 0;
}

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// The least quota from the process's own cgroup up to the root (v2), or of v1's cpu controller; 0: none.
double cgroup_cpus() {
  std::ifstream own("/proc/self/cgroup");
  double least = 0;
  const auto take = [&](double cpus) {
    if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
  };
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string group = line.substr(3);; group.resize(group.rfind('/'))) {
      std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
      std::string quota;
      std::string period;
      file >> quota >> period;
      take(quota_cpus(quota, period));
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
  take(quota_cpus(first_word("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
                  first_word("/sys/fs/cgroup/cpu/cpu.cfs_period_us")));
  return least;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

// "1024K" -> bytes, of the cache of that level which holds data; 0 when the system does not say.
int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string base = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    if (first_word(base + "level") != std::to_string(level) || first_word(base + "type") == "Instruction") continue;
    const std::string size = first_word(base + "size");
    if (size.empty()) return 0;
    const int64_t number = std::strtoll(size.c_str(), nullptr, 10);
    return size.back() == 'K' ? number << 10 : size.back() == 'M' ? number << 20 : number;
  }
  return 0;
}

}  // namespace

bool process_affinity(cpu_set_t* processors) {
  CPU_ZERO(processors);
  cpu_set_t one;
  if (sched_getaffinity(0, sizeof(one), &one) != 0) return false;
  CPU_OR(processors, processors, &one);
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    const auto thread = static_cast<pid_t>(std::strtol(task->path().filename().c_str(), nullptr, 10));
    if (sched_getaffinity(thread, sizeof(one), &one) == 0) CPU_OR(processors, processors, &one);
  }
  return true;
}

int32_t available_processors() {
  static const int32_t count = [] {
    const double quota = cgroup_cpus();
    const int32_t allowed = affinity_processors();
    const int32_t limited = quota > 0 ? static_cast<int32_t>(std::ceil(std::min(quota, 1.0 * kMaxThreads))) : allowed;
    return std::clamp(std::min(allowed, limited), 1, kMaxThreads);
  }();
  return count;
}

int32_t machine_processors() {
  static const auto count = static_cast<int32_t>(std::clamp<long>(sysconf(_SC_NPROCESSORS_ONLN), 1, kMaxThreads));
  return count;
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.model = processor_name();
  info.threads = env_num_threads() > 0 ? std::min(env_num_threads(), kMaxThreads) : available_processors();
  for (Isa isa : usable_isas()) info.isas.emplace_back(isa_name(isa));
  info.l2_bytes = cache_bytes(2);
  info.l3_bytes = cache_bytes(3);
  return info;
}

}  // namespace flashmla
