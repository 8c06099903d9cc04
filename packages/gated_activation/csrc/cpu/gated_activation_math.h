// The activations and their first derivatives on packs, for elements of storage type T.
//
// For float and double they are as exact as simd_math.h. For the 16-bit types the exponential is a
// polynomial just long enough: 2^f on |f| <= 1/2 to 2^-13 for bfloat16 (8 bits of mantissa) and to
// 2^-18 for float16 (11 bits), so that nearly nothing is added to the rounding of the result. What
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
struct PowerOfTwo<BFloat16> {  // error 2^-13.7
  static constexpr float p[] = {0x1.fff692p-1f, 0x1.62f31ap-1f, 0x1.f0de1ap-3f, 0x1.c3f748p-5f};
};
template <>
struct PowerOfTwo<Half> {  // error 2^-18.5
  static constexpr float p[] = {0x1.ffffe8p-1f, 0x1.62e0dcp-1f, 0x1.ec06dap-3f, 0x1.ca144p-5f,
                                0x1.3997cap-7f};
};

// e^(a^2 / 2) * Phi(-a) in t = (a - kCentre) / (a + kCentre) on 0 <= a <= kTailEnd, where
// Phi(-kTailEnd) is zero in fp32; least greatest relative error.
constexpr float kTailEnd = 14.5f;
template <class T>
struct NormalTail;
template <>
struct NormalTail<float> {  // error 2^-25.2
  static constexpr float kCentre = 4.0f;
  static constexpr float p[] = {0x1.82b4bcp-4f,   -0x1.5cf97ep-3f, 0x1.fd750cp-4f,  -0x1.25b5f8p-4f,
                                0x1.f9b348p-6f,   -0x1.1675b4p-7f, 0x1.077b62p-11f, 0x1.58db8p-11f,
                                -0x1.5ff51ep-13f, -0x1.11d3aep-14f};
};
template <>
struct NormalTail<BFloat16> {  // error 2^-15.2
  static constexpr float kCentre = 4.0f;
  static constexpr float p[] = {0x1.82b4a8p-4f,  -0x1.5ceep-3f,  0x1.fd5398p-4f,
                                -0x1.26bc06p-4f, 0x1.fe4784p-6f, -0x1.fdbcbcp-8f};
};
template <>
struct NormalTail<Half> {  // error 2^-17.4
  static constexpr float kCentre = 3.5f;
  static constexpr float p[] = {0x1.b396e2p-4f, -0x1.7f402p-3f,   0x1.01be2ep-3f,  -0x1.f99e08p-5f,
                                0x1.3918p-6f,   -0x1.487cd4p-10f, -0x1.71e40ap-10f};
};

constexpr double kInverseRootTwoPi = 0.3989422804014326779;  // 1 / sqrt(2 pi)
constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kTanhLinear = 1.5957691216057307117;  // 2 sqrt(2 / pi)
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
    if (any(small)) [[unlikely]]
      s = select(small, rare_exp(v), s);
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
    if (any(small)) [[unlikely]]
      y = select(small, rare_swish(x, v), y);
    return y;
  }
}

// ---- the normal distribution --------------------------------------------------------------------

// e^(-a^2 / 2) for 0 <= a <= kTailEnd.
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

// Of the normal distribution at x: Phi(-|x|) = tail * gauss, gauss = e^(-x^2 / 2). For double the
// tail is what is left of Phi itself, and not multiplied.
template <class V>
struct Normal {
  V tail, gauss;
};

template <class T, class V>
OPWRIGHT_INLINE Normal<V> normal(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    const auto low = normal<T>(part.low), high = normal<T>(part.high);
    return {join(low.tail, high.tail), join(low.gauss, high.gauss)};
  } else if constexpr (kSame<T, double>) {
    return {0.5 * erf(x * kRootHalf) + 0.5, exp(x * x * -0.5)};
  } else {
    constexpr float centre = NormalTail<T>::kCentre;
    const V a = lesser_or_second(fill<V>(kTailEnd), abs(x));
    return {horner((a - centre) / (a + centre), NormalTail<T>::p), gauss<T>(a)};
  }
}

// Phi(x).
template <class T, class V>
OPWRIGHT_INLINE V distribution(V x, const Normal<V>& n) {
  if constexpr (kSame<T, double>) {
    return n.tail;
  } else {
    const V tail = n.tail * n.gauss;
    return select(x < 0.0f, tail, 1.0f - tail);
  }
}

// x Phi(x). On the negative side x comes first, since Phi may be subnormal where the product is
// not.
template <class T, class V>
OPWRIGHT_INLINE V gelu(V x, const Normal<V>& n) {
  if constexpr (kSame<T, double>) {
    return x * n.tail;
  } else {
    return select(x < 0.0f, x * n.tail * n.gauss, x * (1.0f - n.tail * n.gauss));
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
  if constexpr (kActivation == Activation::kGelu) return gelu<T>(g, normal<T>(g));
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
    return {gelu<T>(g, n), fma(g * A(kInverseRootTwoPi), n.gauss, distribution<T>(g, n))};
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
    if constexpr (kActivation == Activation::kRelu2)
      return {positive * positive, positive + positive};
    return {positive, select(g <= A(0), fill<V>(0), one)};
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
