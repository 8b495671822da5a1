// One of the two processes, as the one that started them sees it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fd.h"
#include "terrace/result.h"

namespace terrace::matrix {

class Child {
 public:
  // `name` is for messages: "the source". kNotFound if there is no such program.
  static Result<std::unique_ptr<Child>> Start(std::string name, const std::string& program,
                                              std::vector<std::string> arguments);
  // Ends it, by force if it does not end by itself soon.
  ~Child();

  // Gives an order and waits for its answer. kUnavailable: it did not answer in time, died, or
  // could not do it; the message says which.
  Result<nlohmann::json> Ask(const nlohmann::json& order, std::chrono::milliseconds patience);

 private:
  Child(std::string name, pid_t pid, UniqueFd orders, UniqueFd answers)
      : name_(std::move(name)),
        pid_(pid),
        orders_(std::move(orders)),
        answers_(std::move(answers)) {}
  Error Gone(const std::string& attempt);

  const std::string name_;
  pid_t pid_;
  UniqueFd orders_;
  UniqueFd answers_;
  std::string received_;  // The beginning of a line.
};

}  // namespace terrace::matrix
