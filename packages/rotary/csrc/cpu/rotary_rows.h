// One row of q or k, rotated by angles that are at hand in the arithmetic's type. Formula:
// rotary.h.
//
// The angles of a row come as two arrays in the order of the columns that are written, so that each
// result is one product and one fused product: y[j] = x[j] * c[j] + x[partner of j] * s[j], with
// the sign in s. The exact order of operations is the same in every loop here, so the bits depend
// neither on where a vector ends nor on which loop ran.
#pragma once

#include "opwright/dispatch.h"
#include "opwright/pairs.h"
#include "rotary.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class A>
OPWRIGHT_INLINE Pair<A> negated(Pair<A> x) {
  return {-x.lo, -x.hi};
}

// ---- stores -------------------------------------------------------------------------------------

// Streaming stores need whole vectors at aligned addresses, and pay only where they fill lines.
constexpr int64_t kLineBytes = 64;

template <class S>
bool fills_lines(const S* to, int64_t count) {
  return reinterpret_cast<uintptr_t>(to) % kLineBytes == 0 &&
         count * int64_t{sizeof(S)} % kLineBytes == 0;
}

template <bool kStream, class A, class S, class Block>
OPWRIGHT_INLINE void write(S* to, Pair<A> x, Block block) {
  if constexpr (kStream) {
    block.stream(to, x);
  } else {
    block.store(to, x);
  }
}

// ---- rows ---------------------------------------------------------------------------------------

template <int kSize>
struct BitsOfSize;
template <>
struct BitsOfSize<2> {
  using type = uint16_t;
};
template <>
struct BitsOfSize<4> {
  using type = uint32_t;
};
template <>
struct BitsOfSize<8> {
  using type = uint64_t;
};

// Copies n elements bit by bit, NaN payloads too.
template <class S>
void copy_columns(const S* from, S* to, int64_t n, bool stream) {
  using Bits = Pack<typename BitsOfSize<sizeof(S)>::type, kVectorBytes>;
  constexpr int64_t lanes = kVectorBytes / int64_t{sizeof(S)};
  if (from == to) return;
  int64_t i = 0;
  if (stream && fills_lines(to, n)) {
    for (; i + lanes <= n; i += lanes) stream_pack(to + i, load_pack<Bits>(from + i));
  } else {
    for (; i + lanes <= n; i += lanes) store_pack(to + i, load_pack<Bits>(from + i));
  }
  for (; i < n; ++i) to[i] = from[i];
}

// Pairs (i, i + half); c and s have 2 * half values. `same`: both columns of a pair have the same
// angle, so that half of the table is enough.
template <bool kSameAngles, bool kStream, class A, class S>
OPWRIGHT_INLINE void rotate_halves(const S* x, S* y, const A* c, const A* s, int64_t half) {
  for_each_block<A>(half, [=](int64_t i, auto block) {
    const Pair<A> a = block.load(x + i), b = block.load(x + half + i);
    const Pair<A> cos_a = block.load(c + i), sin_a = block.load(s + i);
    const Pair<A> cos_b = kSameAngles ? cos_a : block.load(c + half + i);
    const Pair<A> sin_b = kSameAngles ? negated(sin_a) : block.load(s + half + i);
    write<kStream>(y + i, fma(a, cos_a, b * sin_a), block);
    write<kStream>(y + half + i, fma(b, cos_b, a * sin_b), block);
  });
}

template <class A, class S>
void rotate_halves(const S* x, S* y, const A* c, const A* s, int64_t half, bool same, bool stream) {
  if (stream && fills_lines(y, half)) {
    if (same) return rotate_halves<true, true>(x, y, c, s, half);
    return rotate_halves<false, true>(x, y, c, s, half);
  }
  if (same) return rotate_halves<true, false>(x, y, c, s, half);
  rotate_halves<false, false>(x, y, c, s, half);
}

// Pairs (2i, 2i + 1) of n columns; c and s are in the order of the columns.
template <bool kStream, class A, class S>
OPWRIGHT_INLINE void rotate_neighbours(const S* x, S* y, const A* c, const A* s, int64_t n) {
  for_each_block<A>(n, [=](int64_t i, auto block) {
    const Pair<A> v = block.load(x + i);
    write<kStream>(y + i, fma(v, block.load(c + i), swapped(v) * block.load(s + i)), block);
  });
}

template <class A, class S>
void rotate_neighbours(const S* x, S* y, const A* c, const A* s, int64_t n, bool stream) {
  if (stream && fills_lines(y, n)) return rotate_neighbours<true>(x, y, c, s, n);
  rotate_neighbours<false>(x, y, c, s, n);
}

// Reads pairs (2i, 2i + 1) and writes (i, i + half). y is memory apart from x.
template <class A, class S>
void rotate_to_halves(const S* x, S* y, const A* c, const A* s, int64_t half) {
  for_each_block<A>(half, [=](int64_t i, auto block) {
    Pair<A> a, b;
    load_pairs(x + 2 * i, block, a, b);
    block.store(y + i, fma(a, block.load(c + i), b * block.load(s + i)));
    block.store(y + half + i, fma(b, block.load(c + half + i), a * block.load(s + half + i)));
  });
}

// Reads pairs (i, i + half) and writes (2i, 2i + 1); c and s are in the order of what is read.
template <class A, class S>
void rotate_to_neighbours(const S* x, S* y, const A* c, const A* s, int64_t half) {
  for_each_block<A>(half, [=](int64_t i, auto block) {
    const Pair<A> a = block.load(x + i), b = block.load(x + half + i);
    const Pair<A> first = fma(a, block.load(c + i), b * block.load(s + i));
    const Pair<A> second = fma(b, block.load(c + half + i), a * block.load(s + half + i));
    store_pairs(y + 2 * i, block, first, second);
  });
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
