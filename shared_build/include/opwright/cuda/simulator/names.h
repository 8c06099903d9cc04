// CUDA's names, as kernels use them, and conversions that CUDA has instructions for.
#pragma once

#include "opwright/cuda/simulator/meeting.h"

#define threadIdx (::opwright::simulator::current->index)
#define blockIdx (::opwright::simulator::current->block_index)
#define blockDim (::opwright::simulator::current->block_size)
#define gridDim (::opwright::simulator::current->grid_size)
#define __syncthreads() ::opwright::simulator::block_barrier(__LINE__)

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  opwright::simulator::meet_warp(opwright::simulator::WarpOp::kSync, mask, 0);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = opwright::simulator::current->lane();
  return opwright::simulator::shuffle(mask, value, lane / width * width + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = opwright::simulator::current->lane(), source = lane ^ bits;
  // Lanes of earlier segments can be read, those of later ones cannot.
  return opwright::simulator::shuffle(mask, value,
                                      source >= lane / width * width + width ? lane : source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance, int width = 32) {
  const int lane = opwright::simulator::current->lane();
  return opwright::simulator::shuffle(mask, value,
                                      opwright::simulator::within(lane, lane - distance, width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance, int width = 32) {
  const int lane = opwright::simulator::current->lane();
  return opwright::simulator::shuffle(mask, value,
                                      opwright::simulator::within(lane, lane + distance, width));
}

inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  return static_cast<unsigned>(
      opwright::simulator::meet_warp(opwright::simulator::WarpOp::kBallot, mask, predicate));
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline bool __all_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

#define OPWRIGHT_WARP_REDUCTION(name, operation, T)                                              \
  inline T name(unsigned mask, T value) {                                                        \
    return static_cast<T>(opwright::simulator::meet_warp(opwright::simulator::WarpOp::operation, \
                                                         mask, static_cast<uint32_t>(value)));   \
  }
OPWRIGHT_WARP_REDUCTION(__reduce_add_sync, kAdd, int)
OPWRIGHT_WARP_REDUCTION(__reduce_max_sync, kMax, int)
OPWRIGHT_WARP_REDUCTION(__reduce_min_sync, kMin, int)
OPWRIGHT_WARP_REDUCTION(__reduce_and_sync, kAnd, unsigned)
OPWRIGHT_WARP_REDUCTION(__reduce_or_sync, kOr, unsigned)
OPWRIGHT_WARP_REDUCTION(__reduce_xor_sync, kXor, unsigned)
#undef OPWRIGHT_WARP_REDUCTION

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

namespace opwright::simulator {

inline float toward_zero(double x) {
  const float nearest = static_cast<float>(x);
  if (std::isnan(x) || std::fabs(static_cast<double>(nearest)) <= std::fabs(x)) return nearest;
  return std::nextafterf(nearest, 0.0f);
}

inline float float_of_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31, exponent = bits >> 10 & 31, part = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | part << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | part << 13);
  const float small = std::ldexp(static_cast<float>(part), -24);
  return sign ? -small : small;
}

// The spacing of a half near |x| is a power of two: adding and subtracting 1.5 * 2^23 of it rounds
// to it, to nearest even.
inline uint16_t half_of_float(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 31 << 15;
  const double size = std::fabs(static_cast<double>(x));
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00u);
  if (size == 0) return static_cast<uint16_t>(sign);
  if (size >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00u);
  int exponent = 0;
  std::frexp(size, &exponent);  // size < 2^exponent
  exponent = std::max(exponent, -13);
  const double unit = std::ldexp(1.0, exponent - 11);
  const auto steps = static_cast<uint32_t>(std::nearbyint(size / unit));  // up to 2048
  // Below 1024 steps it is subnormal; carrying into the next exponent comes out right by itself.
  const auto biased = static_cast<uint32_t>(exponent + 13);
  return static_cast<uint16_t>(sign | ((biased << 10) + steps));
}

}  // namespace opwright::simulator
