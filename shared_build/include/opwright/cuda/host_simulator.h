// Runs CUDA kernels on the host, for tests. Included by device.h where no CUDA compiler is at work;
// never part of a delivered library.
//
// A kernel is compiled as C++20. The threads of a block are fibers of one thread of the host, run
// in an order that can be chosen (forward, reverse, seeded random), from one barrier or warp
// operation to the next; or, for the thread sanitizer, real threads, with several blocks at a time.
//
// Faults end the launch with simulator::Failure, whose text starts with a name:
//
//   missing barrier              shared memory written by one thread and touched by a thread of
//                                another warp with no __syncthreads() in between
//   missing warp sync            the same in one warp, with no __syncwarp() either
//   divergent barrier            __syncthreads() that a thread of the block has left without, or
//                                that threads reach in different lines
//   mismatched warp masks        lanes of one warp operation named different masks, or wait for a
//                                lane that waits elsewhere
//   shuffle from an inactive lane  the source is not in the mask, or the lane is not, or has ended
//   uninitialised shared memory  read before anything was written there; it is filled with NaN, too
//   shared memory overrun        outside of what the launch or the declaration asked for
//   race between blocks          memory of the device written by a thread of one block and touched,
//                                not atomically both times, by a thread of another
//   race in global memory        the same within a block, with no synchronisation in between
//   misaligned vector access     an address that is no multiple of the access
//   launch limit exceeded        grid, block or shared memory beyond what a device takes
//
// Memory of the device is the host's: its bounds are the address sanitizer's to check. Bytes that
// pass through load_global, store_global and load_cached are counted.
//
// What this does not show: the order in which a device makes writes visible, occupancy, speed, the
// last place of functions such as expf.
#pragma once

#include <math.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "opwright/cuda/simulator/state.h"
//
#include "opwright/cuda/simulator/meeting.h"
#include "opwright/cuda/simulator/memory.h"
//
#include "opwright/cuda/simulator/fibers.h"
#include "opwright/cuda/simulator/threads.h"
//
#include "opwright/cuda/simulator/launch.h"
#include "opwright/cuda/simulator/names.h"
