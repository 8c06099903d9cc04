// The contract between bind.cpp and the kernels: plain data, no torch.
//
// All operators of this package are one formula along rows of D columns, in fp32 (fp64 for fp64
// inputs):
//
//   v = x                             rms_norm
//   v = x + residual                  add_rms_norm; it writes residual_out = round_S(v), too
//   v = x * act(gate)                 rms_norm_gated with the gate first
//   r = 1 / sqrt(mean(v^2) + eps)
//   y = (v * r) * s                   s = weight + weight_offset
//   y = y * act(gate)                 rms_norm_gated with the norm first
//
// Types: T the input's, R the residual's, S = promote(T, R) the residual stream's, A the
// arithmetic's (fp32 or fp64), O the output's. The binding guarantees what the fields say; a kernel
// checks nothing. Outputs and `rstd` are contiguous unless a layout is given for them. Weights
// arrive as A, converted once per call by `convert`, with weight_offset added.
#pragma once

#include <cstdint>

#include "opwright/rows.h"
#include "opwright/types.h"

namespace opwright {

enum class Rounding : int32_t {
  kOnce = 0,   // y = round_O((v * r) * s)
  kLlama = 1,  // y = round_O(round_T(v * r) * s)
};

enum class Activation : int32_t { kSilu = 0, kSigmoid = 1 };

// rms_norm and add_rms_norm.
struct RmsNormForward {
  int64_t rows, columns;  // both > 0
  int64_t heads;          // rows of the weight; row i uses weight row i % heads
  DType input_type;       // T
  DType residual_type;    // R; T without a residual
  DType stream_type;      // S; T without a residual
  DType output_type;      // O
  Rounding rounding;
  bool exact_statistics;  // with a residual: normalise the unrounded sum instead of residual_out
  bool stream_stores;     // the outputs are too large to be found in a cache later
  double eps;
  const void* input;
  RowLayout input_layout;
  const void* residual;  // null without
  RowLayout residual_layout;
  const void* weight;  // A, (heads, columns) contiguous; null for 1
  void* output;        // may be `input` itself
  RowLayout output_layout;
  void* residual_out;  // null without; may be `residual` itself
  RowLayout residual_out_layout;
  void* rstd;  // A, (rows,); null if it is not to be kept
};

// Gradients of both:  g = grad_output * s;  dv = r * (g - x^ * mean(g * x^)) + grad_residual_out;
// ds = sum over rows of grad_output * x^, with x^ = v * r. v is the input, or residual_out of
// add_rms_norm.
struct RmsNormBackward {
  int64_t rows, columns;
  int64_t heads;
  DType stream_type;  // S: of v, of grad_residual_out and of grad_input
  DType output_type;  // O: of grad_output
  bool stream_stores;
  const void* grad_output;  // null for zeros
  RowLayout grad_output_layout;
  const void* grad_residual_out;  // null for zeros
  RowLayout grad_residual_out_layout;
  const void* value;  // v
  RowLayout value_layout;
  const void* weight;  // A, as above
  const void* rstd;    // A, (rows,)
  void* grad_input;    // S, contiguous; null if not wanted
  void* partial;       // A, (parts, heads, columns); null if the weight's gradient is not wanted
  int64_t parts;       // from weight_grad_parts: rows are split by shape, so the order of
                       // summation is fixed
};

// rms_norm_gated. A row is one group: `groups` groups of `columns` make up the last dimension,
// groups innermost among rows.
struct RmsNormGatedForward {
  int64_t rows, columns;
  int64_t groups;
  DType input_type;   // T, of input and gate
  DType weight_type;  // W; the product with the weight is rounded to promote(T, W) in llama mode
  DType output_type;  // O
  Rounding rounding;
  Activation activation;
  bool norm_before_gate;
  bool stream_stores;
  double eps;
  const void* input;
  RowLayout input_layout;
  const void* gate;  // null without
  RowLayout gate_layout;
  const void* weight;  // A, (groups, columns); null for 1
  void* output;        // contiguous
  void* rstd;          // A, (rows,); null if it is not to be kept
};

struct RmsNormGatedBackward {
  int64_t rows, columns;
  int64_t groups;
  DType input_type;   // T: of input, gate and their gradients
  DType output_type;  // O: of grad_output
  Activation activation;
  bool norm_before_gate;
  bool stream_stores;
  const void* grad_output;
  RowLayout grad_output_layout;
  const void* input;
  RowLayout input_layout;
  const void* gate;
  RowLayout gate_layout;
  const void* weight;
  const void* rstd;
  void* grad_input;  // each null if not wanted
  void* grad_gate;
  void* partial;  // A, (parts, groups, columns)
  int64_t parts;
};

// to = from + offset, element by element: a weight of any type to A.
struct Convert {
  int64_t count;
  DType from_type, to_type;  // to_type is A; fp64 goes to fp64 only
  double offset;
  const void* from;  // elements `from_stride` apart
  int64_t from_stride;
  void* to;
};

// to[i] = sum over p of partial[p, i], in ascending order of p.
struct CombineParts {
  int64_t count, parts;
  DType partial_type, to_type;
  const void* partial;
  void* to;
};

struct RmsNormKernels {
  void (*forward)(const RmsNormForward&);
  void (*backward)(const RmsNormBackward&);
  void (*gated_forward)(const RmsNormGatedForward&);
  void (*gated_backward)(const RmsNormGatedBackward&);
  void (*convert)(const Convert&);
  void (*combine_parts)(const CombineParts&);
};

// The same on a CUDA device: defined in cuda/rms_norm.cu. Pointers are device memory, the caller
// has made the device current, everything is enqueued on the stream (a cudaStream_t), and the
// result is a cudaError_t, 0 for success.
struct RmsNormCudaKernels {
  int (*forward)(const RmsNormForward&, void* stream);
  int (*backward)(const RmsNormBackward&, void* stream);
  int (*gated_forward)(const RmsNormGatedForward&, void* stream);
  int (*gated_backward)(const RmsNormGatedBackward&, void* stream);
  int (*convert)(const Convert&, void* stream);
  int (*combine_parts)(const CombineParts&, void* stream);
};

extern const RmsNormCudaKernels rms_norm_cuda_kernels;

// Number of parts that the rows are split into for the weight's gradient. Enough for many threads
// and few enough that the partial sums are small beside the gradients themselves; and no part has
// so many rows that rounding errors could pile up in its fp32 sums.
namespace {
// `heads` rows of the input share one set of partial sums, each row its own part of it.
[[maybe_unused]] int64_t weight_grad_parts(int64_t rows, int64_t heads) {
  rows = (rows + heads - 1) / heads;
  constexpr int64_t kFewestRows = 8, kEnoughParts = 64, kMostRows = 128;
  const int64_t small = (rows + kFewestRows - 1) / kFewestRows;
  const int64_t large = (rows + kMostRows - 1) / kMostRows;
  const int64_t parts = small < kEnoughParts ? small : kEnoughParts;
  return parts > large ? parts : large;
}

// The same for a CUDA device, where a block, or a warp of one, takes a part: at least 4 rows each
// up to 256 parts, 16 each up to 4096, and never more than 128.
[[maybe_unused]] int64_t weight_grad_parts_cuda(int64_t rows, int64_t heads) {
  rows = (rows + heads - 1) / heads;
  const auto parts_of = [&](int64_t rows_each, int64_t most) {
    const int64_t parts = (rows + rows_each - 1) / rows_each;
    return parts < most ? parts : most;
  };
  const int64_t few = parts_of(4, 256), many = parts_of(16, 4096), all = parts_of(128, rows);
  const int64_t parts = few > many ? few : many;
  return parts > all ? parts : all;
}
}  // namespace

}  // namespace opwright
