// RMSNorm and residual-add RMSNorm on CUDA devices. Formula and types: rms_norm.h.
//
// A row is one warp's work, or one block's where it has more than 64 chunks of 16 bytes. It is read
// from memory once: between the sum of squares and the scaling it waits in shared memory, each
// thread's chunks for that thread alone; a row too long for that is read twice. Sums are added up
// in double, in an order that the number of columns fixes. Bytes moved: the input (and residual)
// once, the outputs once; about 3 FLOPs an element, far below what memory allows.
//
// In the backward, a warp or a block takes the rows of one part that share a row of the weight, one
// after the other, so the weight's gradient needs no atomics: a thread adds up its own columns, and
// the parts are added up by combine_parts in an order that their number fixes.
#pragma once

#include "rms_norm_rows.cuh"

namespace opwright {
namespace {

// (v * r) * s with the roundings of the mode; the caller rounds once more, to the output's type.
// There are only products, so nothing can be fused.
template <class In, class A, int kWidth>
OPWRIGHT_DEVICE Pack<A, kWidth> scaled(const In& x, const Pack<A, kWidth>& v, A r,
                                       const Pack<A, kWidth>& s, Rounding rounding) {
  return map<A, kWidth>([&](int i) {
    A normal = v.value[i] * r;
    if (rounding == Rounding::kLlama) normal = x.round(normal);
    return normal * s.value[i];
  });
}

// ---- forward ------------------------------------------------------------------------------------

template <class In, class Out>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kMostRowThreads)
    forward_kernel(const RmsNormForward p, bool keep) {
  using A = typename In::Accumulate;
  using K = typename In::Element;
  constexpr int kWidth = In::kWidth;
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  OPWRIGHT_DYNAMIC_SHARED(char, dynamic);
  const int64_t kept_bytes = shared_row_bytes(p.columns, kWidth, sizeof(K));
  KeptRow<A, K, kWidth> kept;
  if (keep) kept.memory = dynamic.template from<K>(threadIdx.y * kept_bytes);
  A* rstd = static_cast<A*>(p.rstd);

  const Work work = work_of_thread();
  for (int64_t row = work.first; row < p.rows; row += work.step) {
    const In x = row_at<In>(p.input, p.input_type, p.input_layout, row, p.columns);
    const Out y = row_at<Out>(p.output, p.output_type, p.output_layout, row, p.columns);
    double sum = 0;
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      const auto v = load_and_keep(x, kept, column);
      sum += sum_of_products(v, v);
    });
    const A r = row_sum<A>(sum, scratch, [&](double total) {
      return static_cast<A>(reciprocal_rms(total, p.columns, p.eps));
    });
    if (rstd && threadIdx.x == 0) store_global(rstd + row, r);
    const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      const auto weight = load_weight<In::kVector, kWidth>(s, column, p.columns);
      y.store(column, scaled(x, load_again(x, kept, column), r, weight, p.rounding));
    });
  }
}

