// From run-time dtypes to compile-time types: the one dispatch point of a kernel file.
#pragma once

#include "opwright/types.h"

namespace opwright {
namespace {

template <class T>
struct Type {
  using type = T;
};

// A value as a type, for use as a template argument inside a generic lambda.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

template <class T>
constexpr DType kDType = DType::float32;
template <>
constexpr DType kDType<double> = DType::float64;
template <>
constexpr DType kDType<BFloat16> = DType::bfloat16;
template <>
constexpr DType kDType<Half> = DType::float16;

template <class T, class U>
constexpr bool kSame = false;
template <class T>
constexpr bool kSame<T, T> = true;

// True for types narrower than fp32.
template <class T>
constexpr bool kLow = sizeof(T) < sizeof(float);

// torch's promotion of two floating types.
template <class T, class U>
struct Promote {
  using type = float;
};
template <class T>
struct Promote<T, T> {
  using type = T;
};
template <class T>
struct Promote<T, double> {
  using type = double;
};
template <class T>
struct Promote<double, T> {
  using type = double;
};
template <>
struct Promote<double, double> {
  using type = double;
};
template <class T, class U>
using promote_t = typename Promote<T, U>::type;

template <class F>
void with_type(DType type, const F& f) {
  switch (type) {
    case DType::float32:
      return f(Type<float>{});
    case DType::float64:
      return f(Type<double>{});
    case DType::bfloat16:
      return f(Type<BFloat16>{});
    case DType::float16:
      return f(Type<Half>{});
  }
}

}  // namespace
}  // namespace opwright
