// Tensors of ATen, as the binding files of the ATen flavour need them: registration, dtypes,
// checks, and TensorIterator over the shared thread pool.
#pragma once

#include <ATen/FuncTorchTLS.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "opwright/check.h"
#include "opwright/isa.h"
#include "opwright/parallel.h"
#include "opwright/types.h"

namespace opwright {

using at::Tensor;

// ---- registration -------------------------------------------------------------------------------

// True once this copy of the library has defined its operators. A second copy, loaded from another
// path, finds them defined and must leave them alone: an error while a library is loaded would end
// the process.
inline bool g_defined_here = false;

inline bool defined_already(const char* name) {
  return c10::Dispatcher::singleton().findSchema({name, ""}).has_value();
}

// The operator `name` as a function of its C++ type; the dispatcher is asked once for each call
// site.
template <class Signature>
inline c10::TypedOperatorHandle<Signature> typed_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// ---- dtypes -------------------------------------------------------------------------------------

inline const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return "another dtype";
  }
}

// The kernels' name of a floating type that has passed check_float.
inline DType kernel_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::float64;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kHalf:
      return DType::float16;
    default:
      return DType::float32;
  }
}

inline bool is_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

inline void check_float(const Tensor& tensor, const char* op, const char* argument) {
  check(
      is_float(tensor.scalar_type()), op,
      [&] { return std::string(argument) + " of dtype bfloat16, float16, float32 or float64"; },
      [&] { return dtype_name(tensor.scalar_type()); });
}

inline void check_cpu(const Tensor& tensor, const char* op, const char* argument) {
  check(
      tensor.is_cpu(), op, [&] { return std::string(argument) + " on the CPU, like the others"; },
      "one on another device");
}

// ---- shapes and memory --------------------------------------------------------------------------

inline std::string text(at::IntArrayRef shape) {
  std::string result = "(";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + (shape.size() == 1 ? ",)" : ")");
}

// True when a result of this many bytes should be written past the caches; why and from where on is
// said at the stable flavour's function of this name (stable.h).
int64_t last_level_cache();
inline bool beyond_caches(int64_t bytes) {
  const int64_t cache = last_level_cache();
  return bytes >= cache / 2 || (bytes >= cache / 4 && at::get_num_threads() == 1);
}

// `written` must not have two indices for one element.
inline void check_apart(const Tensor& written, const char* op, const char* argument) {
  check(
      at::has_internal_overlap(written) != at::MemOverlap::Yes, op,
      [&] { return std::string(argument) + " whose elements lie apart"; }, "overlapping memory");
}

// `read` must not share memory with `written`. Told for dense tensors, as torch tells it.
inline void check_separate(const Tensor& written, const Tensor& read, const char* op,
                           const char* argument) {
  const auto status = at::get_overlap_status(written, read);
  check(
      status == at::MemOverlapStatus::No || status == at::MemOverlapStatus::TooHard, op,
      [&] { return std::string(argument) + " in memory of its own"; }, "overlapping memory");
}

// ---- iteration ----------------------------------------------------------------------------------

// Runs `loop(data, strides, inner, outer)` over all elements of a TensorIterator, which decides the
// order and the blocks; threads come from parallel.h, so that forked children and sanitizers are
// served as everywhere.
template <class F>
void iterate(const at::TensorIteratorBase& iterator, int64_t bytes_per_element, const F& loop) {
  parallel_for(iterator.numel(), grain_for_bytes(bytes_per_element),
               [&](int64_t begin, int64_t end) { iterator.serial_for_each(loop, {begin, end}); });
}

// ---- autograd -----------------------------------------------------------------------------------

// A C++ autograd::Function records neither functorch transforms nor forward-mode derivatives.
// Raises RuntimeError where one of them would go wrong; `instead` names what to call.
inline void refuse_transforms(const char* op, bool needs_gradient, bool has_tangent,
                              const char* instead) {
  check<std::runtime_error>(!has_tangent, op,
                            "no forward-mode derivative of a call through the dispatcher",
                            [&] { return std::string("one; call ") + instead; });
  const auto& functorch = at::functorch::functorchTLSAccessor();
  if (!needs_gradient || !functorch) return;
  bool supported = true;
  try {
    functorch->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    supported = false;
  }
  check<std::runtime_error>(supported, op,
                            "no torch.func transform of a call through the dispatcher",
                            [&] { return std::string("one; call ") + instead; });
}

}  // namespace opwright
