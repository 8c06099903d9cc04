// Elements of the storage types and the types that kernels compute in. Included by device.h.
//
// widen is exact; narrow rounds once, to nearest even. The same rules, bit for bit, as the CPU's
// simd_convert.h, NaN payloads aside.
#pragma once

namespace opwright {

namespace cuda_bits {

#if defined(__CUDACC__)
OPWRIGHT_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
OPWRIGHT_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
OPWRIGHT_DEVICE float float_of_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
OPWRIGHT_DEVICE uint16_t half_of_float(float x) { return __half_as_ushort(__float2half_rn(x)); }
OPWRIGHT_DEVICE float toward_zero(double x) { return __double2float_rz(x); }
#else
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of_half(uint16_t bits) { return simulator::float_of_half(bits); }
inline uint16_t half_of_float(float x) { return simulator::half_of_float(x); }
inline float toward_zero(double x) { return simulator::toward_zero(x); }
#endif

// bfloat16 is the upper half of a float: add half of the last place that stays, and one less where
// that place is even.
OPWRIGHT_DEVICE uint16_t bfloat16_of_float(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A float from which rounding to a narrower type gives what rounding the double would: cut off,
// with the last bit set if anything was lost.
OPWRIGHT_DEVICE float round_to_odd(double x) {
  const float cut = toward_zero(x);
  return static_cast<double>(cut) == x ? cut : float_of(bits_of(cut) | 1u);
}

}  // namespace cuda_bits

template <class A>
OPWRIGHT_DEVICE A widen(float x) {
  return static_cast<A>(x);
}
template <class A>
OPWRIGHT_DEVICE A widen(double x) {
  return static_cast<A>(x);
}
template <class A>
OPWRIGHT_DEVICE A widen(BFloat16 x) {
  return static_cast<A>(cuda_bits::float_of(static_cast<uint32_t>(x.bits) << 16));
}
template <class A>
OPWRIGHT_DEVICE A widen(Half x) {
  return static_cast<A>(cuda_bits::float_of_half(x.bits));
}

template <class S>
struct Narrow;
template <>
struct Narrow<float> {
  OPWRIGHT_DEVICE static float of(float x) { return x; }
  OPWRIGHT_DEVICE static float of(double x) { return static_cast<float>(x); }
};
template <>
struct Narrow<double> {
  OPWRIGHT_DEVICE static double of(double x) { return x; }
};
template <>
struct Narrow<BFloat16> {
  OPWRIGHT_DEVICE static BFloat16 of(float x) { return {cuda_bits::bfloat16_of_float(x)}; }
  OPWRIGHT_DEVICE static BFloat16 of(double x) { return of(cuda_bits::round_to_odd(x)); }
};
template <>
struct Narrow<Half> {
  OPWRIGHT_DEVICE static Half of(float x) { return {cuda_bits::half_of_float(x)}; }
  OPWRIGHT_DEVICE static Half of(double x) { return of(cuda_bits::round_to_odd(x)); }
};

template <class S, class A>
OPWRIGHT_DEVICE S narrow(A x) {
  return Narrow<S>::of(x);
}

// The same for an x that S holds exactly.
template <class S, class A>
OPWRIGHT_DEVICE S narrow_exact(A x) {
  return Narrow<S>::of(x);
}
template <>
OPWRIGHT_DEVICE BFloat16 narrow_exact<BFloat16, float>(float x) {
  return {static_cast<uint16_t>(cuda_bits::bits_of(x) >> 16)};
}

// x as it would be after being stored as S.
template <class S, class A>
OPWRIGHT_DEVICE A round_to(A x) {
  return widen<A>(narrow<S>(x));
}

}  // namespace opwright
