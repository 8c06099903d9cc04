// What the simulator and the device header compute, printed for the tests to compare.
//
//   probe NAME [ORDER SEED]      prints numbers, one to a line
#include <cstdio>
#include <string>
#include <vector>

#include "opwright/cuda/device.h"

namespace opwright {
namespace {

using Ints = std::vector<int>;

void print(const Ints& values) {
  for (const int value : values) std::printf("%d\n", value);
}

// ---- indices and orders -------------------------------------------------------------------------

OPWRIGHT_KERNEL void indices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  store_global(out + block * threads + thread, 1000 * block + thread);
}

OPWRIGHT_KERNEL void arrivals(int* next, int* out) {
  store_global(out + atomic_add(next, 1), static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}

// ---- warps --------------------------------------------------------------------------------------

// A column of `out` for each operation.
OPWRIGHT_KERNEL void warp_operations(int* out) {
  const int lane = threadIdx.x, value = 100 + lane;
  const unsigned all = kWholeWarp, own = lane < 8 ? 0xffu : ~0xffu;
  const int results[] = {
      __shfl_sync(all, value, 5),
      __shfl_sync(all, value, 3, 8),
      __shfl_up_sync(all, value, 2),
      __shfl_up_sync(all, value, 1, 4),
      __shfl_down_sync(all, value, 3),
      __shfl_down_sync(all, value, 1, 16),
      __shfl_xor_sync(all, value, 1),
      __shfl_xor_sync(all, value, 16),
      static_cast<int>(__ballot_sync(all, lane % 3 == 0)),
      static_cast<int>(__ballot_sync(own, lane % 2 == 0)),
      __any_sync(own, lane == 9),
      __all_sync(own, lane >= 8),
      __reduce_add_sync(own, value),
      __reduce_max_sync(own, -value),
      __reduce_min_sync(own, -value),
      static_cast<int>(__reduce_and_sync(own, static_cast<unsigned>(value))),
      static_cast<int>(__reduce_or_sync(own, static_cast<unsigned>(value))),
      static_cast<int>(__reduce_xor_sync(own, static_cast<unsigned>(value))),
      static_cast<int>(warp_sum(static_cast<double>(value))),
      __popc(own) + 100 * __ffs(static_cast<int>(own)),
  };
  int column = 0;
  for (const int result : results) store_global(out + 32 * column++ + lane, result);
}

OPWRIGHT_KERNEL void row_sums(double* out) {
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  const double x = 1 + threadIdx.x + 1000.0 * threadIdx.y;
  const double sum = row_sum<double>(x, scratch, [](double total) { return total + 0.5; });
  const double twice = row_sum<double>(sum, scratch, [](double total) { return total; });
  store_global(out + threadIdx.y * blockDim.x + threadIdx.x, twice);
}

// ---- atomics, memory ----------------------------------------------------------------------------

OPWRIGHT_KERNEL void atomics(int* cells) {
  const int i = threadIdx.x;
  atomic_add(cells, i);
  atomic_max(cells + 1, i == 40 ? 1000 : i);
  if (i == 7) atomic_exchange(cells + 2, 77);
  if (i == 8) store_global(cells + 4, atomic_compare_exchange(cells + 3, 5, 6));
}

OPWRIGHT_KERNEL void move_bytes(const float* in, float* out) {
  store_global<4>(out, load_global<4>(in));
  store_global(out + 4, load_global(in + 4) + load_cached(in) + load_cached<4>(in).value[3]);
}

// ---- conversions: bit patterns in, bit patterns out ---------------------------------------------

void print_bits(uint32_t bits) { std::printf("%u\n", bits); }
uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

void widen_all() {
  for (uint32_t i = 0; i < 65536; ++i) {
    print_bits(bits_of(widen<float>(Half{static_cast<uint16_t>(i)})));
    print_bits(bits_of(widen<float>(BFloat16{static_cast<uint16_t>(i)})));
  }
}

// Floats around every half and bfloat16: the value, the middle to the next, and one unit around it.
void narrow_all() {
  for (uint32_t i = 0; i < 65536; ++i) {
    const float half = widen<float>(Half{static_cast<uint16_t>(i)});
    const float brain = widen<float>(BFloat16{static_cast<uint16_t>(i)});
    for (const float start : {half, brain}) {
      for (const uint32_t add : {0u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
        const float x = std::bit_cast<float>(bits_of(start) + add);
        std::printf("%u %u %u\n", bits_of(x), narrow<Half>(x).bits, narrow<BFloat16>(x).bits);
      }
    }
  }
}

// Doubles close to the middle between two neighbours, where rounding twice goes wrong.
void narrow_doubles() {
  for (uint32_t i = 0; i < 0x7bff; i += 7) {
    const double low = widen<double>(Half{static_cast<uint16_t>(i)});
    const double high = widen<double>(Half{static_cast<uint16_t>(i + 1)});
    for (const double tilt : {-1e-12, 0.0, 1e-12}) {
      const double x = (low + high) / 2 * (1 + tilt);
      for (const double value : {x, -x}) {
        std::printf("%.17g %u %u\n", value, narrow<Half>(value).bits, narrow<BFloat16>(value).bits);
      }
    }
  }
}

int run(const std::string& name) {
  if (name == "indices") {
    Ints out(2 * 3 * 2 * 24, -1);
    OPWRIGHT_LAUNCH(indices, dim3(2, 3, 2), dim3(4, 3, 2), 0, nullptr, out.data());
    print(out);
  } else if (name == "arrivals") {
    Ints out(3 * 32);
    int next = 0;
    OPWRIGHT_LAUNCH(arrivals, dim3(3), dim3(32), 0, nullptr, &next, out.data());
    print(out);
  } else if (name == "warp") {
    Ints out(20 * 32);
    OPWRIGHT_LAUNCH(warp_operations, dim3(1), dim3(32), 0, nullptr, out.data());
    print(out);
  } else if (name == "rows") {
    for (const dim3 block : {dim3(32, 3), dim3(256, 1), dim3(1024, 1)}) {
      std::vector<double> out(size_t{block.x} * block.y);
      OPWRIGHT_LAUNCH(row_sums, dim3(1), block, 0, nullptr, out.data());
      for (size_t i = 0; i < out.size(); i += 32) std::printf("%.1f\n", out[i]);
    }
  } else if (name == "atomics") {
    Ints cells = {0, -1, 0, 5, 0};
    OPWRIGHT_LAUNCH(atomics, dim3(1), dim3(64), 0, nullptr, cells.data());
    print(cells);
  } else if (name == "counters") {
    const std::vector<float> in = {1, 2, 3, 4, 5};
    std::vector<float> out(5);
    OPWRIGHT_LAUNCH(move_bytes, dim3(1), dim3(1), 0, nullptr, in.data(), out.data());
    const auto& counted = simulator::counters();
    print({static_cast<int>(counted.read), static_cast<int>(counted.written),
           static_cast<int>(counted.cached), static_cast<int>(counted.launches),
           static_cast<int>(out[4])});
  } else if (name == "widen") {
    widen_all();
  } else if (name == "narrow") {
    narrow_all();
  } else if (name == "narrow-doubles") {
    narrow_doubles();
  } else {
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace opwright

int main(int argc, char** argv) {
  using opwright::simulator::Order;
  auto& options = opwright::simulator::options();
  if (argc > 3) {
    const std::string order = argv[2];
    options.order = order == "forward"   ? Order::kForward
                    : order == "reverse" ? Order::kReverse
                                         : Order::kRandom;
    options.seed = std::stoull(argv[3]);
  }
  options.threads = argc > 4;
  return argc > 1 ? opwright::run(argv[1]) : 3;
}
