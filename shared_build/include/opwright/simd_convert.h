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

// ---- the algorithms, for a float or a pack of floats --------------------------------------------

OPWRIGHT_INLINE std::uint32_t select(bool mask, std::uint32_t a, std::uint32_t b) {
  return mask ? a : b;
}

/// The bfloat16 of x, given by its bits, in the upper half of each lane; the lower half is not
/// cleared. The first takes any x but NaN.
template <class U>
OPWRIGHT_INLINE U number_in_upper_half(U u) {
  return u + (((u >> 16) & 1u) + 0x7fffu);
}
template <class U, class F>
OPWRIGHT_INLINE U bfloat16_in_upper_half(F x) {
  const U u = bits_as<U>(x);
  return select(x != x, u | 0x00400000u, number_in_upper_half(u));
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
  // The comparisons see `shifted` as a float, since SSE2 cannot compare unsigned integers.
  const F scale = bits_as<F>(shifted);
  U result = select(scale < 0x1p-126f, subnormal, normal);
  result = select(scale >= 0x1p-96f, infinite, result);
  result = select(scale > 0x1p-96f, infinite | 0x00400000u, result);
  return bits_as<F>(result | ((h & 0x8000u) << 16));
}

// ---- packs of 16-bit patterns -------------------------------------------------------------------

template <class W, int... I>
OPWRIGHT_INLINE W odd_lanes(W low, W high, Indices<I...>) {
  return __builtin_shufflevector(low, high, (2 * I + 1)...);
}

/// The upper 16 bits of the 32-bit lanes of `low`, then those of `high`.
template <Packed U>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(U)> upper_16(U low, U high) {
  using Words = Pack<std::uint16_t, sizeof(U)>;
  if constexpr (WiderThanNative<U>) {
    const auto l = split(low), h = split(high);
    return join(upper_16(l.low, l.high), upper_16(h.low, h.high));
  } else {
#if defined(__AVX2__)
    if constexpr (sizeof(U) == 32) {
      const __m256i l = bits_as<__m256i>(low >> 16), h = bits_as<__m256i>(high >> 16);
      return bits_as<Words>(_mm256_permute4x64_epi64(_mm256_packus_epi32(l, h), 0xd8));
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(U) == 16) {
      const __m128i l = _mm_srai_epi32(bits_as<__m128i>(low), 16);
      const __m128i h = _mm_srai_epi32(bits_as<__m128i>(high), 16);
      return bits_as<Words>(_mm_packs_epi32(l, h));
    }
#endif
    return odd_lanes(bits_as<Words>(low), bits_as<Words>(high), IndicesUpTo<kLanesOf<Words>>{});
  }
}
template <Packed U>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(U) / 2> upper_16(U u) {
  return split(upper_16(u, u)).low;
}

/// Bit patterns of the lanes of x (of low, then high), in their order.
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F) / 2> bfloat16_bits(F x) {
  return upper_16(bfloat16_in_upper_half<UnsignedOf<F>>(x));
}
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F)> bfloat16_bits(F low, F high) {
  using U = UnsignedOf<F>;
  // One comparison finds a NaN in either pack, and rounding without a thought for NaN is shorter.
  if (any_nan(low, high)) [[unlikely]]
    return upper_16(bfloat16_in_upper_half<U>(low), bfloat16_in_upper_half<U>(high));
  return upper_16(number_in_upper_half(bits_as<U>(low)), number_in_upper_half(bits_as<U>(high)));
}

#if defined(__SSE2__)
OPWRIGHT_INLINE __m128i in_low_half_of_register(Pack<std::uint16_t, 8> h) {
  return _mm_cvtsi64_si128(bits_as<std::int64_t>(h));
}
#endif

/// The 16-bit elements in the upper half of 32-bit lanes, above zeros.
template <Packed H>
OPWRIGHT_INLINE Pack<std::uint32_t, 2 * sizeof(H)> above_zeros(H h) {
  using U = Pack<std::uint32_t, 2 * sizeof(H)>;
  if constexpr (WiderThanNative<U>) {
    const auto parts = split(h);
    return join(above_zeros(parts.low), above_zeros(parts.high));
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(U) == 64)
      return bits_as<U>(_mm512_cvtepu16_epi32(bits_as<__m256i>(h))) << 16;
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(U) == 32)
      return bits_as<U>(_mm256_cvtepu16_epi32(bits_as<__m128i>(h))) << 16;
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(U) == 16)
      return bits_as<U>(_mm_unpacklo_epi16(_mm_setzero_si128(), in_low_half_of_register(h)));
#endif
    return __builtin_convertvector(h, U) << 16;
  }
}

template <Packed H>
OPWRIGHT_INLINE Pack<float, 2 * sizeof(H)> float_of_bfloat16_bits(H h) {
  return bits_as<Pack<float, 2 * sizeof(H)>>(above_zeros(h));
}

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
    return upper_16(half_in_lower_half<UnsignedOf<F>>(x) << 16);
#endif
  }
}
template <Packed F>
OPWRIGHT_INLINE Pack<std::uint16_t, sizeof(F)> half_bits(F low, F high) {
#if defined(__F16C__) || defined(__aarch64__)
  return join(half_bits(low), half_bits(high));
#else
  using U = UnsignedOf<F>;
  return upper_16(half_in_lower_half<U>(low) << 16, half_in_lower_half<U>(high) << 16);
#endif
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
    if constexpr (sizeof(F) == 16) return _mm_cvtph_ps(in_low_half_of_register(h));
#elif defined(__aarch64__)
    return vcvt_f32_f16(bits_as<float16x4_t>(h));
#else
    return float_of_half<F>(above_zeros(h) >> 16);
#endif
  }
}

// ---- one interface for the storage types --------------------------------------------------------

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

/// Lanes of double as float, rounded to nearest, and back. Never written lane by lane: gcc 12 takes
/// a vector put together from converted lanes for the vector itself and drops the rounding.
template <Packed D>
OPWRIGHT_INLINE Pack<float, sizeof(D) / 2> float_of_double(D x) {
  if constexpr (WiderThanNative<D>) {
    const auto part = split(x);
    return join(float_of_double(part.low), float_of_double(part.high));
  } else {
    return __builtin_convertvector(x, Pack<float, sizeof(D) / 2>);
  }
}
template <Packed F>
OPWRIGHT_INLINE Pack<double, 2 * sizeof(F)> double_of_float(F x) {
  using D = Pack<double, 2 * sizeof(F)>;
  if constexpr (WiderThanNative<D>) {
    const auto part = split(x);
    return join(double_of_float(part.low), double_of_float(part.high));
  } else {
    return __builtin_convertvector(x, D);
  }
}

/// Rounds each lane to the storage type S and back.
template <class S, Packed V>
OPWRIGHT_INLINE V round_to(V x) {
  using A = ElementOf<V>;
  if constexpr (kSame<S, A> || kSame<S, double>) {
    return x;
  } else if constexpr (kSame<S, float>) {
    return double_of_float(float_of_double(x));
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
