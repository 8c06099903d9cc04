// Argument checks of the binding files: one form of message, and the exception types that Python sees.
//
//   check(ok, "rms_norm", "input with at least 1 dimension", [&] { return text(dim) + " dimensions"; });
//     -> ValueError: rms_norm: expected input with at least 1 dimension, but got 0 dimensions
//
// std::invalid_argument reaches Python as ValueError, std::out_of_range as IndexError and std::runtime_error as
// RuntimeError, each with its exact text. What was got is a callable, so that a passing check builds no string.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace opwright {

inline std::string text(int64_t value) { return std::to_string(value); }

template <class Error = std::invalid_argument, class Got>
inline void check(bool ok, const char* op, const char* expected, const Got& got) {
  if (__builtin_expect(ok, true)) return;
  throw Error(std::string(op) + ": expected " + expected + ", but got " + got());
}

}  // namespace opwright
