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
#include "opwright/block.h"
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
constexpr double kTailBegin = -1;                      // from here down 1 + erf loses digits
constexpr double kTanhLinear = 1.5957691216057307117;  // 2 sqrt(2 / pi)
constexpr double kTanhCubic = kTanhLinear * 0.044715;
// Beyond, gelu_tanh's logistic is 0 or 1 to the last bit, and squares are far from overflow.
template <class A>
constexpr A kTanhEnd = kSame<A, double> ? A(32) : A(16);

// The largest finite number.
template <class A>
constexpr A kLargest = __FLT_MAX__;
template <>
constexpr double kLargest<double> = __DBL_MAX__;

// ---- the logistic function ----------------------------------------------------------------------

// The logistic of v is 1 / (1 + e^-v). It is computed from u = kUnit * v: -v for the exponential of
// simd_math.h, and -v / ln 2 for the short one, which spares it a multiplication. From kUnitEnd on
// (-v >= 80, for double 700) the quotient is not right; such arguments are rare, and are done over.
template <class T>
constexpr auto kUnit = static_cast<accumulate_t<T>>(kIsLow<T> ? -1.44269504088896341 : -1.0);
template <class T>
constexpr auto kUnitEnd = kIsLow<T> ? accumulate_t<T>(115) : Table<accumulate_t<T>>::kLogisticEnd;

// 1 + e^-v.
template <class T, class V>
OPWRIGHT_INLINE V one_plus_power(V u) {
  u = clamped(u, -kUnitEnd<T>, kUnitEnd<T>);
  if constexpr (!kIsLow<T>) {
    return one_plus_exp(u);
  } else {
    const V t = u + Table<float>::kRound;
    const V f = u - (t - Table<float>::kRound);
    const V power = ExpReduced<V>::power_of_two(bits_as<UnsignedOf<V>>(t));
    return fma(power, horner(f, PowerOfTwo<T>::p), fill<V>(1));
  }
}

// True if some lane of a or b is above the bound; NaN is not.
template <class V>
OPWRIGHT_INLINE bool any_above(V a, V b, ElementOf<V> bound) {
  const V limit = fill<V>(bound);
#if defined(__AVX512F__)
  if constexpr (kSame<V, Pack<float, 64>>)
    return (_mm512_cmp_ps_mask(a, limit, _CMP_GT_OQ) | _mm512_cmp_ps_mask(b, limit, _CMP_GT_OQ)) !=
           0;
#endif
  return any((a > limit) | (b > limit));
}

// e^v.
template <class T, class V>
[[gnu::noinline, gnu::cold]] V rare_logistic(V u) {
  return exp(u * (1 / kUnit<T>));
}

// x e^v in two halves, since e^v may be subnormal where the product is not. As in torch, an
// infinite x times zero is not a number.
template <class T, class V>
[[gnu::noinline, gnu::cold]] V rare_swish(V x, V u) {
  using A = ElementOf<V>;
  const V half = exp(u * (A(0.5) / kUnit<T>));
  return select(abs(x) < Table<A>::kInfinity, x * half * half, fill<V>(Table<A>::kNaN));
}

// 1 / (1 + e^-v): 0 and 1 for -inf and inf.
template <class T, class A>
OPWRIGHT_INLINE Pair<A> logistic(Pair<A> u) {
  constexpr A end = kUnitEnd<T>;
  Pair<A> s{A(1) / one_plus_power<T>(u.lo), A(1) / one_plus_power<T>(u.hi)};
  if (any_above(u.lo, u.hi, end)) [[unlikely]] {
    s.lo = select(u.lo > end, rare_logistic<T>(u.lo), s.lo);
    s.hi = select(u.hi > end, rare_logistic<T>(u.hi), s.hi);
  }
  return s;
}

