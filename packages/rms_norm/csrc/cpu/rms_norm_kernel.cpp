// RMSNorm and residual-add RMSNorm on the CPU. Formula and types: rms_norm.h.
//
// A row is read twice: once for the sum of squares, once to be scaled. The second reading comes
// from the caches, since a row is small, and where results go around the caches it prefetches rows
// further on, so that memory is read while the result is written. Bytes moved: the input (and
// residual) once, the outputs once; about 3 FLOPs an element, far below what memory allows.
//
// Rows are independent, and threads share them out. A few long rows are cut into column blocks
// instead: sums of squares are always taken by blocks of kColumns columns and added up in order in
// double, so both ways give the same bits, whatever the number of threads. The weight's gradient is
// summed over a fixed number of parts of the rows, each in row order, and the parts are added up in
// order by combine_parts.
#include "opwright/dispatch.h"
#include "opwright/parallel.h"
#include "rms_norm_rows.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {

// Defined in rms_norm_gated_kernel.cpp.
void rms_norm_gated_forward(const RmsNormGatedForward& p);
void rms_norm_gated_backward(const RmsNormGatedBackward& p);

namespace {

constexpr int64_t kFewRows = 16;        // up to this many rows, threads share the columns
constexpr int64_t kLongRow = 1 << 15;   // of rows with at least this many
constexpr int64_t kKeptColumns = 8192;  // of this many a row in fp32 stays in the first caches

// ---- forward ------------------------------------------------------------------------------------

template <class A, class S>
double sum_of_squares(const S* v, int64_t n) {
  return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
    const Pair<A> x = block.load(v + i);
    return fma(x, x, sum);
  });
}

// The same, and kept = v, so that a narrow type is converted once.
template <class A, class S>
double keep_and_sum_of_squares(const S* v, A* kept, int64_t n) {
  return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
    const Pair<A> x = block.load(v + i);
    block.store(kept + i, x);
    return fma(x, x, sum);
  });
}

template <bool kExact, class S, class A>
OPWRIGHT_INLINE Pair<A> stored_sum(Pair<A> sum) {
  return kExact ? sum : round_to<S>(sum);
}

// v = x + residual, rounded to S unless kExact; returns the sum of its squares.
template <bool kExact, class S, class A, class T, class R>
double sum_of_squares_of_sum(const T* x, const R* residual, int64_t n) {
  return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
    const Pair<A> v = stored_sum<kExact, S>(block.load(x + i) + block.load(residual + i));
    return fma(v, v, sum);
  });
}

// The same, with residual_out = round_S(v), and kept = v unless kept is null.
template <bool kExact, class A, class T, class R, class S>
double add_and_sum_of_squares(const T* x, const R* residual, S* residual_out, A* kept, int64_t n,
                              bool stream) {
  stream = stream && can_stream(residual_out);
  return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
    const Pair<A> exact = block.load(x + i) + block.load(residual + i);
    const Pair<A> rounded = write(residual_out + i, exact, block, stream);
    const Pair<A> v = kExact ? exact : rounded;
    if (kept) block.store(kept + i, v);
    return fma(v, v, sum);
  });
}

// y = (v * r) * s over n columns; `next...` is what will be read after this.
template <class T, Rounding kRounding, class A, class S, class O, class... N>
void normalize(const S* v, A r, const A* s, O* y, int64_t n, bool stream, const N*... next) {
  const Pair<A> rs = pair<A>(r);
  stream = stream && can_stream(y);
  for_each_block<A>(n, [&](int64_t i, auto block) {
    (prefetch_block<A>(next + i), ...);
    const Pair<A> out = scaled<T, kRounding>(block.load(v + i), rs, load_scale(s, i, block));
    write(y + i, out, block, stream);
  });
}

