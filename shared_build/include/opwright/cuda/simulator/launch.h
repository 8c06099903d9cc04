// Runs a grid: checks the limits of a launch, and gives each block its threads and shared memory.
#pragma once

#include <numeric>

#include "opwright/cuda/simulator/fibers.h"
#include "opwright/cuda/simulator/threads.h"

namespace opwright::simulator {

inline void check_limits(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes) {
  const auto check = [&](const char* what, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    fail("launch limit exceeded", std::string(kernel) + ", " + what + ": expected " +
                                      std::to_string(least) + " to " + std::to_string(most) +
                                      ", but got " + std::to_string(value));
  };
  check("grid.x", grid.x, 1, 2147483647);
  check("grid.y", grid.y, 1, 65535);
  check("grid.z", grid.z, 1, 65535);
  check("block.z", block.z, 1, 64);
  check("threads of a block", int64_t{block.x} * block.y * block.z, 1, 1024);
  check("dynamic shared memory", shared_bytes, 0, options().shared_limit);
}

inline dim3 block_index(dim3 grid, int64_t i) {
  const auto x = static_cast<unsigned>(i % grid.x);
  const auto y = static_cast<unsigned>(i / grid.x % grid.y);
  return dim3(x, y, static_cast<unsigned>(i / grid.x / grid.y));
}

inline void prepare(Block& block, dim3 grid, dim3 size, int64_t linear_index, int64_t shared_bytes,
                    bool traced) {
  const dim3 index = block_index(grid, linear_index);
  block.traced = traced;
  block.epoch = 0;
  block.fixed.clear();
  block.dynamic.make(shared_bytes, traced);
  block.threads.assign(size_t{size.x} * size.y * size.z, Thread{});
  int linear = 0;
  for (Thread& thread : block.threads) {
    const auto i = static_cast<unsigned>(linear);
    thread.index = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
    thread.block_index = index;
    thread.block_size = size;
    thread.grid_size = grid;
    thread.linear = linear++;
    thread.block_linear = linear_index;
    thread.block = &block;
  }
}

inline void run_as_fibers(dim3 grid, dim3 size, int64_t shared_bytes, int64_t blocks,
                          const std::function<void()>& body) {
  Fibers fibers(options());
  Block block;
  block.scheduler = &fibers;
  std::mt19937_64 random(options().seed);
  std::vector<int64_t> turn(static_cast<size_t>(blocks));
  std::iota(turn.begin(), turn.end(), int64_t{0});
  if (options().order == Order::kReverse) std::reverse(turn.begin(), turn.end());
  if (options().order == Order::kRandom) std::shuffle(turn.begin(), turn.end(), random);
  for (const int64_t i : turn) {
    prepare(block, grid, size, i, shared_bytes, options().traces);
    fibers.run(block, body);
  }
}

inline void run_as_threads(dim3 grid, dim3 size, int64_t shared_bytes, int64_t blocks,
                           const std::function<void()>& body) {
  const int64_t at_once = std::min<int64_t>(blocks, options().blocks_at_once);
  std::mutex mutex;
  std::exception_ptr error;
  std::vector<std::thread> runners;
  for (int64_t runner = 0; runner < at_once; ++runner) {
    runners.emplace_back([&, runner] {
      for (int64_t i = runner; i < blocks; i += at_once) {
        try {
          HostThreads threads;
          Block block;
          block.scheduler = &threads;
          prepare(block, grid, size, i, shared_bytes, false);
          threads.run(block, body);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!error) error = std::current_exception();
          return;
        }
      }
    });
  }
  for (std::thread& runner : runners) runner.join();
  if (error) std::rethrow_exception(error);
}

// Runs the kernel to its end and returns 0; a fault is thrown.
template <class... Parameters, class... Arguments>
int launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
           int64_t shared_bytes, void* /*stream*/, const Arguments&... arguments) {
  check_limits(name, grid, block, shared_bytes);
  count(counters().launches, 1);
  global_traces().clear();
  const std::function<void()> body = [&] { kernel(Parameters(arguments)...); };
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  if (options().threads) {
    run_as_threads(grid, block, shared_bytes, blocks, body);
  } else {
    run_as_fibers(grid, block, shared_bytes, blocks, body);
  }
  return 0;
}

}  // namespace opwright::simulator
