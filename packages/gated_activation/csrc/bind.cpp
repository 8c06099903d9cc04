// Schemas, argument checks, allocation by TensorIterator, and the calls into the kernels.
//
// Autograd is in autograd.cpp; fakes, batching and sharding are registered from Python
// (registration.py), since TensorIterator works on real tensors only.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>

#include <algorithm>

#include "options.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(GatedActivationKernels, gated_activation_kernels)

namespace {

const GatedActivationKernels& kernels() {
  static const GatedActivationKernels& table = gated_activation_kernels_for_level();
  return table;
}

// ---- checks -------------------------------------------------------------------------------------

void check_operands(const Tensor& gate, const Tensor& up, const char* op) {
  check_float(gate, op, "gate");
  check_float(up, op, "up");
  check_cpu(gate, op, "gate");
  check_cpu(up, op, "up");
  const auto a = gate.sizes(), b = up.sizes();
  bool fits = true;
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const int64_t x = a[a.size() - i], y = b[b.size() - i];
    fits = fits && (x == y || x == 1 || y == 1);
  }
  check(
      fits, op, [&] { return "up that broadcasts with gate of shape " + text(a); },
      [&] { return text(b); });
}

void check_packed(const Tensor& input, const char* op) {
  check_float(input, op, "input");
  check(input.dim() >= 1, op, "input with at least 1 dimension", "0");
  check(input.size(-1) % 2 == 0, op, "input with an even last dimension",
        [&] { return std::to_string(input.size(-1)); });
}

void check_shape(const Tensor& tensor, at::IntArrayRef shape, const char* op,
                 const char* argument) {
  check(
      tensor.sizes().equals(shape), op,
      [&] { return std::string(argument) + " of shape " + text(shape); },
      [&] { return text(tensor.sizes()); });
}

void check_dtype(const Tensor& tensor, at::ScalarType type, const char* op, const char* argument) {
  check(
      tensor.scalar_type() == type, op,
      [&] {
        return std::string(argument) + " of dtype " + dtype_name(type) + " to hold its result";
      },
      [&] { return dtype_name(tensor.scalar_type()); });
}

// ---- kernels ------------------------------------------------------------------------------------

GatedActivation parameters(const Options& o, at::ScalarType type, int64_t result_bytes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  GatedActivation p{};
  p.type = kernel_dtype(type);
  p.activation = o.act();
  p.clamped = o.limit.has_value();
  p.stream_stores = beyond_caches(result_bytes);
  p.alpha = o.alpha;
  p.gate_limit = o.clamp_output ? kInfinity : o.bound();
  p.output_limit = o.clamp_output ? o.bound() : kInfinity;
  p.up_limit = o.bound();
  p.up_offset = o.up_offset;
  return p;
}

at::TensorIteratorConfig elementwise() {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true)
      .promote_inputs_to_common_dtype(true)
      .cast_common_dtype_to_outputs(true)
      .enforce_safe_casting_to_output(true);
  return config;
}

void run_forward(const at::TensorIterator& iterator, const Options& o) {
  const int64_t size = static_cast<int64_t>(c10::elementSize(iterator.common_dtype()));
  const GatedActivation p = parameters(o, iterator.common_dtype(), iterator.numel() * size);
  iterate(iterator, 3 * size,
          [&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
            kernels().forward(p, {data, strides, inner, outer});
          });
}

void run_backward(const at::TensorIterator& iterator, const Options& o, bool need_gate,
                  bool need_up) {
  const int64_t size = static_cast<int64_t>(c10::elementSize(iterator.common_dtype()));
  const int64_t results = int64_t{need_gate} + int64_t{need_up};
  const GatedActivation p =
      parameters(o, iterator.common_dtype(), results * iterator.numel() * size);
  iterate(iterator, (3 + results) * size,
          [&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
            kernels().backward(p, {data, strides, inner, outer}, need_gate, need_up);
          });
}

// ---- gated_activation ---------------------------------------------------------------------------

