// Element types of the kernels and the type each of them computes in.
//
// Plain data only: nothing here depends on the instruction set, so these types may stand in the
// signature of a kernel that is compiled once per instruction set.
#pragma once

#include <cstdint>

namespace opwright {

/// bfloat16 storage: the upper half of an IEEE binary32.
struct BFloat16 {
  std::uint16_t bits;
};

/// IEEE binary16 storage.
struct Half {
  std::uint16_t bits;
};

static_assert(sizeof(BFloat16) == 2 && alignof(BFloat16) == 2);
static_assert(sizeof(Half) == 2 && alignof(Half) == 2);

/// Element types as they cross the boundary between the binding and a kernel.
enum class DType : std::int32_t { float32 = 0, float64 = 1, bfloat16 = 2, float16 = 3 };

/// The type a kernel computes in for elements of type `T`: double for double, else float.
template <class T>
struct accumulate;
template <>
struct accumulate<float> {
  using type = float;
};
template <>
struct accumulate<double> {
  using type = double;
};
template <>
struct accumulate<BFloat16> {
  using type = float;
};
template <>
struct accumulate<Half> {
  using type = float;
};
template <class T>
using accumulate_t = typename accumulate<T>::type;

}  // namespace opwright
