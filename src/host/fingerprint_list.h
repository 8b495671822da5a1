// A bounded list of fingerprints, from the oldest to the newest, in which one finds any at once:
// the ghosts of policies, and the counts of offers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host/huge_array.h"
#include "host/key_hash.h"
#include "terrace/eviction_policy.h"

namespace terrace {

// Thread-compatible. Memory is taken once: a node and two places of the index (8 bytes) each.
// Payload: what is kept for each; all zeroes is its initial value.
template <typename Payload>
class FingerprintList {
 public:
  struct Node {
    Fingerprint fingerprint;
    std::uint32_t older;
    std::uint32_t newer;
    [[no_unique_address]] Payload payload;
  };

  explicit FingerprintList(std::uint32_t capacity)
      : capacity_(std::max(capacity, std::uint32_t{1})),
        nodes_(std::size_t{capacity_} + 1),
        index_(2 * std::size_t{capacity_} + 1) {
    MakeEmpty();
  }

  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t size() const { return size_; }
  std::size_t memory_bytes() const { return nodes_.memory_bytes() + index_.memory_bytes(); }

  // nullptr if it is not there.
  Payload* Find(Fingerprint fingerprint) {
    const std::uint32_t node = index_[PlaceOf(fingerprint)];
    return node == 0 ? nullptr : &nodes_[node].payload;
  }
  // Pre: size() > 0.
  const Node& oldest() const { return nodes_[nodes_[kEnd].newer]; }

  // Makes it the newest. False if it is not there.
  bool Refresh(Fingerprint fingerprint) {
    const std::uint32_t node = index_[PlaceOf(fingerprint)];
    if (node == 0) return false;
    Unlink(node);
    LinkNewest(node);
    return true;
  }
  // Adds it as the newest; the oldest goes if there is no room.
  // Pre: not there.
  Payload* PushNewest(Fingerprint fingerprint) {
    if (size_ == capacity_) Erase(oldest().fingerprint);
    std::uint32_t node = free_;
    if (node != 0) {
      free_ = nodes_[node].newer;
    } else {
      node = ++fresh_;
    }
    nodes_[node].fingerprint = fingerprint;
    nodes_[node].payload = Payload{};
    LinkNewest(node);
    index_[PlaceOf(fingerprint)] = node;
    ++size_;
    return &nodes_[node].payload;
  }
  // False if it is not there.
  bool Erase(Fingerprint fingerprint) {
    std::size_t hole = PlaceOf(fingerprint);
    const std::uint32_t node = index_[hole];
    if (node == 0) return false;
    for (std::size_t i = Next(hole); index_[i] != 0; i = Next(i)) {
      if (Distance(Home(nodes_[index_[i]].fingerprint), i) >= Distance(hole, i)) {
        index_[hole] = index_[i];
        hole = i;
      }
    }
    index_[hole] = 0;
    Unlink(node);
    nodes_[node].newer = free_;
    free_ = node;
    --size_;
    return true;
  }
  void Clear() {
    index_.Clear();
    MakeEmpty();
  }

 private:
  static constexpr std::uint32_t kEnd = 0;  // Its `newer` is the oldest, its `older` the newest.

  std::size_t Home(Fingerprint fingerprint) const {
    return ReduceToRange(static_cast<std::uint32_t>(fingerprint >> 32), index_.size());
  }
  std::size_t Next(std::size_t i) const { return i + 1 == index_.size() ? 0 : i + 1; }
  std::size_t Distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + index_.size() - from;
  }
  // Where it is in the index, or the empty place where it would be.
  std::size_t PlaceOf(Fingerprint fingerprint) const {
    std::size_t i = Home(fingerprint);
    while (index_[i] != 0 && nodes_[index_[i]].fingerprint != fingerprint) i = Next(i);
    return i;
  }
  void Unlink(std::uint32_t node) {
    nodes_[nodes_[node].older].newer = nodes_[node].newer;
    nodes_[nodes_[node].newer].older = nodes_[node].older;
  }
  void LinkNewest(std::uint32_t node) {
    nodes_[node].older = nodes_[kEnd].older;
    nodes_[node].newer = kEnd;
    nodes_[nodes_[kEnd].older].newer = node;
    nodes_[kEnd].older = node;
  }
  void MakeEmpty() {
    nodes_[kEnd].older = nodes_[kEnd].newer = kEnd;
    size_ = fresh_ = free_ = 0;
  }

  const std::uint32_t capacity_;
  HugeArray<Node> nodes_;
  HugeArray<std::uint32_t> index_;  // Node numbers; 0 is empty.
  std::uint32_t size_ = 0;
  std::uint32_t fresh_ = 0;  // Nodes up to this number were used at least once.
  std::uint32_t free_ = 0;   // The first of those that are free again, linked by `newer`.
};

struct NoPayload {};
// What was evicted lately.
using GhostList = FingerprintList<NoPayload>;

}  // namespace terrace
