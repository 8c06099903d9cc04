// What the launchers of this package share: how a row is spread over threads, what fits shared
// memory, and where whole vectors can be moved.
#pragma once

#include "rms_norm_rows.cuh"

namespace opwright {
namespace {

// Threads for a row, a power of two from a warp to the kernel's most, at most two chunks each until
// then; rows of one warp share a block by fours.
struct RowShape {
  RowShape(int64_t columns, int width, int64_t shared_bytes_per_row,
           int64_t most_threads = kMostRowThreads) {
    const int64_t chunks = (columns + width - 1) / width;
    while (threads < most_threads && 2 * threads < chunks) threads *= 2;
    rows = threads == kWarp ? 4 : 1;
    fits = rows * shared_bytes_per_row <= shared_memory_limit();
    shared_bytes = fits ? rows * shared_bytes_per_row : 0;
  }
  dim3 grid(int64_t tasks) const {
    return dim3(static_cast<unsigned>(blocks_for((tasks + rows - 1) / rows)));
  }
  dim3 block() const { return dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows)); }

  int64_t threads = kWarp, rows = 1;
  int64_t shared_bytes = 0;
  bool fits = false;
};

template <class Row, class K>
int64_t shared_row(int64_t columns) {
  return shared_row_bytes(columns, Row::kWidth, sizeof(K));
}

inline int64_t bytes_of(DType type) {
  return type == DType::float64 ? 8 : type == DType::float32 ? 4 : 2;
}

// Whether chunks of `width` elements lie where whole vectors can be moved.
inline bool aligned(const void* data, int64_t element_bytes, int width) {
  const int64_t bytes = element_bytes * width;
  const int64_t access = bytes < kVectorAccess ? bytes : kVectorAccess;
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(access) == 0;
}
inline bool aligned_rows(const void* data, DType type, const RowLayout& layout, int width) {
  if (data == nullptr) return true;
  if (layout.column_stride != 1 || !aligned(data, bytes_of(type), width)) return false;
  for (int64_t d = 0; d < layout.ndim; ++d) {
    if (layout.size[d] > 1 && layout.stride[d] % width != 0) return false;
  }
  return true;
}
inline bool aligned_dense(const void* data, DType type, int width) {
  return data == nullptr || aligned(data, bytes_of(type), width);
}

// Elements of T in 16 bytes.
template <class T>
constexpr int kChunk = kVectorAccess / static_cast<int>(sizeof(T));

}  // namespace

// Defined in rms_norm_gated.cu.
int rms_norm_gated_forward_cuda(const RmsNormGatedForward& p, void* stream);
int rms_norm_gated_backward_cuda(const RmsNormGatedBackward& p, void* stream);

}  // namespace opwright
