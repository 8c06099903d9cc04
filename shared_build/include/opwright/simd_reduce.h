// Sums, greatest and smallest lanes of a pack, in an order that only its width fixes.
#pragma once

#include "opwright/simd_core.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

struct Add {
  template <class V>
  OPWRIGHT_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  template <class V>
  OPWRIGHT_INLINE V operator()(V a, V b) const {
    return max(a, b);
  }
};
struct Min {
  template <class V>
  OPWRIGHT_INLINE V operator()(V a, V b) const {
    return min(a, b);
  }
};

template <class V, class Op>
OPWRIGHT_INLINE ElementOf<V> reduce(V v, Op op) {
  if constexpr (sizeof(V) > 16) {
    return reduce(op(split(v).low, split(v).high), op);
  } else if constexpr (kLanesOf<V> == 4) {
    v = op(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    v = op(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
    return v[0];
  } else {
    static_assert(kLanesOf<V> == 2);
    return op(v, __builtin_shufflevector(v, v, 1, 0))[0];
  }
}

/// Sum, greatest and smallest lane. The order is a fixed tree: lane i is combined with lane
/// i + n/2, the n/2 results likewise, and so on. NaN in any lane gives NaN.
template <Packed V>
OPWRIGHT_INLINE ElementOf<V> reduce_add(V v) {
  return reduce(v, Add{});
}
template <Packed V>
OPWRIGHT_INLINE ElementOf<V> reduce_max(V v) {
  return reduce(v, Max{});
}
template <Packed V>
OPWRIGHT_INLINE ElementOf<V> reduce_min(V v) {
  return reduce(v, Min{});
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
