// sin and cos of packs of float and double for every finite argument. Bounds:
// docs/design/numerics.md.
//
// x = n * pi/2 + r with |r| <= pi/4 (a little more at the far end), r as a sum of two numbers.
// Up to Table::kTrigonometricEnd pi/2 in three or four parts is enough (Cody and Waite); beyond,
// lanes are reduced one by one with as many bits of 2/pi as the exponent asks for (Payne and
// Hanek), which is exact but slow.
#pragma once

#include "opwright/simd_math_exp.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

/// r = high + low and, in the low bits of quadrant, n.
template <class V, class U = UnsignedOf<V>>
struct PiReduced {
  V high, low;
  U quadrant;
};

template <class V>
struct TwoParts {
  V high, low;
};

/// a - b, rounded, and the rounding error: their sum is exact whatever a and b are.
template <class V>
OPWRIGHT_INLINE TwoParts<V> exact_difference(V a, V b) {
  const V difference = a - b;
  const V b_part = difference - a;
  const V a_part = difference - b_part;
  return {difference, (a - a_part) - (b + b_part)};
}

// ---- arguments of any size ----------------------------------------------------------------------

// The first 1216 bits of 2/pi behind 64 zeros.
constexpr std::uint64_t kTwoOverPiBits[] = {
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
    0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
    0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
    0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};

// pi/2 in units of 2^-127
constexpr std::uint64_t kHalfPiHigh = 0xc90fdaa22168c234, kHalfPiLow = 0xc4c6628b80dc1cd1;

__extension__ typedef unsigned __int128 uint128;

OPWRIGHT_INLINE std::uint64_t high_word(uint128 x) { return static_cast<std::uint64_t>(x >> 64); }

/// m * 2^exponent for m < 2^53 and a result in the normal range.
OPWRIGHT_INLINE double scaled_integer(uint128 m, int exponent) {
  const auto power = static_cast<std::uint64_t>(exponent + 1023) << 52;
  return static_cast<double>(static_cast<std::int64_t>(m)) * bits_as<double>(power);
}

/// Reduces one finite x with |x| >= 2^18. In integers, so that every level gives the same.
[[maybe_unused]] __attribute__((noinline, cold)) PiReduced<double, std::uint64_t> reduce_large(
    double x) {
  const auto bits = bits_as<std::uint64_t>(x);
  const std::uint64_t m = (bits & 0x000fffffffffffff) | 0x0010000000000000;
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1075;  // |x| = m * 2^exponent

  // 192 bits of 2/pi * 2^exponent from the bit that weighs 2 on: what is above adds multiples of 4
  // to n, what is below is less than 2^-137 in the product.
  const int first = exponent + 62;
  const int shift = first % 64;
  const std::uint64_t* word = kTwoOverPiBits + first / 64;
  std::uint64_t a[3];
  for (int i = 0; i < 3; ++i) {
    const uint128 pair = static_cast<uint128>(word[i]) << 64 | word[i + 1];
    a[i] = high_word(pair << shift);
  }

  // The product modulo 4 with 190 fraction bits; of the last word only the carry matters.
  const uint128 last = static_cast<uint128>(m) * a[2];
  const uint128 rest =
      (static_cast<uint128>(m) * a[1] + high_word(last)) + (static_cast<uint128>(m * a[0]) << 64);
  std::uint64_t quadrant = high_word(rest) >> 62;
  uint128 fraction = rest << 2;  // of a quadrant, in units of 2^-128
  const bool upper_half = high_word(fraction) >> 63;
  if (upper_half) {
    ++quadrant;
    fraction = -fraction;
  }

  // Times pi/2, with the leading zeros shifted out before. No double comes closer to a multiple of
  // pi/2 than 2^-62, so 66 bits are left at least.
  const int zeros = high_word(fraction) != 0 ? __builtin_clzll(high_word(fraction)) : 63;
  fraction <<= zeros;
  const std::uint64_t f_high = high_word(fraction), f_low = static_cast<std::uint64_t>(fraction);
  const uint128 product = static_cast<uint128>(f_high) * kHalfPiHigh +
                          high_word(static_cast<uint128>(f_high) * kHalfPiLow) +
                          high_word(static_cast<uint128>(f_low) * kHalfPiHigh);
  const double leading = scaled_integer(product >> 75, -52 - zeros);
  const double trailing = scaled_integer((product << 53) >> 75, -105 - zeros);
  const double high = leading + trailing;
  const double low = (leading - high) + trailing;

  const bool negative = bits >> 63;
  const double sign = negative != upper_half ? -1.0 : 1.0;
  return {sign * high, sign * low, negative ? -quadrant : quadrant};
}

/// Replaces the lanes of `reduced` that are finite and not below Table::kTrigonometricEnd.
template <class V>
__attribute__((noinline, cold)) void reduce_large_lanes(const V* x, PiReduced<V>* reduced) {
  using A = ElementOf<V>;
  using T = Table<A>;
  for (int i = 0; i < kLanesOf<V>; ++i) {
    const A lane = (*x)[i];
    const A size = lane < 0 ? -lane : lane;
    if (!(size >= T::kTrigonometricEnd && size < T::kInfinity)) continue;
    const auto exact = reduce_large(static_cast<double>(lane));
    const A high = static_cast<A>(exact.high);
    reduced->high[i] = high;
    reduced->low[i] = static_cast<A>((exact.high - static_cast<double>(high)) + exact.low);
    reduced->quadrant[i] = static_cast<typename T::Bits>(exact.quadrant);
  }
}

