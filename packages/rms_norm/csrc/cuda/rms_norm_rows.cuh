// What the CUDA kernels of this package share: rows, seen as chunks of kWidth columns.
//
// kWidth elements of the input's type make 16 bytes. The threads that work on a row (threadIdx.x)
// take its chunks in turn, and what a thread does with a chunk does not depend on where the row
// lies: VectorRow moves a chunk by whole vectors, AnyRow moves the same chunk element by element,
// from any address and with any stride and type. So both give the same bits.
#pragma once

#include "opwright/cuda/device.h"
#include "opwright/dispatch.h"
#include "rms_norm.h"

namespace opwright {
namespace {

constexpr int kMostRowThreads = 512;

// The first element of a row, counted from the first of the tensor.
OPWRIGHT_DEVICE int64_t row_start(const RowLayout& layout, int64_t row) {
  if (layout.ndim == 1) return row * layout.stride[0];
  int64_t start = 0;
  OPWRIGHT_UNROLL
  for (int d = kMaxRowDims - 1; d > 0; --d) {
    if (d >= layout.ndim) continue;
    start += row % layout.size[d] * layout.stride[d];
    row /= layout.size[d];
  }
  return start + row * layout.stride[0];
}

template <class T>
OPWRIGHT_DEVICE T* plus(const void* data, int64_t elements) {
  return data ? static_cast<T*>(const_cast<void*>(data)) + elements : nullptr;
}

// ---- rows ---------------------------------------------------------------------------------------

// A row of adjacent elements, each chunk at an address that its vectors can be moved from.
template <class A, class S, int kColumns>
struct VectorRow {
  using Accumulate = A;
  using Element = S;
  static constexpr int kWidth = kColumns;
  static constexpr bool kVector = true;

  static OPWRIGHT_DEVICE VectorRow at(const void* data, DType /*type*/, int64_t start,
                                      int64_t /*stride*/, int64_t /*columns*/) {
    return {plus<S>(data, start)};
  }
  OPWRIGHT_DEVICE explicit operator bool() const { return data != nullptr; }
  OPWRIGHT_DEVICE A round(A x) const { return round_to<S>(x); }
  OPWRIGHT_DEVICE Pack<A, kWidth> load(int64_t column) const {
    const Pack<S, kWidth> stored = load_global<kWidth>(data + column);
    Pack<A, kWidth> x;
    OPWRIGHT_UNROLL
    for (int i = 0; i < kWidth; ++i) x.value[i] = widen<A>(stored.value[i]);
    return x;
  }
  // Returns what was stored: x, rounded to S.
  OPWRIGHT_DEVICE Pack<A, kWidth> store(int64_t column, Pack<A, kWidth> x) const {
    Pack<S, kWidth> stored;
    OPWRIGHT_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      stored.value[i] = narrow<S>(x.value[i]);
      x.value[i] = widen<A>(stored.value[i]);
    }
    store_global<kWidth>(data + column, stored);
    return x;
  }

  S* data;
};

// Calls f(Type<S>) for the type of a row.
template <class F>
OPWRIGHT_DEVICE auto with_row_type(DType type, const F& f) {
  if (type == DType::bfloat16) return f(Type<BFloat16>{});
  if (type == DType::float16) return f(Type<Half>{});
  if (type == DType::float64) return f(Type<double>{});
  return f(Type<float>{});
}

// A row of any type with any stride. Columns past its end are zero, and are not written.
template <class A, int kColumns>
struct AnyRow {
  using Accumulate = A;
  using Element = A;
  static constexpr int kWidth = kColumns;
  static constexpr bool kVector = false;

  static OPWRIGHT_DEVICE AnyRow at(const void* data, DType type, int64_t start, int64_t stride,
                                   int64_t columns) {
    return {const_cast<void*>(data), start, stride, columns, type};
  }
  OPWRIGHT_DEVICE explicit operator bool() const { return data != nullptr; }
  OPWRIGHT_DEVICE A round(A x) const {
    return with_row_type(type, [&](auto s) { return round_to<typename decltype(s)::type>(x); });
  }
  OPWRIGHT_DEVICE Pack<A, kWidth> load(int64_t column) const {
    return with_row_type(type, [&](auto s) {
      const auto* from = plus<typename decltype(s)::type>(data, start);
      Pack<A, kWidth> x;
      OPWRIGHT_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        x.value[i] =
            column + i < columns ? widen<A>(load_global(from + (column + i) * stride)) : A{0};
      }
      return x;
    });
  }
  OPWRIGHT_DEVICE Pack<A, kWidth> store(int64_t column, Pack<A, kWidth> x) const {
    return with_row_type(type, [&](auto s) {
      using S = typename decltype(s)::type;
      S* to = plus<S>(data, start);
      OPWRIGHT_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        const S stored = narrow<S>(x.value[i]);
        x.value[i] = widen<A>(stored);
        if (column + i < columns) store_global(to + (column + i) * stride, stored);
      }
      return x;
    });
  }

  void* data;
  int64_t start, stride, columns;
  DType type;
};

