// Allocation, parameters and the calls into the kernels: the operators of this package on one kind
// of device. bind.cpp makes them for the CPU, cuda/bind_cuda.cpp for CUDA.
#pragma once

#include <cmath>
#include <tuple>
#include <utility>

#include "checks.h"
#include "opwright/stable.h"
#include "rms_norm.h"

// Every differentiable operator X has a twin X_raw with the same kernel and no autograd.
#define OPWRIGHT_IMPLEMENT(m, name)           \
  m.impl(#name, TORCH_BOX(&Operators::name)); \
  m.impl(#name "_raw", TORCH_BOX(&Operators::name))

namespace opwright {

// `Call` is a CpuCall or a CudaCall.
template <class Call>
struct Operators {
  using Kernels = typename Call::Kernels;

  // ---- weights ----------------------------------------------------------------------------------

  // A weight in the arithmetic's type, with the offset added: the tensor's own memory where that is
  // what it holds.
  struct Scale {
    Scale(const Call& call, const OptionalTensor& weight, DType weight_type, DType type,
          double offset)
        : converted(call.memory(converted_bytes(weight, weight_type, type, offset))) {
      if (!weight) return;
      const Shape shape = sizes(*weight), stride = strides(*weight);
      const int64_t columns = shape[-1];
      heads = shape.ndim == 2 ? shape[0] : 1;
      const char* from = static_cast<const char*>(weight->const_data_ptr());
      data = converted.data() ? static_cast<const void*>(converted.data()) : from;
      if (!converted.data()) return;
      // In one piece where one stride walks all of it.
      const bool flat = shape.ndim == 1 || stride[0] == columns * stride[-1];
      const int64_t pieces = flat ? 1 : heads, count = flat ? heads * columns : columns;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        call(&Kernels::convert,
             Convert{count, weight_type, type, offset,
                     from + piece * stride[0] * element_size(weight_type), stride[-1],
                     converted.data() + piece * columns * element_size(type)});
      }
    }

    typename Call::Memory converted;
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
    WeightGrad(const Call& call, bool wanted, int64_t rows, int64_t heads, int64_t size, DType type)
        : parts(part_count(rows > 0 ? rows : 1, heads)),
          no_rows(rows == 0),
          partial(call.memory(wanted && rows > 0 ? parts * size * element_size(type) : 0)) {}
    void* data() const { return partial.data(); }

    int64_t parts;
    bool no_rows;  // no kernel runs then, and the sum of nothing is zero
    typename Call::Memory partial;

   private:
    static int64_t part_count(int64_t rows, int64_t heads) {
      if constexpr (Call::kCuda) {
        return weight_grad_parts_cuda(rows, heads);
      } else {
        return weight_grad_parts(rows, heads);
      }
    }
  };

  static OptionalTensor combine(const Call& call, const WeightGrad& grad, bool wanted,
                                const OptionalTensor& weight, DType weight_type, DType type) {
    if (!wanted) return std::nullopt;
    Tensor result = empty(sizes(*weight), weight_type, *weight);
    if (grad.no_rows) {
      torch::stable::zero_(result);
    } else if (result.numel() > 0) {
      call(&Kernels::combine_parts, CombineParts{result.numel(), grad.parts, type, weight_type,
                                                 grad.data(), result.mutable_data_ptr()});
    }
    return result;
  }

  static Tensor empty_rstd(const Tensor& input, int64_t groups, DType type) {
    const Shape shape = sizes(input);
    if (groups == 0) return empty(shape.data, shape.ndim - 1, accumulate_type(type), place(input));
    int64_t size[kMaxDims];
    for (int64_t i = 0; i + 1 < shape.ndim; ++i) size[i] = shape[i];
    size[shape.ndim - 1] = groups;
    return empty(size, shape.ndim, accumulate_type(type), place(input));
  }

  // The mean of no squares is not a number.
  static void fill_nan(const Tensor& tensor) {
    Tensor self = tensor;
    torch::stable::fill_(self, std::nan(""));
  }

  // ---- rms_norm ---------------------------------------------------------------------------------

  // The output, and the statistics if they are to be kept.
  static std::pair<Tensor, OptionalTensor> rms_norm(const Tensor& input,
                                                    const OptionalTensor& weight, double eps,
                                                    double weight_offset, int64_t rounding,
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

    const Call call(input, kOp);
    Tensor output = empty(sizes(input), p.output_type, input);
    OptionalTensor rstd;
    if (keep_rstd) rstd = empty_rstd(input, 0, p.input_type);
    p.columns = sizes(input)[-1];
    p.rows = rows_of(input);
    if (p.columns == 0 && rstd) fill_nan(*rstd);
    if (p.rows == 0 || p.columns == 0) return {output, rstd};

    const Scale scale(call, weight, weight_type, accumulate_type(p.input_type), weight_offset);
    const RowsIn in = rows_in(input);
    p.heads = scale.heads;
    p.stream_stores = Call::stream_stores(p.rows * p.columns * element_size(p.output_type));
    p.eps = eps;
    p.input = in.data();
    p.input_layout = in.layout;
    p.weight = scale.data;
    p.output = output.mutable_data_ptr();
    p.output_layout = contiguous_rows(p.rows, p.columns);
    p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
    call(&Kernels::forward, p);
    return {output, rstd};
  }

  static std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& input,
                                                     const OptionalTensor& weight, double eps,
                                                     double weight_offset, int64_t rounding) {
    const auto [output, rstd] = rms_norm(input, weight, eps, weight_offset, rounding, true);
    return {output, *rstd};
  }

  static Tensor rms_norm_inference(const Tensor& input, const OptionalTensor& weight, double eps,
                                   double weight_offset, int64_t rounding) {
    return rms_norm(input, weight, eps, weight_offset, rounding, false).first;
  }

  // Shared by the backward of rms_norm and of add_rms_norm: `value` is the input of the one,
  // residual_out of the other.
  static std::tuple<Tensor, OptionalTensor> backward(
      const char* op, const OptionalTensor& grad_output, const OptionalTensor& grad_residual_out,
      const Tensor& value, const OptionalTensor& weight, const Tensor& rstd, double weight_offset,
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
    check_device(rstd, value, op, "rstd");
    need_weight = need_weight && weight;

    const Call call(value, op);
    Tensor grad_input = gradient(need_input, value, p.stream_type);
    const Scale scale(call, weight, weight_type, type, weight_offset);
    p.heads = scale.heads;
    const WeightGrad weight_grad(call, need_weight, p.rows, p.heads, p.heads * p.columns, type);
    if (p.rows > 0 && p.columns > 0) {
      const RowsIn value_rows = rows_in(value);
      const RowsIn grad_rows = grad_output ? rows_in(*grad_output) : value_rows;
      const RowsIn residual_rows = grad_residual_out ? rows_in(*grad_residual_out) : value_rows;
      const Tensor rstd_dense = torch::stable::contiguous(rstd);
      p.stream_stores = Call::stream_stores(p.rows * p.columns * element_size(p.stream_type));
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
      call(&Kernels::backward, p);
    }
    return {grad_input, combine(call, weight_grad, need_weight, weight, weight_type, type)};
  }

  static std::tuple<Tensor, OptionalTensor> rms_norm_backward(
      const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
      const Tensor& rstd, double eps, double weight_offset, bool need_input, bool need_weight) {
    (void)eps;  // for the second derivative, which recomputes rstd
    return backward("rms_norm_backward", grad_output, std::nullopt, input, weight, rstd,
                    weight_offset, need_input, need_weight);
  }

  // ---- add_rms_norm -----------------------------------------------------------------------------

  static void run_add(const Call& call, RmsNormForward& p, const Tensor& input,
                      const Tensor& residual, const OptionalTensor& weight, double weight_offset,
                      const Tensor& output, RowLayout output_layout, const Tensor& residual_out,
                      RowLayout residual_out_layout, const OptionalTensor& rstd) {
    if (p.columns == 0 && rstd) fill_nan(*rstd);
    if (p.rows == 0 || p.columns == 0) return;
    const DType weight_type =
        weight ? float_dtype(*weight, "add_rms_norm", "weight") : p.input_type;
    const Scale scale(call, weight, weight_type, accumulate_type(p.input_type), weight_offset);
    const RowsIn in = rows_in(input);
    // Beside an fp64 input the kernel takes fp64 residuals only; a narrower one, which no model
    // has, is widened first.
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
    call(&Kernels::forward, p);
  }

  // (output, residual_out), and the statistics if they are to be kept.
  static std::tuple<Tensor, Tensor, OptionalTensor> add_rms_norm(
      const Tensor& input, const Tensor& residual, const OptionalTensor& weight, double eps,
      double weight_offset, int64_t rounding, int64_t statistics, bool keep_rstd) {
    RmsNormForward p =
        add_rms_norm_params("add_rms_norm", input, residual, weight, eps, rounding, statistics);
    const Call call(input, "add_rms_norm");
    Tensor output = empty(sizes(input), p.output_type, input);
    Tensor residual_out = empty(sizes(input), p.stream_type, input);
    OptionalTensor rstd;
    if (keep_rstd) rstd = empty_rstd(input, 0, p.input_type);
    p.stream_stores = Call::stream_stores(
        p.rows * p.columns * (element_size(p.output_type) + element_size(p.stream_type)));
    const RowLayout layout = contiguous_rows(p.rows, p.columns);
    run_add(call, p, input, residual, weight, weight_offset, output, layout, residual_out, layout,
            rstd);
    return {output, residual_out, rstd};
  }

  static std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(
      const Tensor& input, const Tensor& residual, const OptionalTensor& weight, double eps,
      double weight_offset, int64_t rounding, int64_t statistics) {
    const auto [output, residual_out, rstd] =
        add_rms_norm(input, residual, weight, eps, weight_offset, rounding, statistics, true);
    return {output, residual_out, *rstd};
  }

  static std::tuple<Tensor, Tensor> add_rms_norm_inference(const Tensor& input,
                                                           const Tensor& residual,
                                                           const OptionalTensor& weight, double eps,
                                                           double weight_offset, int64_t rounding,
                                                           int64_t statistics) {
    const auto [output, residual_out, rstd] =
        add_rms_norm(input, residual, weight, eps, weight_offset, rounding, statistics, false);
    return {output, residual_out};
  }

  static std::tuple<Tensor, OptionalTensor> add_rms_norm_backward(
      const OptionalTensor& grad_output, const OptionalTensor& grad_residual_out,
      const Tensor& residual_out, const OptionalTensor& weight, const Tensor& rstd, double eps,
      double weight_offset, bool need_sum, bool need_weight) {
    (void)eps;
    return backward("add_rms_norm_backward", grad_output, grad_residual_out, residual_out, weight,
                    rstd, weight_offset, need_sum, need_weight);
  }

  static void add_rms_norm_(const Tensor& input, const Tensor& residual,
                            const OptionalTensor& weight, double eps, double weight_offset,
                            int64_t rounding, int64_t statistics) {
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
    const Call call(input, kOp);
    mark_mutated(input);
    mark_mutated(residual);
    run_add(call, p, input, residual, weight, weight_offset, input, output_layout, residual,
            residual_layout, std::nullopt);
  }

  // ---- rms_norm_gated ---------------------------------------------------------------------------

  // The output, and the statistics if they are to be kept.
  static std::pair<Tensor, OptionalTensor> rms_norm_gated(const Tensor& input,
                                                          const OptionalTensor& gate,
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
    const Call call(input, kOp);
    Tensor output = empty(sizes(input), types.output, input);
    OptionalTensor rstd;
    if (keep_rstd) rstd = empty_rstd(input, p.groups, types.input);
    p.columns = sizes(input)[-1] / p.groups;
    p.rows = rows_of(input) * p.groups;
    if (p.columns == 0 && rstd) fill_nan(*rstd);
    if (p.rows == 0 || p.columns == 0) return {output, rstd};

    const Scale scale(call, weight, types.weight, accumulate_type(types.input), 0.0);
    const RowsIn in = rows_in(input, p.groups);
    const RowsIn gate_rows = gate ? rows_in(*gate, p.groups) : in;
    p.input_type = types.input;
    p.weight_type = types.weight;
    p.output_type = types.output;
    p.rounding = static_cast<Rounding>(rounding);
    p.activation = static_cast<Activation>(activation);
    p.norm_before_gate = norm_before_gate;
    p.stream_stores = Call::stream_stores(p.rows * p.columns * element_size(p.output_type));
    p.eps = eps;
    p.input = in.data();
    p.input_layout = in.layout;
    p.gate = gate ? gate_rows.data() : nullptr;
    p.gate_layout = gate_rows.layout;
    p.weight = scale.data;
    p.output = output.mutable_data_ptr();
    p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
    call(&Kernels::gated_forward, p);
    return {output, rstd};
  }

  static std::tuple<Tensor, Tensor> rms_norm_gated_forward(
      const Tensor& input, const OptionalTensor& gate, const OptionalTensor& weight, double eps,
      int64_t activation, bool norm_before_gate, int64_t group_size, int64_t rounding) {
    const auto [output, rstd] = rms_norm_gated(input, gate, weight, eps, activation,
                                               norm_before_gate, group_size, rounding, true);
    return {output, *rstd};
  }

  static Tensor rms_norm_gated_inference(const Tensor& input, const OptionalTensor& gate,
                                         const OptionalTensor& weight, double eps,
                                         int64_t activation, bool norm_before_gate,
                                         int64_t group_size, int64_t rounding) {
    return rms_norm_gated(input, gate, weight, eps, activation, norm_before_gate, group_size,
                          rounding, false)
        .first;
  }

  static std::tuple<Tensor, OptionalTensor, OptionalTensor> rms_norm_gated_backward(
      const Tensor& grad_output, const Tensor& input, const OptionalTensor& gate,
      const OptionalTensor& weight, const Tensor& rstd, double eps, int64_t activation,
      bool norm_before_gate, int64_t group_size, bool need_input, bool need_gate,
      bool need_weight) {
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
    check_device(rstd, input, kOp, "rstd");
    need_gate = need_gate && gate;
    need_weight = need_weight && weight;

    const Call call(input, kOp);
    Tensor grad_input = gradient(need_input, input, types.input);
    OptionalTensor grad_gate;
    if (need_gate) grad_gate = empty(sizes(input), types.input, input);
    const WeightGrad weight_grad(call, need_weight, p.rows, p.groups, p.groups * p.columns, type);
    if (p.rows > 0 && p.columns > 0) {
      const Scale scale(call, weight, types.weight, type, 0.0);
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
      call(&Kernels::gated_backward, p);
    }
    return {grad_input, grad_gate,
            combine(call, weight_grad, need_weight, weight, types.weight, type)};
  }

  static void add_rms_norm_check(const Tensor& input, const Tensor& residual,
                                 const OptionalTensor& weight) {
    check_input(input, "add_rms_norm_");
    check_same_shape(residual, input, "add_rms_norm_", "residual");
    check_memory(input, residual, weight);
  }

  // Registers everything under the device's dispatch key.
  static void implement(torch::stable::detail::StableLibrary& m) {
    OPWRIGHT_IMPLEMENT(m, rms_norm_forward);
    OPWRIGHT_IMPLEMENT(m, rms_norm_backward);
    OPWRIGHT_IMPLEMENT(m, add_rms_norm_forward);
    OPWRIGHT_IMPLEMENT(m, add_rms_norm_backward);
    OPWRIGHT_IMPLEMENT(m, rms_norm_gated_forward);
    OPWRIGHT_IMPLEMENT(m, rms_norm_gated_backward);
    OPWRIGHT_IMPLEMENT(m, add_rms_norm_);
    m.impl("add_rms_norm_check", TORCH_BOX(&Operators::add_rms_norm_check));
    m.impl("rms_norm_inference", TORCH_BOX(&Operators::rms_norm_inference));
    m.impl("add_rms_norm_inference", TORCH_BOX(&Operators::add_rms_norm_inference));
    m.impl("rms_norm_gated_inference", TORCH_BOX(&Operators::rms_norm_gated_inference));
  }
};

}  // namespace opwright

#undef OPWRIGHT_IMPLEMENT
