/* rte_hash, a burst at a time. Values are 32 bits and stand in the data pointer. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#include <rte_common.h>
#include <rte_errno.h>
#include <rte_jhash.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_memzone.h>
#include <rte_ring.h>
#include <rte_ring_elem.h>

#include "hash.h"

/* Positions that an lcore's cache holds: LCORE_CACHE_SIZE of rte_cuckoo_hash.h, which is private. */
#define LCORE_CACHE 64
/* One cache: its length and positions, on lines of its own. */
#define LCORE_CACHE_BYTES RTE_ALIGN(4 * (LCORE_CACHE + 1), RTE_CACHE_LINE_SIZE)
/* A bucket of eight entries takes one line. */
#define BUCKET_ENTRIES 8
/* The handle, locks, counters and rte_malloc's headers, with room to spare. */
#define SMALL_PARTS (64 << 10)

static int last_error(void)
{
	return rte_errno != 0 ? rte_errno : EIO;
}

/* What rte_hash_create allocates for such a table (22.11), a little too much rather than too little. */
size_t hairpin_hash_memory(uint32_t entries, uint32_t key_length, uint8_t flags)
{
	size_t positions = (size_t)entries + 1;
	size_t caches = 0;

	if (flags & RTE_HASH_EXTRA_FLAGS_MULTI_WRITER_ADD) {
		positions += (RTE_MAX_LCORE - 1) * (LCORE_CACHE - 1);
		caches = (size_t)RTE_MAX_LCORE * LCORE_CACHE_BYTES;
	}
	size_t buckets = (size_t)rte_align32pow2(entries) / BUCKET_ENTRIES * RTE_CACHE_LINE_SIZE;
	size_t keys = positions * RTE_ALIGN(sizeof(void *) + key_length, 16);
	ssize_t ring = rte_ring_get_memsize_elem(sizeof(uint32_t), rte_align32pow2((uint32_t)positions));

	if (ring < 0)
		return 0;
	return buckets + keys + (size_t)ring + caches + rte_rcu_qsbr_get_memsize(RTE_MAX_LCORE) + SMALL_PARTS;
}

