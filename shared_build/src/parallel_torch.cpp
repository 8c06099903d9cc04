// parallel.h on torch's thread pool, through the stable C shim.
#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <exception>
#include <stdexcept>

#include "opwright/parallel.h"

#if defined(__SANITIZE_THREAD__)
// The pool's fork and join are invisible to ThreadSanitizer (OpenMP waits on a futex of its own), so they are told to it.
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#else
static inline void __tsan_acquire(void*) {}
static inline void __tsan_release(void*) {}
#endif

namespace opwright {
namespace {

// Set in a child made by fork: the pool's threads do not exist there and a parallel region would wait for them for ever.
std::atomic<bool> g_forked{false};

const bool g_fork_watch = [] {
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  return true;
}();

struct Region {
  ParallelBody body = nullptr;
  void* context = nullptr;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;  // written by the one thread that set `failed`, read after the join
  char fork_point = 0, join_point = 0;
};

void run_range(int64_t begin, int64_t end, void* pointer) {
  Region& region = *static_cast<Region*>(pointer);
  __tsan_acquire(&region.fork_point);
  try {
    region.body(region.context, begin, end);
  } catch (...) {
    // An exception may not cross the C shim: it would lose its type and text there.
    if (!region.failed.test_and_set()) region.error = std::current_exception();
  }
  __tsan_release(&region.join_point);
}

}  // namespace

void parallel_run(int64_t count, int64_t grain, ParallelBody body, void* context) {
  if (g_forked.load(std::memory_order_relaxed)) {
    body(context, 0, count);
    return;
  }
  Region region;
  region.body = body;
  region.context = context;
  __tsan_release(&region.fork_point);
  const AOTITorchError status = torch_parallel_for(0, count, grain, run_range, &region);
  __tsan_acquire(&region.join_point);
  if (region.error) std::rethrow_exception(region.error);
  if (status != AOTI_TORCH_SUCCESS) throw std::runtime_error("opwright: torch_parallel_for failed");
}

}  // namespace opwright
