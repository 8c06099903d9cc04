// Memory as kernels see it: load_global and its like, Shared<T>, atomics.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>

#include "opwright/cuda/simulator/state.h"

namespace opwright {

template <class T, int kCount>
struct Pack;

namespace simulator {

template <class P, class T>
void check_aligned(const T* address) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(P) == 0) return;
  fail("misaligned vector access", "expected an address that is a multiple of " +
                                       std::to_string(alignof(P)) + ", but got one that ends in " +
                                       std::to_string(reinterpret_cast<uintptr_t>(address) % 64));
}

inline void count(std::atomic<int64_t>& counter, int64_t bytes) {
  counter.fetch_add(bytes, std::memory_order_relaxed);
}

// ---- races --------------------------------------------------------------------------------------

// Whether `thread` has synchronised with lane `lane` of its own warp since that lane's clock.
inline bool has_seen(const Thread& thread, int lane, uint32_t clock) {
  return thread.lane() == lane || thread.known[lane] >= clock;
}

// Whether what another thread of the block did is ordered before what `thread` does now.
inline bool ordered(const Thread& thread, int other, uint32_t clock, uint32_t epoch) {
  if (other == thread.linear || epoch != thread.block->epoch) return true;
  return other / kLanes == thread.warp() && has_seen(thread, other % kLanes, clock);
}

// The thread that read last and is not ordered before `thread`; -1 for none.
inline int unordered_reader(const Thread& thread, const Trace& trace) {
  if (trace.reader_warp == -1 || trace.read_epoch != thread.block->epoch) return -1;
  if (trace.reader_warp != thread.warp()) {
    const int warp = trace.reader_warp >= 0 ? trace.reader_warp : thread.warp() ? 0 : 1;
    return warp * kLanes + std::countr_zero(trace.read_lanes);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (trace.read_lanes >> lane & 1 && !has_seen(thread, lane, trace.read_clock)) {
      return trace.reader_warp * kLanes + lane;
    }
  }
  return -1;
}

inline void note_read(const Thread& thread, Trace& trace) {
  const uint32_t epoch = thread.block->epoch;
  if (trace.read_epoch != epoch || trace.reader_warp == -1) {
    trace.read_epoch = epoch;
    trace.reader_warp = thread.warp();
    trace.read_lanes = 0;
    trace.read_clock = 0;
  }
  if (trace.reader_warp != thread.warp()) trace.reader_warp = -2;
  trace.read_lanes |= 1u << thread.lane();
  trace.read_clock = std::max(trace.read_clock, thread.clock);
}

inline void note_write(const Thread& thread, Trace& trace) {
  trace.writer = thread.linear;
  trace.write_clock = thread.clock;
  trace.write_epoch = thread.block->epoch;
  trace.reader_warp = -1;
}

enum class Access { kRead, kWrite, kAtomic };

// Reads the traces of [address, address + bytes) and notes the access there.
inline void trace_global(const void* address, size_t bytes, Access access) {
  const Thread& thread = *current;
  if (!thread.block->traced) return;
  const int64_t own = thread.block_linear;
  const auto first = reinterpret_cast<uintptr_t>(address) / kPiece;
  const auto last = (reinterpret_cast<uintptr_t>(address) + bytes - 1) / kPiece;
  for (uintptr_t piece = first; piece <= last; ++piece) {
    GlobalTrace& trace = global_traces()[piece];
    const bool both_atomic = access == Access::kAtomic && trace.atomic;
    if (trace.write_block >= 0 && !both_atomic) {
      if (trace.write_block != own) fail("race between blocks", "another block wrote there,");
      if (!ordered(thread, trace.writer, trace.write_clock, trace.write_epoch)) {
        fail("race in global memory", "another thread of the block wrote there,");
      }
    }
    if (access == Access::kRead) {
      if (trace.read_block != own) trace.reader_warp = -1;
      trace.read_block = trace.read_block == -1 || trace.read_block == own ? own : -2;
      note_read(thread, trace);
      continue;
    }
    if (trace.read_block == -2 || (trace.read_block >= 0 && trace.read_block != own)) {
      fail("race between blocks", "another block read there,");
    }
    if (trace.read_block == own && unordered_reader(thread, trace) >= 0) {
      fail("race in global memory", "another thread of the block read there,");
    }
    note_write(thread, trace);
    trace.write_block = own;
    trace.read_block = -1;
    trace.atomic = access == Access::kAtomic;
  }
}

template <class P, class T>
P read(const T* from, std::atomic<int64_t>& counter) {
  check_aligned<P>(from);
  count(counter, sizeof(P));
  trace_global(from, sizeof(P), Access::kRead);
  P result;
  __builtin_memcpy(&result, from, sizeof(P));
  return result;
}

template <class P, class T>
void write(T* to, const P& value) {
  check_aligned<P>(to);
  count(counters().written, sizeof(P));
  trace_global(to, sizeof(P), Access::kWrite);
  __builtin_memcpy(to, &value, sizeof(P));
}

// ---- shared memory ------------------------------------------------------------------------------

[[noreturn]] inline void race(const Thread& thread, int other, const char* how) {
  const bool same_warp = other / kLanes == thread.warp();
  fail(same_warp ? "missing warp sync" : "missing barrier",
       std::string("shared memory is ") + how + " by thread " + std::to_string(other) +
           (same_warp ? " of the same warp" : "") + " with no synchronisation in between,");
}