// K keeps v: the stream's type, or A where the sum is normalised before it is rounded. In place, a
// thread reads each chunk before it writes it, and reads nothing after that.
template <class In, class Residual, class Sum, class Out, class K>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kMostRowThreads)
    add_forward_kernel(const RmsNormForward p, bool keep) {
  using A = typename In::Accumulate;
  constexpr int kWidth = In::kWidth;
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  OPWRIGHT_DYNAMIC_SHARED(char, dynamic);
  const int64_t kept_bytes = shared_row_bytes(p.columns, kWidth, sizeof(K));
  KeptRow<A, K, kWidth> kept;
  if (keep) kept.memory = dynamic.template from<K>(threadIdx.y * kept_bytes);
  A* rstd = static_cast<A*>(p.rstd);

  const Work work = work_of_thread();
  for (int64_t row = work.first; row < p.rows; row += work.step) {
    const In x = row_at<In>(p.input, p.input_type, p.input_layout, row, p.columns);
    const Residual residual =
        row_at<Residual>(p.residual, p.residual_type, p.residual_layout, row, p.columns);
    const Sum stored =
        row_at<Sum>(p.residual_out, p.stream_type, p.residual_out_layout, row, p.columns);
    const Out y = row_at<Out>(p.output, p.output_type, p.output_layout, row, p.columns);
    const auto exact_sum = [&](int64_t column) {
      const auto a = x.load(column), b = residual.load(column);
      return map<A, kWidth>([&](int i) { return a.value[i] + b.value[i]; });
    };
    double sum = 0;
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      auto v = exact_sum(column);
      if (kept) {
        const auto rounded = stored.store(column, v);
        if (!p.exact_statistics) v = rounded;
        kept.store(column, v);
      } else if (!p.exact_statistics) {
        v = map<A, kWidth>([&](int i) { return stored.round(v.value[i]); });
      }
      sum += sum_of_products(v, v);
    });
    const A r = row_sum<A>(sum, scratch, [&](double total) {
      return static_cast<A>(reciprocal_rms(total, p.columns, p.eps));
    });
    if (rstd && threadIdx.x == 0) store_global(rstd + row, r);
    const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      Pack<A, kWidth> v;
      if (kept) {
        v = kept.load(column);
      } else {
        v = exact_sum(column);
        const auto rounded = stored.store(column, v);
        if (!p.exact_statistics) v = rounded;
      }
      const auto weight = load_weight<In::kVector, kWidth>(s, column, p.columns);
      y.store(column, scaled(x, v, r, weight, p.rounding));
    });
  }
}

// ---- backward -----------------------------------------------------------------------------------

// How much of a part's work fits shared memory: both rows that are read twice, and the sums.
struct BackwardMemory {
  bool keep_rows, keep_sums;
};

template <class Value, class Grad>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kMostRowThreads)
    backward_kernel(const RmsNormBackward p, int64_t parts, BackwardMemory fits) {
  using A = typename Value::Accumulate;
  using V = typename Value::Element;
  using G = typename Grad::Element;
  constexpr int kWidth = Value::kWidth;
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  OPWRIGHT_DYNAMIC_SHARED(char, dynamic);
  const auto row_bytes_of = [&](int64_t element_bytes) {
    return shared_row_bytes(p.columns, kWidth, element_bytes);
  };
  const int64_t sum_bytes = fits.keep_sums ? row_bytes_of(sizeof(A)) : 0;
  const int64_t value_bytes = fits.keep_rows ? row_bytes_of(sizeof(V)) : 0;
  const int64_t grad_bytes = fits.keep_rows ? row_bytes_of(sizeof(G)) : 0;
  const int64_t own = threadIdx.y * (sum_bytes + value_bytes + grad_bytes);
  KeptRow<A, V, kWidth> kept_value;
  KeptRow<A, G, kWidth> kept_grad;
  WeightSums<A, kWidth, Value::kVector> sums{nullptr, {}, p.columns};
  if (fits.keep_sums) sums.memory = dynamic.template from<A>(own);
  if (fits.keep_rows) {
    kept_value.memory = dynamic.template from<V>(own + sum_bytes);
    kept_grad.memory = dynamic.template from<G>(own + sum_bytes + value_bytes);
  }
  const A* rstd = static_cast<const A*>(p.rstd);
  const int64_t heads = p.partial ? p.heads : 1;

  const Work work = work_of_thread();
  for (int64_t task = work.first; task < parts * heads; task += work.step) {
    const int64_t part = task / heads, head = task % heads;
    const int64_t begin = part_begin(p.rows, part, parts);
    const int64_t end = part_begin(p.rows, part + 1, parts);
    sums.target = plus<A>(p.partial, task * p.columns);
    sums.clear();
    for (int64_t row = first_row_of(begin, head, heads); row < end; row += heads) {
      const Value v = row_at<Value>(p.value, p.stream_type, p.value_layout, row, p.columns);
      const Grad dy =
          row_at<Grad>(p.grad_output, p.output_type, p.grad_output_layout, row, p.columns);
      const Value dres = row_at<Value>(p.grad_residual_out, p.stream_type,
                                       p.grad_residual_out_layout, row, p.columns);
      const Value dx = dense_row_at<Value>(p.grad_input, p.stream_type, row, p.columns);
      const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
      const A r = load_global(rstd + row);
      const bool twice = dy && dx;
      A mean = 0;
      if (twice) {
        double sum = 0;
        for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
          const auto weight = load_weight<Value::kVector, kWidth>(s, column, p.columns);
          const auto grad = load_and_keep(dy, kept_grad, column);
          const auto value = load_and_keep(v, kept_value, column);
          const auto weighed =
              map<A, kWidth>([&](int i) { return grad.value[i] * weight.value[i]; });
          sum += sum_of_products(weighed, value);
        });
        mean = row_sum<A>(sum, scratch, [&](double total) {
          return static_cast<A>(total * static_cast<double>(r) / static_cast<double>(p.columns));
        });
      }
      for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
        const auto value = twice ? load_again(v, kept_value, column) : v.load(column);
        const auto normal = map<A, kWidth>([&](int i) { return value.value[i] * r; });
        auto grad = map<A, kWidth>([](int) { return A{0}; });
        if (dy) grad = twice ? load_again(dy, kept_grad, column) : dy.load(column);
        if (dx) {
          const auto weight = load_weight<Value::kVector, kWidth>(s, column, p.columns);
          auto out = map<A, kWidth>([&](int i) {
            return fma(normal.value[i], -mean, grad.value[i] * weight.value[i]) * r;
          });
          if (dres) {
            const auto more = dres.load(column);
            out = map<A, kWidth>([&](int i) { return out.value[i] + more.value[i]; });
          }
          dx.store(column, out);
        }
        if (sums) sums.add(column, grad, normal);
      });
    }
    sums.finish();
  }
}

