// Interleaved pairs (a0, b0, a1, b1, ...) in blocks: swapped, taken apart and put together.
//
//   for_each_block<float>(pairs, [&](int64_t i, auto block) {
//     Pair<float> a, b;
//     load_pairs(x + 2 * i, block, a, b);  // as many pairs as the block has elements
//     store_pairs(y + 2 * i, block, b, a);
//   });
#pragma once

#include "opwright/block.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <Packed V, int... I>
OPWRIGHT_INLINE V swapped(V v, Indices<I...>) {
  return __builtin_shufflevector(v, v, (I ^ 1)...);
}
template <Packed V, int... I>
OPWRIGHT_INLINE V even_lanes(V low, V high, Indices<I...>) {
  return __builtin_shufflevector(low, high, (2 * I)...);
}
template <Packed V, int... I>
OPWRIGHT_INLINE V odd_lanes(V low, V high, Indices<I...>) {
  return __builtin_shufflevector(low, high, (2 * I + 1)...);
}
template <int kFirst, Packed V, int... I>
OPWRIGHT_INLINE V zipped(V a, V b, Indices<I...>) {
  constexpr int lanes = kLanesOf<V>;
  return __builtin_shufflevector(a, b, (I % 2 * lanes + kFirst + I / 2)...);
}

// The neighbours of interleaved pairs: (x1, x0, x3, x2, ...).
template <class A>
OPWRIGHT_INLINE Pair<A> swapped(Pair<A> x) {
  using I = IndicesUpTo<kLanes<A>>;
  return {swapped(x.lo, I{}), swapped(x.hi, I{})};
}

// The a's and b's of interleaved pairs (a0, b0, a1, b1, ...) in `low` and `high`, and back.
template <class A>
OPWRIGHT_INLINE void unzip(Pair<A> low, Pair<A> high, Pair<A>& a, Pair<A>& b) {
  using I = IndicesUpTo<kLanes<A>>;
  a = {even_lanes(low.lo, low.hi, I{}), even_lanes(high.lo, high.hi, I{})};
  b = {odd_lanes(low.lo, low.hi, I{}), odd_lanes(high.lo, high.hi, I{})};
}
template <class A>
OPWRIGHT_INLINE void zip(Pair<A> a, Pair<A> b, Pair<A>& low, Pair<A>& high) {
  using I = IndicesUpTo<kLanes<A>>;
  constexpr int half = kLanes<A> / 2;
  low = {zipped<0>(a.lo, b.lo, I{}), zipped<half>(a.lo, b.lo, I{})};
  high = {zipped<0>(a.hi, b.hi, I{}), zipped<half>(a.hi, b.hi, I{})};
}

// A block of interleaved pairs, as many as the block has elements.
template <class A, class S>
OPWRIGHT_INLINE void load_pairs(const S* from, FullBlock<A> block, Pair<A>& a, Pair<A>& b) {
  unzip(block.load(from), block.load(from + kBlock<A>), a, b);
}
template <class A, class S>
OPWRIGHT_INLINE void load_pairs(const S* from, PartialBlock<A> block, Pair<A>& a, Pair<A>& b) {
  const int n = 2 * block.count, whole = static_cast<int>(kBlock<A>);
  if (n < whole) return unzip(PartialBlock<A>{n}.load(from), pair<A>(0), a, b);
  const Pair<A> low = FullBlock<A>{}.load(from);
  unzip(low, n == whole ? pair<A>(0) : PartialBlock<A>{n - whole}.load(from + whole), a, b);
}
template <class A, class S>
OPWRIGHT_INLINE void store_pairs(S* to, FullBlock<A> block, Pair<A> a, Pair<A> b) {
  Pair<A> low, high;
  zip(a, b, low, high);
  block.store(to, low);
  block.store(to + kBlock<A>, high);
}
template <class A, class S>
OPWRIGHT_INLINE void store_pairs(S* to, PartialBlock<A> block, Pair<A> a, Pair<A> b) {
  const int n = 2 * block.count, whole = static_cast<int>(kBlock<A>);
  Pair<A> low, high;
  zip(a, b, low, high);
  if (n < whole) {
    PartialBlock<A>{n}.store(to, low);
    return;
  }
  FullBlock<A>{}.store(to, low);
  if (n > whole) PartialBlock<A>{n - whole}.store(to + whole, high);
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
