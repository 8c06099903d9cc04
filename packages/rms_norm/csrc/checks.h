// Argument checks of the operators, on whichever device their tensors are.
#pragma once

#include <cmath>

#include "opwright/overlap.h"
#include "opwright/stable.h"
#include "rms_norm.h"

namespace opwright {

inline int64_t rows_of(const Tensor& input) {
  const Shape shape = sizes(input);
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < shape.ndim; ++i) rows *= shape[i];
  return rows;
}

inline DType check_input(const Tensor& input, const char* op, const char* argument = "input") {
  const DType type = float_dtype(input, op, argument);
  check(input.dim() >= 1, op, "input with at least 1 dimension", "0");
  check(input.dim() <= kMaxDims, op, "input with at most 64 dimensions",
        [&] { return text(input.dim()); });
  return type;
}

inline void check_same_shape(const Tensor& tensor, const Tensor& input, const char* op,
                             const char* argument) {
  check(
      same(sizes(tensor), sizes(input)), op,
      [&] { return std::string(argument) + " of shape " + text(sizes(input)); },
      [&] { return text(sizes(tensor)); });
  check_device(tensor, input, op, argument);
}

inline void check_eps(double eps, const char* op) {
  check(std::isfinite(eps) && eps >= 0, op, "eps to be finite and not negative",
        [&] { return std::to_string(eps); });
}

// Options arrive as numbers, since strings leak through the stable ABI; Python turns their names
// into them.
inline void check_option(int64_t value, const char* op, const char* expected) {
  check(value == 0 || value == 1, op, expected, [&] { return std::to_string(value); });
}

inline constexpr const char* kRoundings = "rounding to be one of once, llama";
inline constexpr const char* kStatistics = "statistics to be one of rounded, exact";
inline constexpr const char* kActivations = "activation to be one of silu, sigmoid";

// A float64 weight or residual goes with a float64 input only.
inline DType check_companion(const Tensor& tensor, const char* argument, DType input_type,
                             const char* op) {
  const int32_t code = dtype_code(tensor);
  const bool narrow = code == aoti_torch_dtype_float32() || code == aoti_torch_dtype_bfloat16() ||
                      code == aoti_torch_dtype_float16();
  const bool wide = code == aoti_torch_dtype_float64() && input_type == DType::float64;
  const auto expected = [&] {
    const char* types = input_type == DType::float64 ? "bfloat16, float16, float32 or float64"
                                                     : "bfloat16, float16 or float32";
    return std::string(argument) + " of dtype " + types + " with " + dtype_name(input_type) +
           " input";
  };
  check(narrow || wide, op, expected, [&] { return dtype_name(code); });
  return float_dtype(tensor, op, argument);
}

// Returns the weight's type; the input's when there is none.
inline DType check_weight(const OptionalTensor& weight, const Tensor& input, DType input_type,
                          bool per_head, const char* op) {
  if (!weight) return input_type;
  const DType type = check_companion(*weight, "weight", input_type, op);
  const Shape shape = sizes(input), given = sizes(*weight);
  const bool row = given.ndim == 1 && given[0] == shape[-1];
  const bool heads = per_head && given.ndim == 2 && shape.ndim >= 2 && given[1] == shape[-1] &&
                     given[0] == shape[-2];
  const auto expected = [&] {
    const std::string one = "weight of shape (" + std::to_string(shape[-1]) + ",)";
    if (!per_head || shape.ndim < 2) return one;
    return one + " or (" + std::to_string(shape[-2]) + ", " + std::to_string(shape[-1]) + ")";
  };
  check(row || heads, op, expected, [&] { return text(given); });
  check_device(*weight, input, op, "weight");
  return type;
}

// ---- add_rms_norm -------------------------------------------------------------------------------

// Checks the arguments and fills in what does not depend on where the results go.
inline RmsNormForward add_rms_norm_params(const char* op, const Tensor& input,
                                          const Tensor& residual, const OptionalTensor& weight,
                                          double eps, int64_t rounding, int64_t statistics) {
  RmsNormForward p{};
  p.input_type = check_input(input, op);
  check_same_shape(residual, input, op, "residual");
  p.residual_type = check_companion(residual, "residual", p.input_type, op);
  p.stream_type = promote(p.input_type, p.residual_type);
  const DType weight_type = check_weight(weight, input, p.input_type, true, op);
  check_eps(eps, op);
  check_option(rounding, op, kRoundings);
  check_option(statistics, op, kStatistics);
  p.rounding = static_cast<Rounding>(rounding);
  p.output_type =
      p.rounding == Rounding::kLlama ? promote(p.input_type, weight_type) : p.input_type;
  // In fp32 and fp64 the sum is not rounded any further, so both are the same.
  p.exact_statistics = statistics == 1 && element_size(p.stream_type) < 4;
  p.eps = eps;
  p.columns = sizes(input)[-1];
  p.rows = rows_of(input);
  return p;
}

// Refuses arguments of the in-place operator that share memory, and elements of one that do.
inline void check_memory(const Tensor& input, const Tensor& residual,
                         const OptionalTensor& weight) {
  constexpr const char* kOp = "add_rms_norm_";
  constexpr const char* overlapping = "overlapping memory";
  check(without_overlap(input), kOp, "input whose elements lie apart", overlapping);
  check(without_overlap(residual), kOp, "residual whose elements lie apart", overlapping);
  const Extent a = extent(input), b = extent(residual);
  check(a.first > b.last || b.first > a.last, kOp, "input and residual in memory of their own",
        overlapping);
  if (weight) {
    const Extent w = extent(*weight);
    check((a.first > w.last || w.first > a.last) && (b.first > w.last || w.first > b.last), kOp,
          "weight in memory of its own", overlapping);
  }
}

// ---- rms_norm_gated -----------------------------------------------------------------------------

struct GatedTypes {
  DType input, weight, output;
};

// group_size 0 means the whole last dimension.
inline GatedTypes check_gated(const char* op, const Tensor& input, const OptionalTensor& gate,
                              const OptionalTensor& weight, int64_t activation,
                              bool norm_before_gate, int64_t group_size, int64_t rounding) {
  GatedTypes types{};
  types.input = check_input(input, op);
  if (gate) {
    check_same_shape(*gate, input, op, "gate");
    check(
        dtype_code(*gate) == dtype_code(types.input), op,
        [&] { return std::string("gate of dtype ") + dtype_name(types.input); },
        [&] { return dtype_name(dtype_code(*gate)); });
  }
  types.weight = check_weight(weight, input, types.input, false, op);
  check_option(activation, op, kActivations);
  check_option(rounding, op, kRoundings);
  const int64_t columns = sizes(input)[-1];
  check(
      group_size >= 0 && (group_size == 0 || columns % group_size == 0), op,
      [&] { return "group_size to be positive and to divide " + std::to_string(columns); },
      [&] { return std::to_string(group_size); });
  types.output =
      rounding == 1 && !norm_before_gate ? promote(types.input, types.weight) : types.input;
  return types;
}

inline int64_t group_count(const Tensor& input, int64_t group_size) {
  return group_size == 0 || sizes(input)[-1] == 0 ? 1 : sizes(input)[-1] / group_size;
}

}  // namespace opwright
