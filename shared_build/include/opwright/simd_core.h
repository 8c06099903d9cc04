// Vectors of the level's width on the compiler's vector extensions, and what arithmetic needs
// beyond the operators: splat, fma, sqrt, abs, min, max, select, tests of masks.
//
//   Vec<A>   kLanes<A> lanes of A, A in {float, double}: + - * / and comparisons are operators
//   Mask<A>  what a comparison gives: integers of A's width, every bit of a lane set or none
//
// Functions take packs of any width as well as Vec<A>, so that a wider pack than the machine's
// registers can be worked on in halves (OPWRIGHT_VECTOR_BYTES = 64 without AVX-512 does so).
//
// Numerics: fma is fused wherever the level has the instruction (every level but x86-64 baseline)
// and otherwise rounds twice. sqrt is correctly rounded. No function changes or reads the
// floating-point environment.
//
// Everything is in an unnamed namespace and is inlined at every optimisation level: a kernel
// object may hold no symbol that the linker could merge with another level's.
#pragma once

#include <cstdint>

#include "opwright/isa.h"
#include "opwright/types.h"

#if defined(__SSE2__)
// gcc 12 warns of the undefined values in its own AVX-512 header wherever they are inlined.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(OPWRIGHT_ISA) || !defined(OPWRIGHT_VECTOR_BYTES)
#error "compile kernel files with -DOPWRIGHT_ISA=<isa namespace> -DOPWRIGHT_VECTOR_BYTES=<16|32|64>"
#endif
#if OPWRIGHT_VECTOR_BYTES != 16 && OPWRIGHT_VECTOR_BYTES != 32 && OPWRIGHT_VECTOR_BYTES != 64
#error "OPWRIGHT_VECTOR_BYTES must be 16, 32 or 64"
#endif
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Vectors wider than the target's registers never cross a real call, so their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

// nothrow keeps the reference to the C++ personality routine, a weak symbol, out of gcc's objects;
// clang would add its own weak symbol for it.
#if defined(__clang__)
#define OPWRIGHT_INLINE inline __attribute__((always_inline))
#else
#define OPWRIGHT_INLINE inline __attribute__((always_inline, nothrow))
#endif

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// ---- types ------------------------------------------------------------------------------------

template <class E, int Bytes>
struct PackType {
  typedef E type __attribute__((vector_size(Bytes)));
  typedef E unaligned __attribute__((vector_size(Bytes), aligned(alignof(E)), may_alias));
};

/// `Bytes` bytes of elements E in one vector.
template <class E, int Bytes>
using Pack = typename PackType<E, Bytes>::type;

constexpr int kVectorBytes = OPWRIGHT_VECTOR_BYTES;

/// The widest register that this file may use.
#if defined(__AVX512F__)
constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = 16;
#endif

template <class A>
using Vec = Pack<A, kVectorBytes>;
template <class A>
constexpr int kLanes = kVectorBytes / int{sizeof(A)};

template <int Size>
struct IntegersOfSize;
template <>
struct IntegersOfSize<4> {
  using Signed = std::int32_t;
  using Unsigned = std::uint32_t;
};
template <>
struct IntegersOfSize<8> {
  using Signed = std::int64_t;
  using Unsigned = std::uint64_t;
};
template <class A>
using Mask = Pack<typename IntegersOfSize<sizeof(A)>::Signed, kVectorBytes>;

template <class V>
concept Packed = requires(V v) {
  v[0];
  v + v;
  requires !__is_class(V);
  requires sizeof(V) >= 8;
};

template <Packed V>
OPWRIGHT_INLINE auto first_lane(V v) {
  return v[0];
}
template <class V>
using ElementOf = decltype(first_lane(V{}));
template <class V>
constexpr int kLanesOf = sizeof(V) / sizeof(ElementOf<V>);
template <class V>
using SignedOf = Pack<typename IntegersOfSize<sizeof(ElementOf<V>)>::Signed, sizeof(V)>;
template <class V>
using UnsignedOf = Pack<typename IntegersOfSize<sizeof(ElementOf<V>)>::Unsigned, sizeof(V)>;

template <class T, class U>
constexpr bool kSame = false;
template <class T>
constexpr bool kSame<T, T> = true;

template <class V>
concept WiderThanNative = Packed<V> && (sizeof(V) > kNativeBytes);

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};
template <int N>
using IndicesUpTo = typename MakeIndices<N>::type;

// ---- building and taking apart ------------------------------------------------------------------

/// The same bits as another type.
template <class To, class From>
OPWRIGHT_INLINE To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class V, int... I>
OPWRIGHT_INLINE V fill_lanes(ElementOf<V> x, Indices<I...>) {
  return V{((void)I, x)...};
}
template <class V, int... I>
OPWRIGHT_INLINE V count_lanes(Indices<I...>) {
  return V{static_cast<ElementOf<V>>(I)...};
}

/// Every lane x.
template <Packed V>
OPWRIGHT_INLINE V fill(ElementOf<V> x) {
  return fill_lanes<V>(x, IndicesUpTo<kLanesOf<V>>{});
}
template <class A>
OPWRIGHT_INLINE Vec<A> splat(A x) {
  return fill<Vec<A>>(x);
}

