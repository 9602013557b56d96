#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "gpu_timing.h"

namespace flashmla::bench {

namespace {

constexpr auto kRest = std::chrono::milliseconds(15);

__global__ void nothing_kernel() {}

__device__ void set(__nv_bfloat16& to, float value) { to = __float2bfloat16(value); }
__device__ void set(__half& to, float value) { to = __float2half(value); }

template <class T>
__global__ void normal_kernel(T* data, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint64_t z = seed + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;  // SplitMix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const int sum = static_cast<int>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    set(data[i], static_cast<float>(sum - 131070) * (1.0f / 37837.0f));
  }
}

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __ldcs(data + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345678u) *sink = sum;  // keeps the loads
}

Spread spread_of(std::vector<double> times) {
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    enqueue();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&exec_, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  double replay_us(cudaEvent_t begin, cudaEvent_t end, bool rested = true) {
    if (rested) std::this_thread::sleep_for(kRest);
    check(cudaEventRecord(begin, stream_), "record");
    check(cudaGraphLaunch(exec_, stream_), "graph launch");
    check(cudaEventRecord(end, stream_), "record");
    check(cudaEventSynchronize(end), "graph");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    return 1e3 * ms;
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

void fill_normal(void* data, DType dtype, int64_t count, uint64_t seed) {
  if (dtype == DType::kFloat16)
    normal_kernel<<<1024, 256>>>(static_cast<__half*>(data), count, seed);
  else
    normal_kernel<<<1024, 256>>>(static_cast<__nv_bfloat16*>(data), count, seed);
  check(cudaDeviceSynchronize(), "fill");
}

void launch_nothing(cudaStream_t stream) { nothing_kernel<<<1, 32, 0, stream>>>(); }

Spread time_operations(const std::function<void(int, cudaStream_t)>& enqueue,
                       const std::function<void(cudaStream_t)>& between, int operations, int replays, int load_ms) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  Graph whole(stream, [&] {
    for (int i = 0; i < operations; ++i) {
      enqueue(i, stream);
      if (between) between(stream);
    }
  });
  double apart_us = 0;
  if (between) {
    Graph alone(stream, [&] {
      for (int i = 0; i < operations; ++i) between(stream);
    });
    std::vector<double> times;
    alone.replay_us(begin, end);
    for (int i = 0; i < replays; ++i) times.push_back(alone.replay_us(begin, end));
    apart_us = spread_of(times).median_us;
  }
  std::vector<double> times;
  double loaded_us = whole.replay_us(begin, end);
  while (loaded_us < 1e3 * load_ms) loaded_us += whole.replay_us(begin, end, false);
  for (int i = 0; i < replays; ++i)
    times.push_back((whole.replay_us(begin, end, load_ms == 0) - apart_us) / operations);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return spread_of(times);
}

double host_us(const std::function<void(int, cudaStream_t)>& enqueue, int rounds) {
  constexpr int kCalls = 20;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) enqueue(i, stream);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                    kCalls);
    check(cudaStreamSynchronize(stream), "calls");
  }
  cudaStreamDestroy(stream);
  return spread_of(times).median_us;
}

int guarded_main(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

double read_bandwidth(int64_t bytes) {
  uint4* data = nullptr;
  uint32_t* sink = nullptr;
  check(cudaMalloc(&data, static_cast<size_t>(bytes)), "memory");
  check(cudaMalloc(&sink, 4), "memory");
  fill_normal(data, DType::kBFloat16, bytes / 2, 1);
  const Spread spread = time_operations(
      [&](int, cudaStream_t stream) { read_kernel<<<132 * 16, 256, 0, stream>>>(data, bytes / 16, sink); }, {}, 1, 5);
  cudaFree(data);
  cudaFree(sink);
  return static_cast<double>(bytes) / spread.median_us * 1e6;
}

}  // namespace flashmla::bench
