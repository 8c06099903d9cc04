// What the parts of the simulator share: options, faults, counters, and the state of a thread and
// of a block.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace opwright::simulator {

constexpr int kLanes = 32;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order : int { kForward = 0, kReverse = 1, kRandom = 2 };

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 0;
  bool threads = false;               // real threads instead of fibers
  bool traces = true;                 // look for races and for what was never written
  int blocks_at_once = 2;             // of real threads
  int64_t shared_limit = 163 * 1024;  // dynamic shared memory of a block, in bytes
  int64_t most_blocks = 1 << 18;      // what blocks_for allows
};
inline Options& options() {
  static Options value;
  return value;
}

// Bytes that threads asked for, summed over the launches since reset.
struct Counters {
  std::atomic<int64_t> read{0}, written{0}, cached{0}, launches{0};
  void reset() { read = written = cached = launches = 0; }
};
inline Counters& counters() {
  static Counters value;
  return value;
}

struct Block;

// Why a thread waits, and what it brought to the operation it waits in.
enum class Wait : uint8_t { kNone, kBlock, kWarp, kDone };
enum class WarpOp : uint8_t { kSync, kShuffle, kBallot, kAdd, kMax, kMin, kAnd, kOr, kXor };

struct Request {
  Wait wait = Wait::kNone;
  unsigned line = 0;  // of the barrier
  WarpOp op = WarpOp::kSync;
  unsigned mask = 0;
  uint64_t value = 0;  // brought to the warp operation, and then its result
  int source = 0;      // the lane whose value a shuffle takes
};

struct Thread : Request {
  dim3 index, block_index, block_size, grid_size;
  int linear = 0;
  int64_t block_linear = 0;
  Block* block = nullptr;

  // Of real threads only: whether an answer is due, and how many were given.
  bool asks = false;
  uint32_t answers = 0;

  // Clocks for telling whether two accesses to shared memory are ordered.
  uint32_t clock = 1;           // counts this thread's own warp syncs
  uint32_t known[kLanes] = {};  // the clock up to which this one has seen each lane's work
  int lane() const { return linear % kLanes; }
  int warp() const { return linear / kLanes; }
};

// The last write to one byte of shared memory, and the reads in one epoch since.
struct Trace {
  int32_t writer = -1;       // thread; -1 for none
  int32_t reader_warp = -1;  // -1 for none, -2 for several warps
  uint32_t write_clock = 0, write_epoch = 0;
  uint32_t read_lanes = 0, read_clock = 0, read_epoch = 0;
};

// The last accesses to a piece of the device's memory during a launch.
struct GlobalTrace : Trace {
  int64_t write_block = -1, read_block = -1;  // read_block: -2 for several
  bool atomic = false;                        // the last write was
};

struct Arena {
  std::unique_ptr<char[]>
      bytes;  // exactly as large as asked for, so the address sanitizer sees ends
  int64_t size = 0;
  std::vector<Trace> traces;
  void make(int64_t count, bool traced) {
    bytes.reset(new char[static_cast<size_t>(count)]);
    std::memset(bytes.get(), 0xff, static_cast<size_t>(count));  // NaN in every format
    size = count;
    traces.assign(traced ? static_cast<size_t>(count) : 0, Trace{});
  }
};

// How a block's threads wait for each other: fibers or real threads.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Returns the result of the operation that the thread asks for, once it is done.
  virtual uint64_t ask(Thread& thread, const Request& request) = 0;
};

struct Block {
  Scheduler* scheduler = nullptr;
  std::vector<Thread> threads;
  uint32_t epoch = 0;  // counts barriers
  bool traced = true;  // false with real threads, where the thread sanitizer looks
  Arena dynamic;
  std::mutex mutex;                                               // over `fixed`
  std::unordered_map<const void*, std::unique_ptr<Arena>> fixed;  // static shared arrays
};

// The traces of a launch by address, in pieces of kPiece bytes: a table with open addressing, whose
// entries of earlier launches count as empty.
constexpr uintptr_t kPiece = 2;
class GlobalTraces {
 public:
  void clear() {
    ++launch_;
    used_ = 0;
  }
  GlobalTrace& operator[](uintptr_t piece) {
    if (2 * (used_ + 1) > entries_.size()) grow();
    Entry& entry = find(piece);
    if (entry.launch != launch_) {
      entry = {piece, launch_, GlobalTrace{}};
      ++used_;
    }
    return entry.trace;
  }

 private:
  struct Entry {
    uintptr_t piece = 0;
    uint64_t launch = 0;
    GlobalTrace trace;
  };
  Entry& find(uintptr_t piece) {
    const size_t mask = entries_.size() - 1;
    size_t i = static_cast<size_t>(piece * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (entries_[i].launch == launch_ && entries_[i].piece != piece) i = (i + 1) & mask;
    return entries_[i];
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? size_t{1} << 16 : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.launch == launch_) find(entry.piece) = entry;
    }
  }
  std::vector<Entry> entries_;
  uint64_t launch_ = 1;
  size_t used_ = 0;
};
inline GlobalTraces& global_traces() {
  static GlobalTraces value;
  return value;
}

inline constinit thread_local Thread* current = nullptr;

inline std::string place(const Thread& t) {
  const auto text = [](dim3 d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) +
           ")";
  };
  return " in thread " + text(t.index) + " of block " + text(t.block_index);
}

[[noreturn]] inline void fail(const char* name, const std::string& what) {
  throw Failure(std::string(name) + ": " + what + (current ? place(*current) : std::string()));
}

}  // namespace opwright::simulator