// y = (v * r) * s for v = x + residual, rounded to S unless kExact, and residual_out = round_S(v).
// In place, each element is read before it is written.
template <class T, Rounding kRounding, bool kExact, class A, class R, class S, class O>
void add_and_normalize(const T* x, const R* residual, A r, const A* s, O* y, S* residual_out,
                       int64_t n, const T* next_x, const R* next_residual) {
  const Pair<A> rs = pair<A>(r);
  const bool stream = can_stream(y) && can_stream(residual_out);
  for_each_block<A>(n, [&](int64_t i, auto block) {
    prefetch_block<A>(next_x + i);
    prefetch_block<A>(next_residual + i);
    const Pair<A> v = stored_sum<kExact, S>(block.load(x + i) + block.load(residual + i));
    const Pair<A> out = scaled<T, kRounding>(v, rs, load_scale(s, i, block));
    write(residual_out + i, v, block, stream);
    write(y + i, out, block, stream);
  });
}

// Few long rows of dense input: threads share the columns. Same sums, same order.
template <class T, class O, Rounding kRounding>
void forward_by_columns(const RmsNormForward& p) {
  using A = accumulate_t<T>;
  const T* input = static_cast<const T*>(p.input);
  O* output = static_cast<O*>(p.output);
  const int64_t blocks = (p.columns + kColumns - 1) / kColumns;
  const Scratch<double> sums(p.rows * blocks);
  const int64_t grain = grain_for_bytes(kColumns * (sizeof(T) + sizeof(O)));
  const auto each_block = [&](const auto& body) {
    parallel_for(p.rows * blocks, grain, [&](int64_t begin, int64_t end) {
      const FenceAtEnd fence(p.stream_stores);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t c = task % blocks * kColumns;
        body(task, task / blocks, c, smaller(kColumns, p.columns - c));
      }
    });
  };
  each_block([&](int64_t task, int64_t row, int64_t c, int64_t n) {
    sums.data()[task] = sum_of_squares<A>(input + row_offset(p.input_layout, row) + c, n);
  });
  const Scratch<A> reciprocals(p.rows);
  for (int64_t row = 0; row < p.rows; ++row) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += sums.data()[row * blocks + b];
    reciprocals.data()[row] = static_cast<A>(reciprocal_rms(sum, p.columns, p.eps));
    if (p.rstd) static_cast<A*>(p.rstd)[row] = reciprocals.data()[row];
  }
  each_block([&](int64_t, int64_t row, int64_t c, int64_t n) {
    const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
    if (s) s += c;
    const T* v = input + row_offset(p.input_layout, row) + c;
    normalize<T, kRounding>(v, reciprocals.data()[row], s,
                            output + row_offset(p.output_layout, row) + c, n, p.stream_stores);
  });
}

template <class T, class O, Rounding kRounding>
void forward_by_rows(const RmsNormForward& p) {
  using A = accumulate_t<T>;
  A* rstd = static_cast<A*>(p.rstd);
  parallel_for(p.rows, grain_for_bytes(p.columns * (sizeof(T) + sizeof(O))),
               [&](int64_t begin, int64_t end) {
                 const FenceAtEnd fence(p.stream_stores);
                 RowReader<T> input(p.input, p.input_layout, p.columns, begin, end);
                 RowWriter<O> output(p.output, p.output_layout, p.columns);
                 const bool keep = kLow<T> && p.columns <= kKeptColumns;
                 const Scratch<A> kept(keep ? p.columns : 0);
                 for (int64_t row = begin; row < end; ++row) {
                   const T* v = input.row(row);
                   const double sum = row_sum(p.columns, [&](int64_t c, int64_t n) {
                     return keep ? keep_and_sum_of_squares<A>(v + c, kept.data() + c, n)
                                 : sum_of_squares<A>(v + c, n);
                   });
                   const A r = static_cast<A>(reciprocal_rms(sum, p.columns, p.eps));
                   if (rstd) rstd[row] = r;
                   const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
                   O* y = output.row(row);
                   const auto scale = [&](const auto* from) {
                     if (p.stream_stores) {
                       normalize<T, kRounding>(from, r, s, y, p.columns, true, input.ahead(row));
                     } else {
                       normalize<T, kRounding>(from, r, s, y, p.columns, false);
                     }
                   };
                   if (keep) {
                     scale(kept.data());
                   } else {
                     scale(v);
                   }
                   output.commit(row);
                 }
               });
}

