// Gradients, in C++: first order by the kernels, second order by torch's own operators, which makes
// every higher order right as well. Nothing is kept for a backward but the inputs.
//
//   with a = b(gate), u, and m = [|up| <= limit], y = b u:
//     dgate = dy u b'          dup = dy b m
//   and for cotangents p of dgate and q of dup:
//     ddy   = p b' u + q b m
//     dgate = p dy b'' u + q dy b' m
//     dup   = p dy b' m
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "options.h"

namespace opwright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr const char* kPublic = "opwright.gated_activation.gated_activation";
constexpr const char* kPublicPacked = "opwright.gated_activation.gated_activation_packed";

// ---- the operators below autograd -----------------------------------------------------------------

Tensor call_forward(const Tensor& gate, const Tensor& up, const Options& o) {
  static const auto op =
      typed_operator<Tensor(const Tensor&, const Tensor&, int64_t, double, std::optional<double>,
                            double, bool)>("opwright::gated_activation_forward");
  return op.call(gate, up, o.activation, o.alpha, o.limit, o.up_offset, o.clamp_output);
}

std::tuple<Tensor, Tensor> call_backward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                                         const Options& o, bool need_gate, bool need_up) {
  static const auto op = typed_operator<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, int64_t, double, std::optional<double>, double,
      bool, bool, bool)>("opwright::gated_activation_backward");
  return op.call(grad, gate, up, o.activation, o.alpha, o.limit, o.up_offset, o.clamp_output,
                 need_gate, need_up);
}

Tensor call_packed_forward(const Tensor& input, Packing packing, const Options& o) {
  static const auto op =
      typed_operator<Tensor(const Tensor&, bool, bool, int64_t, double, std::optional<double>,
                            double, bool)>("opwright::gated_activation_packed_forward");
  return op.call(input, packing.interleaved, packing.gate_first, o.activation, o.alpha, o.limit,
                 o.up_offset, o.clamp_output);
}

Tensor call_packed_backward(const Tensor& grad, const Tensor& input, Packing packing,
                            const Options& o) {
  static const auto op = typed_operator<Tensor(const Tensor&, const Tensor&, bool, bool, int64_t,
                                               double, std::optional<double>, double, bool)>(
      "opwright::gated_activation_packed_backward");
  return op.call(grad, input, packing.interleaved, packing.gate_first, o.activation, o.alpha,
                 o.limit, o.up_offset, o.clamp_output);
}

// ---- second order, in torch's operators -----------------------------------------------------------

struct Curve {
  Tensor value, slope, bend;  // the activation, its first and its second derivative
};

// A bound beyond which both GELUs are the line and zero to the last bit of a double. Their
// derivatives are formed of bounded gates, since zero times an overflowed square is not a number.
constexpr double kGeluEnd = 40;

Curve curve(const Tensor& g, const Options& o) {
  switch (o.act()) {
    case Activation::kSilu: {
      const Tensor s = at::sigmoid(g * o.alpha), t = s * (1 - s), v = g * o.alpha;
      return {g * s, s + v * t, t * (2 + v * (1 - 2 * s)) * o.alpha};
    }
    case Activation::kGelu: {
      const Tensor cdf = 0.5 * at::erfc(g * -0.70710678118654752440);
      const Tensor c = at::clamp(g, -kGeluEnd, kGeluEnd);
      const Tensor pdf = at::exp(c * c * -0.5) * 0.3989422804014326779;
      return {g * cdf, cdf + c * pdf, pdf * (2 - c * c)};
    }
    case Activation::kGeluTanh: {
      constexpr double kLinear = 0.7978845608028653559, kCubic = kLinear * 0.044715;
      const Tensor c = at::clamp(g, -kGeluEnd, kGeluEnd);
      const Tensor t = at::tanh(c * (kLinear + kCubic * c * c)), r = 1 - t * t;
      const Tensor rate = kLinear + 3 * kCubic * c * c;
      return {0.5 * g * (1 + t), 0.5 * (1 + t) + 0.5 * c * r * rate,
              r * rate + 0.5 * c * r * (6 * kCubic * c - 2 * t * rate * rate)};
    }
    case Activation::kRelu: {
      return {at::relu(g), at::where(g <= 0, at::zeros_like(g), at::ones_like(g)),
              at::zeros_like(g)};
    }
    case Activation::kRelu2: {
      const Tensor r = at::relu(g);
      return {r * r, 2 * r, at::where(g <= 0, at::zeros_like(g), at::full_like(g, 2))};
    }
    case Activation::kSigmoid: {
      const Tensor s = at::sigmoid(g), t = s * (1 - s);
      return {s, t, t * (1 - 2 * s)};
    }
    case Activation::kIdentity:
      return {g, at::ones_like(g), at::zeros_like(g)};
  }
  return {};
}

