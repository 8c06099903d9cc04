// Access to the memory of the device: whole vectors where the address allows it, single elements
// where it does not. Included by device.h.
//
// A Pack is loaded and stored with the widest accesses that it is made of: 16 bytes, or less if the
// Pack is smaller. Its address must be a multiple of that.
#pragma once

namespace opwright {

constexpr int kVectorAccess = 16;  // bytes of the widest access of one thread

template <class T, int kCount>
struct alignas(sizeof(T) * kCount < kVectorAccess ? sizeof(T) * kCount : kVectorAccess) Pack {
  T value[kCount];
};

#if defined(__CUDACC__)

template <class T>
OPWRIGHT_DEVICE T load_global(const T* from) {
  return *from;
}
template <int kCount, class T>
OPWRIGHT_DEVICE Pack<T, kCount> load_global(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

template <class T>
OPWRIGHT_DEVICE void store_global(T* to, T value) {
  *to = value;
}
template <int kCount, class T>
OPWRIGHT_DEVICE void store_global(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// For what every block reads and no block of the launch writes, such as a weight: it is read from
// memory once and from the caches from then on.
template <class T>
OPWRIGHT_DEVICE T load_cached(const T* from) {
  return __ldg(from);
}
template <int kCount, class T>
OPWRIGHT_DEVICE Pack<T, kCount> load_cached(const T* from) {
  constexpr int kPieces = sizeof(Pack<T, kCount>) / kVectorAccess;
  static_assert(sizeof(Pack<T, kCount>) == kPieces * kVectorAccess);
  union {
    uint4 piece[kPieces];
    Pack<T, kCount> pack;
  } both;
  OPWRIGHT_UNROLL
  for (int i = 0; i < kPieces; ++i) both.piece[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  return both.pack;
}

// An array in shared memory. False where a launch has none.
template <class T>
class Shared {
 public:
  OPWRIGHT_DEVICE Shared() : data_(nullptr) {}
  OPWRIGHT_DEVICE explicit Shared(T* data) : data_(data) {}
  OPWRIGHT_DEVICE explicit operator bool() const { return data_ != nullptr; }

  OPWRIGHT_DEVICE T load(int64_t i) const { return data_[i]; }
  OPWRIGHT_DEVICE void store(int64_t i, T value) const { data_[i] = value; }
  template <int kCount>
  OPWRIGHT_DEVICE Pack<T, kCount> load(int64_t i) const {
    return *reinterpret_cast<const Pack<T, kCount>*>(data_ + i);
  }
  template <int kCount>
  OPWRIGHT_DEVICE void store(int64_t i, const Pack<T, kCount>& pack) const {
    *reinterpret_cast<Pack<T, kCount>*>(data_ + i) = pack;
  }
  // The memory from `bytes` on, as another type.
  template <class U>
  OPWRIGHT_DEVICE Shared<U> from(int64_t bytes) const {
    return Shared<U>(reinterpret_cast<U*>(reinterpret_cast<char*>(data_) + bytes));
  }

 private:
  T* data_;
};

// Atomic sums. Floating-point ones depend on the order of arrival: results then differ from run to
// run, which no operator promises.
template <class T>
OPWRIGHT_DEVICE T atomic_add(T* to, T value) {
  return atomicAdd(to, value);
}
template <class T>
OPWRIGHT_DEVICE T atomic_max(T* to, T value) {
  return atomicMax(to, value);
}
template <class T>
OPWRIGHT_DEVICE T atomic_exchange(T* to, T value) {
  return atomicExch(to, value);
}
template <class T>
OPWRIGHT_DEVICE T atomic_compare_exchange(T* to, T expected, T value) {
  return atomicCAS(to, expected, value);
}

#endif

}  // namespace opwright