template <class T, class O, Rounding kRounding>
void forward(const RmsNormForward& p) {
  const bool dense = p.input_layout.column_stride == 1 && p.output_layout.column_stride == 1;
  if (dense && p.rows <= kFewRows && p.columns >= kLongRow) {
    forward_by_columns<T, O, kRounding>(p);
  } else {
    forward_by_rows<T, O, kRounding>(p);
  }
}

// A row of the sum is kept between its two uses, in fp32 if it is of a narrower type. If wide
// results are streamed that costs more than it saves, and the sum is taken twice.
template <class T, class R, class S, class O, Rounding kRounding, bool kExact>
void add_forward(const RmsNormForward& p) {
  using A = accumulate_t<T>;
  constexpr bool kStoredIsKept = kSame<S, A> && !kExact;
  A* rstd = static_cast<A*>(p.rstd);
  const bool twice = p.stream_stores && kSame<S, A>;
  const int64_t bytes = p.columns * int64_t{sizeof(T) + sizeof(R) + sizeof(S) + sizeof(O)};
  parallel_for(p.rows, grain_for_bytes(bytes), [&](int64_t begin, int64_t end) {
    const FenceAtEnd fence(p.stream_stores);
    RowReader<T> input(p.input, p.input_layout, p.columns, begin, end);
    RowReader<R> residual(p.residual, p.residual_layout, p.columns, begin, end);
    RowWriter<S> residual_out(p.residual_out, p.residual_out_layout, p.columns);
    RowWriter<O> output(p.output, p.output_layout, p.columns);
    const Scratch<A> scratch(twice || kStoredIsKept ? 0 : p.columns);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = input.row(row);
      const R* res = residual.row(row);
      S* stored = residual_out.row(row);
      O* y = output.row(row);
      const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
      const double sum = row_sum(p.columns, [&](int64_t c, int64_t n) {
        if (twice) return sum_of_squares_of_sum<kExact, S, A>(x + c, res + c, n);
        return add_and_sum_of_squares<kExact>(x + c, res + c, stored + c, at(scratch.data(), c), n,
                                              p.stream_stores);
      });
      const A r = static_cast<A>(reciprocal_rms(sum, p.columns, p.eps));
      if (rstd) rstd[row] = r;
      if (twice) {
        add_and_normalize<T, kRounding, kExact>(x, res, r, s, y, stored, p.columns,
                                                input.ahead(row), residual.ahead(row));
      } else if (p.stream_stores) {
        normalize<T, kRounding>(scratch.data(), r, s, y, p.columns, true, input.ahead(row),
                                residual.ahead(row));
      } else if constexpr (kStoredIsKept) {
        normalize<T, kRounding>(stored, r, s, y, p.columns, false);
      } else {
        normalize<T, kRounding>(scratch.data(), r, s, y, p.columns, false);
      }
      output.commit(row);
      residual_out.commit(row);
    }
  });
}

// ---- backward -----------------------------------------------------------------------------------

// sum of g * x^ over n columns, with g = dy * s and x^ = v * r.
template <class A, class S, class O>
double sum_of_products(const O* dy, const S* v, const A* s, A r, int64_t n) {
  return r * sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
           return fma(block.load(dy + i) * load_scale(s, i, block), block.load(v + i), sum);
         });
}

// One row, or a part of one, in the backward. Any of dy, dres, s, dv and ds may be null.
template <class A, class S, class O>
struct GradientRow {
  const O* dy;
  const S* dres;
  const S* v;
  const A* s;
  S* dv;
  A* ds;
  const O* next_dy;  // what will be read after this; may be null too
  const S* next_v;
};

