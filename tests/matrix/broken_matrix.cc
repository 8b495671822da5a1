// `terrace matrix` with a lock that is broken on purpose: what it shows then is what the lock is
// good for.
#include <CLI/CLI.hpp>

#include "matrix_command.h"
#include "tests/matrix/broken_lock.h"

int main(int argc, char** argv) {
  terrace::matrix::ShareLockFaults();
  terrace::matrix::count_lock_faults = terrace::matrix::CountLockFaults;
  CLI::App app("terrace matrix with a broken lock", "broken_matrix");
  const terrace::matrix::MatrixCommands commands(app);
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return commands.Run();
}
