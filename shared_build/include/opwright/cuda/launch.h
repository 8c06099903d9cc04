// Launching a kernel from host code: limits, and the one place with the runtime's calls. Included
// by device.h.
#pragma once

namespace opwright {

// Limits of a launch that hold for every device of compute capability 8.0 and later.
constexpr int64_t kMostThreads = 1024;      // of a block
constexpr int64_t kMostGridX = 2147483647;  // blocks along x
constexpr int64_t kMostGridYZ = 65535;      // and along y or z
constexpr int64_t kStaticShared = 1024;     // bytes that a kernel may declare beside dynamic ones
// Bytes of dynamic shared memory that need no permission: the static ones count too.
constexpr int64_t kFreeShared = 48 * 1024 - kStaticShared;
constexpr int64_t kEnoughBlocks = 1 << 18;  // more than fit on any device by far

#if defined(__CUDACC__)

// Dynamic shared memory that a block may have on the current device, in bytes.
inline int64_t shared_memory_limit() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return kFreeShared;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
      cudaSuccess) {
    return kFreeShared;
  }
  return bytes - kStaticShared;
}

// Blocks to launch for `wanted` pieces of work that a block may also take several of.
inline int64_t blocks_for(int64_t wanted) {
  return wanted < kEnoughBlocks ? wanted : kEnoughBlocks;
}

// Returns a cudaError_t, 0 for success. Faults of the kernel itself show when the stream is next
// waited for.
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes, void* stream,
           const Arguments&... arguments) {
  const int64_t threads = int64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > kMostThreads || block.z > 64 || grid.x < 1 || grid.x > kMostGridX ||
      grid.y < 1 || grid.y > kMostGridYZ || grid.z < 1 || grid.z > kMostGridYZ) {
    return cudaErrorInvalidConfiguration;
  }
  if (shared_bytes > kFreeShared) {
    // The permission belongs to the kernel, not to the launch. It is always the whole, so that no
    // other thread's launch finds less than it needs.
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_memory_limit()));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

#else

inline int64_t shared_memory_limit() { return simulator::options().shared_limit; }
inline int64_t blocks_for(int64_t wanted) {
  const int64_t most = simulator::options().most_blocks;
  return wanted < most ? wanted : most;
}

#endif

}  // namespace opwright