// x / (1 + e^-v).
template <class T, class A>
OPWRIGHT_INLINE Pair<A> swish(Pair<A> x, Pair<A> u) {
  constexpr A end = kUnitEnd<T>;
  Pair<A> y{x.lo / one_plus_power<T>(u.lo), x.hi / one_plus_power<T>(u.hi)};
  if (any_above(u.lo, u.hi, end)) [[unlikely]] {
    y.lo = select(u.lo > end, rare_swish<T>(x.lo, u.lo), y.lo);
    y.hi = select(u.hi > end, rare_swish<T>(x.hi, u.hi), y.hi);
  }
  return y;
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

// Phi in double where 1 + erf is a difference of near numbers; elsewhere what `phi` has.
template <class V>
[[gnu::noinline, gnu::cold]] V rare_distribution(V x, V phi) {
  double at[kLanesOf<V>], result[kLanesOf<V>];
  store_pack(at, x);
  store_pack(result, phi);
  for (int i = 0; i < kLanesOf<V>; ++i)
    if (at[i] < kTailBegin) result[i] = 0.5 * __builtin_erfc(at[i] * -kRootHalf);
  return load_pack<V>(result);
}

template <class T, class V>
OPWRIGHT_INLINE Normal<V> normal(V x) {
  if constexpr (kSame<T, double>) {
    V phi = 0.5 * erf(x * kRootHalf) + 0.5;
    if (any(x < kTailBegin)) [[unlikely]]
      phi = rare_distribution(x, phi);
    return {phi, exp(x * x * -0.5)};
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

template <class A>
struct WithSlope {
  Pair<A> value, slope;
};

// f of both vectors.
template <class A, class F>
OPWRIGHT_INLINE Pair<A> each(Pair<A> x, const F& f) {
  return {f(x.lo), f(x.hi)};
}

// kUnit times 2 k (x + c x^3).
template <class T, class V>
OPWRIGHT_INLINE V tanh_argument(V x) {
  using A = ElementOf<V>;
  return x * fma(x * x, fill<V>(A(kTanhCubic * kUnit<T>)), fill<V>(A(kTanhLinear * kUnit<T>)));
}

// `alpha` comes as kUnit times alpha.
template <class T, Activation kActivation, class A>
OPWRIGHT_INLINE Pair<A> activate(Pair<A> g, [[maybe_unused]] Vec<A> alpha) {
  using V = Vec<A>;
  if constexpr (kActivation == Activation::kSilu) {
    return swish<T>(g, Pair<A>{g.lo * alpha, g.hi * alpha});
  } else if constexpr (kActivation == Activation::kGelu) {
    return each(g, [](V x) __attribute__((always_inline)) { return gelu<T>(x, normal<T>(x)); });
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return swish<T>(g, each(g, [](V x) __attribute__((always_inline)) {
                      return tanh_argument<T>(clamped(x, -kTanhEnd<A>, kTanhEnd<A>));
                    }));
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return logistic<T>(g * pair<A>(kUnit<T>));
  } else if constexpr (kActivation == Activation::kIdentity) {
    return g;
  } else {
    const Pair<A> positive = each(
        g, [](V x) __attribute__((always_inline)) { return greater_or_second(fill<V>(0), x); });
    return kActivation == Activation::kRelu2 ? positive * positive : positive;
  }
}

// The activation and its derivative. Where a derivative is a matter of choice it is torch's: 0 for
// relu at 0.
template <class T, Activation kActivation, class A>
OPWRIGHT_INLINE WithSlope<A> activate_with_slope(Pair<A> g, [[maybe_unused]] Vec<A> alpha) {
  using V = Vec<A>;
  const Pair<A> one = pair<A>(1);
  if constexpr (kActivation == Activation::kSilu) {
    const Pair<A> u{g.lo * alpha, g.hi * alpha}, s = logistic<T>(u);
    // s (1 + v (1 - s)); v is kept finite, since s or 1 - s is zero where it is not.
    const Pair<A> v = each(u, [](V x) __attribute__((always_inline)) {
      return clamped(x, -kLargest<A>, kLargest<A>) * (1 / kUnit<T>);
    });
    return {g * s, fma(v * s, one - s, s)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const Normal<V> low = normal<T>(g.lo), high = normal<T>(g.hi);
    const V factor = fill<V>(A(kInverseRootTwoPi));
    return {{gelu<T>(g.lo, low), gelu<T>(g.hi, high)},
            {fma(g.lo * factor, low.gauss, distribution<T>(g.lo, low)),
             fma(g.hi * factor, high.gauss, distribution<T>(g.hi, high))}};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const Pair<A> x{clamped(g.lo, -kTanhEnd<A>, kTanhEnd<A>),
                    clamped(g.hi, -kTanhEnd<A>, kTanhEnd<A>)};
    const Pair<A> s = logistic<T>(Pair<A>{tanh_argument<T>(x.lo), tanh_argument<T>(x.hi)});
    const Pair<A> value = g * s;
    const Pair<A> rate = fma(x * x, pair<A>(A(3 * kTanhCubic)), pair<A>(A(kTanhLinear)));
    return {value, fma(value * (one - s), rate, s)};
  } else if constexpr (kActivation == Activation::kSigmoid) {
    const Pair<A> s = logistic<T>(g * pair<A>(kUnit<T>));
    return {s, s * (one - s)};
  } else if constexpr (kActivation == Activation::kIdentity) {
    return {g, one};
  } else {
    const V zero = fill<V>(0);
    const Pair<A> positive{greater_or_second(zero, g.lo), greater_or_second(zero, g.hi)};
    if constexpr (kActivation == Activation::kRelu2) {
      return {positive * positive, positive + positive};
    } else {
      return {positive, {select(g.lo <= zero, zero, one.lo), select(g.hi <= zero, zero, one.hi)}};
    }
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
