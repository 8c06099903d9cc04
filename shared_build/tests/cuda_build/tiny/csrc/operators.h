// The operator on one kind of device.
#pragma once

#include "opwright/stable.h"
#include "tiny.h"

namespace opwright {

template <class Call>
struct Operators {
  using Kernels = typename Call::Kernels;

  static Tensor twice(const Tensor& input) {
    check(float_dtype(input, "tiny_twice", "input") == DType::float32, "tiny_twice",
          "input of dtype float32", "another");
    const Call call(input, "tiny_twice");
    const Tensor dense = torch::stable::contiguous(input);
    Tensor output = empty(sizes(input), DType::float32, input);
    if (output.numel() == 0) return output;
    call(&Kernels::twice, Twice{output.numel(), dense.const_data_ptr(), output.mutable_data_ptr()});
    return output;
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("tiny_twice", TORCH_BOX(&Operators::twice));
  }
};

}  // namespace opwright
