// Lanes of two vectors that alternate in memory, apart and together again: real and imaginary
// parts, gate and up, the pairs of a rotation.
#pragma once

#include "opwright/simd_memory.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class V, int... I>
OPWRIGHT_INLINE Two<V> separated_lanes(V low, V high, Indices<I...>) {
  return {__builtin_shufflevector(low, high, (2 * I)...),
          __builtin_shufflevector(low, high, (2 * I + 1)...)};
}
template <class V, int... I>
OPWRIGHT_INLINE Two<V> interleaved_lanes(V a, V b, Indices<I...>) {
  constexpr int lanes = kLanesOf<V>;
  return {__builtin_shufflevector(a, b, (I % 2 * lanes + I / 2)...),
          __builtin_shufflevector(a, b, (I % 2 * lanes + lanes / 2 + I / 2)...)};
}

/// The even lanes of low and high, then their odd lanes: x0 y0 x1 y1 ... gives all x, all y.
template <Packed V>
OPWRIGHT_INLINE Two<V> separated(V low, V high) {
  return separated_lanes(low, high, IndicesUpTo<kLanesOf<V>>{});
}

/// The inverse: a0 b0 a1 b1 ... in two vectors.
template <Packed V>
OPWRIGHT_INLINE Two<V> interleaved(V a, V b) {
  return interleaved_lanes(a, b, IndicesUpTo<kLanesOf<V>>{});
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
