// A C interface to the CUDA launchers of rms_norm, compiled for the host simulator.
#include <cstdio>
#include <exception>

#include "opwright/cuda/device.h"
#include "rms_norm.h"

#if defined(OPWRIGHT_COVERAGE)
extern "C" void __gcov_dump(void);
#endif

namespace {

template <class Params>
int call(int (*function)(const Params&, void*), const void* params) {
  return function(*static_cast<const Params*>(params), nullptr);
}

int call_by_number(int which, const void* params) {
  const opwright::RmsNormCudaKernels& kernels = opwright::rms_norm_cuda_kernels;
  switch (which) {
    case 0:
      return call(kernels.forward, params);
    case 1:
      return call(kernels.backward, params);
    case 2:
      return call(kernels.gated_forward, params);
    case 3:
      return call(kernels.gated_backward, params);
    case 4:
      return call(kernels.convert, params);
    default:
      return call(kernels.combine_parts, params);
  }
}

}  // namespace

extern "C" {

// Returns the launcher's result; -1, and the text in `error`, for a fault that the simulator found.
int simulated_call(int which, const void* params, char* error, int64_t size) {
  try {
    return call_by_number(which, params);
  } catch (const std::exception& failure) {
    std::snprintf(error, static_cast<size_t>(size), "%s", failure.what());
    return -1;
  }
}

int64_t simulated_size(int which) {
  const size_t sizes[] = {sizeof(opwright::RmsNormForward),
                          sizeof(opwright::RmsNormBackward),
                          sizeof(opwright::RmsNormGatedForward),
                          sizeof(opwright::RmsNormGatedBackward),
                          sizeof(opwright::Convert),
                          sizeof(opwright::CombineParts)};
  return static_cast<int64_t>(sizes[which]);
}

void simulated_options(int order, int64_t seed, int traces, int64_t shared_limit,
                       int64_t most_blocks) {
  auto& options = opwright::simulator::options();
  options.order = static_cast<opwright::simulator::Order>(order);
  options.seed = static_cast<uint64_t>(seed);
  options.traces = traces != 0;
  options.shared_limit = shared_limit;
  options.most_blocks = most_blocks;
}

// Bytes read, written, and read through caches, and launches, since the last call.
void simulated_counts(int64_t* counts) {
  auto& counted = opwright::simulator::counters();
  counts[0] = counted.read;
  counts[1] = counted.written;
  counts[2] = counted.cached;
  counts[3] = counted.launches;
  counted.reset();
}

int64_t simulated_parts(int64_t rows, int64_t heads) {
  return opwright::weight_grad_parts_cuda(rows, heads);
}

#if defined(OPWRIGHT_COVERAGE)
void simulated_write_coverage() { __gcov_dump(); }
#endif
}
