/* Rings of mbufs between threads. */
#include <errno.h>

#include <rte_errno.h>
#include <rte_ring.h>

#include "port.h"

/* Exactly `size` frames fit. */
int hairpin_ring_create(const char *name, uint32_t size, int many_producers, int many_consumers, int socket,
			struct rte_ring **ring)
{
	unsigned int flags = RING_F_EXACT_SZ | (many_producers ? 0 : RING_F_SP_ENQ) | (many_consumers ? 0 : RING_F_SC_DEQ);

	rte_errno = 0;
	*ring = rte_ring_create(name, size, socket, flags);
	return *ring != NULL ? 0 : rte_errno != 0 ? rte_errno : EIO;
}

void hairpin_ring_free(struct rte_ring *ring)
{
	rte_ring_free(ring);
}

uint32_t hairpin_ring_send(struct rte_ring *ring, struct rte_mbuf *const *frames, uint32_t count)
{
	return rte_ring_enqueue_burst(ring, (void *const *)frames, count, NULL);
}

uint32_t hairpin_ring_receive(struct rte_ring *ring, struct rte_mbuf **frames, uint32_t count)
{
	return rte_ring_dequeue_burst(ring, (void **)frames, count, NULL);
}

uint32_t hairpin_ring_count(const struct rte_ring *ring)
{
	return rte_ring_count(ring);
}
