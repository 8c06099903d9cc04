// Runs each call of a package's driver twice: once to settle what the dynamic linker and malloc do
// lazily, once counted. Prints the names in the order in which they are counted.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "counted.h"

// Callgrind is told to collect inside this function only, and to write a profile whenever it
// returns.
extern "C" __attribute__((noinline, used)) void opwright_counted(const std::function<void()>& run) {
  run();
}

namespace opwright::counted {

void Buffers::Free::operator()(void* pointer) const { std::free(pointer); }

void* Buffers::zeros(int64_t bytes) {
  const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
  void* pointer = std::aligned_alloc(64, rounded);
  if (pointer == nullptr) throw std::bad_alloc();
  std::memset(pointer, 0, rounded);
  owned_.emplace_back(pointer);
  return pointer;
}

namespace {

// A linear congruential sequence (Knuth, The Art of Computer Programming, volume 2, section 3.3.4,
// line 26).
struct Sequence {
  uint64_t state = 1;
  double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double magnitude = 0.5 + static_cast<double>(state >> 40) * 0x1p-24;
    return (state >> 39 & 1) != 0 ? magnitude : -magnitude;
  }
};

}  // namespace

double* Buffers::doubles(int64_t count) {
  auto* to = static_cast<double*>(zeros(count * int64_t{sizeof(double)}));
  Sequence sequence;
  for (int64_t i = 0; i < count; ++i) to[i] = sequence.next();
  return to;
}

float* Buffers::floats(int64_t count) {
  auto* to = static_cast<float*>(zeros(count * int64_t{sizeof(float)}));
  Sequence sequence;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(sequence.next());
  return to;
}

uint16_t* Buffers::bfloat16s(int64_t count) {
  auto* to = static_cast<uint16_t*>(zeros(count * 2));
  Sequence sequence;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(sequence.next());
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    to[i] = static_cast<uint16_t>(bits >> 16);
  }
  return to;
}

uint16_t* Buffers::halves(int64_t count) {
  auto* to = static_cast<uint16_t*>(zeros(count * 2));
  Sequence sequence;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(sequence.next());
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    // Magnitudes from 0.5 to 1.5 are normal in binary16: move the exponent's bias from 127 to 15,
    // cut the fraction.
    const uint32_t sign = bits >> 31, exponent = (bits >> 23 & 255) - 127 + 15,
                   fraction = bits >> 13 & 1023;
    to[i] = static_cast<uint16_t>(sign << 15 | exponent << 10 | fraction);
  }
  return to;
}

}  // namespace opwright::counted

int main() {
  for (const opwright::counted::Call& call : opwright::counted::calls()) {
    call.run();
    std::printf("%s\n", call.name.c_str());
    opwright_counted(call.run);
  }
  return 0;
}
