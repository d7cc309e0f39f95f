/* Whether the processor's transactional memory (Intel's RTM) works. */
#include <rte_cpuflags.h>
#include <rte_rtm.h>

#include "hash.h"

/* Where a transaction stores. */
static volatile unsigned int touched;

/* Whether the processor says that it has RTM: all that DPDK asks. */
int hairpin_transactions_announced(void)
{
	return rte_cpu_get_flag_enabled(RTE_CPUFLAG_RTM) > 0;
}

/* How many of so many transactions, of one store each, committed. Only where RTM is announced. */
unsigned int hairpin_transactions_committed(unsigned int attempts)
{
	unsigned int committed = 0;

	for (unsigned int i = 0; i < attempts; i++) {
		if (rte_xbegin() == RTE_XBEGIN_STARTED) {
			touched = i;
			rte_xend();
			committed++;
		}
	}
	return committed;
}