template <class Row>
OPWRIGHT_DEVICE Row row_at(const void* data, DType type, const RowLayout& layout, int64_t row,
                           int64_t columns) {
  return Row::at(data, type, row_start(layout, row), layout.column_stride, columns);
}
template <class Row>
OPWRIGHT_DEVICE Row dense_row_at(const void* data, DType type, int64_t row, int64_t columns) {
  return Row::at(data, type, row * columns, 1, columns);
}

// ---- chunks -------------------------------------------------------------------------------------

// Calls f(first column) for this thread's chunks of a row.
template <int kWidth, class F>
OPWRIGHT_DEVICE void for_each_chunk(int64_t columns, const F& f) {
  const int64_t step = int64_t{kWidth} * blockDim.x;
  for (int64_t column = int64_t{kWidth} * threadIdx.x; column < columns; column += step) f(column);
}

template <class A, int kWidth, class F>
OPWRIGHT_DEVICE Pack<A, kWidth> map(const F& f) {
  Pack<A, kWidth> result;
  OPWRIGHT_UNROLL
  for (int i = 0; i < kWidth; ++i) result.value[i] = f(i);
  return result;
}

// The sum of a chunk's products, at most four terms at a time in A; sums of chunks are kept in
// double, so the error of a row's sum does not grow with the row.
template <class A, int kWidth>
OPWRIGHT_DEVICE double sum_of_products(const Pack<A, kWidth>& x, const Pack<A, kWidth>& y) {
  constexpr int kTerms = kWidth < 4 ? kWidth : 4;
  A sum = 0;
  OPWRIGHT_UNROLL
  for (int i = 0; i < kWidth; i += kTerms) {
    A part = x.value[i] * y.value[i];
    OPWRIGHT_UNROLL
    for (int j = 1; j < kTerms; ++j) part = fma(x.value[i + j], y.value[i + j], part);
    sum += part;
  }
  return sum;
}

// A chunk of a dense row in the arithmetic's type: of the weight, where every row reads it, and of
// sums. `kVector`: the row is as VectorRow wants it.
template <bool kVector, int kWidth, class A>
OPWRIGHT_DEVICE Pack<A, kWidth> load_weight(const A* row, int64_t column, int64_t columns) {
  if (row == nullptr) return map<A, kWidth>([](int) { return A{1}; });
  if constexpr (kVector) {
    return load_cached<kWidth>(row + column);
  } else {
    return map<A, kWidth>(
        [&](int i) { return column + i < columns ? load_cached(row + column + i) : A{0}; });
  }
}

// The row of the weight for row `row` of the input, or null.
template <class A>
OPWRIGHT_DEVICE const A* weight_row(const void* weight, int64_t row, int64_t heads,
                                    int64_t columns) {
  return plus<const A>(weight, heads == 1 ? 0 : row % heads * columns);
}

// A row that a thread read once and will read again, in shared memory if there is room: each thread
// finds its own chunks there, so no barrier is needed. Values are kept as K, which holds them
// exactly.
template <class A, class K, int kWidth>
struct KeptRow {
  OPWRIGHT_DEVICE explicit operator bool() const { return static_cast<bool>(memory); }
  OPWRIGHT_DEVICE void store(int64_t column, const Pack<A, kWidth>& x) const {
    Pack<K, kWidth> kept;
    OPWRIGHT_UNROLL
    for (int i = 0; i < kWidth; ++i) kept.value[i] = narrow_exact<K>(x.value[i]);
    memory.template store<kWidth>(column, kept);
  }
  OPWRIGHT_DEVICE Pack<A, kWidth> load(int64_t column) const {
    const Pack<K, kWidth> kept = memory.template load<kWidth>(column);
    return map<A, kWidth>([&](int i) { return widen<A>(kept.value[i]); });
  }

