// Twice, on the CPU.
#include "opwright/isa.h"
#include "tiny.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

void twice(const Twice& p) {
  const float* from = static_cast<const float*>(p.from);
  float* to = static_cast<float*>(p.to);
  for (int64_t i = 0; i < p.count; ++i) to[i] = 2 * from[i];
}

}  // namespace

extern const TinyKernels tiny_kernels;
const TinyKernels tiny_kernels = {twice};

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
