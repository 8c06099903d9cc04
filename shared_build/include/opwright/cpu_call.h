// One call of an operator on the CPU, as its binding sees it: the kernels of the level that runs,
// and scratch memory.
//
// cuda/call.h has the same for a CUDA device. Checks, allocation and the filling of parameters are
// written once, as templates on the kind of call:
//
//   const Call call(input, "rms_norm");
//   call(&Call::Kernels::forward, params);
#pragma once

#include "opwright/stable.h"

namespace opwright {

// `Table` is the operator's struct of kernels, `kTable` gives the one of the level.
template <class Table, const Table& (*kTable)()>
class CpuCall {
 public:
  using Kernels = Table;
  using Memory = Scratch<char>;
  static constexpr bool kCuda = false;

  CpuCall(const Tensor& input, const char* op) {
    (void)input;
    (void)op;
  }

  template <class Params>
  void operator()(void (*Table::*kernel)(const Params&), const Params& params) const {
    (kTable().*kernel)(params);
  }

  // Memory for the length of the call; none for 0 bytes.
  Memory memory(int64_t bytes) const { return Memory(bytes); }

  // Whether results of that many bytes should be written past the caches.
  static bool stream_stores(int64_t bytes) { return beyond_caches(bytes); }
};

}  // namespace opwright
