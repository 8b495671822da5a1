// A manager's lock that is broken on purpose, linked instead of the library's own, and what it lets
// happen: counted in memory that all processes of one measurement share, so that the count outlives
// a process that breaks.
#pragma once

#include "matrix.h"

namespace terrace::matrix {

// Before anything else of the program, and before it starts others.
void ShareLockFaults();
LockFaults CountLockFaults();

}  // namespace terrace::matrix
