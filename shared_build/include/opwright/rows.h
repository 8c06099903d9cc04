// Rows of strided tensors: how a kernel that works along the last dimension sees memory.
//
// A tensor (..., D) is a list of `count` rows of D columns. Leading dimensions that can be walked
// with one stride are merged by the binding (collapse in stable.h), so that most tensors have one
// row dimension. Nothing is copied as a whole: a row whose columns are adjacent is used in place,
// and rows whose columns are not (a transposed tensor, x[..., ::2], an expanded gradient) pass
// through a block of kRowsPerBlock rows, read in the order in which they lie in memory.
#pragma once

#include <cstdint>

namespace opwright {

constexpr int kMaxRowDims = 6;

// Plain data. Strides count elements and may be 0 (expanded) where the tensor is only read.
struct RowLayout {
  int64_t ndim;  // 1 to kMaxRowDims, outermost first
  int64_t size[kMaxRowDims];
  int64_t stride[kMaxRowDims];
  int64_t column_stride;
};

// Scratch memory aligned to 64 bytes. Throws std::bad_alloc, which ends the call; kernel objects
// have no landing pads, so scratch that a thread holds at that moment is lost. Defined in
// src/scratch.cpp, outside the kernel objects.
void* scratch_allocate(int64_t bytes);
void scratch_free(void* pointer);

namespace {

constexpr int64_t kRowsPerBlock = 16;
constexpr int64_t kBytesAhead = 16 << 10;  // of the first cache, a third to a half

[[maybe_unused, gnu::noinline]] int64_t row_offset_of_many(const RowLayout& layout, int64_t row) {
  int64_t offset = 0;
  for (int64_t d = layout.ndim - 1; d > 0; --d) {
    offset += (row % layout.size[d]) * layout.stride[d];
    row /= layout.size[d];
  }
  return offset + row * layout.stride[0];
}

[[maybe_unused]] int64_t row_offset(const RowLayout& layout, int64_t row) {
  return layout.ndim == 1 ? row * layout.stride[0] : row_offset_of_many(layout, row);
}

// Owns scratch memory for `count` elements of T; none for 0.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(count > 0 ? static_cast<T*>(scratch_allocate(count * int64_t{sizeof(T)})) : nullptr) {
  }
  ~Scratch() { scratch_free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

// Contiguous read access to the rows [begin, end), asked for in ascending order.
template <class T>
class RowReader {
 public:
  RowReader(const void* data, const RowLayout& layout, int64_t columns, int64_t begin, int64_t end)
      : data_(static_cast<const T*>(data)),
        layout_(layout),
        columns_(columns),
        end_(end),
        block_end_(begin),
        scratch_(direct() ? 0 : kRowsPerBlock * columns) {}

  // True when rows are used where they lie.
  bool direct() const { return layout_.column_stride == 1 || columns_ == 1; }

  const T* row(int64_t row) {
    if (direct()) return data_ + row_offset(layout_, row);
    if (row >= block_end_) gather(row);
    return scratch_.data() + (row - block_begin_) * columns_;
  }

  // What to prefetch while `row` is worked on, where results are streamed and so leave the first
  // cache to what is read: a row about kBytesAhead further on, at least the next one. Where rows
  // are gathered, and at the end, it is memory that is at hand already.
  const T* ahead(int64_t row) const {
    if (!direct()) return scratch_.data();
    const int64_t next = row + kBytesAhead / (columns_ * int64_t{sizeof(T)} + 1) + 1;
    return data_ + row_offset(layout_, next < end_ ? next : end_ - 1);
  }

 private:
  void gather(int64_t row) {
    block_begin_ = row;
    block_end_ = row + kRowsPerBlock < end_ ? row + kRowsPerBlock : end_;
    const T* rows[kRowsPerBlock];
    const int64_t count = block_end_ - block_begin_;
    for (int64_t i = 0; i < count; ++i) rows[i] = data_ + row_offset(layout_, row + i);
    // Columns outermost: in a transposed tensor the block's rows are neighbours in memory.
    for (int64_t column = 0; column < columns_; ++column) {
      const int64_t offset = column * layout_.column_stride;
      for (int64_t i = 0; i < count; ++i) scratch_.data()[i * columns_ + column] = rows[i][offset];
    }
  }

  const T* data_;
  const RowLayout& layout_;
  int64_t columns_, end_;
  int64_t block_begin_ = 0, block_end_;
  Scratch<T> scratch_;
};

// Contiguous write access to rows: write all of row(r), then commit(r).
template <class T>
class RowWriter {
 public:
  RowWriter(void* data, const RowLayout& layout, int64_t columns)
      : data_(static_cast<T*>(data)),
        layout_(layout),
        columns_(columns),
        scratch_(direct() ? 0 : columns) {}

  bool direct() const { return layout_.column_stride == 1 || columns_ == 1; }

  T* row(int64_t row) { return direct() ? data_ + row_offset(layout_, row) : scratch_.data(); }

  void commit(int64_t row) {
    if (direct()) return;
    T* destination = data_ + row_offset(layout_, row);
    for (int64_t column = 0; column < columns_; ++column) {
      destination[column * layout_.column_stride] = scratch_.data()[column];
    }
  }

 private:
  T* data_;
  const RowLayout& layout_;
  int64_t columns_;
  Scratch<T> scratch_;
};

}  // namespace
}  // namespace opwright