// ---- weights ------------------------------------------------------------------------------------

template <class A>
OPWRIGHT_KERNEL void convert_kernel(const Convert p) {
  A* to = static_cast<A*>(p.to);
  // The neutral element of addition is -0: with it a weight of -0 stays what it is.
  const A offset = p.offset == 0 ? static_cast<A>(-0.0) : static_cast<A>(p.offset);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    const A weight = with_row_type(p.from_type, [&](auto s) {
      return widen<A>(load_global(plus<typename decltype(s)::type>(p.from, i * p.from_stride)));
    });
    store_global(to + i, weight + offset);
  }
}

constexpr int kCombineRows = 32;  // threads along the parts

// A block adds up 32 columns: threadIdx.y takes every 32nd part in ascending order, in double, and
// the 32 sums are added in order. So the order depends on the number of parts alone.
template <class A>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kWarp* kCombineRows)
    combine_parts_kernel(const CombineParts p) {
  OPWRIGHT_SHARED(double, sums, kCombineRows* kWarp);
  const A* partial = static_cast<const A*>(p.partial);
  const int64_t step = int64_t{gridDim.x} * kWarp;
  for (int64_t first = int64_t{blockIdx.x} * kWarp; first < p.count; first += step) {
    const int64_t column = first + threadIdx.x;
    double sum = 0;
    if (column < p.count) {
      for (int64_t part = threadIdx.y; part < p.parts; part += kCombineRows) {
        sum += static_cast<double>(load_global(partial + part * p.count + column));
      }
    }
    sums.store(threadIdx.y * kWarp + threadIdx.x, sum);
    __syncthreads();
    if (threadIdx.y == 0 && column < p.count) {
      for (int i = 1; i < kCombineRows; ++i) sum += sums.load(i * kWarp + threadIdx.x);
      with_row_type(p.to_type, [&](auto s) {
        using To = typename decltype(s)::type;
        store_global(plus<To>(p.to, column), narrow<To>(static_cast<A>(sum)));
        return 0;
      });
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace opwright
