/* Pools of mbufs, and handing mbufs out and back. */
#include <errno.h>

#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>

#include "port.h"

/* Bytes of memory for so many mbufs. */
size_t hairpin_pool_memory(uint32_t mbufs, uint16_t data_room)
{
	uint32_t element = sizeof(struct rte_mbuf) + RTE_PKTMBUF_HEADROOM + data_room;

	/* One more, since the first begins where the memory's alignment wants it. */
	return ((size_t)mbufs + 1) * rte_mempool_calc_obj_size(element, 0, NULL);
}

/*
 * As rte_pktmbuf_pool_create, but that mbufs may stand in `memory`, which then stays with the pool. One follows upon the
 * other there: addresses are virtual for devices too, so that none has to end with a page. (So af_xdp wants them: what
 * it shares with the kernel is as long as all mbufs are.)
 */
int hairpin_pool_create(const char *name, uint32_t mbufs, uint16_t cache, uint16_t data_room, void *memory,
			size_t length, struct rte_mempool **pool)
{
	uint16_t room = (uint16_t)(data_room + RTE_PKTMBUF_HEADROOM);
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = room };
	int made;

	rte_errno = 0;
	*pool = rte_mempool_create_empty(name, mbufs, (unsigned int)sizeof(struct rte_mbuf) + room, cache,
					 sizeof(private), SOCKET_ID_ANY, memory != NULL ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0);
	if (*pool == NULL)
		return rte_errno != 0 ? rte_errno : EIO;
	made = rte_mempool_set_ops_byname(*pool, rte_mbuf_best_mempool_ops(), NULL);
	if (made == 0) {
		rte_pktmbuf_pool_init(*pool, &private);
		made = memory == NULL ? rte_mempool_populate_default(*pool)
				      : rte_mempool_populate_iova(*pool, memory, (rte_iova_t)memory, length, NULL, NULL);
	}
	if (made < 0 || (uint32_t)made < mbufs) {
		rte_mempool_free(*pool);
		*pool = NULL;
		return made < 0 ? -made : ENOMEM;
	}
	rte_mempool_obj_iter(*pool, rte_pktmbuf_init, NULL);
	return 0;
}

uint32_t hairpin_pool_in_use(const struct rte_mempool *pool)
{
	return rte_mempool_in_use_count(pool);
}

/* Fresh mbufs; as many as there are. */
uint32_t hairpin_pool_allocate(struct rte_mempool *pool, struct rte_mbuf **frames, uint32_t count)
{
	/* A bulk is given whole or not at all: the last few come one by one. */
	if (rte_pktmbuf_alloc_bulk(pool, frames, count) != 0) {
		uint32_t given = 0;
		while (given < count && (frames[given] = rte_pktmbuf_alloc(pool)) != NULL)
			given++;
		count = given;
	}
	return count;
}

void hairpin_mbuf_free(struct rte_mbuf *frame)
{
	rte_pktmbuf_free(frame);
}

void hairpin_mbuf_free_burst(struct rte_mbuf **frames, uint32_t count)
{
	rte_pktmbuf_free_bulk(frames, count);
}

/* A frame in several segments becomes one, if it fits; otherwise it is gone. */
int hairpin_mbuf_join(struct rte_mbuf *frame)
{
	if (rte_pktmbuf_linearize(frame) == 0)
		return 0;
	rte_pktmbuf_free(frame);
	return -1;
}

/* Has the device fill in a checksum. */
void hairpin_mbuf_checksum(struct rte_mbuf *frame, uint32_t note)
{
	frame->ol_flags |= (note & HAIRPIN_CHECKSUM_IPV4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6) |
			   (note & HAIRPIN_CHECKSUM_UDP ? RTE_MBUF_F_TX_UDP_CKSUM : RTE_MBUF_F_TX_TCP_CKSUM);
	frame->tx_offload = 0;
	frame->l2_len = HAIRPIN_CHECKSUM_L2(note);
	frame->l3_len = HAIRPIN_CHECKSUM_L3(note);
}
