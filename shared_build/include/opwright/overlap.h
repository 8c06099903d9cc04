// Where tensors lie in memory: what an operator that writes its arguments asks before it does.
#pragma once

#include "opwright/stable.h"

namespace opwright {

// Inclusive range of bytes that a tensor's elements lie in; empty (first > last) for no elements.
struct Extent {
  const char* first;
  const char* last;
};

inline Extent extent(const Tensor& tensor) {
  const Shape size = sizes(tensor), stride = strides(tensor);
  const char* base = static_cast<const char*>(tensor.const_data_ptr());
  int64_t reach = 0;
  for (int64_t d = 0; d < size.ndim; ++d) {
    if (size[d] == 0) return {base + 1, base};
    reach += (size[d] - 1) * stride[d];
  }
  const int64_t bytes = static_cast<int64_t>(tensor.element_size());
  return {base, base + reach * bytes + bytes - 1};
}

// True unless two indices can name one element: sorted by stride, each dimension must step over all
// smaller ones.
inline bool without_overlap(const Tensor& tensor) {
  const Shape size = sizes(tensor), stride = strides(tensor);
  int64_t done = 0, reach = 0;
  bool taken[kMaxDims] = {};
  while (done < size.ndim) {
    int64_t next = -1;
    for (int64_t d = 0; d < size.ndim; ++d) {
      if (!taken[d] && (next < 0 || stride[d] < stride[next])) next = d;
    }
    taken[next] = true;
    ++done;
    if (size[next] <= 1) continue;
    if (stride[next] <= reach) return false;
    reach += (size[next] - 1) * stride[next];
  }
  return true;
}

}  // namespace opwright
