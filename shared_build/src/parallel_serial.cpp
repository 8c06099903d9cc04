// parallel.h on the calling thread: for drivers that link a kernel without torch.
#include "opwright/parallel.h"

namespace opwright {

void parallel_run(int64_t count, int64_t grain, ParallelBody body, void* context) {
  (void)grain;
  body(context, 0, count);
}

}  // namespace opwright
