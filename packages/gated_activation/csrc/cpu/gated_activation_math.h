// The activations and their first derivatives on packs, for elements of storage type T.
//
// For float and double they are as exact as simd_math.h. For the 16-bit types the exponential is a
// polynomial just long enough: 2^f on |f| <= 1/2 to 2^-13 for bfloat16 (8 bits of mantissa) and to
// 2^-17 for float16 (11 bits), so that nearly nothing is added to the rounding of the result. What
// that makes in units in the last place is measured over every argument; see docs/assumptions.md.
//
// silu, gelu_tanh and sigmoid are one function, a logistic: gelu_tanh(g) = g * sigmoid(2 k (g +
// c g^3)) with k = sqrt(2 / pi), which has no difference of nearly equal numbers and no exponential
// that overflows. gelu is g * Phi(g) with Phi of the tail from a function of its own, since
// 1 + erf(g / sqrt 2) has no digits left there.
#pragma once

#include "gated_activation.h"
#include "opwright/dispatch.h"
#include "opwright/simd_math.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// ---- constants ----------------------------------------------------------------------------------

// 2^f on |f| <= 1/2, constant term first; least greatest relative error.
template <class T>
struct PowerOfTwo;
template <>
struct PowerOfTwo<BFloat16> {  // error 2^-13.2
  static constexpr float p[] = {@BF16@};
};
template <>
struct PowerOfTwo<Half> {  // error 2^-17.9
  static constexpr float p[] = {@FP16@};
};

// e^(a^2 / 2) * Phi(-a) in t = (a - kCentre) / (a + kCentre) on 0 <= a <= kEnd, where Phi(-kEnd) is
// zero in fp32; least greatest relative error.
template <class T>
struct NormalTail {
  static constexpr float kCentre = @CENTRE@f, kEnd = 14.5f;
};
template <class T>
struct NormalTailPolynomial;
template <>
struct NormalTailPolynomial<float> {  // error @EF32@
  static constexpr float p[] = {@TF32@};
};
template <>
struct NormalTailPolynomial<BFloat16> {  // error @EBF16@
  static constexpr float p[] = {@TBF16@};
};
template <>
struct NormalTailPolynomial<Half> {  // error @EFP16@
  static constexpr float p[] = {@TFP16@};
};

constexpr double kInverseRootTwoPi = 0.3989422804014326779;  // 1 / sqrt(2 pi)
constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kTanhLinear = 1.5957691216057307117;          // 2 sqrt(2 / pi)
constexpr double kTanhCubic = kTanhLinear * 0.044715;
// Beyond, gelu_tanh's logistic is 0 or 1 to the last bit, and squares are far from overflow.
template <class A>
constexpr A kTanhEnd = kSame<A, double> ? A(32) : A(16);

// ---- the logistic function ----------------------------------------------------------------------

// 1 + e^v for |v| <= Table::kLogisticEnd or NaN.
template <class T, class V>
OPWRIGHT_INLINE V one_plus_power(V v) {
  if constexpr (!kIsLow<T>) {
    return one_plus_exp(v);
  } else {
    using C = Table<float>;
    const V t = fma(v, fill<V>(C::kLog2E), fill<V>(C::kRound));
    const V f = fma(v, fill<V>(C::kLog2E), C::kRound - t);
    const V power = ExpReduced<V>::power_of_two(bits_as<UnsignedOf<V>>(t));
    return fma(power, horner(f, PowerOfTwo<T>::p), fill<V>(1));
  }
}

// e^v, for the rare arguments that one_plus_power cannot take.
template <class V>
[[gnu::noinline, gnu::cold]] V rare_exp(V v) {
  return exp(v);
}

// 1 / (1 + e^-v): 0 and 1 for -inf and inf.
template <class T, class V>
OPWRIGHT_INLINE V logistic(V v) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(v);
    return join(logistic<T>(part.low), logistic<T>(part.high));
  } else {
    using A = ElementOf<V>;
    constexpr A end = Table<A>::kLogisticEnd;
    V s = A(1) / one_plus_power<T>(clamped(-v, -end, end));
    const auto small = v < -end;
    if (any(small)) [[unlikely]] s = select(small, rare_exp(v), s);
    return s;
  }
}

// x / (1 + e^-v), of which v < -kLogisticEnd and is not finite or has a subnormal factor: e^v is
// applied in two halves, and, as in torch, an infinite x times zero is not a number.
template <class V>
[[gnu::noinline, gnu::cold]] V rare_swish(V x, V v) {
  using A = ElementOf<V>;
  const V half = exp(v * A(0.5));
  return select(abs(x) < Table<A>::kInfinity, x * half * half, fill<V>(Table<A>::kNaN));
}

