/* Rings between threads. Their elements are whole frames as Rust holds them, so that nothing of an mbuf is touched. */
#include <errno.h>

#include <rte_errno.h>
#include <rte_ring.h>
#include <rte_ring_elem.h>

#include "port.h"

/* Exactly `size` frames fit. */
int hairpin_ring_create(const char *name, uint32_t size, int many_producers, int many_consumers, int socket,
			struct rte_ring **ring)
{
	unsigned int flags = RING_F_EXACT_SZ | (many_producers ? 0 : RING_F_SP_ENQ) | (many_consumers ? 0 : RING_F_SC_DEQ);

	rte_errno = 0;
	*ring = rte_ring_create_elem(name, sizeof(struct hairpin_mbuf), size, socket, flags);
	return *ring != NULL ? 0 : rte_errno != 0 ? rte_errno : EIO;
}

void hairpin_ring_free(struct rte_ring *ring)
{
	rte_ring_free(ring);
}

uint32_t hairpin_ring_send(struct rte_ring *ring, const struct hairpin_mbuf *frames, uint32_t count)
{
	return rte_ring_enqueue_burst_elem(ring, frames, sizeof(*frames), count, NULL);
}

uint32_t hairpin_ring_receive(struct rte_ring *ring, struct hairpin_mbuf *frames, uint32_t count)
{
	return rte_ring_dequeue_burst_elem(ring, frames, sizeof(*frames), count, NULL);
}

uint32_t hairpin_ring_count(const struct rte_ring *ring)
{
	return rte_ring_count(ring);
}
