// What a package's driver tells the counting program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace opwright::counted {

// One call of a kernel with fixed arguments; its name is the key in the committed baseline.
struct Call {
  std::string name;
  std::function<void()> run;
};

// Defined by the package. Everything that the calls need is allocated and filled here, outside of
// what is counted.
std::vector<Call> calls();

// Memory that lives as long as the program, 64-byte aligned as torch's is, so that no count depends
// on an address.
class Buffers {
 public:
  // `bytes` zero bytes.
  void* zeros(int64_t bytes);
  // `count` values of the type, the same in every run: sign-alternating, between 0.5 and 1.5 in
  // magnitude.
  float* floats(int64_t count);
  double* doubles(int64_t count);
  uint16_t* bfloat16s(int64_t count);
  uint16_t* halves(int64_t count);

 private:
  struct Free {
    void operator()(void* pointer) const;
  };
  std::vector<std::unique_ptr<void, Free>> owned_;
};

}  // namespace opwright::counted