Tensor forward(const Tensor& gate, const Tensor& up, int64_t activation, double alpha,
               std::optional<double> limit, double up_offset, bool clamp_output) {
  constexpr const char* kOp = "gated_activation";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_operands(gate, up, kOp);
  const auto iterator =
      elementwise().add_owned_output(Tensor()).add_const_input(gate).add_const_input(up).build();
  run_forward(iterator, o);
  return iterator.output();
}

// The gradients in the shape and dtype of grad_output; what is not wanted is an empty tensor.
std::tuple<Tensor, Tensor> backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                    int64_t activation, double alpha, std::optional<double> limit,
                                    double up_offset, bool clamp_output, bool need_gate,
                                    bool need_up) {
  constexpr const char* kOp = "gated_activation_backward";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_operands(gate, up, kOp);
  check_float(grad_output, kOp, "grad_output");
  check_cpu(grad_output, kOp, "grad_output");
  check_shape(grad_output, at::infer_size_dimvector(gate.sizes(), up.sizes()), kOp, "grad_output");
  check_dtype(grad_output, at::result_type(gate, up), kOp, "grad_output");
  const auto nothing = [&] { return at::empty({0}, grad_output.options()); };
  if (!need_gate && !need_up) return {nothing(), nothing()};
  auto config = elementwise();
  if (need_gate) config.add_owned_output(Tensor());
  if (need_up) config.add_owned_output(Tensor());
  const auto iterator =
      config.add_const_input(grad_output).add_const_input(gate).add_const_input(up).build();
  run_backward(iterator, o, need_gate, need_up);
  return {need_gate ? iterator.output(0) : nothing(),
          need_up ? iterator.output(need_gate ? 1 : 0) : nothing()};
}

void write(const Tensor& target, const Tensor& gate, const Tensor& up, const Options& o) {
  const auto iterator = elementwise()
                            .resize_outputs(false)
                            .add_output(target)
                            .add_const_input(gate)
                            .add_const_input(up)
                            .build();
  run_forward(iterator, o);
}

void in_place(const Tensor& gate, const Tensor& up, int64_t activation, double alpha,
              std::optional<double> limit, double up_offset, bool clamp_output) {
  constexpr const char* kOp = "gated_activation_";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_operands(gate, up, kOp);
  check_shape(gate, at::infer_size_dimvector(gate.sizes(), up.sizes()), kOp, "gate");
  check_dtype(gate, at::result_type(gate, up), kOp, "gate");
  check_apart(gate, kOp, "gate");
  check_separate(gate, up, kOp, "up");
  write(gate, gate, up, o);
}

void into(const Tensor& gate, const Tensor& up, const Tensor& out, int64_t activation, double alpha,
          std::optional<double> limit, double up_offset, bool clamp_output) {
  constexpr const char* kOp = "gated_activation_out";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_operands(gate, up, kOp);
  check_cpu(out, kOp, "out");
  check_shape(out, at::infer_size_dimvector(gate.sizes(), up.sizes()), kOp, "out");
  check_dtype(out, at::result_type(gate, up), kOp, "out");
  check_apart(out, kOp, "out");
  check_separate(out, gate, kOp, "gate");
  check_separate(out, up, kOp, "up");
  write(out, gate, up, o);
}

// ---- gated_activation_packed --------------------------------------------------------------------

Tensor packed_forward(const Tensor& input, bool interleaved, bool gate_first, int64_t activation,
                      double alpha, std::optional<double> limit, double up_offset,
                      bool clamp_output) {
  constexpr const char* kOp = "gated_activation_packed";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_packed(input, kOp);
  const auto [gate, up] = halves_of(input, {interleaved, gate_first});
  const auto iterator =
      elementwise().add_owned_output(Tensor()).add_const_input(gate).add_const_input(up).build();
  run_forward(iterator, o);
  return iterator.output();
}

