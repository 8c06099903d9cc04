// Argument checks of the binding files: one form of message, and the exception types that Python
// sees.
//
//   check(ok, "rms_norm", "input with at least 1 dimension", [&] { return text(dim); });
//     -> ValueError: rms_norm: expected input with at least 1 dimension, but got 0
//
// std::invalid_argument reaches Python as ValueError, std::out_of_range as IndexError and
// std::runtime_error as RuntimeError, each with its exact text. What was expected and what was got
// are literals or callables that return a string, so that a check that passes builds none.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace opwright {

inline std::string text(int64_t value) { return std::to_string(value); }

namespace detail {
inline std::string evaluate(const char* words) { return words; }
template <class F>
inline std::string evaluate(const F& words) {
  return words();
}
}  // namespace detail

template <class Error = std::invalid_argument, class Expected, class Got>
inline void check(bool ok, const char* op, const Expected& expected, const Got& got) {
  if (__builtin_expect(ok, true)) return;
  throw Error(std::string(op) + ": expected " + detail::evaluate(expected) + ", but got " +
              detail::evaluate(got));
}

}  // namespace opwright