// dv = r * (g - x^ * mean) + dres;  ds += dy * x^.
template <class A, class S, class O>
void row_gradient(GradientRow<A, S, O> row, A r, A mean, int64_t n, bool stream) {
  const Pair<A> rs = pair<A>(r), minus_mean = pair<A>(-mean);
  stream = stream && row.dv && can_stream(row.dv);
  for_each_block<A>(n, [=](int64_t i, auto block) {
    if (row.next_dy) prefetch_block<A>(row.next_dy + i);
    if (row.next_v) prefetch_block<A>(row.next_v + i);
    const Pair<A> normal = block.load(row.v + i) * rs;
    const Pair<A> grad = row.dy ? block.load(row.dy + i) : pair<A>(0);
    if (row.dv) {
      Pair<A> out = fma(normal, minus_mean, grad * load_scale(row.s, i, block)) * rs;
      if (row.dres) out = out + block.load(row.dres + i);
      write(row.dv + i, out, block, stream);
    }
    if (row.ds) block.store(row.ds + i, fma(grad, normal, block.load(row.ds + i)));
  });
}

// Zeroes the partial sums [offset, offset + n) of a part for every weight row, and returns the
// part's sums, or null.
template <class A>
A* clear_part(const RmsNormBackward& p, int64_t part, int64_t offset, int64_t n) {
  if (p.partial == nullptr) return nullptr;
  A* sums = static_cast<A*>(p.partial) + part * p.heads * p.columns;
  for (int64_t head = 0; head < p.heads; ++head) {
    for (int64_t i = 0; i < n; ++i) sums[head * p.columns + offset + i] = 0;
  }
  return sums;
}

// Parts of the rows are the unit of work, whether or not the weight's gradient is wanted.
template <class S, class O>
void backward_by_rows(const RmsNormBackward& p) {
  using A = accumulate_t<S>;
  const A* rstd = static_cast<const A*>(p.rstd);
  parallel_for(p.parts, 1, [&](int64_t first_part, int64_t last_part) {
    const FenceAtEnd fence(p.stream_stores);
    for (int64_t part = first_part; part < last_part; ++part) {
      const int64_t begin = p.rows * part / p.parts, end = p.rows * (part + 1) / p.parts;
      RowReader<O> grad_output(p.grad_output, p.grad_output_layout, p.columns, begin, end);
      RowReader<S> grad_residual(p.grad_residual_out, p.grad_residual_out_layout, p.columns, begin,
                                 end);
      RowReader<S> value(p.value, p.value_layout, p.columns, begin, end);
      A* sums = clear_part<A>(p, part, 0, p.columns);
      for (int64_t row = begin; row < end; ++row) {
        const O* dy = p.grad_output ? grad_output.row(row) : nullptr;
        const S* dres = p.grad_residual_out ? grad_residual.row(row) : nullptr;
        const S* v = value.row(row);
        const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
        S* dv = p.grad_input ? static_cast<S*>(p.grad_input) + row * p.columns : nullptr;
        A* ds = sums ? sums + row % p.heads * p.columns : nullptr;
        double sum = 0;
        if (dy && dv) {
          sum = row_sum(p.columns, [&](int64_t c, int64_t n) {
            return sum_of_products(dy + c, v + c, at(s, c), rstd[row], n);
          });
        }
        const A mean = static_cast<A>(sum / static_cast<double>(p.columns));
        const O* next_dy = dy && p.stream_stores ? grad_output.ahead(row) : nullptr;
        const S* next_v = p.stream_stores ? value.ahead(row) : nullptr;
        row_gradient<A, S, O>({dy, dres, v, s, dv, ds, next_dy, next_v}, rstd[row], mean, p.columns,
                              p.stream_stores);
      }
    }
  });
}

