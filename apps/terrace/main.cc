// The command line: what is this build, and is this configuration right?
//
// Exit status: 0 done; 1 the output could not be written; 2 wrong usage or a faulty configuration.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "matrix_command.h"
#include "terrace/node_config.h"
#include "terrace/peer_keys.h"
#include "terrace/version.h"

namespace {

constexpr int kOk = 0;
constexpr int kOutputFailed = 1;
constexpr int kUsageOrConfig = 2;

std::string Bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.4g %s", value, kUnits[unit]);
  return text.data();
}

std::string Count(std::uint32_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string Address(const terrace::PeerTierConfig& peer) {
  const bool is_v6 = peer.host.find(':') != peer.host.npos;
  return (is_v6 ? "[" + peer.host + "]" : peer.host) + ":" + std::to_string(peer.port);
}

std::string Summary(const terrace::TierConfig& tier) {
  switch (tier.type) {
    case terrace::TierConfig::Type::kMemory:
      return "memory " + Bytes(tier.memory.bytes);
    case terrace::TierConfig::Type::kFile:
      return "file " + tier.file.root_dir + " (" + Count(tier.file.n_read_threads, "reader") +
             ", " + Count(tier.file.n_write_threads, "writer") +
             (tier.file.direct_io ? ", direct I/O" : ", page cache") +
             (tier.file.layout == "records" ? "" : ", layout " + tier.file.layout) + ")";
    case terrace::TierConfig::Type::kPeer:
      return "peer " + Address(tier.peer) + " (" +
             Count(static_cast<std::uint32_t>(tier.peer.peers.size()), "known peer") + ", " +
             tier.peer.data_plane + (tier.peer.public_key.empty() ? ", no keys" : ", CURVE keys") +
             ")";
    case terrace::TierConfig::Type::kPlugin:
      return "plug-in " + tier.plugin.library;
    case terrace::TierConfig::Type::kCustom:
      return tier.custom.type;
  }
  return "a tier of an unknown kind";
}

// One line: what a node with this configuration does.
std::string Summary(const terrace::NodeConfig& config) {
  std::string text = "host " + Bytes(config.cpu_bytes_to_use) + " (" + config.eviction_policy +
                     "), chunks of " + Count(config.tokens_per_chunk, "token") +
                     (config.offload_prompt_only ? ", prompts only" : ", prompts and answers");
  if (config.secondary_tiers.empty()) return text + "; no secondary tiers";
  const char* separator = "; then ";
  for (const terrace::TierConfig& tier : config.secondary_tiers) {
    text += separator + Summary(tier);
    separator = ", ";
  }
  return text;
}

// At most one byte more than a configuration may have; the parser then says that it is too long.
std::string ReadStandardInput() {
  std::string text((std::size_t{1} << 20) + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  return text;
}

// Faults with the name of their document on each line, as LoadNodeConfig() gives them.
void PrintFaults(const std::string& name, const std::string& faults) {
  std::istringstream lines(faults);
  for (std::string line; std::getline(lines, line);) std::cerr << name << ": " << line << "\n";
}

int CheckConfig(const std::string& file) {
  const bool from_stdin = file == "-";
  const std::string name = from_stdin ? "standard input" : file;
  const auto config =
      from_stdin ? terrace::ParseNodeConfig(ReadStandardInput()) : terrace::LoadNodeConfig(file);
  if (config.ok()) {
    std::cout << name << ": ok\n" << Summary(config.value()) << "\n";
    return kOk;
  }
  if (from_stdin) {
    PrintFaults(name, config.error().message);
  } else {
    std::cerr << config.error().message << "\n";
  }
  return kUsageOrConfig;
}

// Never over another key: whoever has that one would be shut out.
int MakePeerKeys(const std::string& file) {
  const terrace::PeerKeyPair pair = terrace::MakePeerKeyPair();
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const std::string line = pair.secret_key + "\n";
  const bool written =
      fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const bool closed = fd < 0 || ::close(fd) == 0;
  if (!written || !closed) {
    std::cerr << "terrace: write the secret key to " << file << ": " << std::strerror(errno)
              << "\n";
    return fd < 0 ? kUsageOrConfig : kOutputFailed;
  }
  std::cout << pair.public_key << "\n";
  return kOk;
}

constexpr const char* kExamples = R"(Examples:
  terrace version
  terrace config check node.json
  echo '{"cpu_bytes_to_use": "8GiB"}' | terrace config check -
  terrace config schema > terrace.schema.json
  terrace peer-keys group.key)";

int Run(int argc, char** argv) {
  CLI::App app("Keeps KV-cache chunks of LLM inference engines in tiers.", "terrace");
  app.footer(kExamples);
  // None is let through, or CLI11 would answer a misspelt one with "a subcommand is required".
  app.require_subcommand(0, 1);

  CLI::App* const version =
      app.add_subcommand("version", "Print the version and what was built in");

  CLI::App* const config = app.add_subcommand("config", "Work with a node's configuration");
  config->require_subcommand(0, 1);
  config->footer(kExamples);
  CLI::App* const check = config->add_subcommand(
      "check", "Say what a configuration does, or everything that is wrong with it (status 2)");
  std::string file;
  check->add_option("FILE", file, "The configuration, as JSON; - reads standard input")->required();
  check->footer(
      "Example:\n"
      "  terrace config check node.json");
  CLI::App* const schema =
      config->add_subcommand("schema", "Print the JSON Schema (draft 2020-12) of a configuration");

  CLI::App* const peer_keys =
      app.add_subcommand("peer-keys",
                         "Make the keys of a group of peers: the secret one into FILE, the public "
                         "one to standard output");
  std::string key_file;
  peer_keys
      ->add_option("FILE", key_file, "A new file, for secret_key_file on every node of the group")
      ->required();
  peer_keys->footer(
      "Example:\n"
      "  terrace peer-keys /etc/terrace/group.key");

  terrace::matrix::MatrixCommands matrix(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has a status for each kind of error, and prints help for the one that is 0.
    return app.exit(error, std::cout, std::cerr) == 0 ? kOk : kUsageOrConfig;
  }
  if (version->parsed()) {
    std::cout << "terrace " << terrace::Version() << "\n" << terrace::BuildInfo();
  } else if (check->parsed()) {
    return CheckConfig(file);
  } else if (matrix.parsed()) {
    return matrix.Run();
  } else if (peer_keys->parsed()) {
    return MakePeerKeys(key_file);
  } else if (schema->parsed()) {
    std::cout << terrace::NodeConfigSchema();
  } else {
    std::cerr << "A subcommand is required.\n\n" << (config->parsed() ? config : &app)->help();
    return kUsageOrConfig;
  }
  return kOk;
}

}  // namespace

int main(int argc, char** argv) {
  const int status = Run(argc, argv);
  if (!std::cout.flush()) {
    std::cerr << "terrace: standard output could not be written\n";
    return kOutputFailed;
  }
  return status;
}
