// A small map whose memory stays: once it has been as large as it gets, no call allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace terrace {

// Open addressing with linear probing and backward-shift deletion. `Hash` must mix well.
//
// Thread-compatible. Pointers are valid until the next Insert() or Erase().
template <typename K, typename V, typename Hash>
class FlatMap {
 public:
  std::size_t size() const { return size_; }

  V* Find(const K& key) {
    if (size_ == 0) return nullptr;
    for (std::size_t i = Home(key); entries_[i].used; i = Next(i)) {
      if (entries_[i].key == key) return &entries_[i].value;
    }
    return nullptr;
  }
  const V* Find(const K& key) const { return const_cast<FlatMap*>(this)->Find(key); }

  // Pre: Find(key) is nullptr.
  V* Insert(const K& key, V value) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    std::size_t i = Home(key);
    while (entries_[i].used) i = Next(i);
    entries_[i] = {key, std::move(value), true};
    ++size_;
    return &entries_[i].value;
  }

  bool Erase(const K& key) {
    if (size_ == 0) return false;
    std::size_t hole = Home(key);
    while (entries_[hole].used && !(entries_[hole].key == key)) hole = Next(hole);
    if (!entries_[hole].used) return false;
    for (std::size_t i = Next(hole); entries_[i].used; i = Next(i)) {
      // An entry may move back into the hole unless its home lies behind the hole (cyclically).
      if (((i - Home(entries_[i].key)) & mask()) >= ((i - hole) & mask())) {
        entries_[hole] = std::move(entries_[i]);
        hole = i;
      }
    }
    entries_[hole] = Entry{};
    --size_;
    return true;
  }

  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (const Entry& entry : entries_) {
      if (entry.used) visit(entry.key, entry.value);
    }
  }

 private:
  struct Entry {
    K key{};
    V value{};
    bool used = false;
  };

  std::size_t mask() const { return entries_.size() - 1; }
  std::size_t Home(const K& key) const { return Hash{}(key)&mask(); }
  std::size_t Next(std::size_t i) const { return (i + 1) & mask(); }
  void Grow() {
    std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
    old.swap(entries_);
    size_ = 0;
    for (Entry& entry : old) {
      if (entry.used) Insert(entry.key, std::move(entry.value));
    }
  }

  std::vector<Entry> entries_;  // A power of two, at most half of it used.
  std::size_t size_ = 0;
};

}  // namespace terrace