inline void trace_read(const Thread& thread, Trace& trace) {
  if (trace.writer < 0) fail("uninitialised shared memory", "read before it was written");
  if (!ordered(thread, trace.writer, trace.write_clock, trace.write_epoch)) {
    race(thread, trace.writer, "written");
  }
  note_read(thread, trace);
}

inline void trace_write(const Thread& thread, Trace& trace) {
  if (trace.writer >= 0 && !ordered(thread, trace.writer, trace.write_clock, trace.write_epoch)) {
    race(thread, trace.writer, "written");
  }
  const int reader = unordered_reader(thread, trace);
  if (reader >= 0) race(thread, reader, "read");
  note_write(thread, trace);
}

template <class P>
char* shared_address(Arena& arena, int64_t offset) {
  if (offset < 0 || offset + static_cast<int64_t>(sizeof(P)) > arena.size) {
    fail("shared memory overrun", "bytes " + std::to_string(offset) + " to " +
                                      std::to_string(offset + static_cast<int64_t>(sizeof(P))) +
                                      " of " + std::to_string(arena.size));
  }
  char* address = arena.bytes.get() + offset;
  check_aligned<P>(address);
  return address;
}

template <class P>
P shared_read(Arena& arena, int64_t offset) {
  const char* address = shared_address<P>(arena, offset);
  if (current->block->traced) {
    for (size_t i = 0; i < sizeof(P); ++i) {
      trace_read(*current, arena.traces[static_cast<size_t>(offset) + i]);
    }
  }
  P result;
  __builtin_memcpy(&result, address, sizeof(P));
  return result;
}

template <class P>
void shared_write(Arena& arena, int64_t offset, const P& value) {
  char* address = shared_address<P>(arena, offset);
  if (current->block->traced) {
    for (size_t i = 0; i < sizeof(P); ++i) {
      trace_write(*current, arena.traces[static_cast<size_t>(offset) + i]);
    }
  }
  __builtin_memcpy(address, &value, sizeof(P));
}

}  // namespace simulator

// ---- what kernels call --------------------------------------------------------------------------

template <class T>
T load_global(const T* from) {
  return simulator::read<T>(from, simulator::counters().read);
}
template <int kCount, class T>
Pack<T, kCount> load_global(const T* from) {
  return simulator::read<Pack<T, kCount>>(from, simulator::counters().read);
}
template <class T>
T load_cached(const T* from) {
  return simulator::read<T>(from, simulator::counters().cached);
}
template <int kCount, class T>
Pack<T, kCount> load_cached(const T* from) {
  return simulator::read<Pack<T, kCount>>(from, simulator::counters().cached);
}
template <class T>
void store_global(T* to, T value) {
  simulator::write(to, value);
}
template <int kCount, class T>
void store_global(T* to, const Pack<T, kCount>& pack) {
  simulator::write(to, pack);
}

template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(simulator::Arena* arena, int64_t offset) : arena_(arena), offset_(offset) {}
  explicit operator bool() const { return arena_ != nullptr; }

  T load(int64_t i) const { return simulator::shared_read<T>(*arena_, at(i)); }
  void store(int64_t i, T value) const { simulator::shared_write<T>(*arena_, at(i), value); }
  template <int kCount>
  Pack<T, kCount> load(int64_t i) const {
    return simulator::shared_read<Pack<T, kCount>>(*arena_, at(i));
  }
  template <int kCount>
  void store(int64_t i, const Pack<T, kCount>& pack) const {
    simulator::shared_write(*arena_, at(i), pack);
  }
  template <class U>
  Shared<U> from(int64_t bytes) const {
    return {arena_, offset_ + bytes};
  }

 private:
  int64_t at(int64_t i) const { return offset_ + i * static_cast<int64_t>(sizeof(T)); }
  simulator::Arena* arena_ = nullptr;
  int64_t offset_ = 0;
};

// ---- atomics ------------------------------------------------------------------------------------

namespace simulator {

template <class T>
std::atomic_ref<T> atomic(T* to) {
  count(counters().read, sizeof(T));
  count(counters().written, sizeof(T));
  trace_global(to, sizeof(T), Access::kAtomic);
  return std::atomic_ref<T>(*to);
}

}  // namespace simulator

template <class T>
T atomic_add(T* to, T value) {
  return simulator::atomic(to).fetch_add(value);
}
template <class T>
T atomic_exchange(T* to, T value) {
  return simulator::atomic(to).exchange(value);
}
template <class T>
T atomic_compare_exchange(T* to, T expected, T value) {
  simulator::atomic(to).compare_exchange_strong(expected, value);
  return expected;
}
template <class T>
T atomic_max(T* to, T value) {
  auto target = simulator::atomic(to);
  T seen = target.load();
  while (seen < value && !target.compare_exchange_weak(seen, value)) {
  }
  return seen;
}

namespace simulator {

template <class T>
Shared<T> dynamic_shared() {
  return {&current->block->dynamic, 0};
}

template <class T>
Shared<T> static_shared(const void* key, int64_t count) {
  Block& block = *current->block;
  const std::lock_guard<std::mutex> lock(block.mutex);
  auto& arena = block.fixed[key];
  if (!arena) {
    arena = std::make_unique<Arena>();
    arena->make(count * static_cast<int64_t>(sizeof(T)), block.traced);
  }
  return {arena.get(), 0};
}

}  // namespace simulator
}  // namespace opwright
