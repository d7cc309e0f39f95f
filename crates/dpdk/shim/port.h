/* Pools, ports, queues and rings: what Rust calls (src/ffi/port.rs says the same). */
#ifndef HAIRPIN_DPDK_PORT_H
#define HAIRPIN_DPDK_PORT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

/* Frames per call, at most (BATCH_MAX of the core). */
#define HAIRPIN_FRAMES_MAX 64

/*
 * Rust reads and writes these fields of an mbuf itself (src/ffi/port.rs, `RawMbuf`), and keeps what it knows of a frame
 * in a dynamic field of its own.
 */
#define HAIRPIN_META 112
#define HAIRPIN_META_SIZE 16
/* The bit of ol_flags that says that something stands there: that line of the mbuf is not used without it. */
#define HAIRPIN_WRITTEN 40
/* The bit that says that the headers are examined. */
#define HAIRPIN_EXAMINED 39
static_assert(offsetof(struct rte_mbuf, buf_addr) == 0, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, data_off) == 16, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, nb_segs) == 20, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, port) == 22, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, ol_flags) == 24, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, pkt_len) == 36, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, data_len) == 40, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, hash.fdir.hi) == 48, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, buf_len) == 54, "RawMbuf");
static_assert(offsetof(struct rte_mbuf, dynfield1) <= HAIRPIN_META, "RawMbuf");
static_assert(sizeof(struct rte_mbuf) == HAIRPIN_META + HAIRPIN_META_SIZE, "RawMbuf");
static_assert(RTE_MBUF_F_RX_FDIR_ID == 1ULL << 13, "RawMbuf");
static_assert(RTE_MBUF_F_LAST_FREE == 1ULL << HAIRPIN_WRITTEN, "RawMbuf");
static_assert(RTE_MBUF_F_EXTERNAL == 1ULL << 61 && RTE_MBUF_F_INDIRECT == 1ULL << 62, "RawMbuf");

/* A checksum for the device to fill in: beside the lengths of the headers, IPv4 rather than IPv6, UDP rather than TCP. */
#define HAIRPIN_CHECKSUM_L2(note) ((note) & 0x7f)
#define HAIRPIN_CHECKSUM_L3(note) ((note) >> 7 & 0x1ff)
#define HAIRPIN_CHECKSUM_IPV4 (1u << 16)
#define HAIRPIN_CHECKSUM_UDP (1u << 17)

/* How a port spreads flows over its queues. */
enum hairpin_rss {
	HAIRPIN_RSS_NONE,
	/* With the driver's own key. */
	HAIRPIN_RSS_DEVICE,
	/* Both directions of a flow to the same queue. */
	HAIRPIN_RSS_SYMMETRIC,
	HAIRPIN_RSS_SOURCE,
	HAIRPIN_RSS_DESTINATION,
};

struct hairpin_port_options {
	uint16_t queues, rx_descriptors, tx_descriptors;
	/* 0: the device's. */
	uint16_t mtu;
	uint8_t promiscuous;
	uint8_t rss;
	/* Pairs of queues behind the others that are tied to each other (flow.h). */
	uint16_t hairpins;
	/* It is not started yet: hairpin_port_restart does that. */
	uint8_t waits;
};

struct hairpin_port_info {
	char name[64], driver[32];
	uint8_t mac[6];
	uint16_t mtu, queues, rx_descriptors, tx_descriptors, max_queues;
	int32_t numa_node;
	/* Kinds of flow that the device can spread by, and those that it was told to: RTE_ETH_RSS_*. */
	uint64_t rss_types, rss_set;
	/* Bytes of key that the device takes, and whether ours, which is the same in both directions, is in. */
	uint8_t rss_key_length, rss_key_symmetric;
	/* The device fills in the checksums of TCP and UDP. */
	uint8_t checksums;
};

struct hairpin_port_statistics {
	uint64_t received, transmitted, received_bytes, transmitted_bytes, missed, receive_errors, transmit_errors, no_mbuf;
};

/* mbuf.c */
size_t hairpin_pool_memory(uint32_t mbufs, uint16_t data_room);
int hairpin_pool_create(const char *name, uint32_t mbufs, uint16_t cache, uint16_t data_room, void *memory,
			size_t length, struct rte_mempool **pool);
uint32_t hairpin_pool_in_use(const struct rte_mempool *pool);
uint32_t hairpin_pool_allocate(struct rte_mempool *pool, struct rte_mbuf **frames, uint32_t count);
void hairpin_mbuf_free(struct rte_mbuf *frame);
void hairpin_mbuf_free_burst(struct rte_mbuf **frames, uint32_t count);
int hairpin_mbuf_join(struct rte_mbuf *frame);
void hairpin_mbuf_checksum(struct rte_mbuf *frame, uint32_t note);

/* port.c */
int hairpin_port_open(const char *device, const struct hairpin_port_options *options, struct rte_mempool *pool,
		      uint16_t *port, const char **what);
int hairpin_port_pair(const char *const names[2], uint16_t queues, uint32_t size,
		      const struct hairpin_port_options *options, struct rte_mempool *pool, uint16_t ports[2],
		      struct rte_ring **rings, const char **what);
void hairpin_port_wire_free(struct rte_ring *ring);
void hairpin_port_close(uint16_t port);
int hairpin_events_pass(uint32_t patience);
int hairpin_port_restart(uint16_t port);
int hairpin_port_info(uint16_t port, struct hairpin_port_info *info);
int hairpin_port_is_up(uint16_t port);
int hairpin_port_statistics(uint16_t port, struct hairpin_port_statistics *statistics);
uint32_t hairpin_queue_receive(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint32_t count);
uint32_t hairpin_queue_transmit(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint32_t count);

/* ring.c */
int hairpin_ring_create(const char *name, uint32_t size, int many_producers, int many_consumers, int socket,
			struct rte_ring **ring);
void hairpin_ring_free(struct rte_ring *ring);
uint32_t hairpin_ring_send(struct rte_ring *ring, struct rte_mbuf *const *frames, uint32_t count);
uint32_t hairpin_ring_receive(struct rte_ring *ring, struct rte_mbuf **frames, uint32_t count);
uint32_t hairpin_ring_count(const struct rte_ring *ring);

#endif