/// 0, 1, 2, ...
template <Packed V>
OPWRIGHT_INLINE V lane_numbers() {
  return count_lanes<V>(IndicesUpTo<kLanesOf<V>>{});
}

template <class V>
struct Halves {
  using Part = Pack<ElementOf<V>, sizeof(V) / 2>;
  Part low, high;
};

// Halves are moved as 64-bit elements: whole registers, for which one instruction is enough.
template <class W, int... I>
OPWRIGHT_INLINE Halves<W> split_words(W w, Indices<I...>) {
  constexpr int half = sizeof...(I);
  return {__builtin_shufflevector(w, w, I...), __builtin_shufflevector(w, w, (I + half)...)};
}
template <class H, int... I>
OPWRIGHT_INLINE auto join_words(H low, H high, Indices<I...>) {
  return __builtin_shufflevector(low, high, I...);
}

/// The lower and the upper half of the lanes; join is its inverse.
template <Packed V>
OPWRIGHT_INLINE Halves<V> split(V v) {
  if constexpr (WiderThanNative<V>) {
    return bits_as<Halves<V>>(v);  // a shuffle of such vectors is done lane by lane
  } else {
    using Part = typename Halves<V>::Part;
    constexpr int words = sizeof(V) / 8;
    const auto parts =
        split_words(bits_as<Pack<std::int64_t, sizeof(V)>>(v), IndicesUpTo<words / 2>{});
    return {bits_as<Part>(parts.low), bits_as<Part>(parts.high)};
  }
}
template <Packed H>
OPWRIGHT_INLINE auto join(H low, H high) {
  using V = Pack<ElementOf<H>, 2 * sizeof(H)>;
  if constexpr (WiderThanNative<V>) {
    return bits_as<V>(Halves<V>{low, high});
  } else {
    using W = Pack<std::int64_t, sizeof(H)>;
    return bits_as<V>(join_words(bits_as<W>(low), bits_as<W>(high), IndicesUpTo<sizeof(V) / 8>{}));
  }
}

// ---- arithmetic ---------------------------------------------------------------------------------

/// a * b + c: one rounding where kFusedMultiplyAdd, else two.
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFusedMultiplyAdd = true;
#else
constexpr bool kFusedMultiplyAdd = false;
#endif

// clang-format off
#if defined(__FMA__)
OPWRIGHT_INLINE Pack<float, 16> fma(Pack<float, 16> a, Pack<float, 16> b, Pack<float, 16> c) { return _mm_fmadd_ps(a, b, c); }
OPWRIGHT_INLINE Pack<double, 16> fma(Pack<double, 16> a, Pack<double, 16> b, Pack<double, 16> c) { return _mm_fmadd_pd(a, b, c); }
OPWRIGHT_INLINE Pack<float, 32> fma(Pack<float, 32> a, Pack<float, 32> b, Pack<float, 32> c) { return _mm256_fmadd_ps(a, b, c); }
OPWRIGHT_INLINE Pack<double, 32> fma(Pack<double, 32> a, Pack<double, 32> b, Pack<double, 32> c) { return _mm256_fmadd_pd(a, b, c); }
#if defined(__AVX512F__)
OPWRIGHT_INLINE Pack<float, 64> fma(Pack<float, 64> a, Pack<float, 64> b, Pack<float, 64> c) { return _mm512_fmadd_ps(a, b, c); }
OPWRIGHT_INLINE Pack<double, 64> fma(Pack<double, 64> a, Pack<double, 64> b, Pack<double, 64> c) { return _mm512_fmadd_pd(a, b, c); }
#endif
#elif defined(__aarch64__)
OPWRIGHT_INLINE Pack<float, 16> fma(Pack<float, 16> a, Pack<float, 16> b, Pack<float, 16> c) { return vfmaq_f32(c, a, b); }
OPWRIGHT_INLINE Pack<double, 16> fma(Pack<double, 16> a, Pack<double, 16> b, Pack<double, 16> c) { return vfmaq_f64(c, a, b); }
#else
OPWRIGHT_INLINE Pack<float, 16> fma(Pack<float, 16> a, Pack<float, 16> b, Pack<float, 16> c) { return a * b + c; }
OPWRIGHT_INLINE Pack<double, 16> fma(Pack<double, 16> a, Pack<double, 16> b, Pack<double, 16> c) { return a * b + c; }
#endif

