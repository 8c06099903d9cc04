// log, log1p, softplus and rsqrt of packs of float and double. Bounds: docs/design/numerics.md.
//
// log(2^k * m) = k * ln 2 + log(m) with m between sqrt(1/2) and sqrt(2), and for f = m - 1
// log(1 + f) = 2 atanh(s), s = f / (2 + f), arranged so that f itself enters the result unrounded.
#pragma once

#include "opwright/simd_math_exp.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

/// A positive normal number as 2^k * (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
template <class V>
struct LogReduced {
  using T = Table<ElementOf<V>>;
  using U = UnsignedOf<V>;
  V k, f;
  U exponent;  // k + bias in the place of an exponent

  OPWRIGHT_INLINE explicit LogReduced(V x) {
    using A = ElementOf<V>;
    constexpr auto mantissa = (typename T::Bits{1} << T::kMantissaBits) - 1;
    constexpr auto one = T::kExponentBias << T::kMantissaBits;
    const U i = bits_as<U>(x) + (one - T::kRootHalfBits);
    f = bits_as<V>((i & mantissa) + T::kRootHalfBits) - A(1);
    exponent = i & ~mantissa;
    // The integer as the mantissa of a number around 2^23 (2^52): exact, and without a conversion.
    constexpr A base = A(typename T::Bits{1} << T::kMantissaBits);
    const U biased = (i >> T::kMantissaBits) | bits_as<U>(fill<V>(base));
    k = bits_as<V>(biased) - (base + A(T::kExponentBias));
  }

  /// k * ln 2 + log(1 + f)
  OPWRIGHT_INLINE V log() const {
    using A = ElementOf<V>;
    const V s = f / (f + A(2));
    const V z = s * s;
    const V half = f * A(0.5);
    // f^2 / 2 is rounded once and for all: what the compiler contracts would depend on the level.
    const V half_square = rounded(half * f);
    const V tail = s * fma(z, horner(z, T::log), half_square);
    const V correction = half_square - fma(k, fill<V>(T::kLn2Low), tail);
    return fma(k, fill<V>(T::kLn2High), f - correction);
  }
};

/// Natural logarithm. NaN for NaN and below zero; -inf for 0 and -0; inf for inf.
template <Packed V>
OPWRIGHT_INLINE V log(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(log(part.low), log(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    constexpr A scale = A(typename T::Bits{1} << T::kMantissaBits);
    const auto subnormal = x < T::kLeastNormal;
    LogReduced<V> e(select(subnormal, x * scale, x));
    e.k = select(subnormal, e.k - A(T::kMantissaBits), e.k);
    const V below = select(x == A(0), fill<V>(-T::kInfinity), fill<V>(T::kNaN));
    const V result = select(x > A(0), e.log(), below);
    return select(x < T::kInfinity, result, x);  // inf and NaN
  }
}

/// log(1 + x) for x >= -1, without the special cases; x finite.
template <Packed V>
OPWRIGHT_INLINE V log1p_inner(V x) {
  using A = ElementOf<V>;
  using T = Table<A>;
  const V u = x + A(1);
  LogReduced<V> e(u);
  // 1 + x = u + c; the part of c in f is c / 2^k. Where 2^-k would leave the range, c is nothing.
  const V c = x - (u - A(1));
  constexpr auto twice_bias = (2 * T::kExponentBias) << T::kMantissaBits;
  const V inverse = bits_as<V>(twice_bias - e.exponent);
  e.f = select(u < A(0x1p60), fma(c, inverse, e.f), e.f);
  return e.log();
}

/// log(1 + x). NaN for NaN and below -1; -inf for -1; inf for inf; -0 for -0.
template <Packed V>
OPWRIGHT_INLINE V log1p(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(log1p(part.low), log1p(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    const V below = select(x == A(-1), fill<V>(-T::kInfinity), fill<V>(T::kNaN));
    const V result = select(x > A(-1), log1p_inner(x), below);
    const V finite = select(x < T::kInfinity, result, x);
    return select(abs(x) < T::kTiny, x, finite);
  }
}

/// log(1 + e^x), computed as max(x, 0) + log1p(e^-|x|), so without overflow and without a
/// threshold. NaN for NaN; 0 for -inf; inf for inf.
template <Packed V>
OPWRIGHT_INLINE V softplus(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(softplus(part.low), softplus(part.high));
  } else {
    const V tail = log1p_inner(exp(-abs(x)));
    return greater_or_second(V{}, x) + tail;
  }
}

/// torch's form with a threshold: x where x * beta > threshold, else softplus(x * beta) / beta.
/// For float and threshold 20 it equals softplus(x * beta) / beta to an ulp; for double it differs
/// by up to e^-threshold at the threshold, as torch's does.
template <Packed V>
OPWRIGHT_INLINE V softplus(V x, ElementOf<V> beta, ElementOf<V> threshold) {
  const V scaled = x * beta;
  return select(scaled > threshold, x, softplus(scaled) / beta);
}

/// 1 / sqrt(x) by a square root and a division. NaN for NaN and below zero; inf and -inf for 0 and
/// -0; 0 for inf.
template <Packed V>
OPWRIGHT_INLINE V rsqrt(V x) {
  return ElementOf<V>(1) / sqrt(x);
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