Tensor packed_backward(const Tensor& grad_output, const Tensor& input, bool interleaved,
                       bool gate_first, int64_t activation, double alpha,
                       std::optional<double> limit, double up_offset, bool clamp_output) {
  constexpr const char* kOp = "gated_activation_packed_backward";
  const Options o{activation, alpha, limit, up_offset, clamp_output};
  check_options(o, kOp);
  check_packed(input, kOp);
  const Packing packing{interleaved, gate_first};
  const auto [gate, up] = halves_of(input, packing);
  check_cpu(grad_output, kOp, "grad_output");
  check_shape(grad_output, gate.sizes(), kOp, "grad_output");
  check_dtype(grad_output, input.scalar_type(), kOp, "grad_output");
  const Tensor grad_input = at::empty_like(input);
  const auto [grad_gate, grad_up] = halves_of(grad_input, packing);
  const auto iterator = elementwise()
                            .resize_outputs(false)
                            .add_output(grad_gate)
                            .add_output(grad_up)
                            .add_const_input(grad_output)
                            .add_const_input(gate)
                            .add_const_input(up)
                            .build();
  run_backward(iterator, o, true, true);
  return grad_input;
}

int64_t kernel_level() { return static_cast<int64_t>(current_level()); }

}  // namespace
}  // namespace opwright

#define OPWRIGHT_OPTIONS \
  "int activation, float alpha, float? limit, float up_offset, bool clamp_output"

TORCH_LIBRARY_FRAGMENT(opwright, m)
{
  if (opwright::defined_already("opwright::gated_activation_kernel_level")) return;
  m.def("gated_activation_kernel_level() -> int");
  m.def("gated_activation_forward(Tensor gate, Tensor up, " OPWRIGHT_OPTIONS ") -> Tensor");
  m.def("gated_activation_backward(Tensor grad_output, Tensor gate, Tensor up, " OPWRIGHT_OPTIONS
        ", bool need_gate, bool need_up) -> (Tensor, Tensor)");
  m.def(
      "gated_activation_packed_forward(Tensor input, bool interleaved, bool "
      "gate_first, " OPWRIGHT_OPTIONS ") -> Tensor");
  m.def(
      "gated_activation_packed_backward(Tensor grad_output, Tensor input, bool interleaved, bool "
      "gate_first, " OPWRIGHT_OPTIONS ") -> Tensor");
  m.def("gated_activation_(Tensor(a!) gate, Tensor up, " OPWRIGHT_OPTIONS ") -> ()");
  m.def("gated_activation_out(Tensor gate, Tensor up, Tensor(a!) out, " OPWRIGHT_OPTIONS ") -> ()");
  opwright::g_defined_here = true;
}

TORCH_LIBRARY_IMPL(opwright, CPU, m)
{
  if (!opwright::g_defined_here) return;
  m.impl("gated_activation_forward", &opwright::forward);
  m.impl("gated_activation_backward", &opwright::backward);
  m.impl("gated_activation_packed_forward", &opwright::packed_forward);
  m.impl("gated_activation_packed_backward", &opwright::packed_backward);
  m.impl("gated_activation_", &opwright::in_place);
  m.impl("gated_activation_out", &opwright::into);
}

TORCH_LIBRARY_IMPL(opwright, CompositeExplicitAutograd, m)
{
  if (!opwright::g_defined_here) return;
  m.impl("gated_activation_kernel_level", &opwright::kernel_level);
}

TORCH_LIBRARY_IMPL(opwright, Autograd, m)
{
  if (opwright::g_defined_here) opwright::register_autograd(m);
}

TORCH_LIBRARY_IMPL(opwright, ADInplaceOrView, m)
{
  if (opwright::g_defined_here) opwright::register_version_counting(m);
}

// Under autocast the operators compute in the dtypes that they are given.
#define OPWRIGHT_AUTOCAST(key)                                                   \
  TORCH_LIBRARY_IMPL(opwright, key, m)                                           \
  {                                                                              \
    if (!opwright::g_defined_here) return;                                       \
    for (const char* name :                                                      \
         {"gated_activation_forward", "gated_activation_backward",               \
          "gated_activation_packed_forward", "gated_activation_packed_backward", \
          "gated_activation_", "gated_activation_out"})                          \
      m.impl(name, torch::CppFunction::makeFallthrough());                       \
  }
OPWRIGHT_AUTOCAST(AutocastCPU)
OPWRIGHT_AUTOCAST(AutocastCUDA)
