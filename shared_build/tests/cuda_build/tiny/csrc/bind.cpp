// Schema, and the implementation for the CPU.
#include "operators.h"
#include "opwright/cpu_call.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(TinyKernels, tiny_kernels)

namespace {

using CpuOperators = Operators<CpuCall<TinyKernels, tiny_kernels_for_level>>;

}  // namespace
}  // namespace opwright

STABLE_TORCH_LIBRARY_FRAGMENT(opwright, m)
{
  opwright::define_once(m, "tiny_twice(Tensor input) -> Tensor", [] {});
}

STABLE_TORCH_LIBRARY_IMPL(opwright, CPU, m)
{
  if (opwright::g_defined_here) opwright::CpuOperators::implement(m);
}
