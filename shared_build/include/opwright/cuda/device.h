// What a CUDA kernel file (.cuh) and its launcher (.cu) include.
//
// Compiled by nvcc it is CUDA. Compiled by a host compiler, which only tests do, it is the
// simulator of host_simulator.h, under which the same source runs as C++20. A kernel file is CUDA
// as one knows it (threadIdx, __syncthreads, __shfl_xor_sync with explicit masks), except that
//
//   OPWRIGHT_KERNEL void f(Params p)         declares a kernel; parameters are plain data, by value
//   OPWRIGHT_DEVICE                          declares a function that kernels call; inlined
//   OPWRIGHT_HOST_DEVICE                     and one that launchers call, too
//   OPWRIGHT_SHARED(T, name, count)          static shared memory, as Shared<T> name
//   OPWRIGHT_DYNAMIC_SHARED(T, name)         the launch's dynamic shared memory, as Shared<T> name
//   load_global, store_global, load_cached   memory of the device (memory.h), Shared<T> for shared
//   OPWRIGHT_LAUNCH(kernel, grid, block, bytes, stream, ...)   from host code, int: cudaError_t
//
// Memory is reached through these functions only, so that the simulator can count bytes, check
// alignment and bounds, and tell a shared element that was never written, or was written by another
// thread with no barrier in between.
#pragma once

#include <cstdint>

#include "opwright/types.h"

#if defined(__CUDACC__)

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define OPWRIGHT_KERNEL __global__
#define OPWRIGHT_DEVICE __device__ __forceinline__
#define OPWRIGHT_HOST_DEVICE __host__ __device__ __forceinline__
#define OPWRIGHT_BOUNDS(threads) __launch_bounds__(threads, 1)
#define OPWRIGHT_UNROLL _Pragma("unroll")
#define OPWRIGHT_SHARED(T, name, count) \
  __shared__ T name##_storage[count];   \
  const ::opwright::Shared<T> name { name##_storage }
#define OPWRIGHT_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char opwright_dynamic_shared[]; \
  const ::opwright::Shared<T> name { reinterpret_cast<T*>(opwright_dynamic_shared) }
#define OPWRIGHT_LAUNCH(kernel, grid, block, bytes, stream, ...) \
  ::opwright::launch(kernel, grid, block, bytes, stream, __VA_ARGS__)

#else

#include "opwright/cuda/host_simulator.h"

#define OPWRIGHT_KERNEL
#define OPWRIGHT_DEVICE inline
#define OPWRIGHT_HOST_DEVICE inline
#define OPWRIGHT_BOUNDS(threads)
#define OPWRIGHT_UNROLL
// The address of a static object in each instance of a function template names the array.
#define OPWRIGHT_SHARED(T, name, count) \
  static const char name##_key = 0;     \
  const ::opwright::Shared<T> name { ::opwright::simulator::static_shared<T>(&name##_key, count) }
#define OPWRIGHT_DYNAMIC_SHARED(T, name) \
  const ::opwright::Shared<T> name { ::opwright::simulator::dynamic_shared<T>() }
#define OPWRIGHT_LAUNCH(kernel, grid, block, bytes, stream, ...) \
  ::opwright::simulator::launch(#kernel, kernel, grid, block, bytes, stream, __VA_ARGS__)

#endif

#include "opwright/cuda/convert.h"
#include "opwright/cuda/launch.h"
#include "opwright/cuda/memory.h"
#include "opwright/cuda/warp.h"
