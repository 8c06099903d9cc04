// Rows of strided operands as contiguous memory: what lets every kernel be one loop over vectors.
//
// Operands whose elements are adjacent are used where they lie. Others pass through buffers of
// kChunk elements in the first cache: pairs that alternate in memory (a packed, interleaved gate
// and up) are separated and merged with shuffles, everything else element by element. Nothing is
// copied as a whole, and what an element becomes does not depend on how it was reached.
#pragma once

#include "opwright/block.h"
#include "opwright/simd_interleave.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

constexpr int64_t kChunk = 512;

// Memory is asked for this far ahead where results are streamed: the hardware's own prefetching
// ends with each page, and three streams wear it out.
constexpr int64_t kBytesAhead = 4096;

[[maybe_unused]] int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// An integer of T's size: what is moved without being looked at.
template <int Size>
struct WordOf;
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint64_t;
};

template <class W>
W read_word(const char* from) {
  return load_bits<W>(from);
}

template <class T>
void gather(T* to, const char* from, int64_t stride, int64_t n) {
  using W = typename WordOf<sizeof(T)>::type;
  for (int64_t i = 0; i < n; ++i)
    store_bits(reinterpret_cast<char*>(to + i), read_word<W>(from + i * stride));
}
template <class T>
void scatter(char* to, const T* from, int64_t stride, int64_t n) {
  using W = typename WordOf<sizeof(T)>::type;
  for (int64_t i = 0; i < n; ++i)
    store_bits(to + i * stride, read_word<W>(reinterpret_cast<const char*>(from + i)));
}

// The widest pack of T's words in one register.
template <class T>
using Words = Pack<typename WordOf<sizeof(T)>::type,
                   (kVectorBytes < kNativeBytes ? kVectorBytes : kNativeBytes)>;

// first[i], second[i] = from[2 i], from[2 i + 1]
template <class T>
void separate(T* first, T* second, const char* from, int64_t n) {
  using V = Words<T>;
  constexpr int lanes = kLanesOf<V>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const char* pair = from + 2 * i * int64_t{sizeof(T)};
    __builtin_prefetch(pair + kBytesAhead);
    __builtin_prefetch(pair + kBytesAhead + sizeof(V));
    const V low = load_pack<V>(pair), high = load_pack<V>(pair + sizeof(V));
    const auto apart = separated(low, high);
    store_pack(first + i, apart.low);
    store_pack(second + i, apart.high);
  }
  const char* rest = from + 2 * i * int64_t{sizeof(T)};
  gather(first + i, rest, 2 * sizeof(T), n - i);
  gather(second + i, rest + sizeof(T), 2 * sizeof(T), n - i);
}

// to[2 i], to[2 i + 1] = first[i], second[i]
template <class T>
void merge(char* to, const T* first, const T* second, int64_t n, bool stream) {
  using V = Words<T>;
  constexpr int lanes = kLanesOf<V>;
  stream = stream && reinterpret_cast<uintptr_t>(to) % sizeof(V) == 0;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    char* pair = to + 2 * i * int64_t{sizeof(T)};
    const auto together = interleaved(load_pack<V>(first + i), load_pack<V>(second + i));
    if (stream) {
      stream_pack(pair, together.low);
      stream_pack(pair + sizeof(V), together.high);
    } else {
      store_pack(pair, together.low);
      store_pack(pair + sizeof(V), together.high);
    }
  }
  char* rest = to + 2 * i * int64_t{sizeof(T)};
  scatter(rest, first + i, 2 * sizeof(T), n - i);
  scatter(rest + sizeof(T), second + i, 2 * sizeof(T), n - i);
}

// Two operands of which one is at even and the other at odd elements of the same memory.
template <class T>
bool alternate(const char* a, int64_t a_stride, const char* b, int64_t b_stride) {
  constexpr int64_t size = sizeof(T);
  return a_stride == 2 * size && b_stride == 2 * size && (b - a == size || a - b == size);
}

// Whether streamable addresses are a whole number of elements away. Where memory of bytes is seen
// as numbers they may not be, and no count of elements leads to one.
template <class T>
bool can_align(const T* to) {
  return reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0;
}

// Elements before the first address at which a result may be streamed, if can_align.
template <class T>
int64_t until_aligned(const T* to) {
  const auto past = reinterpret_cast<uintptr_t>(to) % kStreamAlignment;
  return past == 0 ? 0 : static_cast<int64_t>((kStreamAlignment - past) / sizeof(T));
}

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
