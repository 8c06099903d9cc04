// Loads and stores of storage types S (float, double, BFloat16, Half) as vectors of A (float,
// double), converted on the way. Addresses need only the alignment of S, except for stream2.
//
// The partial forms touch the first n elements only, never a byte beyond, so they may be used at
// the end of a mapping; they have no loop over elements and no copy of a variable size.
#pragma once

#include "opwright/simd_convert.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// ---- whole packs --------------------------------------------------------------------------------

template <class V>
OPWRIGHT_INLINE V load_pack(const void* from) {
  using Unaligned = typename PackType<ElementOf<V>, sizeof(V)>::unaligned;
  return *static_cast<const Unaligned*>(from);
}
template <class V>
OPWRIGHT_INLINE void store_pack(void* to, V v) {
  using Unaligned = typename PackType<ElementOf<V>, sizeof(V)>::unaligned;
  *static_cast<Unaligned*>(to) = v;
}

template <class T>
OPWRIGHT_INLINE T load_bits(const char* from) {
  T bits;
  __builtin_memcpy(&bits, from, sizeof(T));
  return bits;
}
template <class T>
OPWRIGHT_INLINE void store_bits(char* to, T bits) {
  __builtin_memcpy(to, &bits, sizeof(T));
}

// ---- n bytes of a pack --------------------------------------------------------------------------

/// The first n of the elements of Size bytes that make up a word of 8, 0 < n < 8 / Size, in the low
/// bytes; the rest zero.
template <int Size>
OPWRIGHT_INLINE std::uint64_t load_word(const char* from, int n) {
  if constexpr (Size == 4) {
    return load_bits<std::uint32_t>(from);
  } else {
    static_assert(Size == 2);
    if (n == 1) return load_bits<std::uint16_t>(from);
    const std::uint64_t two = load_bits<std::uint32_t>(from);
    return n == 2 ? two : two | std::uint64_t{load_bits<std::uint16_t>(from + 4)} << 32;
  }
}
template <int Size>
OPWRIGHT_INLINE void store_word(char* to, std::uint64_t bits, int n) {
  if constexpr (Size == 4) {
    store_bits(to, static_cast<std::uint32_t>(bits));
  } else {
    static_assert(Size == 2);
    if (n == 1) return store_bits(to, static_cast<std::uint16_t>(bits));
    store_bits(to, static_cast<std::uint32_t>(bits));
    if (n == 3) store_bits(to + 4, static_cast<std::uint16_t>(bits >> 32));
  }
}

/// The first n elements, 0 <= n < lanes, by loads of fixed size; the other lanes zero.
template <class V>
OPWRIGHT_INLINE V load_pieces(const char* from, int n) {
  constexpr int size = sizeof(ElementOf<V>), half = kLanesOf<V> / 2;
  if constexpr (sizeof(V) > 16) {
    using Part = typename Halves<V>::Part;
    if (n < half) return join(load_pieces<Part>(from, n), Part{});
    const Part first = load_pack<Part>(from);
    return join(first, n == half ? Part{} : load_pieces<Part>(from + size * half, n - half));
  } else if constexpr (sizeof(V) == 16) {
    std::uint64_t low = 0, high = 0;
    if (n >= half) {
      low = load_bits<std::uint64_t>(from);
      if constexpr (size < 8) {
        if (n > half) high = load_word<size>(from + 8, n - half);
      }
    } else if constexpr (size < 8) {
      if (n > 0) low = load_word<size>(from, n);
    }
    return bits_as<V>(Pack<std::uint64_t, 16>{low, high});
  } else {
    static_assert(sizeof(V) == 8 && size < 8);
    return bits_as<V>(n > 0 ? load_word<size>(from, n) : std::uint64_t{0});
  }
}
template <class V>
OPWRIGHT_INLINE void store_pieces(char* to, V v, int n) {
  constexpr int size = sizeof(ElementOf<V>), half = kLanesOf<V> / 2;
  if constexpr (sizeof(V) > 16) {
    const auto parts = split(v);
    if (n < half) return store_pieces(to, parts.low, n);
    store_pack(to, parts.low);
    if (n > half) store_pieces(to + size * half, parts.high, n - half);
  } else if constexpr (sizeof(V) == 16) {
    const auto words = bits_as<Pack<std::uint64_t, 16>>(v);
    if (n >= half) {
      store_bits(to, std::uint64_t{words[0]});
      if constexpr (size < 8) {
        if (n > half) store_word<size>(to + 8, words[1], n - half);
      }
    } else if constexpr (size < 8) {
      if (n > 0) store_word<size>(to, words[0], n);
    }
  } else {
    static_assert(sizeof(V) == 8 && size < 8);
    if (n > 0) store_word<size>(to, bits_as<std::uint64_t>(v), n);
  }
}

