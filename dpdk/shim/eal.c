/* DPDK's environment: starting it without side effects on the process, threads' lcore ids, transactional memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_cpuflags.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_rtm.h>

#include "shim.h"

/* EAL keeps pointers into its command line. */
static char memory_argument[16], lcores_argument[16], prefix_argument[48];

/* Where a transaction stores. */
static volatile unsigned int touched;

/* The lowest CPU that this thread may run on. */
static int first_cpu(void)
{
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
			if (CPU_ISSET(cpu, &cpus))
				return cpu;
	return 0;
}

/*
 * Starts EAL. To be called on a thread of its own, which ends afterwards: EAL pins its caller, and the threads that it
 * makes inherit their caller's signal mask. No file, no telemetry, no PCI device; what it logs goes to `log`.
 */
int hairpin_eal_start(unsigned int memory_mib, char *log, size_t log_size)
{
	char *arguments[] = {
		"hairpin", "--no-huge", "-m", memory_argument, "--no-shconf", "--no-pci", "--no-telemetry",
		"--iova-mode=va", "--lcores", lcores_argument, "--file-prefix", prefix_argument, NULL,
	};
	char *text = NULL;
	size_t length = 0;
	sigset_t all;

	snprintf(memory_argument, sizeof(memory_argument), "%u", memory_mib);
	snprintf(lcores_argument, sizeof(lcores_argument), "0@%d", first_cpu());
	snprintf(prefix_argument, sizeof(prefix_argument), "hairpin-%ld", (long)getpid());
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);

	FILE *stream = open_memstream(&text, &length);
	if (stream == NULL)
		return errno;
	rte_openlog_stream(stream);
	rte_errno = 0;
	int started = rte_eal_init((int)(sizeof(arguments) / sizeof(*arguments)) - 1, arguments);
	int error = started >= 0 ? 0 : rte_errno != 0 ? rte_errno : EIO;
	/* From here on only what is critical is said, on stderr. The stream stays open: a thread of EAL's may have it. */
	rte_openlog_stream(NULL);
	rte_log_set_global_level(RTE_LOG_CRIT);
	fflush(stream);
	snprintf(log, log_size, "%s", text != NULL ? text : "");
	/* With --no-shconf nothing is in the directory that EAL made all the same. */
	if (error == 0)
		rmdir(rte_eal_get_runtime_dir());
	return error;
}

const char *hairpin_strerror(int error)
{
	return rte_strerror(error);
}

int hairpin_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return 0;
	rte_errno = 0;
	return rte_thread_register() == 0 ? 0 : rte_errno != 0 ? rte_errno : EIO;
}

void hairpin_thread_unregister(void)
{
	rte_thread_unregister();
}

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
