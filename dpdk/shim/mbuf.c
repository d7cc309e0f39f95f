/* Pools of mbufs, and handing mbufs out and back. */
#include <errno.h>

#include <rte_errno.h>
#include <rte_mbuf.h>

#include "port.h"

int hairpin_pool_create(const char *name, uint32_t mbufs, uint16_t cache, uint16_t data_room, int socket,
			struct rte_mempool **pool)
{
	rte_errno = 0;
	*pool = rte_pktmbuf_pool_create(name, mbufs, cache, 0, (uint16_t)(data_room + RTE_PKTMBUF_HEADROOM), socket);
	return *pool != NULL ? 0 : rte_errno != 0 ? rte_errno : EIO;
}

uint32_t hairpin_pool_in_use(const struct rte_mempool *pool)
{
	return rte_mempool_in_use_count(pool);
}

/* Empty frames; as many as there are. */
uint32_t hairpin_pool_allocate(struct rte_mempool *pool, struct hairpin_mbuf *frames, uint32_t count)
{
	struct rte_mbuf *raw[HAIRPIN_FRAMES_MAX];

	count = RTE_MIN(count, (uint32_t)HAIRPIN_FRAMES_MAX);
	/* A bulk is given whole or not at all: the last few come one by one. */
	if (rte_pktmbuf_alloc_bulk(pool, raw, count) != 0) {
		uint32_t given = 0;
		while (given < count && (raw[given] = rte_pktmbuf_alloc(pool)) != NULL)
			given++;
		count = given;
	}
	for (uint32_t i = 0; i < count; i++) {
		struct hairpin_mbuf *frame = &frames[i];
		frame->raw = raw[i];
		frame->data = rte_pktmbuf_mtod(raw[i], uint8_t *);
		frame->length = 0;
		frame->room = (uint16_t)(raw[i]->buf_len - raw[i]->data_off);
		frame->note = 0;
	}
	return count;
}

void hairpin_mbuf_free(struct rte_mbuf *raw)
{
	rte_pktmbuf_free(raw);
}

void hairpin_mbuf_free_burst(const struct hairpin_mbuf *frames, uint32_t count)
{
	struct rte_mbuf *raw[HAIRPIN_FRAMES_MAX];

	count = RTE_MIN(count, (uint32_t)HAIRPIN_FRAMES_MAX);
	for (uint32_t i = 0; i < count; i++)
		raw[i] = frames[i].raw;
	rte_pktmbuf_free_bulk(raw, count);
}