#if defined(__AVX512F__)
OPWRIGHT_INLINE std::uint32_t first_bits(int n) { return (std::uint32_t{1} << n) - 1; }
#endif

/// The first n elements (0 <= n < lanes), the other lanes zero.
template <class V>
OPWRIGHT_INLINE V load_pack_partial(const void* from, int n) {
  [[maybe_unused]] constexpr int element = sizeof(ElementOf<V>);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) == 64 && element == 4)
    return bits_as<V>(_mm512_maskz_loadu_epi32(first_bits(n), from));
  if constexpr (sizeof(V) == 64 && element == 8)
    return bits_as<V>(_mm512_maskz_loadu_epi64(first_bits(n), from));
  if constexpr (sizeof(V) == 32 && element == 2)
    return bits_as<V>(_mm256_maskz_loadu_epi16(first_bits(n), from));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && element == 4) {
    const Pack<std::int32_t, 32> mask = lane_numbers<Pack<std::int32_t, 32>>() < n;
    return bits_as<V>(_mm256_maskload_epi32(static_cast<const int*>(from), (__m256i)mask));
  }
  if constexpr (sizeof(V) == 32 && element == 8) {
    const Pack<std::int64_t, 32> mask = lane_numbers<Pack<std::int64_t, 32>>() < std::int64_t{n};
    return bits_as<V>(_mm256_maskload_pd(static_cast<const double*>(from), (__m256i)mask));
  }
#endif
  return load_pieces<V>(static_cast<const char*>(from), n);
}
template <class V>
OPWRIGHT_INLINE void store_pack_partial(void* to, V v, int n) {
  [[maybe_unused]] constexpr int element = sizeof(ElementOf<V>);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) == 64 && element == 4)
    return _mm512_mask_storeu_epi32(to, first_bits(n), bits_as<__m512i>(v));
  if constexpr (sizeof(V) == 64 && element == 8)
    return _mm512_mask_storeu_epi64(to, first_bits(n), bits_as<__m512i>(v));
  if constexpr (sizeof(V) == 32 && element == 2)
    return _mm256_mask_storeu_epi16(to, first_bits(n), bits_as<__m256i>(v));
#endif
  store_pieces(static_cast<char*>(to), v, n);
}

// ---- storage types ------------------------------------------------------------------------------

template <class S>
constexpr bool kIsLow = kSame<S, BFloat16> || kSame<S, Half>;

template <class S, class H>
OPWRIGHT_INLINE Pack<float, 2 * sizeof(H)> float_of_bits(H h) {
  if constexpr (kSame<S, BFloat16>) {
    return float_of_bfloat16_bits(h);
  } else {
    return float_of_half_bits(h);
  }
}
template <class S, class F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F) / 2> low_bits(F x) {
  if constexpr (kSame<S, BFloat16>) {
    return bfloat16_bits(x);
  } else {
    return half_bits(x);
  }
}
template <class S, class F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F)> low_bits(F low, F high) {
  if constexpr (kSame<S, BFloat16>) {
    return bfloat16_bits(low, high);
  } else {
    return half_bits(low, high);
  }
}

using LowBits = Pack<std::uint16_t, kVectorBytes / 2>;  // kLanes<float> 16-bit elements
using HalfFloats = Pack<float, kVectorBytes / 2>;       // kLanes<double> floats

/// kLanes<A> elements from `from`.
template <class A, class S>
OPWRIGHT_INLINE Vec<A> load(const S* from) {
  if constexpr (kSame<S, A>) {
    return load_pack<Vec<A>>(from);
  } else if constexpr (kSame<A, float> && kIsLow<S>) {
    return float_of_bits<S>(load_pack<LowBits>(from));
  } else if constexpr (kSame<S, float>) {
    return double_of_float(load_pack<HalfFloats>(from));
  } else {
    static_assert(kSame<A, double>);
    Vec<A> x{};
    for (int i = 0; i < kLanes<A>; ++i) x[i] = to_accumulate<A>(from[i]);
    return x;
  }
}

/// The first n elements, 0 < n < kLanes<A>; the other lanes are zero.
template <class A, class S>
OPWRIGHT_INLINE Vec<A> load_partial(const S* from, int n) {
  if constexpr (kSame<S, A>) {
    return load_pack_partial<Vec<A>>(from, n);
  } else if constexpr (kSame<A, float> && kIsLow<S>) {
    return float_of_bits<S>(load_pack_partial<LowBits>(from, n));
  } else if constexpr (kSame<S, float>) {
    return double_of_float(load_pack_partial<HalfFloats>(from, n));
  } else {
    static_assert(kSame<A, double>);
    Vec<A> x{};
    for (int i = 0; i < kLanes<A>; ++i)
      if (i < n) x[i] = to_accumulate<A>(from[i]);
    return x;
  }
}