// x / (1 + e^-v).
template <class T, class V>
OPWRIGHT_INLINE V swish(V x, V v) {
  if constexpr (WiderThanNative<V>) {
    const auto a = split(x), b = split(v);
    return join(swish<T>(a.low, b.low), swish<T>(a.high, b.high));
  } else {
    using A = ElementOf<V>;
    constexpr A end = Table<A>::kLogisticEnd;
    V y = x / one_plus_power<T>(clamped(-v, -end, end));
    const auto small = v < -end;
    if (any(small)) [[unlikely]] y = select(small, rare_swish(x, v), y);
    return y;
  }
}

// ---- the normal distribution --------------------------------------------------------------------

// Distribution function and density of the standard normal distribution.
template <class V>
struct Normal {
  V distribution, density;
};

// e^(-a^2 / 2) for 0 <= a <= kEnd.
template <class T, class V>
OPWRIGHT_INLINE V gauss(V a) {
  if constexpr (kSame<T, float>) {
    // a = h + l with h^2 exact: the rounding of a^2 alone would be 2^-18 of the result.
    const V h = bits_as<V>(bits_as<UnsignedOf<V>>(a) & 0xfffff000u);
    ExpReduced<V> e(h * h * -0.5f);
    e.r = fma(a - h, (a + h) * -0.5f, e.r);
    return e.scale(e.expm1_of_r() + 1.0f);
  } else {
    const V v = a * a * -0.5f;
    ExpReduced<V> e(v);
    // What is rounded to 16 bits needs no more than the short polynomial.
    const V f = fma(v, fill<V>(Table<float>::kLog2E), -e.n);
    return e.scale(horner(f, PowerOfTwo<T>::p));
  }
}

template <class T, class V>
OPWRIGHT_INLINE Normal<V> normal(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    const auto low = normal<T>(part.low), high = normal<T>(part.high);
    return {join(low.distribution, high.distribution), join(low.density, high.density)};
  } else if constexpr (kSame<T, double>) {
    return {0.5 * erf(x * kRootHalf) + 0.5, exp(x * x * -0.5) * kInverseRootTwoPi};
  } else {
    constexpr float centre = NormalTail<T>::kCentre;
    const V a = lesser_or_second(fill<V>(NormalTail<T>::kEnd), abs(x));
    const V e = gauss<T>(a);
    const V t = (a - centre) / (a + centre);
    const V tail = e * horner(t, NormalTailPolynomial<T>::p);
    return {select(x < 0.0f, tail, 1.0f - tail), e * static_cast<float>(kInverseRootTwoPi)};
  }
}

// ---- the activations ----------------------------------------------------------------------------

template <class V>
struct WithSlope {
  V value, slope;
};

template <class V>
OPWRIGHT_INLINE V tanh_argument(V x) {
  using A = ElementOf<V>;
  return x * fma(x * x, fill<V>(A(kTanhCubic)), fill<V>(A(kTanhLinear)));
}

template <class T, Activation kActivation, class V>
OPWRIGHT_INLINE V activate(V g, [[maybe_unused]] V alpha) {
  using A = ElementOf<V>;
  if constexpr (kActivation == Activation::kSilu) return swish<T>(g, g * alpha);
  if constexpr (kActivation == Activation::kGelu) return g * normal<T>(g).distribution;
  if constexpr (kActivation == Activation::kGeluTanh)
    return swish<T>(g, tanh_argument(clamped(g, -kTanhEnd<A>, kTanhEnd<A>)));
  if constexpr (kActivation == Activation::kSigmoid) return logistic<T>(g);
  if constexpr (kActivation == Activation::kIdentity) return g;
  const V positive = greater_or_second(fill<V>(0), g);
  if constexpr (kActivation == Activation::kRelu2) return positive * positive;
  return positive;
}

// The activation and its derivative. Where a derivative is a matter of choice it is torch's: 0 for
// relu at 0.
template <class T, Activation kActivation, class V>
OPWRIGHT_INLINE WithSlope<V> activate_with_slope(V g, [[maybe_unused]] V alpha) {
  using A = ElementOf<V>;
  const V one = fill<V>(1);
  if constexpr (kActivation == Activation::kSilu) {
    const V v = g * alpha, s = logistic<T>(v), value = g * s;
    // s (1 + v (1 - s))
    return {value, fma(v * s, one - s, s)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const Normal<V> n = normal<T>(g);
    return {g * n.distribution, fma(g, n.density, n.distribution)};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const V x = clamped(g, -kTanhEnd<A>, kTanhEnd<A>);
    const V s = logistic<T>(tanh_argument(x)), value = g * s;
    const V rate = fma(x * x, fill<V>(A(3 * kTanhCubic)), fill<V>(A(kTanhLinear)));
    return {value, fma(value * (one - s), rate, s)};
  } else if constexpr (kActivation == Activation::kSigmoid) {
    const V s = logistic<T>(g);
    return {s, s * (one - s)};
  } else if constexpr (kActivation == Activation::kIdentity) {
    return {g, one};
  } else {
    const V positive = greater_or_second(fill<V>(0), g);
    if constexpr (kActivation == Activation::kRelu2) return {positive * positive, positive + positive};
    return {positive, select(g <= A(0), fill<V>(0), one)};
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
