// What the kernels of this package share along one row.
#pragma once

#include "opwright/block.h"
#include "rms_norm.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// Sums along a row are taken by blocks of this many columns, the unit in which threads may share a
// long row.
constexpr int64_t kColumns = 2048;

[[maybe_unused]] int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Adds up block_sum(first column, number of columns) over the column blocks of a row, in order, in
// double.
template <class F>
double row_sum(int64_t columns, const F& block_sum) {
  double sum = 0;
  for (int64_t c = 0; c < columns; c += kColumns) {
    sum += block_sum(c, smaller(kColumns, columns - c));
  }
  return sum;
}

[[maybe_unused]] double reciprocal_rms(double sum_of_squares, int64_t columns, double eps) {
  return 1.0 / __builtin_sqrt(sum_of_squares / static_cast<double>(columns) + eps);
}

// (v * r) * s with the roundings of the mode; the caller rounds the result once more, to the output
// type. There are only products here, so nothing can be contracted.
template <class T, Rounding kRounding, class A>
OPWRIGHT_INLINE Pair<A> scaled(Pair<A> v, Pair<A> r, Pair<A> s) {
  if constexpr (kRounding == Rounding::kLlama) return round_to<T>(v * r) * s;
  return (v * r) * s;
}

// A block of the weight, which is 1 where there is none.
template <class A, class Block>
OPWRIGHT_INLINE Pair<A> load_scale(const A* s, int64_t i, Block block) {
  return s ? block.load(s + i) : pair<A>(1);
}

// The weight's row for row `row` of the input, or null.
template <class A>
const A* weight_row(const void* weight, int64_t row, int64_t heads, int64_t columns) {
  if (weight == nullptr) return nullptr;
  return static_cast<const A*>(weight) + (heads == 1 ? 0 : row % heads * columns);
}

// A column of a row that may be missing.
template <class T>
T* at(T* row, int64_t column) {
  return row ? row + column : nullptr;
}

// Streaming stores need whole vectors at aligned addresses.
template <class S>
bool can_stream(const S* to) {
  return reinterpret_cast<uintptr_t>(to) % OPWRIGHT_VECTOR_BYTES == 0;
}

// Writes a block and returns what was written: x, rounded to S.
template <class A, class S, class Block>
OPWRIGHT_INLINE Pair<A> write(S* to, Pair<A> x, Block block, bool stream) {
  return stream ? block.stream(to, x) : block.store(to, x);
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
