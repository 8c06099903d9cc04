// Tensors of the stable ABI, as the binding files of the stable flavour need them: dtypes, layouts,
// allocation.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "opwright/check.h"
#include "opwright/isa.h"
#include "opwright/rows.h"
#include "opwright/types.h"

namespace opwright {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- registration -------------------------------------------------------------------------------

// True once this copy of the library has defined its operators. A second copy, loaded from another
// path, finds them defined and must leave them alone: an error while a library is loaded would end
// the process.
inline bool g_defined_here = false;

// Defines `first`, and by `define` the others, unless the process has the first already.
template <class F>
inline void define_once(torch::stable::detail::StableLibrary& library, const char* first,
                        const F& define) {
  try {
    library.def(first);
  } catch (const std::exception&) {
    return;  // refused, since it exists
  }
  define();
  g_defined_here = true;
}

// ---- dtypes -------------------------------------------------------------------------------------

inline int32_t dtype_code(const Tensor& tensor) {
  int32_t code = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  return code;
}

inline int32_t dtype_code(DType type) {
  switch (type) {
    case DType::float32:
      return aoti_torch_dtype_float32();
    case DType::float64:
      return aoti_torch_dtype_float64();
    case DType::bfloat16:
      return aoti_torch_dtype_bfloat16();
    case DType::float16:
      return aoti_torch_dtype_float16();
  }
  return -1;
}

inline const char* dtype_name(DType type) {
  switch (type) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
  }
  return "?";
}

inline std::string dtype_name(int32_t code) {
  if (code == aoti_torch_dtype_float32()) return "float32";
  if (code == aoti_torch_dtype_float64()) return "float64";
  if (code == aoti_torch_dtype_bfloat16()) return "bfloat16";
  if (code == aoti_torch_dtype_float16()) return "float16";
  if (code == aoti_torch_dtype_int64()) return "int64";
  if (code == aoti_torch_dtype_int32()) return "int32";
  if (code == aoti_torch_dtype_int16()) return "int16";
  if (code == aoti_torch_dtype_int8()) return "int8";
  if (code == aoti_torch_dtype_uint8()) return "uint8";
  if (code == aoti_torch_dtype_bool()) return "bool";
  if (code == aoti_torch_dtype_complex64()) return "complex64";
  if (code == aoti_torch_dtype_complex128()) return "complex128";
  return "another dtype";
}

// The tensor's floating type; an error of `op` that names the argument otherwise.
inline DType float_dtype(const Tensor& tensor, const char* op, const char* argument) {
  const int32_t code = dtype_code(tensor);
  if (code == aoti_torch_dtype_float32()) return DType::float32;
  if (code == aoti_torch_dtype_bfloat16()) return DType::bfloat16;
  if (code == aoti_torch_dtype_float16()) return DType::float16;
  if (code == aoti_torch_dtype_float64()) return DType::float64;
  check(
      false, op,
      [&] { return std::string(argument) + " of dtype bfloat16, float16, float32 or float64"; },
      [&] { return dtype_name(code); });
  return DType::float32;
}

// torch's promotion of two floating types.
inline DType promote(DType a, DType b) {
  if (a == b) return a;
  return a == DType::float64 || b == DType::float64 ? DType::float64 : DType::float32;
}

// The type that arithmetic is done in.
inline DType accumulate_type(DType type) {
  return type == DType::float64 ? DType::float64 : DType::float32;
}

inline int64_t element_size(DType type) {
  return type == DType::float64 ? 8 : type == DType::float32 ? 4 : 2;
}

// ---- shapes -------------------------------------------------------------------------------------

struct Shape {
  const int64_t* data;
  int64_t ndim;
  int64_t operator[](int64_t i) const { return data[i < 0 ? i + ndim : i]; }
};

inline Shape sizes(const Tensor& tensor) {
  int64_t* data = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &data));
  return {data, tensor.dim()};
}

inline Shape strides(const Tensor& tensor) {
  int64_t* data = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &data));
  return {data, tensor.dim()};
}

inline std::string text(Shape shape) {
  std::string result = "(";
  for (int64_t i = 0; i < shape.ndim; ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + (shape.ndim == 1 ? ",)" : ")");
}

inline bool same(Shape a, Shape b) {
  if (a.ndim != b.ndim) return false;
  for (int64_t i = 0; i < a.ndim; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Dimensions that a tensor may have, which the operators check of their inputs.
constexpr int64_t kMaxDims = 64;

// ---- devices ------------------------------------------------------------------------------------

struct Place {
  int32_t type, index;
  bool operator==(const Place&) const = default;
};

inline Place place(const Tensor& tensor) {
  Place found{};
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &found.type));
  // torch has a "cpu" and a "cpu:0", which are one device.
  if (found.type == aoti_torch_device_type_cpu()) return found;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &found.index));
  return found;
}