/* Hands the defer queue's memory over now, not page by page while entries are removed. Returns its size. */
static size_t populate_queue(const char *name)
{
	char zone_name[RTE_MEMZONE_NAMESIZE];

	snprintf(zone_name, sizeof(zone_name), "RG_HASH_RCU_%s", name);
	const struct rte_memzone *zone = rte_memzone_lookup(zone_name);
	if (zone == NULL)
		return 0;
#ifdef MADV_POPULATE_WRITE
	uintptr_t first = RTE_ALIGN_FLOOR((uintptr_t)zone->addr, 4096);
	uintptr_t end = RTE_ALIGN_CEIL((uintptr_t)zone->addr + zone->len, 4096);
	/* A kernel before 5.14 refuses, and the queue takes its page faults later. */
	(void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
#endif
	return zone->len;
}

/*
 * Positions of removed entries wait in a queue until every reader has been quiescent (mode DQ): removing never blocks.
 * The queue has room for every position, since rte_hash loses those that find none.
 */
static int attach_qsbr(struct rte_hash *hash, const char *name, int socket, struct rte_rcu_qsbr **qsbr,
		       size_t *queue_bytes)
{
	struct rte_rcu_qsbr *v = rte_zmalloc_socket(NULL, rte_rcu_qsbr_get_memsize(RTE_MAX_LCORE), RTE_CACHE_LINE_SIZE,
						    socket);
	if (v == NULL)
		return ENOMEM;
	struct rte_hash_rcu_config config = { .v = v, .mode = RTE_HASH_QSBR_MODE_DQ };
	if (rte_rcu_qsbr_init(v, RTE_MAX_LCORE) != 0 || rte_hash_rcu_qsbr_add(hash, &config) != 0) {
		int error = last_error();
		rte_free(v);
		return error;
	}
	*qsbr = v;
	*queue_bytes = populate_queue(name);
	return 0;
}

int hairpin_hash_create(const char *name, uint32_t entries, uint32_t key_length, uint32_t seed, int jhash,
			uint8_t flags, int socket, struct rte_hash **hash, struct rte_rcu_qsbr **qsbr,
			size_t *queue_bytes)
{
	struct rte_hash_parameters parameters = {
		.name = name,
		.entries = entries,
		.key_len = key_length,
		/* NULL: rte_hash_crc, where the processor has the instruction. */
		.hash_func = jhash ? rte_jhash : NULL,
		.hash_func_init_val = seed,
		.socket_id = socket,
		.extra_flag = flags,
	};

	*qsbr = NULL;
	*queue_bytes = 0;
	rte_errno = 0;
	*hash = rte_hash_create(&parameters);
	if (*hash == NULL)
		return rte_errno != 0 ? rte_errno : ENOMEM;
	if (flags & RTE_HASH_EXTRA_FLAGS_RW_CONCURRENCY_LF) {
		int error = attach_qsbr(*hash, name, socket, qsbr, queue_bytes);
		if (error != 0) {
			rte_hash_free(*hash);
			*hash = NULL;
			return error;
		}
	}
	return 0;
}

/* No reader may be left. */
void hairpin_hash_free(struct rte_hash *hash, struct rte_rcu_qsbr *qsbr)
{
	rte_hash_free(hash);
	rte_free(qsbr);
}

int hairpin_hash_find_one(const struct rte_hash *hash, const uint8_t *key, uint32_t *value)
{
	void *data;

	if (rte_hash_lookup_data(hash, key, &data) < 0)
		return 0;
	*value = (uint32_t)(uintptr_t)data;
	return 1;
}

/* Bit i of the result: keys[i] was found, and values[i] is its value. */
uint64_t hairpin_hash_find(const struct rte_hash *hash, const uint8_t *keys, uint32_t key_length, uint32_t count,
			   uint32_t *values)
{
	const void *pointers[HAIRPIN_BURST_MAX];
	void *data[HAIRPIN_BURST_MAX];
	uint64_t hits = 0;

	for (uint32_t i = 0; i < count; i++)
		pointers[i] = keys + (size_t)i * key_length;
	if (rte_hash_lookup_bulk_data(hash, pointers, count, &hits, data) < 0)
		return 0;
	for (uint64_t left = hits; left != 0; left &= left - 1) {
		int i = __builtin_ctzll(left);
		values[i] = (uint32_t)(uintptr_t)data[i];
	}
	return hits;
}

/* In order until one finds no room; how many were added (a key that is there gets the new value), or refused. */
int hairpin_hash_insert(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			const uint32_t *values, uint32_t count)
{
	if (per_lcore && rte_lcore_id() >= RTE_MAX_LCORE)
		return HAIRPIN_NOT_REGISTERED;
	for (uint32_t i = 0; i < count; i++) {
		if (rte_hash_add_key_data(hash, keys + (size_t)i * key_length, (void *)(uintptr_t)values[i]) != 0)
			return (int)i;
	}
	return (int)count;
}

/* Removes the keys that have just these values; how many, or refused. */
int hairpin_hash_remove(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			const uint32_t *values, uint32_t count)
{
	uint32_t found[HAIRPIN_BURST_MAX];
	int removed = 0;

	if (per_lcore && rte_lcore_id() >= RTE_MAX_LCORE)
		return HAIRPIN_NOT_REGISTERED;
	uint64_t hits = hairpin_hash_find(hash, keys, key_length, count, found);
	for (; hits != 0; hits &= hits - 1) {
		int i = __builtin_ctzll(hits);
		if (found[i] == values[i] && rte_hash_del_key(hash, keys + (size_t)i * key_length) >= 0)
			removed++;
	}
	return removed;
}

/* Removes the keys whatever their values; how many, or refused. */
int hairpin_hash_remove_keys(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			     uint32_t count)
{
	int removed = 0;

	if (per_lcore && rte_lcore_id() >= RTE_MAX_LCORE)
		return HAIRPIN_NOT_REGISTERED;
	for (uint32_t i = 0; i < count; i++)
		removed += rte_hash_del_key(hash, keys + (size_t)i * key_length) >= 0;
	return removed;
}

/* Up to `count` values from position *next on, which moves; fewer than `count` at the end. */
uint32_t hairpin_hash_scan(const struct rte_hash *hash, uint32_t *next, uint32_t *values, uint32_t count)
{
	const void *key;
	void *data;
	uint32_t seen = 0;

	while (seen < count && rte_hash_iterate(hash, &key, &data, next) >= 0)
		values[seen++] = (uint32_t)(uintptr_t)data;
	return seen;
}

int hairpin_reader_register(struct rte_rcu_qsbr *qsbr, unsigned int reader)
{
	int error = rte_rcu_qsbr_thread_register(qsbr, reader);

	if (error == 0)
		rte_rcu_qsbr_thread_online(qsbr, reader);
	return error == 0 ? 0 : last_error();
}

void hairpin_reader_unregister(struct rte_rcu_qsbr *qsbr, unsigned int reader)
{
	rte_rcu_qsbr_thread_offline(qsbr, reader);
	(void)rte_rcu_qsbr_thread_unregister(qsbr, reader);
}

void hairpin_reader_online(struct rte_rcu_qsbr *qsbr, unsigned int reader)
{
	rte_rcu_qsbr_thread_online(qsbr, reader);
}

void hairpin_reader_offline(struct rte_rcu_qsbr *qsbr, unsigned int reader)
{
	rte_rcu_qsbr_thread_offline(qsbr, reader);
}

void hairpin_reader_quiescent(struct rte_rcu_qsbr *qsbr, unsigned int reader)
{
	rte_rcu_qsbr_quiescent(qsbr, reader);
}
