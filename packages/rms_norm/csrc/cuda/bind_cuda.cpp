// The operators of this package for CUDA tensors: a library of its own, which adds implementations
// to the schemas of bind.cpp.
#include "operators.h"
#include "opwright/cuda/call.h"

namespace opwright {
namespace {

using CudaOperators = Operators<CudaCall<RmsNormCudaKernels, rms_norm_cuda_kernels>>;

}  // namespace
}  // namespace opwright

STABLE_TORCH_LIBRARY_IMPL(opwright, CUDA, m)
{
  opwright::CudaOperators::implement(m);
}
