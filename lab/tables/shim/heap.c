/* Memory of our own, lent to rte_malloc as a heap: so tables stand on large pages without a reserve of them. */
#include <errno.h>

#include <rte_errno.h>
#include <rte_malloc.h>

#include "hash.h"

static int last_error(void)
{
	return rte_errno != 0 ? rte_errno : EIO;
}

/* Makes a heap of `memory`, which is cleared; its socket id is what allocations name. */
int hairpin_heap_create(const char *name, void *memory, size_t length, size_t page, int *socket)
{
	rte_errno = 0;
	if (rte_malloc_heap_create(name) != 0)
		return last_error();
	if (rte_malloc_heap_memory_add(name, memory, length, NULL, (unsigned int)(length / page), page) != 0) {
		int error = last_error();
		rte_malloc_heap_destroy(name);
		return error;
	}
	*socket = rte_malloc_heap_get_socket(name);
	return 0;
}

/* The memory may be unmapped only if this returns 0. */
int hairpin_heap_destroy(const char *name, void *memory, size_t length)
{
	rte_errno = 0;
	if (rte_malloc_heap_memory_remove(name, memory, length) != 0)
		return last_error();
	return rte_malloc_heap_destroy(name) == 0 ? 0 : last_error();
}

size_t hairpin_heap_used(int socket)
{
	struct rte_malloc_socket_stats stats;

	return rte_malloc_get_socket_stats(socket, &stats) == 0 ? stats.heap_allocsz_bytes : 0;
}
