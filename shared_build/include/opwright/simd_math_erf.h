// The error function of packs of float and double. Bounds: docs/design/numerics.md.
#pragma once

#include "opwright/simd_math_exp.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

/// erf(x): x + x p(x^2) up to 1, then 1 - exp(log erfc(x)). NaN for NaN; -1 and 1 for -inf and inf;
/// -0 for -0.
template <Packed V>
OPWRIGHT_INLINE V erf(V x) {
  if constexpr (WiderThanNative<V>) {
    const auto part = split(x);
    return join(erf(part.low), erf(part.high));
  } else {
    using A = ElementOf<V>;
    using T = Table<A>;
    const V a = abs(x);
    const V near_zero = fma(a, horner(a * a, T::erf), a);
    const V far = A(1) - exp(horner(lesser_or_second(fill<V>(T::kErfEnd), a), T::log_erfc));
    return with_sign(a < A(1) ? near_zero : far, x);
  }
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