inline std::string text(Place place) {
  if (place.type == aoti_torch_device_type_cpu()) return "cpu";
  if (place.type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(place.index);
  if (place.type == aoti_torch_device_type_meta()) return "meta";
  return "another device";
}

// Refuses an operand on another device than the first one. An operator compares all of its tensors:
// one call may be given both a CPU and a CUDA tensor.
inline void check_device(const Tensor& tensor, const Tensor& input, const char* op,
                         const char* argument) {
  check(
      place(tensor) == place(input), op,
      [&] { return std::string(argument) + " on " + text(place(input)) + " like the input"; },
      [&] { return text(place(tensor)); });
}

// ---- memory -------------------------------------------------------------------------------------

// A new contiguous tensor, uninitialised; on the CPU if no place is given.
inline Tensor empty(const int64_t* size, int64_t ndim, DType type,
                    Place where = {aoti_torch_device_type_cpu(), 0}) {
  int64_t stride[kMaxDims];
  int64_t step = 1;
  for (int64_t i = ndim - 1; i >= 0; --i) {
    stride[i] = step;
    step *= size[i] > 1 ? size[i] : 1;
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(ndim, size, stride, dtype_code(type),
                                                         where.type, where.index, &handle));
  return Tensor(handle);
}

inline Tensor empty(Shape shape, DType type) { return empty(shape.data, shape.ndim, type); }

// The same on the device of `like`.
inline Tensor empty(Shape shape, DType type, const Tensor& like) {
  return empty(shape.data, shape.ndim, type, place(like));
}

// Memory for the gradient of `tensor`, or an empty tensor where it is not wanted: the first result
// of an operator may not be missing, or DTensor would take the operator for one without results.
inline Tensor gradient(bool wanted, const Tensor& tensor, DType type) {
  constexpr int64_t kNothing[] = {0};
  return wanted ? empty(sizes(tensor), type, tensor) : empty(kNothing, 1, type, place(tensor));
}

// The rows of a tensor (..., columns); with `groups` > 1 each last dimension counts as `groups`
// rows of its own, groups innermost. Leading dimensions are merged where one stride walks them.
// False when more than kMaxRowDims remain.
inline bool collapse_rows(Shape size, Shape stride, int64_t groups, RowLayout* layout) {
  const int64_t last = size.ndim - 1;
  layout->column_stride = stride[last];
  int64_t ndim = 0;  // collected innermost first
  int64_t sizes_out[kMaxRowDims], strides_out[kMaxRowDims];
  const auto add = [&](int64_t n, int64_t step) {
    if (n == 1) return true;
    if (ndim > 0 && step == strides_out[ndim - 1] * sizes_out[ndim - 1]) {
      sizes_out[ndim - 1] *= n;
      return true;
    }
    if (ndim == kMaxRowDims) return false;
    sizes_out[ndim] = n;
    strides_out[ndim++] = step;
    return true;
  };
  if (!add(groups, size[last] / groups * stride[last])) return false;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (!add(size[d], stride[d])) return false;
  }
  if (ndim == 0) {
    sizes_out[0] = 1;
    strides_out[0] = 0;
    ndim = 1;
  }
  layout->ndim = ndim;
  for (int64_t d = 0; d < ndim; ++d) {
    layout->size[d] = sizes_out[ndim - 1 - d];
    layout->stride[d] = strides_out[ndim - 1 - d];
  }
  return true;
}

// A tensor that is only read, and the layout of its rows. Copied only when its strides need more
// than kMaxRowDims.
struct RowsIn {
  Tensor tensor;
  RowLayout layout;
  const void* data() const { return tensor.const_data_ptr(); }
};

inline RowsIn rows_in(const Tensor& tensor, int64_t groups = 1) {
  RowsIn rows{tensor, {}};
  if (!collapse_rows(sizes(tensor), strides(tensor), groups, &rows.layout)) {
    rows.tensor = torch::stable::contiguous(tensor);
    collapse_rows(sizes(rows.tensor), strides(rows.tensor), groups, &rows.layout);
  }
  return rows;
}

// Layout of a contiguous result.
inline RowLayout contiguous_rows(int64_t rows, int64_t columns) {
  RowLayout layout{};
  layout.ndim = 1;
  layout.size[0] = rows;
  layout.stride[0] = columns;
  layout.column_stride = 1;
  return layout;
}

inline void check_cpu(const Tensor& tensor, const char* op, const char* argument) {
  check(
      tensor.is_cpu(), op, [&] { return std::string(argument) + " on the CPU, like the input"; },
      "one on another device");
}

// True when a result of this many bytes should be written past the caches: with what it is made
// from it would push out everything else, and an ordinary store would first fetch the line that it
// overwrites. One thread waits for those lines, and gains from a quarter of the last-level cache
// on; several fill the memory's bandwidth, which the caches spare them, and gain from a half.
// Measured: docs/design/measurement.md.
int64_t last_level_cache();
inline bool beyond_caches(int64_t bytes) {
  const int64_t cache = last_level_cache();
  return bytes >= cache / 2 || (bytes >= cache / 4 && torch::stable::get_num_threads() == 1);
}

// Marks a tensor as changed (its version counter) and refuses leaves that require grad; the stable
// ABI does neither by itself.
inline void mark_mutated(const Tensor& tensor) {
  Tensor self = tensor;
  torch::stable::copy_(self, tensor);
}

}  // namespace opwright
