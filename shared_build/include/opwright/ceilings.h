// What this machine can do at best, measured by the library that is being judged: same thread pool,
// same instruction set.
//
// Every op library exports these C functions, so that a benchmark needs no compiler where it runs.
// They are reached through ctypes; nothing in an operator calls them. Each returns 0, or 1 when its
// arguments are refused, and throws nothing.
#pragma once

#include <cstdint>

#define OPWRIGHT_CEILING extern "C" __attribute__((visibility("default")))

namespace opwright {

enum class CopyMode : int32_t {
  kMemcpy = 0,  // the C library's memcpy, one range per thread
  kStream = 1,  // non-temporal stores of the level's width
  kPlain = 2,   // ordinary stores of the level's width
};

// The level's loops; each works on one thread's range.
struct CeilingKernels {
  // Copies `bytes` bytes, a multiple of kCeilingLine; both pointers aligned to it.
  void (*stream)(void* to, const void* from, int64_t bytes);
  void (*plain)(void* to, const void* from, int64_t bytes);
  // Runs `steps` steps of independent chains of fused multiply-adds in registers; returns a value
  // that depends on all.
  float (*multiply_add)(int64_t steps);
  // to[i] = exp(from[i]) for `count` floats.
  void (*exponential)(float* to, const float* from, int64_t count);
  int64_t flops_per_step;
  // to = a + b as floats, `bytes` bytes each: two streams in, one out. As for the copies.
  void (*add_stream)(void* to, const void* a, const void* b, int64_t bytes);
  void (*add_plain)(void* to, const void* a, const void* b, int64_t bytes);
};

namespace {
constexpr int64_t kCeilingLine = 64;  // bytes
}

}  // namespace opwright

// Copies `bytes` bytes (a multiple of 64, both pointers 64-byte aligned, not overlapping) over the
// thread pool.
OPWRIGHT_CEILING int32_t opwright_ceiling_copy(void* to, const void* from, int64_t bytes,
                                               int32_t mode);

// Adds `bytes` bytes of floats to as many: the least an operator with two inputs and one result
// moves. `mode` is kStream or kPlain; sizes and pointers as for the copies.
OPWRIGHT_CEILING int32_t opwright_ceiling_add(void* to, const void* a, const void* b, int64_t bytes,
                                              int32_t mode);

// Runs `chains` ranges of `steps` multiply-add steps over the thread pool; *flops is how many
// operations that were.
OPWRIGHT_CEILING int32_t opwright_ceiling_multiply_add(int64_t chains, int64_t steps,
                                                       double* flops);

// Evaluates exp on `count` floats `repeats` times, each range `repeats` times in a row over the
// thread pool. The data should fit the first-level cache of each thread: it is arithmetic that is
// measured.
OPWRIGHT_CEILING int32_t opwright_ceiling_exp(float* to, const float* from, int64_t count,
                                              int64_t repeats);
