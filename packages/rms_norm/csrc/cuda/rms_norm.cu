// Launchers of rms_norm and add_rms_norm: which kernel serves a call, with which threads.
//
// Whole vectors are moved for the types that models use, where addresses, strides and the number of
// columns allow it. All else goes through AnyRow, with the same threads and the same results.
#include "rms_norm_kernel.cuh"
#include "rms_norm_launch.h"

namespace opwright {
namespace {

// ---- forward ------------------------------------------------------------------------------------

template <class In, class Out>
int launch_forward(const RmsNormForward& p, void* stream) {
  const RowShape shape(p.columns, In::kWidth, shared_row<In, typename In::Element>(p.columns));
  return OPWRIGHT_LAUNCH((forward_kernel<In, Out>), shape.grid(p.rows), shape.block(),
                         shape.shared_bytes, stream, p, shape.fits);
}

template <class In, class Residual, class Sum, class Out, class K>
int launch_add(const RmsNormForward& p, void* stream) {
  const RowShape shape(p.columns, In::kWidth, shared_row<In, K>(p.columns));
  return OPWRIGHT_LAUNCH((add_forward_kernel<In, Residual, Sum, Out, K>), shape.grid(p.rows),
                         shape.block(), shape.shared_bytes, stream, p, shape.fits);
}

template <class T, class R, class O>
int launch_add_vectors(const RmsNormForward& p, void* stream) {
  using A = accumulate_t<T>;
  using S = promote_t<T, R>;
  constexpr int kWidth = kChunk<T>;
  using In = VectorRow<A, T, kWidth>;
  using Residual = VectorRow<A, R, kWidth>;
  using Sum = VectorRow<A, S, kWidth>;
  using Out = VectorRow<A, O, kWidth>;
  if constexpr (kLow<S>) {
    if (p.exact_statistics) return launch_add<In, Residual, Sum, Out, A>(p, stream);
  }
  return launch_add<In, Residual, Sum, Out, S>(p, stream);
}

template <class T, class O>
int forward_of(const RmsNormForward& p, void* stream) {
  using A = accumulate_t<T>;
  constexpr int kWidth = kChunk<T>;
  using Any = AnyRow<A, kWidth>;
  const bool vectors = p.columns % kWidth == 0 &&
                       aligned_rows(p.input, p.input_type, p.input_layout, kWidth) &&
                       aligned_rows(p.output, p.output_type, p.output_layout, kWidth) &&
                       aligned_dense(p.weight, kDType<A>, kWidth) &&
                       aligned_rows(p.residual, p.residual_type, p.residual_layout, kWidth) &&
                       aligned_rows(p.residual_out, p.stream_type, p.residual_out_layout, kWidth);
  if (p.residual == nullptr) {
    if (!vectors) return launch_forward<Any, Any>(p, stream);
    return launch_forward<VectorRow<A, T, kWidth>, VectorRow<A, O, kWidth>>(p, stream);
  }
  if (vectors && p.residual_type == p.input_type) return launch_add_vectors<T, T, O>(p, stream);
  if constexpr (kLow<T>) {
    if (vectors && p.residual_type == DType::float32) {
      return launch_add_vectors<T, float, O>(p, stream);
    }
  }
  return launch_add<Any, Any, Any, Any, A>(p, stream);
}

int forward(const RmsNormForward& p, void* stream) {
  int error = 0;
  with_type(p.input_type, [&](auto input) {
    using T = typename decltype(input)::type;
    if constexpr (kLow<T>) {
      if (p.output_type == DType::float32) {
        error = forward_of<T, float>(p, stream);
        return;
      }
    }
    error = forward_of<T, T>(p, stream);
  });
  return error;
}

// ---- backward -----------------------------------------------------------------------------------

template <class Value, class Grad>
int launch_backward(const RmsNormBackward& p, void* stream) {
  constexpr int kWidth = Value::kWidth;
  const int64_t sums = p.partial ? shared_row<Value, typename Value::Accumulate>(p.columns) : 0;
  // Rows are read twice only where the gradient of the input needs them again.
  const bool twice = p.grad_input && p.grad_output;
  const int64_t rows = twice ? shared_row<Value, typename Value::Element>(p.columns) +
                                   shared_row<Value, typename Grad::Element>(p.columns)
                             : 0;
  RowShape shape(p.columns, kWidth, sums + rows);
  BackwardMemory fits{shape.fits && rows > 0, shape.fits && sums > 0};
  if (!shape.fits) {
    shape = RowShape(p.columns, kWidth, sums);
    fits.keep_sums = shape.fits && sums > 0;
  }
  const int64_t parts = p.partial ? p.parts : p.rows;
  const int64_t tasks = p.partial ? parts * p.heads : parts;
  return OPWRIGHT_LAUNCH((backward_kernel<Value, Grad>), shape.grid(tasks), shape.block(),
                         shape.shared_bytes, stream, p, parts, fits);
}

template <class S, class O>
int backward_of(const RmsNormBackward& p, void* stream) {
  using A = accumulate_t<S>;
  constexpr int kWidth = kChunk<S>;
  const bool vectors =
      p.columns % kWidth == 0 && aligned_rows(p.value, p.stream_type, p.value_layout, kWidth) &&
      aligned_rows(p.grad_output, p.output_type, p.grad_output_layout, kWidth) &&
      aligned_rows(p.grad_residual_out, p.stream_type, p.grad_residual_out_layout, kWidth) &&
      aligned_dense(p.grad_input, p.stream_type, kWidth) &&
      aligned_dense(p.weight, kDType<A>, kWidth) && aligned_dense(p.partial, kDType<A>, kWidth);
  if (vectors) {
    return launch_backward<VectorRow<A, S, kWidth>, VectorRow<A, O, kWidth>>(p, stream);
  }
  return launch_backward<AnyRow<A, kWidth>, AnyRow<A, kWidth>>(p, stream);
}

int backward(const RmsNormBackward& p, void* stream) {
  int error = 0;
  with_type(p.stream_type, [&](auto stream_type) {
    using S = typename decltype(stream_type)::type;
    with_type(p.output_type, [&](auto output) {
      using O = typename decltype(output)::type;
      // The output is of the stream's type, or fp32 beside a narrower stream, or narrower beside an
      // fp32 stream.
      if constexpr (kSame<S, O> || (kSame<S, float> && kLow<O>) || (kLow<S> && kSame<O, float>)) {
        error = backward_of<S, O>(p, stream);
      }
    });
  });
  return error;
}

// ---- weights ------------------------------------------------------------------------------------

int convert(const Convert& p, void* stream) {
  constexpr int64_t kThreads = 256;
  const dim3 grid(static_cast<unsigned>(blocks_for((p.count + kThreads - 1) / kThreads)));
  if (p.to_type == DType::float64) {
    return OPWRIGHT_LAUNCH(convert_kernel<double>, grid, dim3(kThreads), 0, stream, p);
  }
  return OPWRIGHT_LAUNCH(convert_kernel<float>, grid, dim3(kThreads), 0, stream, p);
}

int combine_parts(const CombineParts& p, void* stream) {
  const dim3 grid(static_cast<unsigned>(blocks_for((p.count + kWarp - 1) / kWarp)));
  const dim3 block(kWarp, kCombineRows);
  if (p.partial_type == DType::float64) {
    return OPWRIGHT_LAUNCH(combine_parts_kernel<double>, grid, block, 0, stream, p);
  }
  return OPWRIGHT_LAUNCH(combine_parts_kernel<float>, grid, block, 0, stream, p);
}

}  // namespace

extern const RmsNormCudaKernels rms_norm_cuda_kernels = {
    forward, backward,      rms_norm_gated_forward_cuda, rms_norm_gated_backward_cuda,
    convert, combine_parts,
};

}  // namespace opwright
