// libcuckoo's map behind plain functions, one call per run of keys, so that the way here costs it nothing that shows.
//
// Keys are 16 bytes, values 8. Its hash is wyhash's folded multiplication under a secret of two words: as cheap as a
// keyed one gets. It may not grow: what does not fit into the size it was made for is refused, as by all others.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include <libcuckoo/cuckoohash_map.hh>

namespace {

struct Key {
    uint64_t low, high;
    bool operator==(const Key &other) const { return low == other.low && high == other.high; }
};

struct KeyHash {
    uint64_t secret[2];
    size_t operator()(const Key &key) const {
        unsigned __int128 product = (unsigned __int128)(key.low ^ secret[0]) * (key.high ^ secret[1]);
        uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);
        product = (unsigned __int128)(folded ^ secret[1]) * 0x9e3779b97f4a7c15u;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
};

// Bytes that all maps together have; the allocator of one cannot be asked through the map.
std::atomic<size_t> taken{0};

// malloc that counts.
template <class T> struct Counting {
    using value_type = T;
    Counting() = default;
    template <class U> Counting(const Counting<U> &) {}
    T *allocate(size_t count) {
        // Buckets are larger than a line but not aligned to one by themselves; locks are aligned.
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        void *memory = std::aligned_alloc(64, bytes ? bytes : 64);
        if (!memory)
            throw std::bad_alloc();
        taken += bytes;
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, size_t count) {
        taken -= (count * sizeof(T) + 63) / 64 * 64;
        std::free(memory);
    }
    template <class U> bool operator==(const Counting<U> &) const { return true; }
    template <class U> bool operator!=(const Counting<U> &) const { return false; }
};

using Map = libcuckoo::cuckoohash_map<Key, uint64_t, KeyHash, std::equal_to<Key>,
                                      Counting<std::pair<const Key, uint64_t>>>;

struct Table {
    Map map;
    size_t bytes;
};

Key key_at(const uint8_t *keys, size_t i) {
    Key key;
    std::memcpy(&key, keys + 16 * i, sizeof key);
    return key;
}

} // namespace

extern "C" {

// A map of so many slots (a power of two) that does not grow; null if there is no memory. `bytes` is only right while
// no other map is made at the same time.
Table *hairpin_libcuckoo_new(size_t slots, uint64_t secret_low, uint64_t secret_high) noexcept {
    try {
        const size_t before = taken;
        auto table = std::make_unique<Table>(Table{Map(slots, KeyHash{{secret_low, secret_high}}), 0});
        table->map.maximum_hashpower(table->map.hashpower());
        table->bytes = taken - before;
        return table.release();
    } catch (...) {
        return nullptr;
    }
}

void hairpin_libcuckoo_free(Table *table) noexcept { delete table; }

size_t hairpin_libcuckoo_bytes(const Table *table) noexcept { return table->bytes; }

size_t hairpin_libcuckoo_slots(const Table *table) noexcept {
    return table->map.bucket_count() * Map::slot_per_bucket();
}

// Looks up `count` keys; how many were there, and the sum of their values.
size_t hairpin_libcuckoo_find(const Table *table, const uint8_t *keys, size_t count, uint64_t *sum) noexcept {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        if (table->map.find(key_at(keys, i), value)) {
            found++;
            *sum += value;
        }
    }
    return found;
}

// Inserts keys under their first four bytes as values; how many went in before one found no room (those that were
// there already do not count).
size_t hairpin_libcuckoo_insert(Table *table, const uint8_t *keys, size_t count) noexcept {
    size_t inserted = 0;
    try {
        for (size_t i = 0; i < count; i++) {
            uint32_t value;
            std::memcpy(&value, keys + 16 * i, sizeof value);
            inserted += table->map.insert(key_at(keys, i), uint64_t(value));
        }
    } catch (...) {
        // Full: it would have to grow.
    }
    return inserted;
}

// Removes keys; how many were there.
size_t hairpin_libcuckoo_remove(Table *table, const uint8_t *keys, size_t count) noexcept {
    size_t removed = 0;
    for (size_t i = 0; i < count; i++)
        removed += table->map.erase(key_at(keys, i));
    return removed;
}
}