// ---- arguments below Table::kTrigonometricEnd -------------------------------------------------------

#if defined(__SSE2__) && !defined(__FMA__)
// For levels without a fused multiply-add: in double, where two parts of pi/2 are enough for the
// arguments of float. The results of two lanes are in the lower halves of `high` and `low`.
struct WidenedReduction {
  __m128 high, low;
  Pack<std::uint32_t, 16> quadrant;  // in the even lanes
};
OPWRIGHT_INLINE WidenedReduction reduce_widened(Pack<double, 16> x) {
  using C = Table<double>;
  const auto t = x * C::kTwoOverPi + C::kRound;
  const auto n = t - C::kRound;
  const auto r = (x - n * C::kHalfPiLong[0]) - n * C::kHalfPiLong[1];
  const __m128 high = _mm_cvtpd_ps(r);
  const __m128 low = _mm_cvtpd_ps(_mm_sub_pd(r, _mm_cvtps_pd(high)));
  return {high, low, bits_as<Pack<std::uint32_t, 16>>(t)};
}
OPWRIGHT_INLINE PiReduced<Pack<float, 16>> reduce_small(Pack<float, 16> x) {
  const auto a = reduce_widened(_mm_cvtps_pd(x));
  const auto b = reduce_widened(_mm_cvtps_pd(_mm_movehl_ps(x, x)));
  return {_mm_movelh_ps(a.high, b.high), _mm_movelh_ps(a.low, b.low),
          __builtin_shufflevector(a.quadrant, b.quadrant, 0, 2, 4, 6)};
}
#endif

template <class V>
OPWRIGHT_INLINE PiReduced<V> reduce_small(V x) {
  using T = Table<ElementOf<V>>;
  const V t = fma(x, fill<V>(T::kTwoOverPi), fill<V>(T::kRound));
  const V n = t - T::kRound;
  TwoParts<V> r;
  if constexpr (kFusedMultiplyAdd) {
    // x - n c is exact for the first part, and for the second the error of the product is known.
    const V first = fma(n, fill<V>(-T::kHalfPi[0]), x);
    const V product = rounded(n * T::kHalfPi[1]);
    const V product_error = fma(n, fill<V>(T::kHalfPi[1]), -product);
    r = exact_difference(first, product);
    r.low = fma(n, fill<V>(-T::kHalfPi[2]), r.low - product_error);
  } else {
    r = exact_difference(x - n * T::kHalfPiShort[0], n * T::kHalfPiShort[1]);
    r.low = (r.low - n * T::kHalfPiShort[2]) - n * T::kHalfPiShort[3];
  }
  const V high = r.high + r.low;
  return {high, (r.high - high) + r.low, bits_as<UnsignedOf<V>>(t)};
}

template <class V>
OPWRIGHT_INLINE PiReduced<V> reduce_by_half_pi(V x) {
  PiReduced<V> r = reduce_small(x);
  if (__builtin_expect(any(abs(x) >= Table<ElementOf<V>>::kTrigonometricEnd), 0)) {
    V copy = x;  // what has its address taken stays out of registers, so only here
    PiReduced<V> exact = r;
    reduce_large_lanes(&copy, &exact);
    r = exact;
  }
  return r;
}

// ---- sin and cos --------------------------------------------------------------------------------

template <class V>
struct SinCos {
  V sin, cos;
};

/// sin(x) and cos(x) together, at little more than the price of one. NaN for NaN, -inf and inf;
/// sin(-0) = -0.
template <Packed V>
OPWRIGHT_INLINE SinCos<V> sincos(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    const auto a = sincos(part.low), b = sincos(part.high);
    return {join(a.sin, b.sin), join(a.cos, b.cos)};
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    using U = UnsignedOf<V>;
    const PiReduced<V> r = reduce_by_half_pi(x);
    const V z = rounded(r.high * r.high);
    const V s = r.high + fma(r.high * z, horner(z, T::sin), r.low);
    // cos(high + low) = 1 - z/2 + z^2 p(z) - high low; the rounding error of 1 - z/2 is known.
    const V half = z * A(0.5);
    const V start = A(1) - half;
    const V start_error = (A(1) - start) - half;
    const V c = start + (fma(z * z, horner(z, T::cos), start_error) - rounded(r.high * r.low));

    constexpr int sign_shift = 8 * int{sizeof(A)} - 2;  // bit 1 of the quadrant to the sign
    const auto swapped = (r.quadrant & 1) != 0;
    const U sin_sign = (r.quadrant & 2) << sign_shift;
    const U cos_sign = ((r.quadrant + 1) & 2) << sign_shift;
    const V sin = bits_as<V>(bits_as<U>(select(swapped, c, s)) ^ sin_sign);
    const V cos = bits_as<V>(bits_as<U>(select(swapped, s, c)) ^ cos_sign);
    return {select(abs(x) < T::kTiny, x, sin), cos};
  }
}

template <Packed V>
OPWRIGHT_INLINE V sin(V x) {
  return sincos(x).sin;
}
template <Packed V>
OPWRIGHT_INLINE V cos(V x) {
  return sincos(x).cos;
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