// Few long rows: threads share the columns. Same sums, same order.
template <class S, class O>
void backward_by_columns(const RmsNormBackward& p) {
  using A = accumulate_t<S>;
  const A* rstd = static_cast<const A*>(p.rstd);
  const int64_t blocks = (p.columns + kColumns - 1) / kColumns;
  const int64_t grain = grain_for_bytes(kColumns * int64_t{sizeof(S) + sizeof(O)});
  const auto grad_output = [&](int64_t row) {
    return p.grad_output
               ? static_cast<const O*>(p.grad_output) + row_offset(p.grad_output_layout, row)
               : nullptr;
  };
  const auto value = [&](int64_t row) {
    return static_cast<const S*>(p.value) + row_offset(p.value_layout, row);
  };

  const Scratch<double> sums(p.rows * blocks);
  const Scratch<A> means(p.rows);
  parallel_for(p.rows * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / blocks, c = task % blocks * kColumns;
      const O* dy = grad_output(row);
      const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
      const int64_t n = smaller(kColumns, p.columns - c);
      sums.data()[task] =
          dy && p.grad_input ? sum_of_products(dy + c, value(row) + c, at(s, c), rstd[row], n) : 0;
    }
  });
  for (int64_t row = 0; row < p.rows; ++row) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += sums.data()[row * blocks + b];
    means.data()[row] = static_cast<A>(sum / static_cast<double>(p.columns));
  }
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const FenceAtEnd fence(p.stream_stores);
    for (int64_t c = begin * kColumns; c < smaller(end * kColumns, p.columns); c += kColumns) {
      const int64_t n = smaller(kColumns, p.columns - c);
      for (int64_t part = 0; part < p.parts; ++part) {
        A* part_sums = clear_part<A>(p, part, c, n);
        for (int64_t row = p.rows * part / p.parts; row < p.rows * (part + 1) / p.parts; ++row) {
          const A* s = weight_row<A>(p.weight, row, p.heads, p.columns);
          const S* dres = p.grad_residual_out ? static_cast<const S*>(p.grad_residual_out) +
                                                    row_offset(p.grad_residual_out_layout, row)
                                              : nullptr;
          S* dv = p.grad_input ? static_cast<S*>(p.grad_input) + row * p.columns + c : nullptr;
          A* ds = part_sums ? part_sums + row % p.heads * p.columns + c : nullptr;
          const O* dy = at(grad_output(row), c);
          const S* v = value(row) + c;
          row_gradient<A, S, O>({dy, at(dres, c), v, at(s, c), dv, ds, nullptr, nullptr}, rstd[row],
                                means.data()[row], n, p.stream_stores);
        }
      }
    }
  });
}

template <class S, class O>
void backward(const RmsNormBackward& p) {
  const bool dense = p.value_layout.column_stride == 1 &&
                     (!p.grad_output || p.grad_output_layout.column_stride == 1) &&
                     (!p.grad_residual_out || p.grad_residual_out_layout.column_stride == 1);
  if (dense && p.rows <= kFewRows && p.columns >= kLongRow) {
    backward_by_columns<S, O>(p);
  } else {
    backward_by_rows<S, O>(p);
  }
}

// ---- weights ------------------------------------------------------------------------------------

template <class From, class A>
void convert(const Convert& p) {
  const From* from = static_cast<const From*>(p.from);
  A* to = static_cast<A*>(p.to);
  // The neutral element of addition is -0: with it a weight of -0 stays what it is.
  const A offset = p.offset == 0 ? static_cast<A>(-0.0) : static_cast<A>(p.offset);
  if constexpr (kSame<A, accumulate_t<From>>) {
    if (p.from_stride == 1) {
      return for_each_block<A>(p.count, [&](int64_t i, auto block) {
        block.store(to + i, block.load(from + i) + pair<A>(offset));
      });
    }
  }
  for (int64_t i = 0; i < p.count; ++i) to[i] = to_accumulate<A>(from[i * p.from_stride]) + offset;
}

