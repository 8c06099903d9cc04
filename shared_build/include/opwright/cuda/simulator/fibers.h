// The threads of a block as fibers of one thread of the host.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <random>
#include <utility>

#include "opwright/cuda/simulator/meeting.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace opwright::simulator {

// ---- switching stacks ---------------------------------------------------------------------------

#if defined(__x86_64__)
// A context is the stack pointer of code that has pushed the registers a call must keep. ucontext
// would do as well, but makes a system call each time.
struct Context {
  void* stack = nullptr;
};

[[gnu::naked, gnu::noinline, gnu::no_profile_instrument_function]] inline void switch_stack(
    Context*, const Context*) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq (%rsi), %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
      "ret\n");
}

inline void make_context(Context& context, char* stack, size_t size, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + size) / 16 * 16);
  *--top = nullptr;  // where a caller's return address would be; entry does not return
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context.stack = top;
}
#else
struct Context {
  ucontext_t state;
};
inline void switch_stack(Context* from, const Context* to) {
  swapcontext(&from->state, &to->state);
}
inline void make_context(Context& context, char* stack, size_t size, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = size;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
#endif

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kEntryBytes = size_t{4} << 10;  // more than the frame of Fibers::enter

// Memory for the stacks of a block, kept between launches.
class Stacks {
 public:
  ~Stacks() { release(); }
  char* of(size_t fiber) const { return memory_ + fiber * kStackBytes; }
  size_t bytes() const { return count_ * kStackBytes; }
  void reserve(size_t fibers) {
    if (fibers <= count_) return;
    release();
    void* memory = mmap(nullptr, fibers * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    count_ = fibers;
  }

 private:
  void release() {
    if (memory_) munmap(memory_, count_ * kStackBytes);
  }
  char* memory_ = nullptr;
  size_t count_ = 0;
};

class Fibers final : public Scheduler {
 public:
  explicit Fibers(const Options& options) : order_(options.order), random_(options.seed * 2 + 1) {}

  // Runs the kernel in every thread of the block.
  void run(Block& block, const std::function<void()>& body) {
    static Stacks stacks;
    block_ = &block;
    body_ = &body;
    const size_t count = block.threads.size();
    stacks.reserve(count);
    if (std::exchange(left_behind_, false)) forget_frames(stacks.of(0), stacks.bytes());
    contexts_.resize(count);
    fakes_.assign(count, nullptr);
    turn_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      forget_frames(stacks.of(i) + kStackBytes - kEntryBytes, kEntryBytes);
      make_context(contexts_[i], stacks.of(i), kStackBytes, &Fibers::enter);
      turn_[i] = order_ == Order::kReverse ? count - 1 - i : i;
    }
    running_ = this;
    stacks_ = &stacks;
    left_behind_ = true;  // until all have ended
    while (round()) {
    }
    left_behind_ = false;
    current = nullptr;
  }

  uint64_t ask(Thread& thread, const Request& request) override {
    static_cast<Request&>(thread) = request;
    leave(thread, false);
    return thread.value;
  }

 private:
  // Lets every thread that can run do so once. False when all have ended.
  bool round() {
    bool ran = false;
    if (order_ == Order::kRandom) std::shuffle(turn_.begin(), turn_.end(), random_);
    for (const size_t i : turn_) {
      if (block_->threads[i].wait != Wait::kNone) continue;
      ran = true;
      resume(i);
      if (error_) {
        current = nullptr;
        std::rethrow_exception(std::exchange(error_, nullptr));
      }
    }
    bool released = false, all_done = true;
    for (Thread& thread : block_->threads) {
      all_done = all_done && thread.wait == Wait::kDone;
      if (thread.wait != Wait::kWarp) continue;
      current = &thread;
      if (!warp_complete(*block_, thread)) continue;
      finish_warp(*block_, thread);
      released = true;
    }
    current = nullptr;
    if (all_done) return false;
    if (barrier_complete(*block_)) {
      finish_barrier(*block_);
      released = true;
    }
    if (!ran && !released) stuck();
    return true;
  }

  // Some threads wait for a barrier and others of their warp for them.
  [[noreturn]] void stuck() const {
    bool at_barrier = false;
    for (const Thread& thread : block_->threads) at_barrier |= thread.wait == Wait::kBlock;
    if (at_barrier) fail("divergent barrier", "some threads wait there, others in warp operations");
    fail("mismatched warp masks", "lanes wait for each other");
  }

  void resume(size_t i) {
    at_ = i;
    current = &block_->threads[i];
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stacks_->of(i), kStackBytes);
    switch_stack(&main_, &contexts_[i]);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    switch_stack(&main_, &contexts_[i]);
#endif
  }

  void leave(const Thread& thread, [[maybe_unused]] bool for_good) {
    const auto i = static_cast<size_t>(thread.linear);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fakes_[i], main_bottom_, main_size_);
    switch_stack(&contexts_[i], &main_);
    __sanitizer_finish_switch_fiber(fakes_[i], &main_bottom_, &main_size_);
#else
    switch_stack(&contexts_[i], &main_);
#endif
  }

  static void enter() {
    Fibers& self = *running_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.main_bottom_, &self.main_size_);
#endif
    Thread& thread = self.block_->threads[self.at_];
    try {
      (*self.body_)();
    } catch (...) {
      self.error_ = std::current_exception();
    }
    thread.wait = Wait::kDone;
    self.leave(thread, true);
    __builtin_trap();
  }

  // Frames that were left and not returned from are still guarded by the address sanitizer: that of
  // `enter`, and after a failure all that were in use.
  static void forget_frames([[maybe_unused]] char* stacks, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks, bytes);
#endif
  }

  inline static Fibers* running_ = nullptr;
  inline static bool left_behind_ = false;

  Order order_;
  std::mt19937_64 random_;
  Block* block_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::vector<Context> contexts_;
  std::vector<void*> fakes_;
  std::vector<size_t> turn_;
  size_t at_ = 0;
  Context main_;
  const Stacks* stacks_ = nullptr;
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
  std::exception_ptr error_;
};

}  // namespace opwright::simulator
