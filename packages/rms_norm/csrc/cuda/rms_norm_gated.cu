// Launchers of rms_norm_gated: which kernel serves a call, with which threads.
#include "rms_norm_gated_kernel.cuh"
#include "rms_norm_launch.h"

namespace opwright {
namespace {

template <class In, class Out>
int launch_gated_forward(const RmsNormGatedForward& p, void* stream) {
  const RowShape shape(p.columns, In::kWidth, shared_row<In, typename In::Accumulate>(p.columns));
  const bool round_product = p.rounding == Rounding::kLlama && p.norm_before_gate && p.gate &&
                             p.weight_type == p.input_type;
  return OPWRIGHT_LAUNCH((gated_forward_kernel<In, Out>), shape.grid(p.rows), shape.block(),
                         shape.shared_bytes, stream, p, shape.fits, round_product);
}

template <class T, class O>
int gated_forward_of(const RmsNormGatedForward& p, void* stream) {
  using A = accumulate_t<T>;
  constexpr int kWidth = kChunk<T>;
  const bool vectors =
      p.columns % kWidth == 0 && aligned_rows(p.input, p.input_type, p.input_layout, kWidth) &&
      aligned_rows(p.gate, p.input_type, p.gate_layout, kWidth) &&
      aligned_dense(p.output, p.output_type, kWidth) && aligned_dense(p.weight, kDType<A>, kWidth);
  if (vectors) {
    return launch_gated_forward<VectorRow<A, T, kWidth>, VectorRow<A, O, kWidth>>(p, stream);
  }
  return launch_gated_forward<AnyRow<A, kWidth>, AnyRow<A, kWidth>>(p, stream);
}

template <class In, class Grad>
int launch_gated_backward(const RmsNormGatedBackward& p, void* stream) {
  constexpr int kWidth = In::kWidth;
  const int64_t sums = p.partial ? shared_row<In, typename In::Accumulate>(p.columns) : 0;
  const int64_t rows = 2 * shared_row<In, typename In::Element>(p.columns) +
                       shared_row<In, typename Grad::Element>(p.columns);
  RowShape shape(p.columns, kWidth, sums + rows, kMostGatedBackwardThreads);
  GatedBackwardMemory fits{shape.fits, shape.fits && sums > 0};
  if (!shape.fits) {
    shape = RowShape(p.columns, kWidth, sums, kMostGatedBackwardThreads);
    fits.keep_sums = shape.fits && sums > 0;
  }
  const int64_t parts = p.partial ? p.parts : p.rows;
  const int64_t tasks = p.partial ? parts * p.groups : parts;
  return OPWRIGHT_LAUNCH((gated_backward_kernel<In, Grad>), shape.grid(tasks), shape.block(),
                         shape.shared_bytes, stream, p, parts, fits);
}

template <class T, class O>
int gated_backward_of(const RmsNormGatedBackward& p, void* stream) {
  using A = accumulate_t<T>;
  constexpr int kWidth = kChunk<T>;
  const bool vectors =
      p.columns % kWidth == 0 && aligned_rows(p.input, p.input_type, p.input_layout, kWidth) &&
      aligned_rows(p.gate, p.input_type, p.gate_layout, kWidth) &&
      aligned_rows(p.grad_output, p.output_type, p.grad_output_layout, kWidth) &&
      aligned_dense(p.grad_input, p.input_type, kWidth) &&
      aligned_dense(p.grad_gate, p.input_type, kWidth) &&
      aligned_dense(p.weight, kDType<A>, kWidth) && aligned_dense(p.partial, kDType<A>, kWidth);
  if (vectors) {
    return launch_gated_backward<VectorRow<A, T, kWidth>, VectorRow<A, O, kWidth>>(p, stream);
  }
  return launch_gated_backward<AnyRow<A, kWidth>, AnyRow<A, kWidth>>(p, stream);
}

// Calls f(Type<T>, Type<O>): the output is of the input's type, or fp32 beside a narrower one.
template <class F>
void with_types(DType input, DType output, const F& f) {
  with_type(input, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (kLow<T>) {
      if (output == DType::float32) return f(t, Type<float>{});
    }
    f(t, t);
  });
}

}  // namespace

int rms_norm_gated_forward_cuda(const RmsNormGatedForward& p, void* stream) {
  int error = 0;
  with_types(p.input_type, p.output_type, [&](auto t, auto o) {
    error = gated_forward_of<typename decltype(t)::type, typename decltype(o)::type>(p, stream);
  });
  return error;
}

int rms_norm_gated_backward_cuda(const RmsNormGatedBackward& p, void* stream) {
  int error = 0;
  with_types(p.input_type, p.output_type, [&](auto t, auto o) {
    error = gated_backward_of<typename decltype(t)::type, typename decltype(o)::type>(p, stream);
  });
  return error;
}

}  // namespace opwright