  Shared<K> memory;
};

// Bytes that a row of `columns` elements takes in shared memory: whole chunks, and the next row may
// be of any type.
OPWRIGHT_HOST_DEVICE int64_t shared_row_bytes(int64_t columns, int width, int64_t element_bytes) {
  const int64_t bytes = (columns + width - 1) / width * width * element_bytes;
  return (bytes + kVectorAccess - 1) / kVectorAccess * kVectorAccess;
}

// First the row itself, keeping it; then what was kept, or the row again.
template <class Row, class Kept>
OPWRIGHT_DEVICE auto load_and_keep(const Row& row, const Kept& kept, int64_t column) {
  const auto x = row.load(column);
  if (kept) kept.store(column, x);
  return x;
}
template <class Row, class Kept>
OPWRIGHT_DEVICE auto load_again(const Row& row, const Kept& kept, int64_t column) {
  return kept ? kept.load(column) : row.load(column);
}

// The pieces of work of a launch that this thread takes part in: first, first + step, ...
struct Work {
  int64_t first, step;
};
OPWRIGHT_DEVICE Work work_of_thread() {
  return {int64_t{blockIdx.x} * blockDim.y + threadIdx.y, int64_t{gridDim.x} * blockDim.y};
}

OPWRIGHT_DEVICE double reciprocal_rms(double sum_of_squares, int64_t columns, double eps) {
  return 1.0 / sqrt(sum_of_squares / static_cast<double>(columns) + eps);
}

// ---- sums of the weight's gradient --------------------------------------------------------------

// The sums of one row of the weight over the rows of one part, in shared memory if there is room,
// else where they will lie in the end. Each thread has its own columns.
template <class A, int kWidth, bool kVector>
struct WeightSums {
  OPWRIGHT_DEVICE explicit operator bool() const { return target != nullptr; }

  OPWRIGHT_DEVICE void clear() const {
    if (!target) return;
    for_each_chunk<kWidth>(columns, [&](int64_t column) {
      const auto zeros = map<A, kWidth>([](int) { return A{0}; });
      if (memory) {
        memory.template store<kWidth>(column, zeros);
      } else {
        store_target(column, zeros);
      }
    });
  }
  // sums += x * y
  OPWRIGHT_DEVICE void add(int64_t column, const Pack<A, kWidth>& x,
                           const Pack<A, kWidth>& y) const {
    const auto sums = memory ? memory.template load<kWidth>(column) : load_target(column);
    const auto added =
        map<A, kWidth>([&](int i) { return fma(x.value[i], y.value[i], sums.value[i]); });
    if (memory) {
      memory.template store<kWidth>(column, added);
    } else {
      store_target(column, added);
    }
  }
  OPWRIGHT_DEVICE void finish() const {
    if (!target || !memory) return;
    for_each_chunk<kWidth>(columns, [&](int64_t column) {
      store_target(column, memory.template load<kWidth>(column));
    });
  }

  A* target;  // null if they are not wanted
  Shared<A> memory;
  int64_t columns;

 private:
  OPWRIGHT_DEVICE Pack<A, kWidth> load_target(int64_t column) const {
    if constexpr (kVector) {
      return load_global<kWidth>(target + column);
    } else {
      return map<A, kWidth>(
          [&](int i) { return column + i < columns ? load_global(target + column + i) : A{0}; });
    }
  }
  OPWRIGHT_DEVICE void store_target(int64_t column, const Pack<A, kWidth>& x) const {
    if constexpr (kVector) {
      store_global<kWidth>(target + column, x);
    } else {
      OPWRIGHT_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        if (column + i < columns) store_global(target + column + i, x.value[i]);
      }
    }
  }
};

// The first row of a part. Without a gradient of the weight there are as many parts as rows, any
// number, so that rows * part might overflow.
OPWRIGHT_DEVICE int64_t part_begin(int64_t rows, int64_t part, int64_t parts) {
  return parts == rows ? part : rows * part / parts;
}

// The rows of a part whose weight row is `head`: first, first + heads, ... below `end`.
OPWRIGHT_DEVICE int64_t first_row_of(int64_t begin, int64_t head, int64_t heads) {
  const int64_t ahead = (head - begin % heads + heads) % heads;
  return begin + ahead;
}

}  // namespace
}  // namespace opwright
