// The only way kernels go parallel.
//
// parallel_for(count, grain, f) calls f(begin, end) over disjoint ranges that cover [0, count). The
// ranges depend on the number of threads, so f must treat every index alike: what it computes for
// an index may not depend on the range that the index came in. Reductions are split by shape into a
// fixed number of parts and combined in order, never by thread.
//
// Guarantees: nested calls run serially; an exception thrown by f reaches the caller with its text,
// as the standard type that Python maps (the first one, when several ranges throw); in a child
// process made by fork everything runs serially, since the pool's threads do not exist there; count
// <= 0 calls nothing.
#pragma once

#include <cstdint>

namespace opwright {

using ParallelBody = void (*)(void* context, int64_t begin, int64_t end);

// Defined in src/parallel_torch.cpp (torch's thread pool) or src/parallel_serial.cpp (drivers
// without torch).
void parallel_run(int64_t count, int64_t grain, ParallelBody body, void* context);

namespace {

// A thread is worth waking for about this many bytes read and written.
constexpr int64_t kBytesPerThread = 64 * 1024;

// Number of items that make up one thread's least share of work, from the bytes an item moves.
[[maybe_unused]] int64_t grain_for_bytes(int64_t bytes_per_item) {
  const int64_t grain = kBytesPerThread / (bytes_per_item > 0 ? bytes_per_item : 1);
  return grain > 0 ? grain : 1;
}

template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  if (count <= 0) return;
  if (count <= grain) {
    f(int64_t{0}, count);
    return;
  }
  parallel_run(
      count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<const F*>(context))(begin, end);
      },
      const_cast<F*>(&f));
}

}  // namespace
}  // namespace opwright