// In fp32 for the 16-bit types, as everywhere.
Tensor wide(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

Tensor plus(const Tensor& a, const Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

// A gradient in the shape and dtype of what it belongs to.
Tensor fit(const Tensor& gradient, const Tensor& like) {
  if (!gradient.defined()) return gradient;
  Tensor result = gradient;
  if (!result.sym_sizes().equals(like.sym_sizes())) result = at::sum_to(result, like.sym_sizes());
  return result.scalar_type() == like.scalar_type() ? result : result.to(like.scalar_type());
}

// `x` where it passes a bound, and elsewhere its bounded value as a constant: torch's clamp alone
// has a gradient at its bound up to version 2.13 only. NaN stays.
Tensor bounded(const Tensor& passes, const Tensor& x, std::optional<double> low, double high) {
  return at::where(passes, x, at::clamp(x.detach(), low, high));
}

struct SecondOrder {
  Tensor grad, gate, up;
};

// `of_gate` and `of_up` are the cotangents of the two gradients; either may be missing.
SecondOrder second_order(const Tensor& of_gate, const Tensor& of_up, const Tensor& grad_output,
                         const Tensor& gate_in, const Tensor& up_in, const Options& o) {
  const Tensor grad = wide(grad_output);
  Tensor gate = wide(gate_in), up = wide(up_in), up_passes;
  Curve c;
  if (!o.limit) {
    c = curve(gate, o);
  } else {
    Tensor passes;
    if (o.clamp_output) {
      c = curve(gate, o);
      passes = c.value <= *o.limit;
      c.value = bounded(passes, c.value, std::nullopt, *o.limit);
    } else {
      passes = gate <= *o.limit;
      c = curve(bounded(passes, gate, std::nullopt, *o.limit), o);
    }
    c.slope = at::where(passes, c.slope, at::zeros_like(c.slope));
    c.bend = at::where(passes, c.bend, at::zeros_like(c.bend));
    const Tensor within = up.abs() <= *o.limit;
    up_passes = within.to(up.scalar_type());
    up = bounded(within, up, -*o.limit, *o.limit);
  }
  if (o.up_offset != 0) up = up + o.up_offset;
  SecondOrder result;
  if (of_gate.defined()) {
    const Tensor p = wide(of_gate), pg = p * grad;
    result.grad = p * c.slope * up;
    result.gate = pg * c.bend * up;
    result.up = up_passes.defined() ? pg * c.slope * up_passes : pg * c.slope;
  }
  if (of_up.defined()) {
    const Tensor q = up_passes.defined() ? wide(of_up) * up_passes : wide(of_up);
    result.grad = plus(result.grad, q * c.value);
    result.gate = plus(result.gate, q * grad * c.slope);
  }
  return {fit(result.grad, grad_output), fit(result.gate, gate_in), fit(result.up, up_in)};
}

// ---- autograd functions ---------------------------------------------------------------------------

class GatedActivationBackward : public Function<GatedActivationBackward> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& grad, const Tensor& gate,
                               const Tensor& up, const Options& o, bool need_gate, bool need_up) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({grad, gate, up});
    ctx->saved_data["options"] = saved(o);
    const auto [of_gate, of_up] = call_backward(grad, gate, up, o, need_gate, need_up);
    return {of_gate, of_up};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    const auto inputs = ctx->get_saved_variables();
    const Options o = restored(ctx->saved_data["options"].toDoubleVector());
    const SecondOrder g =
        second_order(cotangents[0], cotangents[1], inputs[0], inputs[1], inputs[2], o);
    return {g.grad, g.gate, g.up, Tensor(), Tensor(), Tensor()};
  }
};

