// Timing on the GPU: graphs, rests, ceilings measured in the same run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashmla/tensor.h"

namespace flashmla::bench {

// Throws std::runtime_error with `what` unless success.
void check(cudaError_t error, const char* what);

// Values of a standard normal distribution, bf16 or fp16.
void fill_normal(void* data, DType dtype, int64_t count, uint64_t seed);

inline constexpr int64_t kRotationBytes = 300 << 20;  // that a rotation touches at least; L2 holds 60 MB
inline constexpr int kReplays = 11;

// Operations of a graph, by the bytes that one moves: the graph is long beside its launch, and short beside the chip's
// throttling.
inline int operations_of(double bytes) { return bytes > 1e8 ? 8 : bytes > 1e7 ? 40 : 200; }

struct Spread {
  double median_us = 0;
  double low_us = 0;   // 10th percentile
  double high_us = 0;  // 90th
};

// Time of one operation: `enqueue(i)` puts operation i on the stream; `operations` of them make a graph, which is
// replayed `replays` times, each after a rest that lets the chip cool. `between` (may be empty) is put after each
// operation; the time of a graph of `between` alone is subtracted.
// With `load_ms`, replays run without a rest after so much time of load: the chip is hot.
Spread time_operations(const std::function<void(int, cudaStream_t)>& enqueue,
                       const std::function<void(cudaStream_t)>& between, int operations, int replays, int load_ms = 0);

// Host time of one enqueue, without waiting for the GPU: the median of `rounds` rounds of 20 calls on an idle stream.
double host_us(const std::function<void(int, cudaStream_t)>& enqueue, int rounds);

// An ordinary kernel, without programmatic dependent launch, that does nothing.
void launch_nothing(cudaStream_t stream);

// What a bench's main() returns: run's answer, or 1 with an exception's text on standard error.
int guarded_main(int (*run)(int, char**), int argc, char** argv);

// Bytes a second of a plain read of `bytes`, with 16-byte loads.
double read_bandwidth(int64_t bytes);

}  // namespace flashmla::bench
