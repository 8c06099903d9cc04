// Small kernels, each with and without one fault. The program runs one of them and prints what came
// of it:
//
//   faults NAME right|wrong forward|reverse|random SEED [threads]
//
//   prints "ok", or "failure: " and the simulator's text (status 1), or "wrong result" (status 2)
#include <cstdio>
#include <string>
#include <vector>

#include "opwright/cuda/device.h"

namespace opwright {
namespace {

constexpr int kThreads = 128;

using Values = std::vector<float>;

Values counting(int64_t n) {
  Values values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

// ---- one thread reads what another wrote --------------------------------------------------------

// An array of the block, zeros to begin with.
OPWRIGHT_DEVICE void clear(const Shared<float>& values) {
  values.store(threadIdx.x, 0.0f);
  __syncthreads();
}

template <bool kRight>
OPWRIGHT_KERNEL void reverse_block(const float* in, float* out) {
  OPWRIGHT_SHARED(float, values, kThreads);
  clear(values);
  const int i = threadIdx.x;
  values.store(i, load_global(in + i));
  if constexpr (kRight) __syncthreads();
  store_global(out + i, values.load(kThreads - 1 - i));
}

template <bool kRight>
OPWRIGHT_KERNEL void reverse_warps(const float* in, float* out) {
  OPWRIGHT_SHARED(float, values, kThreads);
  clear(values);
  const int i = threadIdx.x;
  values.store(i, load_global(in + i));
  if constexpr (kRight) __syncwarp();
  store_global(out + i, values.load(i ^ (kWarp - 1)));
}

// Reads what a thread of the next warp wrote, and writes its own element, which may not be read
// yet.
template <bool kRight>
OPWRIGHT_KERNEL void shift_twice(const float* in, float* out) {
  OPWRIGHT_SHARED(float, values, kThreads);
  const int i = threadIdx.x;
  values.store(i, load_global(in + i));
  __syncthreads();
  const float next = values.load((i + kWarp) % kThreads);
  if constexpr (kRight) __syncthreads();
  values.store(i, next);
  __syncthreads();
  store_global(out + i, values.load((i + kWarp) % kThreads));
}

template <bool kRight>
OPWRIGHT_KERNEL void barrier_in_branch(const float* in, float* out) {
  OPWRIGHT_SHARED(float, values, kThreads);
  clear(values);
  const int i = threadIdx.x;
  values.store(i, load_global(in + i));
  if constexpr (kRight) {
    __syncthreads();
  } else {
    if (i >= kThreads / 2) return;
    __syncthreads();
  }
  store_global(out + i, values.load(kThreads - 1 - i));
}

template <bool kRight>
OPWRIGHT_KERNEL void barriers_apart(const float* in, float* out) {
  OPWRIGHT_SHARED(float, values, kThreads);
  clear(values);
  const int i = threadIdx.x;
  values.store(i, load_global(in + i));
  if (kRight || i % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  store_global(out + i, values.load(kThreads - 1 - i));
}

// ---- warps --------------------------------------------------------------------------------------

template <bool kRight>
OPWRIGHT_KERNEL void shuffle_in_half_warp(const float* in, float* out) {
  const int i = threadIdx.x, lane = i % kWarp;
  float x = load_global(in + i);
  // The upper half takes no part, so lanes 16 to 31 have nothing to give.
  if (lane < kWarp / 2) x = __shfl_sync(0xffffu, x, kRight ? kWarp / 2 - 1 - lane : lane + 1);
  store_global(out + i, x);
}

template <bool kRight>
OPWRIGHT_KERNEL void shuffle_after_exit(const float* in, float* out) {
  const int i = threadIdx.x, lane = i % kWarp;
  if (lane >= 16) {
    store_global(out + i, load_global(in + i));
    return;
  }
  const float x = __shfl_sync(kRight ? 0xffffu : kWholeWarp, load_global(in + i), 15 - lane);
  store_global(out + i, x);
}

template <bool kRight>
OPWRIGHT_KERNEL void different_masks(const float* in, float* out) {
  const int i = threadIdx.x, lane = i % kWarp;
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  const float x =
      __shfl_sync(kRight || lane != 3 ? half : kWholeWarp, load_global(in + i), lane ^ 15);
  store_global(out + i, x);
}

// ---- memory -------------------------------------------------------------------------------------

template <bool kRight>
OPWRIGHT_KERNEL void copy_past_end(const float* in, float* out, int64_t n) {
  for (int64_t i = threadIdx.x; kRight ? i < n : i <= n; i += kThreads) {
    store_global(out + i, i < n ? load_global(in + i) : 0.0f);
  }
}

template <bool kRight>
OPWRIGHT_KERNEL void shared_past_end(const float* in, float* out) {
  OPWRIGHT_DYNAMIC_SHARED(float, values);
  const int i = threadIdx.x;
  values.store(kRight ? i : i + 1, load_global(in + i));
  __syncthreads();
  store_global(out + i, values.load(kRight ? kThreads - 1 - i : kThreads - i));
}

template <bool kRight>
OPWRIGHT_KERNEL void padded_sum(const float* in, float* out, int64_t n) {
  OPWRIGHT_SHARED(float, values, kThreads);
  const int i = threadIdx.x;
  if (i < n) {
    values.store(i, load_global(in + i));
  } else if constexpr (kRight) {
    values.store(i, 0.0f);
  }
  __syncthreads();
  if (i != 0) return;
  float sum = 0;
  for (int j = 0; j < kThreads; ++j) sum += values.load(j);
  store_global(out, sum);
}

template <bool kRight>
OPWRIGHT_KERNEL void load_four(const float* in, float* out) {
  const int i = threadIdx.x;
  const float* from = in + 4 * i + (kRight ? 0 : 1);
  if (!kRight && i == kThreads - 1) return;  // stay inside
  store_global<4>(out + 4 * i, load_global<4>(from));
}

// ---- blocks -------------------------------------------------------------------------------------

template <bool kRight>
OPWRIGHT_KERNEL void sum_of_blocks(const int* in, int* out) {
  const int i = threadIdx.x;
  const int sum = __reduce_add_sync(kWholeWarp, load_global(in + blockIdx.x * kWarp + i));
  if (i != 0) return;
  if constexpr (kRight) {
    atomic_add(out, sum);
  } else {
    store_global(out, load_global(out) + sum);
  }
}

template <bool kRight>
OPWRIGHT_KERNEL void neighbours_in_memory(float* values) {
  const int i = threadIdx.x;
  store_global(values + i, static_cast<float>(i));
  if constexpr (kRight) __syncthreads();
  const float next = load_global(values + (i + 1) % kThreads);
  __syncthreads();
  store_global(values + i, next);
}

OPWRIGHT_KERNEL void number_blocks(float* out) {
  const int64_t block = blockIdx.y * int64_t{gridDim.x} + blockIdx.x;
  if (threadIdx.x + threadIdx.z == 0) store_global(out + block, static_cast<float>(block));
}

// ---- running them -------------------------------------------------------------------------------

// in and out of the block's size, and what a thread i is to have got.
template <class F>
bool run_block(void (*kernel)(const float*, float*), int64_t shared_bytes, const F& source) {
  const Values in = counting(kThreads);
  Values out(kThreads);
  OPWRIGHT_LAUNCH(kernel, dim3(1), dim3(kThreads), shared_bytes, nullptr, in.data(), out.data());
  for (int i = 0; i < kThreads; ++i) {
    if (out[static_cast<size_t>(i)] != in[static_cast<size_t>(source(i))]) return false;
  }
  return true;
}

template <bool kRight>
bool run(const std::string& name) {
  const auto mirror = [](int i) { return kThreads - 1 - i; };
  const auto mirror_of_16 = [](int i) { return i % kWarp < 16 ? (i / 16 * 16) + 15 - i % 16 : i; };
  if (name == "missing-barrier") return run_block(reverse_block<kRight>, 0, mirror);
  if (name == "missing-warp-sync") {
    return run_block(reverse_warps<kRight>, 0, [](int i) { return i ^ (kWarp - 1); });
  }
  if (name == "early-write") {
    return run_block(shift_twice<kRight>, 0, [](int i) { return (i + 2 * kWarp) % kThreads; });
  }
  if (name == "divergent-barrier") return run_block(barrier_in_branch<kRight>, 0, mirror);
  if (name == "barriers-apart") {
    return run_block(kRight ? reverse_block<true> : barriers_apart<kRight>, 0, mirror);
  }
  if (name == "inactive-lane") return run_block(shuffle_in_half_warp<kRight>, 0, mirror_of_16);
  if (name == "ended-lane") return run_block(shuffle_after_exit<kRight>, 0, mirror_of_16);
  if (name == "different-masks") {
    return run_block(different_masks<kRight>, 0, [](int i) { return i / 16 * 16 + 15 - i % 16; });
  }
  if (name == "shared-overrun") {
    return run_block(shared_past_end<kRight>, kThreads * int64_t{sizeof(float)}, mirror);
  }
  if (name == "overrun") {
    const Values in = counting(1000);
    Values out(1000);
    OPWRIGHT_LAUNCH(copy_past_end<kRight>, dim3(1), dim3(kThreads), 0, nullptr, in.data(),
                    out.data(), int64_t{1000});
    return in == out;
  }
  if (name == "uninitialised") {
    const Values in = counting(100);
    Values out(1);
    OPWRIGHT_LAUNCH(padded_sum<kRight>, dim3(1), dim3(kThreads), 0, nullptr, in.data(), out.data(),
                    int64_t{100});
    return out[0] == 5050;
  }
  if (name == "misaligned") {
    const Values in = counting(4 * kThreads);
    Values out(4 * kThreads);
    OPWRIGHT_LAUNCH(load_four<kRight>, dim3(1), dim3(kThreads), 0, nullptr, in.data(), out.data());
    return in == out;
  }
  if (name == "block-race") {
    const std::vector<int> in(64 * kWarp, 1);
    std::vector<int> out(1, 0);
    OPWRIGHT_LAUNCH(sum_of_blocks<kRight>, dim3(64), dim3(kWarp), 0, nullptr, in.data(),
                    out.data());
    return out[0] == 64 * kWarp;
  }
  if (name == "global-race") {
    Values values(kThreads);
    OPWRIGHT_LAUNCH(neighbours_in_memory<kRight>, dim3(1), dim3(kThreads), 0, nullptr,
                    values.data());
    return values[0] == 1 && values[kThreads - 1] == 0;
  }
  // The limits: right at them, and one beyond.
  const auto launch = [](dim3 grid, dim3 block, int64_t shared_bytes) {
    Values out(size_t{grid.x} * grid.y);
    OPWRIGHT_LAUNCH(number_blocks, grid, block, shared_bytes, nullptr, out.data());
    return out.back() == static_cast<float>(out.size() - 1);
  };
  if (name == "grid-limit") return launch(dim3(1, kRight ? 65535 : 65536), dim3(1), 0);
  if (name == "block-limit") return launch(dim3(2), dim3(kRight ? 1024 : 1056), 0);
  if (name == "block-z-limit") return launch(dim3(2), dim3(1, 1, kRight ? 64 : 65), 0);
  if (name == "shared-limit") return launch(dim3(2), dim3(1), (163 << 10) + (kRight ? 0 : 1));
  if (name == "empty-grid") return launch(dim3(kRight ? 1 : 0), dim3(1), 0);
  std::fprintf(stderr, "expected the name of a fault, but got %s\n", name.c_str());
  std::exit(3);
}

}  // namespace
}  // namespace opwright

int main(int argc, char** argv) {
  if (argc < 5) return 3;
  using opwright::simulator::Order;
  auto& options = opwright::simulator::options();
  const std::string name = argv[1], order = argv[3];
  options.order = order == "forward"   ? Order::kForward
                  : order == "reverse" ? Order::kReverse
                                       : Order::kRandom;
  options.seed = std::stoull(argv[4]);
  options.threads = argc > 5;
  bool right = false;
  try {
    right =
        std::string(argv[2]) == "right" ? opwright::run<true>(name) : opwright::run<false>(name);
  } catch (const opwright::simulator::Failure& failure) {
    std::printf("failure: %s\n", failure.what());
    return 1;
  }
  std::puts(right ? "ok" : "wrong result");
  return right ? 0 : 2;
}