class GatedActivationForward : public Function<GatedActivationForward> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up,
                        const Options& o) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({gate, up});
    ctx->saved_data["options"] = saved(o);
    return call_forward(gate, up, o);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const auto inputs = ctx->get_saved_variables();
    const Options o = restored(ctx->saved_data["options"].toDoubleVector());
    const bool need_gate = ctx->needs_input_grad(0), need_up = ctx->needs_input_grad(1);
    const auto [of_gate, of_up] =
        call_backward(grads[0], inputs[0], inputs[1], o, need_gate, need_up);
    return {need_gate ? fit(of_gate, inputs[0]) : Tensor(),
            need_up ? fit(of_up, inputs[1]) : Tensor(), Tensor()};
  }
};

class PackedBackward : public Function<PackedBackward> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& input,
                        const Packing& packing, const Options& o) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({grad, input});
    ctx->saved_data["options"] = saved(o);
    ctx->saved_data["interleaved"] = packing.interleaved;
    ctx->saved_data["gate_first"] = packing.gate_first;
    return call_packed_backward(grad, input, packing, o);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    if (!cotangents[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const auto inputs = ctx->get_saved_variables();
    const Options o = restored(ctx->saved_data["options"].toDoubleVector());
    const Packing packing{ctx->saved_data["interleaved"].toBool(),
                          ctx->saved_data["gate_first"].toBool()};
    const auto [gate, up] = halves_of(inputs[1], packing);
    const auto [of_gate, of_up] = halves_of(cotangents[0], packing);
    const SecondOrder g = second_order(of_gate, of_up, inputs[0], gate, up, o);
    const Tensor& first = packing.gate_first ? g.gate : g.up;
    const Tensor& second = packing.gate_first ? g.up : g.gate;
    const Tensor of_input = packing.interleaved ? at::stack({first, second}, -1).flatten(-2)
                                                : at::cat({first, second}, -1);
    return {g.grad, of_input, Tensor(), Tensor()};
  }
};

class PackedForward : public Function<PackedForward> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Packing& packing,
                        const Options& o) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({input});
    ctx->saved_data["options"] = saved(o);
    ctx->saved_data["interleaved"] = packing.interleaved;
    ctx->saved_data["gate_first"] = packing.gate_first;
    return call_packed_forward(input, packing, o);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const auto inputs = ctx->get_saved_variables();
    const Options o = restored(ctx->saved_data["options"].toDoubleVector());
    const Packing packing{ctx->saved_data["interleaved"].toBool(),
                          ctx->saved_data["gate_first"].toBool()};
    return {call_packed_backward(grads[0], inputs[0], packing, o), Tensor(), Tensor()};
  }
};

// ---- the kernels of the autograd keys -------------------------------------------------------------

template <class... Tensors>
bool any_requires_grad(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (tensors.requires_grad() || ...);
}
template <class... Tensors>
bool any_tangent(const Tensors&... tensors) {
  return (tensors._fw_grad(/*level=*/0).defined() || ...);
}

Tensor forward(const Tensor& gate, const Tensor& up, int64_t activation, double alpha,
               std::optional<double> limit, double up_offset, bool clamp_output) {
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  const bool record = any_requires_grad(gate, up);
  refuse_transforms("gated_activation_forward", record, any_tangent(gate, up), kPublic);
  if (record) return GatedActivationForward::apply(gate, up, o);
  const at::AutoDispatchBelowAutograd below;
  return call_forward(gate, up, o);
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                                    int64_t activation, double alpha, std::optional<double> limit,
                                    double up_offset, bool clamp_output, bool need_gate,
                                    bool need_up) {
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  const bool record = any_requires_grad(grad, gate, up);
  refuse_transforms("gated_activation_backward", record, any_tangent(grad, gate, up), kPublic);
  if (record) {
    const auto results = GatedActivationBackward::apply(grad, gate, up, o, need_gate, need_up);
    return {results[0], results[1]};
  }
  const at::AutoDispatchBelowAutograd below;
  return call_backward(grad, gate, up, o, need_gate, need_up);
}

