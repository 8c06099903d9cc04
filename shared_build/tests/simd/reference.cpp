// Reference values and the measure of error. Compiled without any option that relaxes arithmetic.
//
// For float arguments the reference is double, for double arguments it is the wider long double of
// the platform (the tests compare a sample of both with mpmath). An error is counted in units of
// the last place of the result's format at the reference value: at least that of the least normal
// number, and that of the greatest finite number beyond it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

using Wide = decltype(1.0L);  // long double

template <class R>
R sigmoid(R x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}
template <class R>
R silu(R x) {
  return x * sigmoid(x);
}
template <class R>
R softplus(R x) {
  return (x > 0 ? x : R(0)) + std::log1p(std::exp(-std::fabs(x)));
}
template <class R>
R rsqrt(R x) {
  return 1 / std::sqrt(x);
}

/// 2^-k for the k of the last place of T at `exact`, a finite number.
template <class T>
double places_per_unit(double exact) {
  constexpr int digits = std::numeric_limits<T>::digits;
  const auto field = static_cast<int>(std::bit_cast<std::uint64_t>(exact) >> 52 & 0x7ff);
  const int exponent = std::clamp(field - 1022, std::numeric_limits<T>::min_exponent,
                                  std::numeric_limits<T>::max_exponent);
  return std::bit_cast<double>(static_cast<std::uint64_t>(digits - exponent + 1023) << 52);
}
template <class T>
Wide places_per_unit(Wide exact) {
  constexpr int digits = std::numeric_limits<T>::digits;
  const int exponent =
      std::clamp(exact == 0 ? -99999 : std::ilogb(exact) + 1, std::numeric_limits<T>::min_exponent,
                 std::numeric_limits<T>::max_exponent);
  return std::scalbn(1.0L, digits - exponent);
}

template <class T, class R>
double error_in_ulps(T got, R exact) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (std::isnan(exact) || std::isnan(got))
    return std::isnan(exact) && std::isnan(got) ? 0 : infinity;
  if (std::isinf(exact)) return R(got) == exact ? 0 : infinity;
  R value = R(got);
  if (std::isinf(got)) {
    // Counts as 2^max_exponent, which is what the format would hold with one more exponent.
    const R overflow = std::scalbn(R(1), std::numeric_limits<T>::max_exponent);
    if (std::fabs(exact) > overflow) return (got > 0) == (exact > 0) ? 0 : infinity;
    value = std::copysign(overflow, R(got));
  }
  return double(std::fabs(value - exact) * places_per_unit<T>(exact));
}

template <class T, class R>
double worst(const T* got, const R* exact, std::int64_t n, std::int64_t* where) {
  double most = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    const double error = error_in_ulps(got[i], exact[i]);
    if (error > most) {
      most = error;
      *where = i;
    }
  }
  return most;
}

}  // namespace

extern "C" {

double worst_float(const float* got, const double* exact, std::int64_t n, std::int64_t* where) {
  return worst(got, exact, n, where);
}
double worst_double(const double* got, const Wide* exact, std::int64_t n, std::int64_t* where) {
  return worst(got, exact, n, where);
}

#define REFERENCE(name, function)                                          \
  void float_##name(const float* in, double* out, std::int64_t n) {        \
    for (std::int64_t i = 0; i < n; ++i) out[i] = function(double(in[i])); \
  }                                                                        \
  void double_##name(const double* in, Wide* out, std::int64_t n) {        \
    for (std::int64_t i = 0; i < n; ++i) out[i] = function(Wide(in[i]));   \
  }
REFERENCE(exp, std::exp)
REFERENCE(expm1, std::expm1)
REFERENCE(log, std::log)
REFERENCE(log1p, std::log1p)
REFERENCE(sigmoid, sigmoid)
REFERENCE(silu, silu)
REFERENCE(tanh, std::tanh)
REFERENCE(softplus, softplus)
REFERENCE(erf, std::erf)
REFERENCE(sin, std::sin)
REFERENCE(cos, std::cos)
REFERENCE(rsqrt, rsqrt)

}  // extern "C"
