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
  for (int64_t d = 0; d < size.ndim; ++d) {
    if (size[d] == 0) return true;
  }
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

// True when no element of one tensor is one of the other. Exact where their memory lies apart, and
// for two views of one packed tensor: `upper` starts `shift` elements behind `lower`, so dimensions
// of a smaller stride must stay within the shift, and those of a larger one must be walked alike
// and step over both views. Other views that interleave in memory count as overlapping.
inline bool lie_apart(const Tensor& a, const Tensor& b) {
  const Extent of_a = extent(a), of_b = extent(b);
  if (of_a.first > of_b.last || of_b.first > of_a.last) return true;
  const bool a_first = of_a.first <= of_b.first;
  const Tensor &lower = a_first ? a : b, &upper = a_first ? b : a;
  const int64_t bytes = static_cast<int64_t>(a.element_size());
  const int64_t distance = a_first ? of_b.first - of_a.first : of_a.first - of_b.first;
  const Shape low_size = sizes(lower), low_stride = strides(lower);
  const Shape up_size = sizes(upper), up_stride = strides(upper);
  if (low_size.ndim != up_size.ndim || static_cast<int64_t>(b.element_size()) != bytes ||
      distance % bytes != 0) {
    return false;
  }
  const int64_t shift = distance / bytes;
  int64_t low_reach = 0, up_reach = 0;
  for (int64_t d = 0; d < low_size.ndim; ++d) {
    if (low_stride[d] <= shift) low_reach += (low_size[d] - 1) * low_stride[d];
    if (up_stride[d] <= shift) up_reach += (up_size[d] - 1) * up_stride[d];
  }
  if (low_reach >= shift) return false;
  int64_t reach = shift + up_reach;
  bool taken[kMaxDims] = {};
  for (;;) {
    int64_t next = -1;
    for (int64_t d = 0; d < low_size.ndim; ++d) {
      const bool single = low_size[d] <= 1 && up_size[d] <= 1;
      if (single || taken[d] || (low_stride[d] <= shift && up_stride[d] <= shift)) continue;
      if (low_stride[d] != up_stride[d]) return false;
      if (next < 0 || low_stride[d] < low_stride[next]) next = d;
    }
    if (next < 0) return true;
    taken[next] = true;
    if (low_stride[next] <= reach) return false;
    const int64_t size = low_size[next] > up_size[next] ? low_size[next] : up_size[next];
    reach += (size - 1) * low_stride[next];
  }
}

}  // namespace opwright
