// Schemas of rms_norm, add_rms_norm and rms_norm_gated, and their implementations for the CPU.
//
// Every differentiable operator X has a twin X_raw with the same kernel and no autograd, which
// costs a caller that needs no gradient nothing. Autograd, fakes and the rest are registered from
// Python (registration.py).
#include "operators.h"
#include "opwright/cpu_call.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(RmsNormKernels, rms_norm_kernels)

namespace {

const RmsNormKernels& kernels() {
  static const RmsNormKernels& table = rms_norm_kernels_for_level();
  return table;
}

using CpuOperators = Operators<CpuCall<RmsNormKernels, kernels>>;

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

STABLE_TORCH_LIBRARY_IMPL(opwright, CPU, m)
{
  if (opwright::g_defined_here) opwright::CpuOperators::implement(m);
}

STABLE_TORCH_LIBRARY_IMPL(opwright, CompositeExplicitAutograd, m)
{
  if (!opwright::g_defined_here) return;
  m.impl("rms_norm_kernel_level", TORCH_BOX(&opwright::rms_norm_kernel_level));
}
