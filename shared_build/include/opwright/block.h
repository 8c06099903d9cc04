// Loops over contiguous data that read like the formula.
//
//   for_each_block<float>(n, [&](int64_t i, auto block) {
//     Pair<float> x = block.load(input + i);         // any storage type; two vectors at once
//     block.store(output + i, x * scale);
//   });
//
// Blocks are two vectors wide, since two vectors of floats make one full vector of bfloat16 or
// float16. The last block may be partial: it reads and writes its own elements only, and its other
// lanes are zero.
#pragma once

#include <cstdint>

#include "opwright/simd.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class A>
struct Pair {
  Vec<A> lo, hi;
  OPWRIGHT_INLINE friend Pair operator+(Pair a, Pair b) { return {a.lo + b.lo, a.hi + b.hi}; }
  OPWRIGHT_INLINE friend Pair operator-(Pair a, Pair b) { return {a.lo - b.lo, a.hi - b.hi}; }
  OPWRIGHT_INLINE friend Pair operator*(Pair a, Pair b) { return {a.lo * b.lo, a.hi * b.hi}; }
};

template <class A>
OPWRIGHT_INLINE Pair<A> pair(A x) {
  return {splat<A>(x), splat<A>(x)};
}

template <class A>
OPWRIGHT_INLINE Pair<A> fma(Pair<A> a, Pair<A> b, Pair<A> c) {
  return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
}

// Rounds to the storage type T and back.
template <class T, class A>
OPWRIGHT_INLINE Pair<A> round_to(Pair<A> x) {
  return {round_to<T>(x.lo), round_to<T>(x.hi)};
}

// Sum of all lanes, in an order that only the level fixes.
template <class A>
OPWRIGHT_INLINE A reduce_add(Pair<A> x) {
  return reduce_add(x.lo + x.hi);
}

template <class A>
constexpr int64_t kBlock = 2 * kLanes<A>;

// Asks for the block at `from`, which need not be readable.
template <class A, class S>
OPWRIGHT_INLINE void prefetch_block(const S* from) {
  constexpr int64_t kLine = 64, bytes = kBlock<A> * int64_t{sizeof(S)};
  for (int64_t offset = 0; offset < bytes; offset += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(from) + offset);
  }
}

template <class A>
struct FullBlock {
  template <class S>
  OPWRIGHT_INLINE Pair<A> load(const S* from) const {
    Pair<A> x;
    load2<A>(from, x.lo, x.hi);
    return x;
  }
  // Stores return what was stored: x, rounded to S.
  template <class S>
  OPWRIGHT_INLINE Pair<A> store(S* to, Pair<A> x) const {
    const auto [lo, hi] = store2(to, x.lo, x.hi);
    return {lo, hi};
  }
  // A store that passes the caches by; `to` must be aligned as stream2 asks.
  template <class S>
  OPWRIGHT_INLINE Pair<A> stream(S* to, Pair<A> x) const {
    const auto [lo, hi] = stream2(to, x.lo, x.hi);
    return {lo, hi};
  }
};

template <class A>
struct PartialBlock {
  int count;  // 1 to kBlock - 1

  template <class S>
  Pair<A> load(const S* from) const {
    constexpr int lanes = kLanes<A>;
    if (count <= lanes) return {load_some(from, count), splat<A>(0)};
    return {opwright::load<A>(from), load_some(from + lanes, count - lanes)};
  }
  template <class S>
  Pair<A> store(S* to, Pair<A> x) const {
    constexpr int lanes = kLanes<A>;
    store_some(to, x.lo, count < lanes ? count : lanes);
    if (count > lanes) store_some(to + lanes, x.hi, count - lanes);
    return round_to<S>(x);
  }
  template <class S>
  Pair<A> stream(S* to, Pair<A> x) const {
    return store(to, x);
  }

 private:
  template <class S>
  static Vec<A> load_some(const S* from, int n) {
    return n == kLanes<A> ? opwright::load<A>(from) : load_partial<A>(from, n);
  }
  template <class S>
  static void store_some(S* to, Vec<A> x, int n) {
    if (n == kLanes<A>) {
      opwright::store(to, x);
    } else {
      store_partial(to, x, n);
    }
  }
};

// Ends a range in which results were streamed: other threads see them from here on.
class FenceAtEnd {
 public:
  explicit FenceAtEnd(bool streamed) : streamed_(streamed) {}
  ~FenceAtEnd() {
    if (streamed_) stream_fence();
  }
  FenceAtEnd(const FenceAtEnd&) = delete;
  FenceAtEnd& operator=(const FenceAtEnd&) = delete;

 private:
  bool streamed_;
};

template <class A, class F>
OPWRIGHT_INLINE void for_each_block(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kBlock<A> <= n; i += kBlock<A>) f(i, FullBlock<A>{});
  if (i < n) f(i, PartialBlock<A>{static_cast<int>(n - i)});
}

// Sums over contiguous data: `step(i, block, sum)` returns `sum` with the block's terms added.
//
//   double squares = sum_over_blocks<float>(n, [&](int64_t i, auto block, Pair<float> sum) {
//     const Pair<float> v = block.load(x + i);
//     return fma(v, v, sum);
//   });
//
// A lane adds up kTerms terms at most before its sum goes to double, so the error does not grow
// with n: rounding errors that all have one sign, as in a row of equal values, would otherwise add
// up. Two sums are kept, so that one addition need not wait for the other. What enters which sum is
// fixed by n and the level.
template <class A, class Step>
OPWRIGHT_INLINE double sum_over_blocks(int64_t n, const Step& step) {
  constexpr int kTerms = 4;
  constexpr int64_t kGroup = 2 * kTerms * kBlock<A>;
  double total = 0;
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    Pair<A> even = pair<A>(0), odd = pair<A>(0);
    for (int term = 0; term < kTerms; ++term) {
      even = step(i + 2 * term * kBlock<A>, FullBlock<A>{}, even);
      odd = step(i + (2 * term + 1) * kBlock<A>, FullBlock<A>{}, odd);
    }
    total += static_cast<double>(reduce_add(even + odd));
  }
  Pair<A> even = pair<A>(0), odd = pair<A>(0);
  for (; i + 2 * kBlock<A> <= n; i += 2 * kBlock<A>) {
    even = step(i, FullBlock<A>{}, even);
    odd = step(i + kBlock<A>, FullBlock<A>{}, odd);
  }
  if (i + kBlock<A> <= n) {
    even = step(i, FullBlock<A>{}, even);
    i += kBlock<A>;
  }
  if (i < n) odd = step(i, PartialBlock<A>{static_cast<int>(n - i)}, odd);
  return total + static_cast<double>(reduce_add(even + odd));
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
