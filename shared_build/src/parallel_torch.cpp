// parallel.h on torch's thread pool, through the stable C shim.
#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>

#include "opwright/parallel.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
// The pool's fork and join are invisible to ThreadSanitizer (OpenMP waits on a futex of its own),
// so they are told to it.
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#else
static inline void __tsan_acquire(void*) {}
static inline void __tsan_release(void*) {}
#endif

namespace opwright {
namespace {

// Set in a child made by fork: the pool's threads do not exist there and a parallel region would
// wait for them for ever.
std::atomic<bool> g_forked{false};

const bool g_fork_watch = [] {
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  return true;
}();

// What a range threw. Kept as type and text: std::exception_ptr would need a newer C++ runtime than
// the wheels promise.
enum class Failure { kNone, kArgument, kIndex, kMemory, kOther };

struct Region {
  ParallelBody body = nullptr;
  void* context = nullptr;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  // Written by the one thread that set `failed`, read after the join.
  Failure failure = Failure::kNone;
  std::string text;
  char fork_point = 0, join_point = 0;

  void fail(Failure kind, const char* what) {
    if (failed.test_and_set()) return;
    failure = kind;
    try {
      text = what;
    } catch (const std::bad_alloc&) {
      failure = Failure::kMemory;
    }
  }

  void rethrow() const {
    switch (failure) {
      case Failure::kNone:
        return;
      case Failure::kArgument:
        throw std::invalid_argument(text);
      case Failure::kIndex:
        throw std::out_of_range(text);
      case Failure::kMemory:
        throw std::bad_alloc();
      case Failure::kOther:
        throw std::runtime_error(text);
    }
  }
};

void run_range(int64_t begin, int64_t end, void* pointer) {
  Region& region = *static_cast<Region*>(pointer);
  __tsan_acquire(&region.fork_point);
  // An exception may not cross the C shim: it would lose its type and text there.
  try {
    region.body(region.context, begin, end);
  } catch (const std::invalid_argument& error) {
    region.fail(Failure::kArgument, error.what());
  } catch (const std::out_of_range& error) {
    region.fail(Failure::kIndex, error.what());
  } catch (const std::bad_alloc&) {
    region.fail(Failure::kMemory, "");
  } catch (const std::exception& error) {
    region.fail(Failure::kOther, error.what());
  } catch (...) {
    region.fail(Failure::kOther, "opwright: a kernel threw something that is no std::exception");
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
  region.rethrow();
  if (status != AOTI_TORCH_SUCCESS) throw std::runtime_error("opwright: torch_parallel_for failed");
}

}  // namespace opwright
