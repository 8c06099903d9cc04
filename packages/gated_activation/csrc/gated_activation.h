// The contract between bind.cpp and the kernels: plain data, no torch.
//
// Every operator of this package is one formula, element by element, in fp32 (fp64 for fp64):
//
//   a = act(min(gate, gate_limit)),  act(g) = g * sigmoid(alpha * g)  or one of the others
//   b = min(a, output_limit)
//   u = clamp(up, -up_limit, up_limit) + up_offset
//   y = b * u
//
// Limits that are not asked for are infinite; `clamped` says whether one is finite. The gradients
// of gate and up are zero where their clamp is saturated:
//
//   grad_gate = grad_y * u * act'(min(gate, gate_limit))   where gate <= gate_limit and
//                                                                a <= output_limit
//   grad_up   = grad_y * b                                 where |up| <= up_limit
//
// Operands come as TensorIterator lays them out: a pointer each, and byte strides for the inner and
// the outer dimension of a block, stride(operand, inner) first. Any stride will do, 0 too for what
// is only read. An output may be an input, element for element; nothing else may overlap.
#pragma once

#include <cstdint>

#include "opwright/types.h"

namespace opwright {

enum class Activation : int32_t {
  kSilu = 0,
  kGelu = 1,
  kGeluTanh = 2,
  kRelu = 3,
  kRelu2 = 4,
  kSigmoid = 5,
  kIdentity = 6,
};
constexpr int64_t kActivations = 7;

struct GatedActivation {
  DType type;  // of all operands
  Activation activation;
  bool clamped;
  bool stream_stores;                         // the results are too large to be found in a cache
  double alpha;                               // of silu; 1 for the others
  double gate_limit, output_limit, up_limit;  // positive, infinity for none
  double up_offset;
};

// A block of `inner` by `outer` elements. Operand k starts at data[k]; its stride along the inner
// dimension is strides[k], along the outer one strides[operands + k], in bytes.
struct Block2d {
  char* const* data;
  const int64_t* strides;
  int64_t inner, outer;
};

struct GatedActivationKernels {
  // Operands: y; gate, up.
  void (*forward)(const GatedActivation&, const Block2d&);
  // Operands: grad_gate if need_gate, grad_up if need_up; grad_y, gate, up.
  void (*backward)(const GatedActivation&, const Block2d&, bool need_gate, bool need_up);
};

}  // namespace opwright
