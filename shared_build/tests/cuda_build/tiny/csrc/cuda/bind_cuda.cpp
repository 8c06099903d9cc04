// The implementation for CUDA tensors.
#include "operators.h"
#include "opwright/cuda/call.h"

namespace opwright {
namespace {

using CudaOperators = Operators<CudaCall<TinyCudaKernels, tiny_cuda_kernels>>;

}  // namespace
}  // namespace opwright

STABLE_TORCH_LIBRARY_IMPL(opwright, CUDA, m)
{
  opwright::CudaOperators::implement(m);
}
