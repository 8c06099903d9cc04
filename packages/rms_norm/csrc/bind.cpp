// Schemas, argument checks and allocation of rms_norm, add_rms_norm and rms_norm_gated, and the
// calls into their kernels.
//
// Every differentiable operator X has a twin X_raw with the same kernel and no autograd, which
// costs a caller that needs no gradient nothing. Autograd, fakes and the rest are registered from
// Python (registration.py).
#include <cmath>
#include <tuple>
#include <utility>

#include "opwright/overlap.h"
#include "opwright/stable.h"
#include "rms_norm.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(RmsNormKernels, rms_norm_kernels)

namespace {

const RmsNormKernels& kernels() {
  static const RmsNormKernels& table = rms_norm_kernels_for_level();
  return table;
}

// ---- checks -------------------------------------------------------------------------------------

DType check_input(const Tensor& input, const char* op, const char* argument = "input") {
  const DType type = float_dtype(input, op, argument);
  check(input.dim() >= 1, op, "input with at least 1 dimension", "0");
  check(input.dim() <= kMaxDims, op, "input with at most 64 dimensions",
        [&] { return text(input.dim()); });
  return type;
}

void check_same_shape(const Tensor& tensor, const Tensor& input, const char* op,
                      const char* argument) {
  check(
      same(sizes(tensor), sizes(input)), op,
      [&] { return std::string(argument) + " of shape " + text(sizes(input)); },
      [&] { return text(sizes(tensor)); });
  check_cpu(tensor, op, argument);
}

void check_eps(double eps, const char* op) {
  check(std::isfinite(eps) && eps >= 0, op, "eps to be finite and not negative",
        [&] { return std::to_string(eps); });
}

// Options arrive as numbers, since strings leak through the stable ABI; Python turns their names
// into them.
void check_option(int64_t value, const char* op, const char* expected) {
  check(value == 0 || value == 1, op, expected, [&] { return std::to_string(value); });
}

constexpr const char* kRoundings = "rounding to be one of once, llama";
constexpr const char* kStatistics = "statistics to be one of rounded, exact";
constexpr const char* kActivations = "activation to be one of silu, sigmoid";

// A float64 weight or residual goes with a float64 input only.
DType check_companion(const Tensor& tensor, const char* argument, DType input_type,
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
DType check_weight(const OptionalTensor& weight, const Tensor& input, DType input_type,
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
  check_cpu(*weight, op, "weight");
  return type;
}

// ---- weights ------------------------------------------------------------------------------------

// A weight in the arithmetic's type, with the offset added: the tensor's own memory where that is
// what it holds.
struct Scale {
  Scale(const OptionalTensor& weight, DType weight_type, DType type, double offset)
      : converted(converted_bytes(weight, weight_type, type, offset)) {
    if (!weight) return;
    const Shape shape = sizes(*weight), stride = strides(*weight);
    const int64_t columns = shape[-1];
    heads = shape.ndim == 2 ? shape[0] : 1;
    const char* from = static_cast<const char*>(weight->const_data_ptr());
    data = converted.data() ? static_cast<const void*>(converted.data()) : from;
    if (!converted.data()) return;
    const int64_t from_step = shape.ndim == 2 ? stride[0] * element_size(weight_type) : 0;
    for (int64_t head = 0; head < heads; ++head) {
      kernels().convert({columns, weight_type, type, offset, from + head * from_step, stride[-1],
                         converted.data() + head * columns * element_size(type)});
    }
  }

  Scratch<char> converted;
  const void* data = nullptr;
  int64_t heads = 1;

 private:
  // 0 where the weight can be read as it is.
  static int64_t converted_bytes(const OptionalTensor& weight, DType weight_type, DType type,
                                 double offset) {
    if (!weight) return 0;
    const Shape shape = sizes(*weight), stride = strides(*weight);
    const bool contiguous = stride[-1] == 1 && (shape.ndim == 1 || stride[0] == shape[-1]);
    if (weight_type == type && offset == 0 && contiguous) return 0;
    return weight->numel() * element_size(type);
  }
};

// The partial sums of a weight's gradient, and how many parts they come in.
struct WeightGrad {
  WeightGrad(bool wanted, int64_t rows, int64_t heads, int64_t size, DType type)
      : parts(weight_grad_parts(rows > 0 ? rows : 1, heads)),
        partial(wanted ? parts * size * element_size(type) : 0) {
    // Without rows no kernel runs, and the sum of nothing is zero.
    if (rows == 0 && partial.data())
      __builtin_memset(partial.data(), 0, parts * size * element_size(type));
  }
  void* data() const { return partial.data(); }

  int64_t parts;
  Scratch<char> partial;
};

OptionalTensor combine(const WeightGrad& grad, bool wanted, const OptionalTensor& weight,
                       DType weight_type, DType type) {
  if (!wanted) return std::nullopt;
  Tensor result = empty(sizes(*weight), weight_type);
  if (result.numel() > 0) {
    kernels().combine_parts(
        {result.numel(), grad.parts, type, weight_type, grad.data(), result.mutable_data_ptr()});
  }
  return result;
}

Tensor empty_rstd(const Tensor& input, int64_t groups, DType type) {
  const Shape shape = sizes(input);
  if (groups == 0) return empty(shape.data, shape.ndim - 1, accumulate_type(type));
  int64_t size[kMaxDims];
  for (int64_t i = 0; i + 1 < shape.ndim; ++i) size[i] = shape[i];
  size[shape.ndim - 1] = groups;
  return empty(size, shape.ndim, accumulate_type(type));
}

int64_t rows_of(const Tensor& input) {
  const Shape shape = sizes(input);
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < shape.ndim; ++i) rows *= shape[i];
  return rows;
}

// The mean of no squares is not a number.
void fill_nan(const Tensor& tensor) {
  Tensor self = tensor;
  torch::stable::fill_(self, std::nan(""));
}

// ---- rms_norm -----------------------------------------------------------------------------------

// The output, and the statistics if they are to be kept.
std::pair<Tensor, OptionalTensor> rms_norm(const Tensor& input, const OptionalTensor& weight,
                                           double eps, double weight_offset, int64_t rounding,
                                           bool keep_rstd) {
  constexpr const char* kOp = "rms_norm";
  RmsNormForward p{};
  p.input_type = p.residual_type = p.stream_type = check_input(input, kOp);
  const DType weight_type = check_weight(weight, input, p.input_type, true, kOp);
  check_eps(eps, kOp);
  check_option(rounding, kOp, kRoundings);
  p.rounding = static_cast<Rounding>(rounding);
  p.output_type =
      p.rounding == Rounding::kLlama ? promote(p.input_type, weight_type) : p.input_type;

  Tensor output = empty(sizes(input), p.output_type);
  OptionalTensor rstd;
  if (keep_rstd) rstd = empty_rstd(input, 0, p.input_type);
  p.columns = sizes(input)[-1];
  p.rows = rows_of(input);
  if (p.columns == 0 && rstd) fill_nan(*rstd);
  if (p.rows == 0 || p.columns == 0) return {output, rstd};

  const Scale scale(weight, weight_type, accumulate_type(p.input_type), weight_offset);
  const RowsIn in = rows_in(input);
  p.heads = scale.heads;
  p.stream_stores = beyond_caches(p.rows * p.columns * element_size(p.output_type));
  p.eps = eps;
  p.input = in.data();
  p.input_layout = in.layout;
  p.weight = scale.data;
  p.output = output.mutable_data_ptr();
  p.output_layout = contiguous_rows(p.rows, p.columns);
  p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
  kernels().forward(p);
  return {output, rstd};
}

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& input, const OptionalTensor& weight,
                                            double eps, double weight_offset, int64_t rounding) {
  const auto [output, rstd] = rms_norm(input, weight, eps, weight_offset, rounding, true);
  return {output, *rstd};
}

