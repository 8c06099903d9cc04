// One call of an operator on a CUDA device, as its binding sees it: the tensors' device is current
// for the length of the call, kernels go to torch's current stream there, and scratch memory comes
// from torch's allocator. cpu_call.h has the same for the CPU, and says how both are used.
//
// For the CUDA library only (_CUDA.so), which is loaded under a torch with CUDA and compiles
// without one. Nothing here waits for the device.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>

#include <stdexcept>
#include <string>

#include "opwright/stable.h"

// torch's header declares it for CUDA builds of torch only. Weak, so that the library links and
// loads under any torch.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

// What the build compiled for, in words: "CUDA 13.0 for sm_80, sm_90 and later".
#if !defined(OPWRIGHT_CUDA_BUILT)
#error "expected OPWRIGHT_CUDA_BUILT from the build"
#endif

namespace opwright {

// The device's memory for the length of a call: given back in the order of the stream, so kernels
// that are enqueued before may still use it.
class CudaMemory {
 public:
  CudaMemory(int64_t bytes, Place where) {
    if (bytes <= 0) return;
    constexpr int64_t kStep[] = {1};
    AtenTensorHandle handle = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
        1, &bytes, kStep, aoti_torch_dtype_uint8(), where.type, where.index, &handle));
    tensor_ = Tensor(handle);
    data_ = static_cast<char*>(tensor_->mutable_data_ptr());
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  char* data() const { return data_; }

 private:
  OptionalTensor tensor_;
  char* data_ = nullptr;
};

// `Table` is the operator's struct of launchers, `kTable` the one that its .cu file defines.
template <class Table, const Table& kTable>
class CudaCall {
 public:
  using Kernels = Table;
  using Memory = CudaMemory;
  static constexpr bool kCuda = true;

  CudaCall(const Tensor& input, const char* op)
      : op_(op), place_(cuda_place(input, op)), guard_(place_.index) {
    check<std::runtime_error>(aoti_torch_get_current_cuda_stream != nullptr, op,
                              "a torch with CUDA to run CUDA kernels", "one without");
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(place_.index, &stream_));
  }

  template <class Params>
  void operator()(int (*Table::*kernel)(const Params&, void*), const Params& params) const {
    const int status = (kTable.*kernel)(params, stream_);
    check<std::runtime_error>(
        status == 0, op_, [] { return "the kernels, built by " OPWRIGHT_CUDA_BUILT ", to start"; },
        [&] {
          const auto error = static_cast<cudaError_t>(status);
          return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
        });
  }

  Memory memory(int64_t bytes) const { return Memory(bytes, place_); }

  static bool stream_stores(int64_t bytes) {
    (void)bytes;
    return false;
  }

 private:
  static Place cuda_place(const Tensor& input, const char* op) {
    const Place where = place(input);
    check(where.type == aoti_torch_device_type_cuda(), op, "input on a CUDA device",
          [&] { return text(where); });
    return where;
  }

  const char* op_;
  Place place_;
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace opwright
