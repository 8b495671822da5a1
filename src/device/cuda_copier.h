// A BlockCopier for tensors of a CUDA device: its copy engines copy, on streams of their own.
#pragma once

#include <memory>

#include "device/block_layout.h"
#include "device/cuda_driver.h"
#include "terrace/block_copier.h"
#include "terrace/result.h"

namespace terrace {

// Stores, loads and urgent jobs have a stream each, in which jobs end in the order of Submit(). No
// stream waits for another. Nobody but the callers looks at how far they are: a job has ended once
// TakeFinished() or WaitFor() has seen it.
//
// A job that CUDA refuses, or that fails later, ends as kFailed, but not before the device has
// ended what it had taken of it.
//
// Errors are the driver's.
Result<std::unique_ptr<BlockCopier>> MakeCudaCopier(BlockLayout layout,
                                                    std::unique_ptr<CudaDriver> driver);

}  // namespace terrace