Tensor packed_forward(const Tensor& input, bool interleaved, bool gate_first, int64_t activation,
                      double alpha, std::optional<double> limit, double up_offset,
                      bool clamp_output) {
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  const Packing packing{interleaved, gate_first};
  const bool record = any_requires_grad(input);
  refuse_transforms("gated_activation_packed_forward", record, any_tangent(input), kPublicPacked);
  if (record) return PackedForward::apply(input, packing, o);
  const at::AutoDispatchBelowAutograd below;
  return call_packed_forward(input, packing, o);
}

Tensor packed_backward(const Tensor& grad, const Tensor& input, bool interleaved, bool gate_first,
                       int64_t activation, double alpha, std::optional<double> limit,
                       double up_offset, bool clamp_output) {
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  const Packing packing{interleaved, gate_first};
  const bool record = any_requires_grad(grad, input);
  refuse_transforms("gated_activation_packed_backward", record, any_tangent(grad, input),
                    kPublicPacked);
  if (record) return PackedBackward::apply(grad, input, packing, o);
  const at::AutoDispatchBelowAutograd below;
  return call_packed_backward(grad, input, packing, o);
}

// ---- operators that write their arguments ---------------------------------------------------------

using InPlace = void(const Tensor&, const Tensor&, int64_t, double, std::optional<double>, double,
                     bool);
using Into = void(const Tensor&, const Tensor&, const Tensor&, int64_t, double,
                  std::optional<double>, double, bool);

template <class... Tensors>
void refuse_gradients(const char* op, const Tensors&... tensors) {
  check<std::runtime_error>(!any_requires_grad(tensors...) && !any_tangent(tensors...), op,
                            "arguments that need no gradient",
                            [] { return std::string("one that does; call ") + kPublic; });
}

void in_place(const Tensor& gate, const Tensor& up, int64_t activation, double alpha,
              std::optional<double> limit, double up_offset, bool clamp_output) {
  static const auto op = typed_operator<InPlace>("opwright::gated_activation_");
  refuse_gradients("gated_activation_", gate, up);
  const at::AutoDispatchBelowAutograd below;
  op.call(gate, up, activation, alpha, limit, up_offset, clamp_output);
}

void into(const Tensor& gate, const Tensor& up, const Tensor& out, int64_t activation, double alpha,
          std::optional<double> limit, double up_offset, bool clamp_output) {
  static const auto op = typed_operator<Into>("opwright::gated_activation_out");
  refuse_gradients("gated_activation_out", gate, up, out);
  const at::AutoDispatchBelowAutograd below;
  op.call(gate, up, out, activation, alpha, limit, up_offset, clamp_output);
}

// Autograd notices by its version that a tensor it saved was overwritten.
void in_place_counted(const Tensor& gate, const Tensor& up, int64_t activation, double alpha,
                      std::optional<double> limit, double up_offset, bool clamp_output) {
  static const auto op = typed_operator<InPlace>("opwright::gated_activation_");
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.call(gate, up, activation, alpha, limit, up_offset, clamp_output);
  }
  gate.unsafeGetTensorImpl()->bump_version();
}

void into_counted(const Tensor& gate, const Tensor& up, const Tensor& out, int64_t activation,
                  double alpha, std::optional<double> limit, double up_offset, bool clamp_output) {
  static const auto op = typed_operator<Into>("opwright::gated_activation_out");
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.call(gate, up, out, activation, alpha, limit, up_offset, clamp_output);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void register_autograd(torch::Library& library) {
  library.impl("gated_activation_forward", &forward);
  library.impl("gated_activation_backward", &backward);
  library.impl("gated_activation_packed_forward", &packed_forward);
  library.impl("gated_activation_packed_backward", &packed_backward);
  library.impl("gated_activation_", &in_place);
  library.impl("gated_activation_out", &into);
}

void register_version_counting(torch::Library& library) {
  library.impl("gated_activation_", &in_place_counted);
  library.impl("gated_activation_out", &into_counted);
}

}  // namespace opwright
