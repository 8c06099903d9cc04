// The threads of a block as threads of the host, so that the thread sanitizer sees two that touch
// the same memory with nothing between them.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "opwright/cuda/simulator/meeting.h"

namespace opwright::simulator {

class HostThreads final : public Scheduler {
 public:
  // Runs the kernel in every thread of the block.
  void run(Block& block, const std::function<void()>& body) {
    block_ = &block;
    std::vector<std::thread> threads;
    threads.reserve(block.threads.size());
    for (Thread& thread : block.threads) {
      threads.emplace_back([this, &thread, &body] {
        current = &thread;
        std::exception_ptr error;
        try {
          body();
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        if (error && !error_) error_ = error;
        thread.wait = Wait::kDone;
        settle();
        current = nullptr;
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

  // Whoever completes an operation answers all who take part in it. They wait outside of the lock:
  // taking it again would order them after every thread that had it meanwhile, and a race with one
  // of those would go unseen. Where one thread has failed, all end.
  uint64_t ask(Thread& thread, const Request& request) override {
    const std::atomic_ref<uint32_t> answers(thread.answers);
    const uint32_t before = answers.load(std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      static_cast<Request&>(thread) = request;
      thread.asks = true;
      settle();
    }
    while (answers.load(std::memory_order_acquire) == before) {
      answers.wait(before, std::memory_order_acquire);
    }
    if (failed_.load(std::memory_order_acquire)) {
      throw Failure("ended by the failure of another thread");
    }
    return thread.value;
  }

 private:
  // Answers what can be answered. Called with the lock held, after a thread asked or ended.
  void settle() {
    Thread* const caller = current;
    try {
      for (Thread& thread : block_->threads) {
        if (thread.wait != Wait::kWarp || error_) continue;
        current = &thread;
        if (warp_complete(*block_, thread)) finish_warp(*block_, thread);
      }
      current = nullptr;
      if (!error_ && barrier_complete(*block_)) finish_barrier(*block_);
    } catch (...) {
      error_ = std::current_exception();
    }
    current = caller;
    if (error_) failed_.store(true, std::memory_order_release);
    for (Thread& thread : block_->threads) {
      if (!thread.asks || (thread.wait != Wait::kNone && !error_)) continue;
      thread.asks = false;
      const std::atomic_ref<uint32_t> answers(thread.answers);
      answers.fetch_add(1, std::memory_order_release);
      answers.notify_all();
    }
  }

  Block* block_ = nullptr;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace opwright::simulator
