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
/// y with the sign of x, for y that is not negative where x is positive.
template <class V>
OPWRIGHT_INLINE V with_sign(V y, V x) {
  using U = UnsignedOf<V>;
  return bits_as<V>(bits_as<U>(y) | bits_as<U>(sign_of(x)));
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

  /// 2^k for k in the low bits of `exponent`, in the range of normal numbers.
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

// ---- sigmoid and silu ---------------------------------------------------------------------------

/// 1 + e^v for |v| <= Table::kLogisticEnd. With e^v = 2^n (1 + s) it is (1 + 2^n) + 2^n s, and what
/// the first sum loses, if n is large, is added to the last term: one rounding counts.
template <class V>
OPWRIGHT_INLINE V one_plus_exp(V v) {
  const V one = fill<V>(1);
  const ExpReduced<V> e(v);
  const V power = e.power_of_two(e.shifted);
  const V sum = one + power;
  const V lost = lesser_or_second(one, power) - (sum - greater_or_second(one, power));
  return sum + fma(power, e.expm1_of_r(), lost);
}

/// 1 / (1 + e^-x). NaN for NaN; 0 and 1 for -inf and inf. Accurate where the result is subnormal.
template <Packed V>
OPWRIGHT_INLINE V sigmoid(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(sigmoid(part.low), sigmoid(part.high));
  } else {
    using A = ElementOf<V>;
    constexpr A end = Table<A>::kLogisticEnd;
    V y = A(1) / one_plus_exp(clamped(-x, -end, end));
    const auto small = x < -end;
    if (__builtin_expect(any(small), 0)) y = select(small, exp(x), y);
    return y;
  }
}

/// x * sigmoid(x). NaN for NaN and, as in torch, for -inf; inf for inf. Accurate where the result
/// or the sigmoid is subnormal.
template <Packed V>
OPWRIGHT_INLINE V silu(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(silu(part.low), silu(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    constexpr A end = T::kLogisticEnd;
    V y = x / one_plus_exp(clamped(-x, -end, end));
    const auto small = x < -end;
    if (__builtin_expect(any(small), 0)) {
      // x e^x, multiplied before the scaling to a subnormal, and zero from kExpBegin on.
      const V bounded = greater_or_second(fill<V>(T::kExpBegin), x);
      const ExpReduced<V> e(bounded);
      const V product = e.scale(bounded * (e.expm1_of_r() + A(1)));
      y = select(small, select(x > -T::kInfinity, product, fill<V>(T::kNaN)), y);
    }
    return y;
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
    const V far = A(1) - A(2) / one_plus_exp(lesser_or_second(fill<V>(T::kLogisticEnd), a + a));
    return with_sign(a < A(0.625) ? near_zero : far, x);
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