/// All lanes, each rounded once to S.
template <class S, Packed V>
OPWRIGHT_INLINE void store(S* to, V x) {
  using A = ElementOf<V>;
  static_assert(sizeof(V) == kVectorBytes);
  if constexpr (kSame<S, A>) {
    store_pack(to, x);
  } else if constexpr (kSame<A, float> && kIsLow<S>) {
    store_pack(to, low_bits<S>(x));
  } else if constexpr (kSame<S, float>) {
    store_pack(to, float_of_double(x));
  } else {
    static_assert(kSame<A, double>);
    for (int i = 0; i < kLanes<A>; ++i) to[i] = from_accumulate<S>(x[i]);
  }
}

/// The first n lanes, 0 < n < kLanes<A>. Nothing behind them is written.
template <class S, Packed V>
OPWRIGHT_INLINE void store_partial(S* to, V x, int n) {
  using A = ElementOf<V>;
  static_assert(sizeof(V) == kVectorBytes);
  if constexpr (kSame<S, A>) {
    store_pack_partial(to, x, n);
  } else if constexpr (kSame<A, float> && kIsLow<S>) {
    store_pack_partial(to, low_bits<S>(x), n);
  } else if constexpr (kSame<S, float>) {
    store_pack_partial(to, float_of_double(x), n);
  } else {
    static_assert(kSame<A, double>);
    for (int i = 0; i < kLanes<A>; ++i)
      if (i < n) to[i] = from_accumulate<S>(x[i]);
  }
}

/// 2 * kLanes<A> elements; with a 16-bit S one full register is read.
template <class A, class S>
OPWRIGHT_INLINE void load2(const S* from, Vec<A>& low, Vec<A>& high) {
  low = load<A>(from);
  high = load<A>(from + kLanes<A>);
}

template <class V>
struct Two {
  V low, high;
};

/// What the 16-bit elements of a full register are as floats.
template <class S, class V, class H>
OPWRIGHT_INLINE Two<V> floats_of_bits(H bits) {
  const auto parts = split(bits);
  return {float_of_bits<S>(parts.low), float_of_bits<S>(parts.high)};
}

/// 2 * kLanes<A> elements; with a 16-bit S one full register is written. Returns what was written,
/// which costs less here than rounding twice.
template <class S, Packed V>
OPWRIGHT_INLINE Two<V> store2(S* to, V low, V high) {
  if constexpr (kSame<ElementOf<V>, float> && kIsLow<S>) {
    const auto bits = low_bits<S>(low, high);
    store_pack(to, bits);
    return floats_of_bits<S, V>(bits);
  } else {
    store(to, low);
    store(to + kLanesOf<V>, high);
    return {round_to<S>(low), round_to<S>(high)};
  }
}

// ---- stores that pass the caches by -------------------------------------------------------------

/// What `to` of stream2 must be a multiple of: the register that is written, whatever S and A.
constexpr int kStreamAlignment = kVectorBytes < kNativeBytes ? kVectorBytes : kNativeBytes;

template <class V>
OPWRIGHT_INLINE void stream_pack(void* to, V v) {
  if constexpr (WiderThanNative<V>) {
    const auto parts = split(v);
    stream_pack(to, parts.low);
    stream_pack(static_cast<char*>(to) + sizeof(parts.low), parts.high);
    return;
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64)
      return _mm512_stream_si512(static_cast<__m512i*>(to), bits_as<__m512i>(v));
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(V) == 32)
      return _mm256_stream_si256(static_cast<__m256i*>(to), bits_as<__m256i>(v));
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(V) == 16)
      return _mm_stream_si128(static_cast<__m128i*>(to), bits_as<__m128i>(v));
#elif defined(__clang__)
    __builtin_nontemporal_store(v, static_cast<V*>(to));
#else
    store_pack(to, v);
#endif
  }
}

/// store2 past the caches. `to` must be aligned to kStreamAlignment. Other threads see the data
/// only after stream_fence() in this thread.
template <class S, Packed V>
OPWRIGHT_INLINE Two<V> stream2(S* to, V low, V high) {
  using A = ElementOf<V>;
  if constexpr (kSame<A, float> && kIsLow<S>) {
    const auto bits = low_bits<S>(low, high);
    stream_pack(to, bits);
    return floats_of_bits<S, V>(bits);
  } else if constexpr (kSame<S, A>) {
    stream_pack(to, low);
    stream_pack(to + kLanesOf<V>, high);
    return {low, high};
  } else {
    return store2(to, low, high);
  }
}

/// Orders the stream2 calls of this thread before its later stores.
OPWRIGHT_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#else
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
