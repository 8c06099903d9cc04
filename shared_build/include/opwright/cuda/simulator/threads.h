// The threads of a block as threads of the host, so that the thread sanitizer sees two that touch
// the same memory with nothing between them.
#pragma once

#include <condition_variable>
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
        try {
          body();
        } catch (...) {
          note_error();
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        thread.wait = Wait::kDone;
        settle();
        current = nullptr;
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

  // Whoever completes an operation finishes it for all. Where one thread has failed, all end.
  void wait(Thread& thread) override {
    std::unique_lock<std::mutex> lock(mutex_);
    settle();
    changed_.wait(lock, [&] { return thread.wait == Wait::kNone || error_; });
    if (error_) throw Failure("ended by the failure of another thread");
  }

 private:
  // Answers what can be answered. Called with the lock held, after a thread began to wait or ended.
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
      if (!error_) error_ = std::current_exception();
    }
    current = caller;
    changed_.notify_all();
  }

  void note_error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }

  Block* block_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
};

}  // namespace opwright::simulator
