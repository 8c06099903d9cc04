// Conversions between float and the 16-bit formats, for vectors and for single values.
//
// To bfloat16 and float16: nearest, ties to even; beyond the largest finite value to infinity; NaN
// stays NaN, quiet, with its sign and the top bits of its payload; float16 subnormals are exact to
// the rounding. From them: exact, a signalling NaN becomes quiet from float16 and stays as it is
// from bfloat16. Every level gives the same bits. The AVX512-BF16 instruction is not used: it takes
// subnormals for zero.
//
// double to a 16-bit format rounds once: the step through float rounds to odd.
#pragma once

#include "opwright/simd_core.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// ---- the algorithms, for a float or a pack of floats
// ----------------------------------------------

OPWRIGHT_INLINE std::uint32_t select(bool mask, std::uint32_t a, std::uint32_t b) {
  return mask ? a : b;
}

/// The bfloat16 of x in the upper half of each lane; the lower half is not cleared.
template <class U, class F>
OPWRIGHT_INLINE U bfloat16_in_upper_half(F x) {
  const U u = bits_as<U>(x);
  const U rounded = u + (((u >> 16) & 1u) + 0x7fffu);
  return select(x != x, u | 0x00400000u, rounded);
}

/// The float16 of x in the lower half of each lane; the upper half is zero.
template <class U, class F>
OPWRIGHT_INLINE U half_in_lower_half(F x) {
  const U u = bits_as<U>(x);
  const U magnitude = u & 0x7fffffffu;
  const F a = bits_as<F>(magnitude);
  // Normal: the exponent moves by 127 - 15; the carry of the rounding may reach infinity.
  const U normal = (magnitude + (((magnitude >> 13) & 1u) + (0xfffu - (112u << 23)))) >> 13;
  // Below 2^-14: adding 0.5 makes the float adder round at 2^-24, the last place of a subnormal.
  const U subnormal = bits_as<U>(a + 0.5f) - 0x3f000000u;
  const U nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  U result = select(a < 0x1p-14f, subnormal, normal);
  result = select(a >= 0x1p16f, U{} + 0x7c00u, result);
  result = select(x != x, nan, result);
  return result | ((u >> 16) & 0x8000u);
}

/// The float of the float16 in the lower half of h, whose upper half is zero.
template <class F, class U>
OPWRIGHT_INLINE F float_of_half(U h) {
  const U shifted = (h & 0x7fffu) << 13;
  const U normal = shifted + (112u << 23);
  // Subnormal: 2^-14 + m * 2^-24 has m in its mantissa; taking 2^-14 away normalises it.
  const F above = bits_as<F>(shifted + (113u << 23));
  const U subnormal = bits_as<U>(above - 0x1p-14f);
  const U infinite = shifted + (224u << 23);
  U result = select(shifted < (1u << 23), subnormal, normal);
  result = select(shifted >= (31u << 23), infinite, result);
  result = select(shifted > (31u << 23), infinite | 0x00400000u, result);
  return bits_as<F>(result | ((h & 0x8000u) << 16));
}

// ---- packs of 16-bit patterns
// ---------------------------------------------------------------------

template <class V, int... I>
OPWRIGHT_INLINE auto odd_lanes(V low, V high, Indices<I...>) {
  return __builtin_shufflevector(low, high, (2 * I + 1)...);
}
template <class V, int... I>
OPWRIGHT_INLINE auto even_lanes(V low, V high, Indices<I...>) {
  return __builtin_shufflevector(low, high, (2 * I)...);
}

/// The lower (upper) 16 bits of the lanes of one vector of 32-bit integers.
template <Packed U>
OPWRIGHT_INLINE auto lower_16(U u) {
  return __builtin_convertvector(u, Pack<std::uint16_t, sizeof(U) / 2>);
}

/// Bit patterns of the lanes of x, in their order.
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F) / 2> bfloat16_bits(F x) {
  return lower_16(bfloat16_in_upper_half<UnsignedOf<F>>(x) >> 16);
}
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F)> bfloat16_bits(F low, F high) {
  if constexpr (WiderThanNative<F>) {
    return join(bfloat16_bits(low), bfloat16_bits(high));
  } else {
    using U = UnsignedOf<F>;
    using Words = Pack<std::uint16_t, sizeof(F)>;
    const Words l = bits_as<Words>(bfloat16_in_upper_half<U>(low));
    const Words h = bits_as<Words>(bfloat16_in_upper_half<U>(high));
    return odd_lanes(l, h, IndicesUpTo<kLanesOf<Words>>{});
  }
}

template <Packed H>
OPWRIGHT_INLINE Pack<float, 2 * sizeof(H)> float_of_bfloat16_bits(H h) {
  using U = Pack<std::uint32_t, 2 * sizeof(H)>;
  return bits_as<Pack<float, 2 * sizeof(H)>>(__builtin_convertvector(h, U) << 16);
}

