// Faults on purpose, in sanitizer builds only: a run that does not report them is not armed.
#include <cstdint>

#include "opwright/parallel.h"

extern "C" __attribute__((visibility("default"))) int opwright_sanitizer_probe(int kind) {
  // The size is kept from the compiler, so that the sanitizer of the heap sees the fault first.
  volatile int64_t count = 4;
  volatile int* heap = new int[count];
  int result = 0;
  if (kind == 0) {  // a read past the end of a heap block
    volatile int index = 4;
    result = heap[index];
  } else if (kind == 1) {  // signed overflow
    volatile int most = INT32_MAX;
    result = most + 1;
  } else {  // two threads write one integer
    int shared = 0;
    opwright::parallel_for(2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int step = 0; step < 1000; ++step)
          *static_cast<volatile int*>(&shared) = shared + static_cast<int>(i);
      }
    });
    result = shared;
  }
  delete[] heap;
  return result;
}