// Parts are added up in double, in blocks of columns that stay in the first cache.
template <class A, class To>
void combine_parts(const CombineParts& p) {
  constexpr int64_t kWidth = 256;
  const A* partial = static_cast<const A*>(p.partial);
  To* to = static_cast<To*>(p.to);
  parallel_for((p.count + kWidth - 1) / kWidth,
               grain_for_bytes(kWidth * p.parts * int64_t{sizeof(A)}),
               [&](int64_t first, int64_t last) {
                 for (int64_t begin = first * kWidth; begin < smaller(last * kWidth, p.count);
                      begin += kWidth) {
                   const int64_t n = smaller(kWidth, p.count - begin);
                   double sums[kWidth] = {};
                   for (int64_t part = 0; part < p.parts; ++part) {
                     const A* row = partial + part * p.count + begin;
                     for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(row[i]);
                   }
                   for (int64_t i = 0; i < n; ++i) {
                     to[begin + i] = from_accumulate<To>(static_cast<A>(sums[i]));
                   }
                 }
               });
}

// ---- dispatch: the one place where types become templates ---------------------------------------

// Calls f(Type<O>, rounding) for the outputs that T allows: T itself, or fp32 for a narrower T that
// a weight promoted. Rounding to T says nothing when arithmetic is in T.
template <class T, class F>
void with_output(DType output_type, Rounding rounding, const F& f) {
  if constexpr (!kLow<T>) {
    f(Type<T>{}, Constant<Rounding::kOnce>{});
  } else if (output_type != kDType<T>) {
    f(Type<float>{}, Constant<Rounding::kLlama>{});
  } else if (rounding == Rounding::kLlama) {
    f(Type<T>{}, Constant<Rounding::kLlama>{});
  } else {
    f(Type<T>{}, Constant<Rounding::kOnce>{});
  }
}

void dispatch_forward(const RmsNormForward& p) {
  with_type(p.input_type, [&](auto input) {
    using T = typename decltype(input)::type;
    with_output<T>(p.output_type, p.rounding, [&](auto output, auto rounding) {
      using O = typename decltype(output)::type;
      if (p.residual == nullptr) return forward<T, O, rounding.value>(p);
      with_type(p.residual_type, [&](auto residual) {
        using R = typename decltype(residual)::type;
        if constexpr (kSame<T, double> == kSame<R, double>) {
          using S = promote_t<T, R>;
          // Without a narrower type there is nothing to round.
          if constexpr (kLow<S>) {
            if (p.exact_statistics) return add_forward<T, R, S, O, rounding.value, true>(p);
          }
          add_forward<T, R, S, O, rounding.value, false>(p);
        }
      });
    });
  });
}

void dispatch_backward(const RmsNormBackward& p) {
  with_type(p.stream_type, [&](auto stream) {
    using S = typename decltype(stream)::type;
    with_type(p.output_type, [&](auto output) {
      using O = typename decltype(output)::type;
      // The output is of the stream's type, or fp32 beside a narrower stream, or narrower beside an
      // fp32 stream.
      if constexpr (kSame<S, O> || (kSame<S, float> && kLow<O>) || (kLow<S> && kSame<O, float>))
        backward<S, O>(p);
    });
  });
}

void dispatch_convert(const Convert& p) {
  with_type(p.from_type, [&](auto from) {
    using From = typename decltype(from)::type;
    if (p.to_type == DType::float64) return convert<From, double>(p);
    if constexpr (!kSame<From, double>) convert<From, float>(p);
  });
}

void dispatch_combine_parts(const CombineParts& p) {
  with_type(p.to_type, [&](auto to) {
    using To = typename decltype(to)::type;
    if (p.partial_type == DType::float64) return combine_parts<double, To>(p);
    if constexpr (!kSame<To, double>) combine_parts<float, To>(p);
  });
}

}  // namespace

extern const RmsNormKernels rms_norm_kernels = {
    dispatch_forward,        dispatch_backward, rms_norm_gated_forward,
    rms_norm_gated_backward, dispatch_convert,  dispatch_combine_parts,
};

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
