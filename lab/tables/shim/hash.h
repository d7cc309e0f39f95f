/* What Rust calls (src/rte_hash/ffi.rs says the same). Everything works on bursts: no call per key. */
#ifndef HAIRPIN_TABLES_HASH_H
#define HAIRPIN_TABLES_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <rte_hash.h>
#include <rte_rcu_qsbr.h>

/* Keys per call, at most (RTE_HASH_LOOKUP_BULK_MAX). */
#define HAIRPIN_BURST_MAX 64

/* A burst was refused: the thread has no lcore id, which tables with one cache of free positions per lcore need. */
#define HAIRPIN_NOT_REGISTERED (-1)

/* Functions that return int return 0 or a positive errno (rte_errno), unless something else is said. */

/* transactions.c */
unsigned int hairpin_transactions_committed(unsigned int attempts);
int hairpin_transactions_announced(void);

/* heap.c */
int hairpin_heap_create(const char *name, void *memory, size_t length, size_t page, int *socket);
int hairpin_heap_destroy(const char *name, void *memory, size_t length);
size_t hairpin_heap_used(int socket);

/* hash.c */
size_t hairpin_hash_memory(uint32_t entries, uint32_t key_length, uint8_t flags);
int hairpin_hash_create(const char *name, uint32_t entries, uint32_t key_length, uint32_t seed, int jhash,
			uint8_t flags, int socket, struct rte_hash **hash, struct rte_rcu_qsbr **qsbr,
			size_t *queue_bytes);
void hairpin_hash_free(struct rte_hash *hash, struct rte_rcu_qsbr *qsbr);
int hairpin_hash_find_one(const struct rte_hash *hash, const uint8_t *key, uint32_t *value);
uint64_t hairpin_hash_find(const struct rte_hash *hash, const uint8_t *keys, uint32_t key_length, uint32_t count,
			   uint32_t *values);
int hairpin_hash_insert(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			const uint32_t *values, uint32_t count);
int hairpin_hash_remove(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			const uint32_t *values, uint32_t count);
int hairpin_hash_remove_keys(struct rte_hash *hash, int per_lcore, const uint8_t *keys, uint32_t key_length,
			     uint32_t count);
uint32_t hairpin_hash_scan(const struct rte_hash *hash, uint32_t *next, uint32_t *values, uint32_t count);
int hairpin_reader_register(struct rte_rcu_qsbr *qsbr, unsigned int reader);
void hairpin_reader_unregister(struct rte_rcu_qsbr *qsbr, unsigned int reader);
void hairpin_reader_online(struct rte_rcu_qsbr *qsbr, unsigned int reader);
void hairpin_reader_offline(struct rte_rcu_qsbr *qsbr, unsigned int reader);
void hairpin_reader_quiescent(struct rte_rcu_qsbr *qsbr, unsigned int reader);

#endif