Tensor rms_norm_inference(const Tensor& input, const OptionalTensor& weight, double eps,
                          double weight_offset, int64_t rounding) {
  return rms_norm(input, weight, eps, weight_offset, rounding, false).first;
}

// Shared by the backward of rms_norm and of add_rms_norm: `value` is the input of the one,
// residual_out of the other.
std::tuple<Tensor, OptionalTensor> backward(const char* op, const OptionalTensor& grad_output,
                                            const OptionalTensor& grad_residual_out,
                                            const Tensor& value, const OptionalTensor& weight,
                                            const Tensor& rstd, double weight_offset,
                                            bool need_input, bool need_weight) {
  RmsNormBackward p{};
  p.stream_type = check_input(value, op, "value");
  p.columns = sizes(value)[-1];
  p.rows = rows_of(value);
  // Beside an fp32 stream the input may be narrower, and the output with it; so the weight's own
  // limits do not apply here.
  const DType weight_type = check_weight(weight, value, p.stream_type, true, op);
  const DType type = accumulate_type(p.stream_type);
  p.output_type = p.stream_type;
  if (grad_output) {
    check_same_shape(*grad_output, value, op, "grad_output");
    p.output_type = float_dtype(*grad_output, op, "grad_output");
    check((p.output_type == DType::float64) == (p.stream_type == DType::float64) &&
              (p.output_type == p.stream_type || p.output_type == DType::float32 ||
               p.stream_type == DType::float32),
          op, "grad_output of the output's dtype", dtype_name(p.output_type));
  }
  if (grad_residual_out) {
    check_same_shape(*grad_residual_out, value, op, "grad_residual_out");
    check(float_dtype(*grad_residual_out, op, "grad_residual_out") == p.stream_type, op,
          "grad_residual_out of residual_out's dtype",
          [&] { return dtype_name(dtype_code(*grad_residual_out)); });
  }
  check(rstd.numel() == p.rows && dtype_code(rstd) == dtype_code(type), op,
        "rstd as the forward returned it",
        [&] { return text(sizes(rstd)) + " " + dtype_name(dtype_code(rstd)); });
  need_weight = need_weight && weight;

  Tensor grad_input = gradient(need_input, value, p.stream_type);
  const Scale scale(weight, weight_type, type, weight_offset);
  p.heads = scale.heads;
  const WeightGrad weight_grad(need_weight, p.rows, p.heads, p.heads * p.columns, type);
  if (p.rows > 0 && p.columns > 0) {
    const RowsIn value_rows = rows_in(value);
    const RowsIn grad_rows = grad_output ? rows_in(*grad_output) : value_rows;
    const RowsIn residual_rows = grad_residual_out ? rows_in(*grad_residual_out) : value_rows;
    const Tensor rstd_dense = torch::stable::contiguous(rstd);
    p.stream_stores = beyond_caches(p.rows * p.columns * element_size(p.stream_type));
    p.grad_output = grad_output ? grad_rows.data() : nullptr;
    p.grad_output_layout = grad_rows.layout;
    p.grad_residual_out = grad_residual_out ? residual_rows.data() : nullptr;
    p.grad_residual_out_layout = residual_rows.layout;
    p.value = value_rows.data();
    p.value_layout = value_rows.layout;
    p.weight = scale.data;
    p.rstd = rstd_dense.const_data_ptr();
    p.grad_input = need_input ? grad_input.mutable_data_ptr() : nullptr;
    p.partial = weight_grad.data();
    p.parts = weight_grad.parts;
    kernels().backward(p);
  }
  return {grad_input, combine(weight_grad, need_weight, weight, weight_type, type)};
}