#if defined(__SSE2__)
OPWRIGHT_INLINE __m128i widen_to_register(Pack<std::uint16_t, 8> h) {
  return _mm_set_epi64x(0, bits_as<std::int64_t>(h));
}
#endif

template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F) / 2> half_bits(F x) {
  using H [[maybe_unused]] = Pack<std::uint16_t, sizeof(F) / 2>;
  if constexpr (WiderThanNative<F>) {
    const auto parts = split(x);
    return join(half_bits(parts.low), half_bits(parts.high));
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(F) == 64)
      return bits_as<H>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
#if defined(__F16C__)
    if constexpr (sizeof(F) == 32) return bits_as<H>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    if constexpr (sizeof(F) == 16)
      return bits_as<Halves<Pack<std::uint16_t, 16>>>(_mm_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
          .low;
#elif defined(__aarch64__)
    return bits_as<H>(vcvt_f16_f32(x));
#else
    return lower_16(half_in_lower_half<UnsignedOf<F>>(x));
#endif
  }
}
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F)> half_bits(F low, F high) {
  return join(half_bits(low), half_bits(high));
}

template <Packed H>
OPWRIGHT_INLINE Pack<float, 2 * sizeof(H)> float_of_half_bits(H h) {
  using F = Pack<float, 2 * sizeof(H)>;
  if constexpr (WiderThanNative<F>) {
    const auto parts = split(h);
    return join(float_of_half_bits(parts.low), float_of_half_bits(parts.high));
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(F) == 64) return _mm512_cvtph_ps(bits_as<__m256i>(h));
#endif
#if defined(__F16C__)
    if constexpr (sizeof(F) == 32) return _mm256_cvtph_ps(bits_as<__m128i>(h));
    if constexpr (sizeof(F) == 16) return _mm_cvtph_ps(widen_to_register(h));
#elif defined(__aarch64__)
    return vcvt_f32_f16(bits_as<float16x4_t>(h));
#else
    return float_of_half<F>(__builtin_convertvector(h, UnsignedOf<F>));
#endif
  }
}

// ---- one interface for the storage types
// -----------------------------------------------------------

/// double to float, to odd: where inexact, the neighbour with an odd last bit. Rounding that to 16
/// bits gives what rounding x itself would. Overflow gives the largest finite float.
OPWRIGHT_INLINE float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  std::uint32_t bits = bits_as<std::uint32_t>(nearest);
  if (back != x && x == x && (bits & 1u) == 0) {
    const bool too_far = x < 0 ? back < x : back > x;
    bits += too_far ? ~0u : 1u;
  }
  return bits_as<float>(bits);
}

OPWRIGHT_INLINE float to_float(float x) { return x; }
OPWRIGHT_INLINE double to_float(double x) { return x; }
OPWRIGHT_INLINE float to_float(BFloat16 x) { return bits_as<float>(std::uint32_t{x.bits} << 16); }
OPWRIGHT_INLINE float to_float(Half x) { return float_of_half<float>(std::uint32_t{x.bits}); }

/// An element of storage type S as the type a kernel computes in. Exact for S narrower than A.
template <class A, class S>
OPWRIGHT_INLINE A to_accumulate(S x) {
  return static_cast<A>(to_float(x));
}

/// x rounded once to the storage type S.
template <class S, class A>
OPWRIGHT_INLINE S from_accumulate(A x) {
  if constexpr (kSame<S, float> || kSame<S, double>) {
    return static_cast<S>(x);
  } else if constexpr (kSame<A, double>) {
    return from_accumulate<S>(round_to_odd(x));
  } else if constexpr (kSame<S, BFloat16>) {
    return {static_cast<std::uint16_t>(bfloat16_in_upper_half<std::uint32_t>(x) >> 16)};
  } else {
    return {static_cast<std::uint16_t>(half_in_lower_half<std::uint32_t>(x))};
  }
}

/// Rounds each lane to the storage type S and back.
template <class S, Packed V>
OPWRIGHT_INLINE V round_to(V x) {
  using A = ElementOf<V>;
  if constexpr (kSame<S, A> || kSame<S, double>) {
    return x;
  } else if constexpr (kSame<A, double>) {
    V y{};
    for (int i = 0; i < kLanesOf<V>; ++i) y[i] = to_accumulate<double>(from_accumulate<S>(x[i]));
    return y;
  } else if constexpr (kSame<S, BFloat16>) {
    return bits_as<V>(bfloat16_in_upper_half<UnsignedOf<V>>(x) & 0xffff0000u);
  } else {
    static_assert(kSame<S, Half>);
    return float_of_half_bits(half_bits(x));
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