#if defined(__SSE2__)
OPWRIGHT_INLINE Pack<float, 16> sqrt(Pack<float, 16> x) { return _mm_sqrt_ps(x); }
OPWRIGHT_INLINE Pack<double, 16> sqrt(Pack<double, 16> x) { return _mm_sqrt_pd(x); }
#elif defined(__aarch64__)
OPWRIGHT_INLINE Pack<float, 16> sqrt(Pack<float, 16> x) { return vsqrtq_f32(x); }
OPWRIGHT_INLINE Pack<double, 16> sqrt(Pack<double, 16> x) { return vsqrtq_f64(x); }
#endif
#if defined(__AVX2__)
OPWRIGHT_INLINE Pack<float, 32> sqrt(Pack<float, 32> x) { return _mm256_sqrt_ps(x); }
OPWRIGHT_INLINE Pack<double, 32> sqrt(Pack<double, 32> x) { return _mm256_sqrt_pd(x); }
#endif
#if defined(__AVX512F__)
OPWRIGHT_INLINE Pack<float, 64> sqrt(Pack<float, 64> x) { return _mm512_sqrt_ps(x); }
OPWRIGHT_INLINE Pack<double, 64> sqrt(Pack<double, 64> x) { return _mm512_sqrt_pd(x); }
#endif
// clang-format on

template <WiderThanNative V>
OPWRIGHT_INLINE V fma(V a, V b, V c) {
  const auto x = split(a), y = split(b), z = split(c);
  return join(fma(x.low, y.low, z.low), fma(x.high, y.high, z.high));
}
template <WiderThanNative V>
OPWRIGHT_INLINE V sqrt(V v) {
  const auto x = split(v);
  return join(sqrt(x.low), sqrt(x.high));
}

/// Lane by lane `mask ? a : b`. `mask` is the result of a comparison.
template <Packed M, Packed V>
OPWRIGHT_INLINE V select(M mask, V a, V b) {
  return mask ? a : b;
}

/// Clears the sign, of NaN too.
template <Packed V>
OPWRIGHT_INLINE V abs(V x) {
  using U = UnsignedOf<V>;
  return bits_as<V>(bits_as<U>(x) & (~U{} >> 1));
}

// a > b ? a : b and a < b ? a : b, so b when either is NaN. They are instructions on x86, which
// gcc misses where it can merge the choice with another.
template <Packed V>
OPWRIGHT_INLINE V greater_or_second(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (kSame<V, Pack<float, 64>>) return _mm512_max_ps(a, b);
  if constexpr (kSame<V, Pack<double, 64>>) return _mm512_max_pd(a, b);
#endif
#if defined(__AVX2__)
  if constexpr (kSame<V, Pack<float, 32>>) return _mm256_max_ps(a, b);
  if constexpr (kSame<V, Pack<double, 32>>) return _mm256_max_pd(a, b);
#endif
#if defined(__SSE2__)
  if constexpr (kSame<V, Pack<float, 16>>) return _mm_max_ps(a, b);
  if constexpr (kSame<V, Pack<double, 16>>) return _mm_max_pd(a, b);
#endif
  return a > b ? a : b;
}
template <Packed V>
OPWRIGHT_INLINE V lesser_or_second(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (kSame<V, Pack<float, 64>>) return _mm512_min_ps(a, b);
  if constexpr (kSame<V, Pack<double, 64>>) return _mm512_min_pd(a, b);
#endif
#if defined(__AVX2__)
  if constexpr (kSame<V, Pack<float, 32>>) return _mm256_min_ps(a, b);
  if constexpr (kSame<V, Pack<double, 32>>) return _mm256_min_pd(a, b);
#endif
#if defined(__SSE2__)
  if constexpr (kSame<V, Pack<float, 16>>) return _mm_min_ps(a, b);
  if constexpr (kSame<V, Pack<double, 16>>) return _mm_min_pd(a, b);
#endif
  return a < b ? a : b;
}

/// The greater (smaller) of a and b. NaN if either is NaN. Of two zeros, b, whatever the signs.
template <Packed V>
OPWRIGHT_INLINE V max(V a, V b) {
  return a != a ? a : greater_or_second(a, b);
}
template <Packed V>
OPWRIGHT_INLINE V min(V a, V b) {
  return a != a ? a : lesser_or_second(a, b);
}

// ---- masks --------------------------------------------------------------------------------------

/// True if some lane of a mask is set.
template <Packed M>
OPWRIGHT_INLINE bool any(M mask) {
  if constexpr (sizeof(M) > kNativeBytes) {
    return any(split(mask).low | split(mask).high);
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(M) == 64) return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(M) == 32) return _mm256_movemask_epi8((__m256i)mask) != 0;
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(M) == 16) return _mm_movemask_epi8((__m128i)mask) != 0;
#elif defined(__aarch64__)
    if constexpr (sizeof(M) == 16) return vmaxvq_u32((uint32x4_t)mask) != 0;
#endif
  }
}

/// True if some lane of a or b is NaN.
template <Packed V>
OPWRIGHT_INLINE bool any_nan(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (kSame<V, Pack<float, 64>>) return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
#endif
#if defined(__AVX2__)
  if constexpr (kSame<V, Pack<float, 32>>)
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
#endif
#if defined(__SSE2__)
  if constexpr (kSame<V, Pack<float, 16>>) return _mm_movemask_ps(_mm_cmpunord_ps(a, b)) != 0;
#endif
  return any((a != a) | (b != b));
}

/// True if every lane of a mask is set.
template <Packed M>
OPWRIGHT_INLINE bool all(M mask) {
  return !any(~mask);
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
