// Where threads meet: what a barrier or a warp operation asks of them, and its result. Fibers and
// real threads share these rules.
#pragma once

#include <algorithm>

#include "opwright/cuda/simulator/state.h"

namespace opwright::simulator {

// Whether the lanes of `thread`'s mask are all there. Throws where they never can be.
inline bool warp_complete(Block& block, const Thread& thread) {
  const int first = thread.warp() * kLanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(thread.mask >> lane & 1)) continue;
    const size_t other = static_cast<size_t>(first + lane);
    if (other >= block.threads.size() || block.threads[other].wait == Wait::kDone) {
      fail("shuffle from an inactive lane",
           "lane " + std::to_string(lane) + " is named in the mask but has ended or never was");
    }
    const Thread& peer = block.threads[other];
    if (peer.wait != Wait::kWarp) return false;
    if (peer.mask != thread.mask || peer.op != thread.op) {
      // A lane that waits for others only may still come.
      if (!(peer.mask >> thread.lane() & 1)) return false;
      fail("mismatched warp masks", "lanes " + std::to_string(thread.lane()) + " and " +
                                        std::to_string(lane) + " wait in different operations");
    }
  }
  return true;
}

// Gives every lane of the mask its result and lets it go.
inline void finish_warp(Block& block, const Thread& thread) {
  const int first = thread.warp() * kLanes;
  const unsigned mask = thread.mask;
  const auto lane_of = [&](int lane) -> Thread& {
    return block.threads[static_cast<size_t>(first + lane)];
  };
  uint64_t brought[kLanes] = {};
  uint64_t result = 0;
  bool any = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const uint64_t value = brought[lane] = lane_of(lane).value;
    const auto word = static_cast<uint32_t>(value), so_far = static_cast<uint32_t>(result);
    switch (thread.op) {
      case WarpOp::kBallot:
        result |= value ? uint64_t{1} << lane : 0;
        break;
      case WarpOp::kAdd:
        result = so_far + word;
        break;
      case WarpOp::kMax:
        result = !any || static_cast<int32_t>(word) > static_cast<int32_t>(so_far) ? word : so_far;
        break;
      case WarpOp::kMin:
        result = !any || static_cast<int32_t>(word) < static_cast<int32_t>(so_far) ? word : so_far;
        break;
      case WarpOp::kAnd:
        result = any ? so_far & word : word;
        break;
      case WarpOp::kOr:
        result |= word;
        break;
      case WarpOp::kXor:
        result ^= word;
        break;
      default:
        break;
    }
    any = true;
  }
  const bool orders_memory = thread.op == WarpOp::kSync;  // a shuffle does not
  uint32_t known[kLanes] = {};
  for (int lane = 0; lane < kLanes && orders_memory; ++lane) {
    if (!(mask >> lane & 1)) continue;
    for (int other = 0; other < kLanes; ++other) {
      known[other] = std::max(known[other], lane_of(lane).known[other]);
    }
    known[lane] = std::max(known[lane], lane_of(lane).clock);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    Thread& peer = lane_of(lane);
    peer.value = peer.op == WarpOp::kShuffle ? brought[peer.source] : result;
    if (orders_memory) {
      std::copy(known, known + kLanes, peer.known);
      ++peer.clock;
    }
    peer.wait = Wait::kNone;
  }
}

// Whether all threads stand at the barrier. Throws where some never will.
inline bool barrier_complete(const Block& block) {
  size_t waiting = 0, done = 0;
  unsigned line = 0;
  bool same_line = true;
  for (const Thread& thread : block.threads) {
    done += thread.wait == Wait::kDone;
    if (thread.wait != Wait::kBlock) continue;
    same_line = same_line && (waiting == 0 || thread.line == line);
    line = thread.line;
    ++waiting;
  }
  if (waiting == 0 || waiting + done < block.threads.size()) return false;
  if (done > 0) {
    fail("divergent barrier", std::to_string(waiting) + " threads wait in line " +
                                  std::to_string(line) + ", " + std::to_string(done) +
                                  " have left");
  }
  if (!same_line) fail("divergent barrier", "threads wait in different lines");
  return true;
}

inline void finish_barrier(Block& block) {
  ++block.epoch;
  for (Thread& thread : block.threads) {
    ++thread.clock;
    thread.wait = Wait::kNone;
  }
}

// ---- what kernels call --------------------------------------------------------------------------

inline void block_barrier(unsigned line) {
  Request request;
  request.wait = Wait::kBlock;
  request.line = line;
  current->block->scheduler->ask(*current, request);
}

inline uint64_t meet_warp(WarpOp op, unsigned mask, uint64_t value, int source = 0) {
  if (!(mask >> current->lane() & 1)) {
    fail("shuffle from an inactive lane", "a lane calls that its own mask does not name");
  }
  if (op == WarpOp::kShuffle && !(mask >> source & 1)) {
    fail("shuffle from an inactive lane",
         "the mask does not name the source, lane " + std::to_string(source));
  }
  return current->block->scheduler->ask(*current, {Wait::kWarp, 0, op, mask, value, source});
}

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = meet_warp(WarpOp::kShuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// The source of a shuffle within segments of `width` lanes; the lane itself if that lies outside.
inline int within(int lane, int source, int width) {
  const int first = lane / width * width;
  return source < first || source >= first + width ? lane : source;
}

}  // namespace opwright::simulator