std::tuple<Tensor, OptionalTensor> rms_norm_backward(const Tensor& grad_output, const Tensor& input,
                                                     const OptionalTensor& weight,
                                                     const Tensor& rstd, double eps,
                                                     double weight_offset, bool need_input,
                                                     bool need_weight) {
  (void)eps;  // for the second derivative, which recomputes rstd
  return backward("rms_norm_backward", grad_output, std::nullopt, input, weight, rstd,
                  weight_offset, need_input, need_weight);
}

// ---- add_rms_norm -------------------------------------------------------------------------------

// Checks the arguments and fills in what does not depend on where the results go.
RmsNormForward add_rms_norm_params(const char* op, const Tensor& input, const Tensor& residual,
                                   const OptionalTensor& weight, double eps, int64_t rounding,
                                   int64_t statistics) {
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

void run_add(RmsNormForward& p, const Tensor& input, const Tensor& residual,
             const OptionalTensor& weight, double weight_offset, const Tensor& output,
             RowLayout output_layout, const Tensor& residual_out, RowLayout residual_out_layout,
             const OptionalTensor& rstd) {
  if (p.columns == 0 && rstd) fill_nan(*rstd);
  if (p.rows == 0 || p.columns == 0) return;
  const DType weight_type = weight ? float_dtype(*weight, "add_rms_norm", "weight") : p.input_type;
  const Scale scale(weight, weight_type, accumulate_type(p.input_type), weight_offset);
  const RowsIn in = rows_in(input);
  // Beside an fp64 input the kernel takes fp64 residuals only; a narrower one, which no model has,
  // is widened first.
  const bool widen = p.residual_type != p.input_type && p.input_type == DType::float64;
  const RowsIn res = rows_in(
      widen ? torch::stable::to(residual, torch::headeronly::ScalarType::Double) : residual);
  if (widen) p.residual_type = DType::float64;
  p.heads = scale.heads;
  p.input = in.data();
  p.input_layout = in.layout;
  p.residual = res.data();
  p.residual_layout = res.layout;
  p.weight = scale.data;
  p.output = output.mutable_data_ptr();
  p.output_layout = output_layout;
  p.residual_out = residual_out.mutable_data_ptr();
  p.residual_out_layout = residual_out_layout;
  p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
  kernels().forward(p);
}

// (output, residual_out), and the statistics if they are to be kept.
std::tuple<Tensor, Tensor, OptionalTensor> add_rms_norm(const Tensor& input, const Tensor& residual,
                                                        const OptionalTensor& weight, double eps,
                                                        double weight_offset, int64_t rounding,
                                                        int64_t statistics, bool keep_rstd) {
  RmsNormForward p =
      add_rms_norm_params("add_rms_norm", input, residual, weight, eps, rounding, statistics);
  Tensor output = empty(sizes(input), p.output_type);
  Tensor residual_out = empty(sizes(input), p.stream_type);
  OptionalTensor rstd;
  if (keep_rstd) rstd = empty_rstd(input, 0, p.input_type);
  p.stream_stores = beyond_caches(p.rows * p.columns *
                                  (element_size(p.output_type) + element_size(p.stream_type)));
  const RowLayout layout = contiguous_rows(p.rows, p.columns);
  run_add(p, input, residual, weight, weight_offset, output, layout, residual_out, layout, rstd);
  return {output, residual_out, rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(const Tensor& input, const Tensor& residual,
                                                        const OptionalTensor& weight, double eps,
                                                        double weight_offset, int64_t rounding,
                                                        int64_t statistics) {
  const auto [output, residual_out, rstd] =
      add_rms_norm(input, residual, weight, eps, weight_offset, rounding, statistics, true);
  return {output, residual_out, *rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm_inference(const Tensor& input, const Tensor& residual,
                                                  const OptionalTensor& weight, double eps,
                                                  double weight_offset, int64_t rounding,
                                                  int64_t statistics) {
  const auto [output, residual_out, rstd] =
      add_rms_norm(input, residual, weight, eps, weight_offset, rounding, statistics, false);
  return {output, residual_out};
}

std::tuple<Tensor, OptionalTensor> add_rms_norm_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_residual_out,
    const Tensor& residual_out, const OptionalTensor& weight, const Tensor& rstd, double eps,
    double weight_offset, bool need_sum, bool need_weight) {
  (void)eps;
  return backward("add_rms_norm_backward", grad_output, grad_residual_out, residual_out, weight,
                  rstd, weight_offset, need_sum, need_weight);
}

// Refuses arguments of the in-place operator that share memory, and elements of one that do.
void check_memory(const Tensor& input, const Tensor& residual, const OptionalTensor& weight) {
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

void add_rms_norm_(const Tensor& input, const Tensor& residual, const OptionalTensor& weight,
                   double eps, double weight_offset, int64_t rounding, int64_t statistics) {
  constexpr const char* kOp = "add_rms_norm_";
  RmsNormForward p = add_rms_norm_params(kOp, input, residual, weight, eps, rounding, statistics);
  const auto check_holds = [&](const char* argument, DType result, DType own) {
    const auto expected = [&] {
      return std::string(argument) + " of dtype " + dtype_name(result) + " to hold its result";
    };
    check(result == own, kOp, expected, dtype_name(own));
  };
  check_holds("input", p.output_type, p.input_type);
  check_holds("residual", p.stream_type, p.residual_type);
  check_memory(input, residual, weight);
  RowLayout output_layout{}, residual_layout{};
  const bool few = collapse_rows(sizes(input), strides(input), 1, &output_layout) &&
                   collapse_rows(sizes(residual), strides(residual), 1, &residual_layout);
  check(few, kOp, "tensors whose leading dimensions merge into at most 6", "more");
  mark_mutated(input);
  mark_mutated(residual);
  run_add(p, input, residual, weight, weight_offset, input, output_layout, residual,
          residual_layout, std::nullopt);
}

// ---- rms_norm_gated -----------------------------------------------------------------------------

struct GatedTypes {
  DType input, weight, output;
};

// group_size 0 means the whole last dimension.
GatedTypes check_gated(const char* op, const Tensor& input, const OptionalTensor& gate,
                       const OptionalTensor& weight, int64_t activation, bool norm_before_gate,
                       int64_t group_size, int64_t rounding) {
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

int64_t group_count(const Tensor& input, int64_t group_size) {
  return group_size == 0 || sizes(input)[-1] == 0 ? 1 : sizes(input)[-1] / group_size;
}

// The output, and the statistics if they are to be kept.
std::pair<Tensor, OptionalTensor> rms_norm_gated(const Tensor& input, const OptionalTensor& gate,
                                                 const OptionalTensor& weight, double eps,
                                                 int64_t activation, bool norm_before_gate,
                                                 int64_t group_size, int64_t rounding,
                                                 bool keep_rstd) {
  constexpr const char* kOp = "rms_norm_gated";
  const GatedTypes types =
      check_gated(kOp, input, gate, weight, activation, norm_before_gate, group_size, rounding);
  check_eps(eps, kOp);
  RmsNormGatedForward p{};
  p.groups = group_count(input, group_size);
  Tensor output = empty(sizes(input), types.output);
  OptionalTensor rstd;
  if (keep_rstd) rstd = empty_rstd(input, p.groups, types.input);
  p.columns = sizes(input)[-1] / p.groups;
  p.rows = rows_of(input) * p.groups;
  if (p.columns == 0 && rstd) fill_nan(*rstd);
  if (p.rows == 0 || p.columns == 0) return {output, rstd};

  const Scale scale(weight, types.weight, accumulate_type(types.input), 0.0);
  const RowsIn in = rows_in(input, p.groups);
  const RowsIn gate_rows = gate ? rows_in(*gate, p.groups) : in;
  p.input_type = types.input;
  p.weight_type = types.weight;
  p.output_type = types.output;
  p.rounding = static_cast<Rounding>(rounding);
  p.activation = static_cast<Activation>(activation);
  p.norm_before_gate = norm_before_gate;
  p.stream_stores = beyond_caches(p.rows * p.columns * element_size(p.output_type));
  p.eps = eps;
  p.input = in.data();
  p.input_layout = in.layout;
  p.gate = gate ? gate_rows.data() : nullptr;
  p.gate_layout = gate_rows.layout;
  p.weight = scale.data;
  p.output = output.mutable_data_ptr();
  p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
  kernels().gated_forward(p);
  return {output, rstd};
}

std::tuple<Tensor, Tensor> rms_norm_gated_forward(const Tensor& input, const OptionalTensor& gate,
                                                  const OptionalTensor& weight, double eps,
                                                  int64_t activation, bool norm_before_gate,
                                                  int64_t group_size, int64_t rounding) {
  const auto [output, rstd] = rms_norm_gated(input, gate, weight, eps, activation, norm_before_gate,
                                             group_size, rounding, true);
  return {output, *rstd};
}

Tensor rms_norm_gated_inference(const Tensor& input, const OptionalTensor& gate,
                                const OptionalTensor& weight, double eps, int64_t activation,
                                bool norm_before_gate, int64_t group_size, int64_t rounding) {
  return rms_norm_gated(input, gate, weight, eps, activation, norm_before_gate, group_size,
                        rounding, false)
      .first;
}

std::tuple<Tensor, OptionalTensor, OptionalTensor> rms_norm_gated_backward(
    const Tensor& grad_output, const Tensor& input, const OptionalTensor& gate,
    const OptionalTensor& weight, const Tensor& rstd, double eps, int64_t activation,
    bool norm_before_gate, int64_t group_size, bool need_input, bool need_gate, bool need_weight) {
  constexpr const char* kOp = "rms_norm_gated_backward";
  (void)eps;
  const GatedTypes types =
      check_gated(kOp, input, gate, weight, activation, norm_before_gate, group_size, 0);
  check_same_shape(grad_output, input, kOp, "grad_output");
  RmsNormGatedBackward p{};
  p.output_type = float_dtype(grad_output, kOp, "grad_output");
  check(p.output_type == types.input ||
            (p.output_type == DType::float32 && element_size(types.input) < 4),
        kOp, "grad_output of the output's dtype", dtype_name(p.output_type));
  p.groups = group_count(input, group_size);
  p.columns = sizes(input)[-1] / p.groups;
  p.rows = rows_of(input) * p.groups;
  const DType type = accumulate_type(types.input);
  check(rstd.numel() == p.rows && dtype_code(rstd) == dtype_code(type), kOp,
        "rstd as the forward returned it",
        [&] { return text(sizes(rstd)) + " " + dtype_name(dtype_code(rstd)); });
  need_gate = need_gate && gate;
  need_weight = need_weight && weight;

  Tensor grad_input = gradient(need_input, input, types.input);
  OptionalTensor grad_gate;
  if (need_gate) grad_gate = empty(sizes(input), types.input);
  const WeightGrad weight_grad(need_weight, p.rows, p.groups, p.groups * p.columns, type);
  if (p.rows > 0 && p.columns > 0) {
    const Scale scale(weight, types.weight, type, 0.0);
    const RowsIn in = rows_in(input, p.groups), grad_rows = rows_in(grad_output, p.groups);
    const RowsIn gate_rows = gate ? rows_in(*gate, p.groups) : in;
    const Tensor rstd_dense = torch::stable::contiguous(rstd);
    p.input_type = types.input;
    p.activation = static_cast<Activation>(activation);
    p.norm_before_gate = norm_before_gate;
    p.grad_output = grad_rows.data();
    p.grad_output_layout = grad_rows.layout;
    p.input = in.data();
    p.input_layout = in.layout;
    p.gate = gate ? gate_rows.data() : nullptr;
    p.gate_layout = gate_rows.layout;
    p.weight = scale.data;
    p.rstd = rstd_dense.const_data_ptr();
    p.grad_input = need_input ? grad_input.mutable_data_ptr() : nullptr;
    p.grad_gate = grad_gate ? grad_gate->mutable_data_ptr() : nullptr;
    p.partial = weight_grad.data();
    p.parts = weight_grad.parts;
    kernels().gated_backward(p);
  }
  return {grad_input, grad_gate, combine(weight_grad, need_weight, weight, types.weight, type)};
}

void add_rms_norm_check(const Tensor& input, const Tensor& residual, const OptionalTensor& weight) {
  check_input(input, "add_rms_norm_");
  check_same_shape(residual, input, "add_rms_norm_", "residual");
  check_memory(input, residual, weight);
}

int64_t rms_norm_kernel_level() { return static_cast<int64_t>(current_level()); }

}  // namespace
}  // namespace opwright

// Each schema twice: with autograd (from Python) and raw. The forward operators have a third form
// for calls that keep nothing for a backward.
#define OPWRIGHT_DEFINE(m, name, arguments) \
  m.def(name arguments);                    \
  m.def(name "_raw" arguments)

STABLE_TORCH_LIBRARY_FRAGMENT(opwright, m)
{
  opwright::define_once(m, "rms_norm_kernel_level() -> int", [&] {
    OPWRIGHT_DEFINE(
        m, "rms_norm_forward",
        "(Tensor input, Tensor? weight, float eps, float weight_offset, int rounding) -> "
        "(Tensor, Tensor)");
    OPWRIGHT_DEFINE(m, "rms_norm_backward",
                    "(Tensor grad_output, Tensor input, Tensor? weight, Tensor rstd, float eps, "
                    "float weight_offset, "
                    "bool need_input, bool need_weight) -> (Tensor, Tensor?)");
    OPWRIGHT_DEFINE(
        m, "add_rms_norm_forward",
        "(Tensor input, Tensor residual, Tensor? weight, float eps, float weight_offset, "
        "int rounding, "
        "int statistics) -> (Tensor, Tensor, Tensor)");
    OPWRIGHT_DEFINE(
        m, "add_rms_norm_backward",
        "(Tensor? grad_output, Tensor? grad_residual_out, Tensor residual_out, Tensor? weight, "
        "Tensor rstd, "
        "float eps, float weight_offset, bool need_sum, bool need_weight) -> (Tensor, Tensor?)");
    OPWRIGHT_DEFINE(m, "rms_norm_gated_forward",
                    "(Tensor input, Tensor? gate, Tensor? weight, float eps, int activation, bool "
                    "norm_before_gate, "
                    "int group_size, int rounding) -> (Tensor, Tensor)");
    OPWRIGHT_DEFINE(
        m, "rms_norm_gated_backward",
        "(Tensor grad_output, Tensor input, Tensor? gate, Tensor? weight, Tensor rstd, float eps, "
        "int activation, bool norm_before_gate, int group_size, bool need_input, bool need_gate, "
        "bool need_weight) -> (Tensor, Tensor?, Tensor?)");
    OPWRIGHT_DEFINE(m, "add_rms_norm_",
                    "(Tensor(a!) input, Tensor(b!) residual, Tensor? weight, float eps, float "
                    "weight_offset, int rounding, "
                    "int statistics) -> ()");
    m.def("add_rms_norm_check(Tensor input, Tensor residual, Tensor? weight) -> ()");
    m.def(
        "rms_norm_inference(Tensor input, Tensor? weight, float eps, float weight_offset, "
        "int rounding) -> Tensor");
    m.def(
        "add_rms_norm_inference(Tensor input, Tensor residual, Tensor? weight, float eps, "
        "float weight_offset, int rounding, int statistics) -> (Tensor, Tensor)");
    m.def(
        "rms_norm_gated_inference(Tensor input, Tensor? gate, Tensor? weight, float eps, "
        "int activation, bool norm_before_gate, int group_size, int rounding) -> Tensor");
  });
}

#define OPWRIGHT_IMPLEMENT(m, name)          \
  m.impl(#name, TORCH_BOX(&opwright::name)); \
  m.impl(#name "_raw", TORCH_BOX(&opwright::name))

STABLE_TORCH_LIBRARY_IMPL(opwright, CPU, m)
{
  if (!opwright::g_defined_here) return;
  OPWRIGHT_IMPLEMENT(m, rms_norm_forward);
  OPWRIGHT_IMPLEMENT(m, rms_norm_backward);
  OPWRIGHT_IMPLEMENT(m, add_rms_norm_forward);
  OPWRIGHT_IMPLEMENT(m, add_rms_norm_backward);
  OPWRIGHT_IMPLEMENT(m, rms_norm_gated_forward);
  OPWRIGHT_IMPLEMENT(m, rms_norm_gated_backward);
  OPWRIGHT_IMPLEMENT(m, add_rms_norm_);
  m.impl("add_rms_norm_check", TORCH_BOX(&opwright::add_rms_norm_check));
  m.impl("rms_norm_inference", TORCH_BOX(&opwright::rms_norm_inference));
  m.impl("add_rms_norm_inference", TORCH_BOX(&opwright::add_rms_norm_inference));
  m.impl("rms_norm_gated_inference", TORCH_BOX(&opwright::rms_norm_gated_inference));
}

STABLE_TORCH_LIBRARY_IMPL(opwright, CompositeExplicitAutograd, m)
{
  if (!opwright::g_defined_here) return;
  m.impl("rms_norm_kernel_level", TORCH_BOX(&opwright::rms_norm_kernel_level));
}
