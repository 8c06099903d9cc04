// exp, expm1, sigmoid, silu and tanh of packs of float and double. Bounds: docs/design/numerics.md.
//
// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. Multiplying by 2^n is one
// rounding at most, also where the result is subnormal.
#pragma once

#include "opwright/simd_math_tables.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// ---- helpers of all functions -------------------------------------------------------------------

/// Polynomial with the coefficients `c`, constant term first.
template <int I = 0, class V, class A, int N>
OPWRIGHT_INLINE V horner(V x, const A (&c)[N]) {
  if constexpr (I == N - 1) {
    return fill<V>(c[I]);
  } else {
    return fma(horner<I + 1>(x, c), x, fill<V>(c[I]));
  }
}

/// Keeps a product from being contracted into a sum: the value is rounded here.
template <class V>
OPWRIGHT_INLINE V rounded(V x) {
#if defined(__SSE2__)
  __asm__("" : "+v"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
  return x;
}

template <class V>
OPWRIGHT_INLINE V sign_of(V x) {
  using U = UnsignedOf<V>;
  return bits_as<V>(bits_as<U>(x) & ~(~U{} >> 1));
}
/// `magnitude`, whose sign bit is clear, with the sign of x.
template <class V>
OPWRIGHT_INLINE V with_sign(V magnitude, V sign) {
  using U = UnsignedOf<V>;
  return bits_as<V>(bits_as<U>(magnitude) | bits_as<U>(sign_of(sign)));
}

/// x between `low` and `high`; NaN stays NaN, since the second operand wins then.
template <class V>
OPWRIGHT_INLINE V clamped(V x, ElementOf<V> low, ElementOf<V> high) {
  return lesser_or_second(fill<V>(high), greater_or_second(fill<V>(low), x));
}

// ---- exp ----------------------------------------------------------------------------------------

/// x = n * ln 2 + r, and 2^n as a factor that may lie outside the range of normal numbers.
template <class V>
struct ExpReduced {
  using T = Table<ElementOf<V>>;
  V r, n;
  UnsignedOf<V> shifted;  // n in its low bits

  OPWRIGHT_INLINE explicit ExpReduced(V x) {
    const V t = fma(x, fill<V>(T::kLog2E), fill<V>(T::kRound));
    shifted = bits_as<UnsignedOf<V>>(t);
    n = t - T::kRound;
    r = fma(n, fill<V>(-T::kLn2High), x);
    r = fma(n, fill<V>(-T::kLn2Low), r);
  }

  /// exp(r) - 1
  OPWRIGHT_INLINE V expm1_of_r() const { return fma(r * r, horner(r, T::exp), r); }

  /// y * 2^n with one rounding, also to a subnormal. Needs 2^-32 < |y| < 2^32 or y NaN.
  OPWRIGHT_INLINE V scale(V y) const {
#if defined(__AVX512F__)
    if constexpr (kSame<V, Pack<float, 64>>) return _mm512_scalef_ps(y, n);
    if constexpr (kSame<V, Pack<double, 64>>) return _mm512_scalef_pd(y, n);
#endif
    // Two factors, since 2^n itself may be out of range. They are multiplied, not added to the
    // exponent of y, which would make a number of NaN.
    const auto half = shifted >> 1;  // n / 2 rounded down, below bits that the shifts drop
    return y * power_of_two(shifted - half) * power_of_two(half);
  }

 private:
  static OPWRIGHT_INLINE V power_of_two(UnsignedOf<V> exponent) {
    constexpr auto bias = T::kExponentBias << T::kMantissaBits;
    return bits_as<V>((exponent << T::kMantissaBits) + bias);
  }
};

/// e^x. NaN for NaN; 0 for -inf; inf for inf and beyond the range.
template <Packed V>
OPWRIGHT_INLINE V exp(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(exp(part.low), exp(part.high));
  } else {
    using T = Table<ElementOf<V>>;
    const ExpReduced<V> e(clamped(x, T::kExpBegin, T::kExpEnd));
    return e.scale(e.expm1_of_r() + ElementOf<V>(1));
  }
}

/// e^x - 1. NaN for NaN; -1 for -inf; inf for inf; -0 for -0.
template <Packed V>
OPWRIGHT_INLINE V expm1(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(expm1(part.low), expm1(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    const ExpReduced<V> e(clamped(x, T::kExpm1Begin, T::kExpEnd));
    // Half of 2^n is in range for every n. (h - 1/2) + h r is exact to one rounding.
    const V h =
        bits_as<V>((e.shifted << T::kMantissaBits) + ((T::kExponentBias - 1) << T::kMantissaBits));
    const V start = fma(h, e.r, h - A(0.5));
    const V result = fma(h * e.r * e.r, horner(e.r, T::exp), start) * A(2);
    return abs(x) < T::kTiny ? x : result;  // halving would lose the last bit of a subnormal
  }
}

// ---- sigmoid and silu
// -----------------------------------------------------------------------------

/// 1 / (1 + e^-x). NaN for NaN; 0 and 1 for -inf and inf. Accurate where the result is subnormal.
template <Packed V>
OPWRIGHT_INLINE V sigmoid(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(sigmoid(part.low), sigmoid(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    // With e = exp(-|x|) <= 1: 1 / (1 + e) for x >= 0 and e / (1 + e) for x < 0.
    const ExpReduced<V> e(greater_or_second(fill<V>(T::kExpBegin), -abs(x)));
    const V p = e.expm1_of_r() + A(1);
    const V denominator = e.scale(p) + A(1);
    const auto negative = x < A(0);
    const V ratio = select(negative, p, fill<V>(A(1))) / denominator;
    return select(negative, e.scale(ratio), ratio);
  }
}

/// x * sigmoid(x). NaN for NaN and for -inf, as torch; inf for inf.
template <Packed V>
OPWRIGHT_INLINE V silu(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(silu(part.low), silu(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    const ExpReduced<V> e(greater_or_second(fill<V>(T::kExpBegin), -abs(x)));
    const V p = e.expm1_of_r() + A(1);
    const V denominator = e.scale(p) + A(1);
    const auto negative = x < A(0);
    // Before kExpBegin the result is zero, but x times the exp of the clamped x would not be.
    const V y = greater_or_second(fill<V>(T::kExpBegin), x) *
                (select(negative, p, fill<V>(A(1))) / denominator);
    return select(x > -T::kInfinity, select(negative, e.scale(y), y), fill<V>(T::kNaN));
  }
}

// ---- tanh ---------------------------------------------------------------------------------------

/// Hyperbolic tangent. NaN for NaN; -1 and 1 for -inf and inf; -0 for -0.
template <Packed V>
OPWRIGHT_INLINE V tanh(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(tanh(part.low), tanh(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    const V a = abs(x);
    const V z = a * a;
    const V near_zero = fma(a * z, horner(z, T::tanh), a);
    const ExpReduced<V> e(lesser_or_second(fill<V>(T::kExpEnd), a + a));
    const V far = A(1) - A(2) / (e.scale(e.expm1_of_r() + A(1)) + A(1));
    return with_sign(a < A(0.625) ? near_zero : far, x);
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
