// The loops of ceilings.h, compiled once per instruction-set level like any kernel.
#include "opwright/block.h"
#include "opwright/ceilings.h"
#include "opwright/simd_math.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// Reads 4 KiB ahead: the hardware's own prefetchers stop at the end of a page.
template <bool kNonTemporal>
void copy_lines(void* to, const void* from, int64_t bytes) {
  const float* source = static_cast<const float*>(from);
  float* target = static_cast<float*>(to);
  const int64_t count = bytes / int64_t{sizeof(float)};
  for_each_block<float>(count, [&](int64_t i, auto block) {
    __builtin_prefetch(source + i + 1024);
    if constexpr (kNonTemporal) {
      block.stream(target + i, block.load(source + i));
    } else {
      block.store(target + i, block.load(source + i));
    }
  });
  if constexpr (kNonTemporal) stream_fence();
}

template <bool kNonTemporal>
void add_lines(void* to, const void* a, const void* b, int64_t bytes) {
  const float* first = static_cast<const float*>(a);
  const float* second = static_cast<const float*>(b);
  float* target = static_cast<float*>(to);
  const int64_t count = bytes / int64_t{sizeof(float)};
  for_each_block<float>(count, [&](int64_t i, auto block) {
    __builtin_prefetch(first + i + 1024);
    __builtin_prefetch(second + i + 1024);
    const Pair<float> sum = block.load(first + i) + block.load(second + i);
    if constexpr (kNonTemporal) {
      block.stream(target + i, sum);
    } else {
      block.store(target + i, sum);
    }
  });
  if constexpr (kNonTemporal) stream_fence();
}

// Chains are independent, and there are more of them than latency times throughput of any processor
// this runs on; with 16 registers (AVX2) 12 chains leave room for the two factors.
constexpr int kChains = 12;

float multiply_add_steps(int64_t steps) {
  Vec<float> chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = splat<float>(static_cast<float>(i));
  const Vec<float> factor = splat<float>(0.999f), term = splat<float>(0.001f);
  for (int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kChains; ++i) chain[i] = fma(chain[i], factor, term);
  }
  Vec<float> sum = chain[0];
  for (int i = 1; i < kChains; ++i) sum = sum + chain[i];
  return reduce_add(sum);
}

void exponentials(float* to, const float* from, int64_t count) {
  for_each_block<float>(count, [&](int64_t i, auto block) {
    const Pair<float> x = block.load(from + i);
    block.store(to + i, Pair<float>{exp(x.lo), exp(x.hi)});
  });
}

}  // namespace

extern const CeilingKernels ceiling_kernels;
const CeilingKernels ceiling_kernels = {copy_lines<true>,
                                        copy_lines<false>,
                                        multiply_add_steps,
                                        exponentials,
                                        int64_t{2} * kChains * kLanes<float>,
                                        add_lines<true>,
                                        add_lines<false>};

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
