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

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mbuf_dyn.h>
#include <rte_log.h>
#include <rte_mempool.h>

#include "port.h"
#include "shim.h"

/* EAL keeps pointers into its command line. */
static char memory_argument[16], lcores_argument[16], prefix_argument[48];

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
 * What DPDK and its drivers say goes through a stream of our own, which stays open: threads of EAL's may have it. While
 * a caller listens it is kept, as far as there is room, otherwise it goes to stderr.
 */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16 << 10];
static size_t log_length;
static int log_listened;

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
	pthread_mutex_lock(&log_lock);
	if (log_listened) {
		size_t room = sizeof(log_text) - 1 - log_length;
		size_t kept = length < room ? length : room;
		memcpy(log_text + log_length, text, kept);
		log_length += kept;
	} else if (fwrite(text, 1, length, stderr) < length) {
		/* There is no other place to report it. */
	}
	pthread_mutex_unlock(&log_lock);
	return (ssize_t)length;
}

/* One listener at a time: Rust sees to it. */
void hairpin_log_listen(void)
{
	pthread_mutex_lock(&log_lock);
	log_length = 0;
	log_listened = 1;
	pthread_mutex_unlock(&log_lock);
	rte_log_set_global_level(RTE_LOG_WARNING);
}

void hairpin_log_heard(char *log, size_t log_size)
{
	rte_log_set_global_level(RTE_LOG_CRIT);
	pthread_mutex_lock(&log_lock);
	log_text[log_length] = 0;
	snprintf(log, log_size, "%s", log_text);
	log_listened = 0;
	pthread_mutex_unlock(&log_lock);
}

/* Rust's own place in mbufs, the flag that says whether it is in use, and the one of examined frames. */
static int meta_field(void)
{
	static const struct rte_mbuf_dynfield field = {
		.name = "hairpin_meta", .size = HAIRPIN_META_SIZE, .align = HAIRPIN_META_SIZE,
	};

	static const struct rte_mbuf_dynflag written = { .name = "hairpin_written" };
	static const struct rte_mbuf_dynflag examined = { .name = "hairpin_examined" };

	if (rte_mbuf_dynfield_register_offset(&field, HAIRPIN_META) == HAIRPIN_META &&
	    rte_mbuf_dynflag_register_bitnum(&written, HAIRPIN_WRITTEN) == HAIRPIN_WRITTEN &&
	    rte_mbuf_dynflag_register_bitnum(&examined, HAIRPIN_EXAMINED) == HAIRPIN_EXAMINED)
		return 0;
	return rte_errno != 0 ? rte_errno : EIO;
}

/*
 * Starts EAL. To be called on a thread of its own, which ends afterwards: EAL pins its caller, and the threads that it
 * makes inherit their caller's signal mask. No file that stays, no telemetry. Afterwards only what is critical is said.
 */
int hairpin_eal_start(unsigned int memory_mib, int huge, int pci)
{
	static char *arguments[24];
	int count = 0;
	sigset_t all;

	snprintf(memory_argument, sizeof(memory_argument), "%u", memory_mib);
	snprintf(lcores_argument, sizeof(lcores_argument), "0@%d", first_cpu());
	snprintf(prefix_argument, sizeof(prefix_argument), "hairpin-%ld", (long)getpid());
	arguments[count++] = "hairpin";
	if (huge) {
		/* Pages are taken as they are asked for, and none of it is a file. */
		arguments[count++] = "--in-memory";
	} else {
		arguments[count++] = "--no-huge";
		arguments[count++] = "--no-shconf";
		arguments[count++] = "-m";
		arguments[count++] = memory_argument;
	}
	if (!pci)
		arguments[count++] = "--no-pci";
	/* Without PCI devices nothing needs other addresses, and with them EAL knows what their drivers need. */
	if (!pci || !huge)
		arguments[count++] = "--iova-mode=va";
	arguments[count++] = "--no-telemetry";
	arguments[count++] = "--lcores";
	arguments[count++] = lcores_argument;
	arguments[count++] = "--file-prefix";
	arguments[count++] = prefix_argument;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);

	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });
	if (stream == NULL)
		return errno;
	setvbuf(stream, NULL, _IOLBF, 1024);
	rte_openlog_stream(stream);
	rte_errno = 0;
	int started = rte_eal_init(count, arguments);
	int error = started >= 0 ? 0 : rte_errno != 0 ? rte_errno : EIO;
	fflush(stream);
	/* EAL may have taken another stream for its own. */
	rte_openlog_stream(stream);
	rte_log_set_global_level(RTE_LOG_CRIT);
	/* With --no-shconf nothing is in the directory that EAL made all the same, also if it did not start then. */
	rmdir(rte_eal_get_runtime_dir());
	return error != 0 ? error : meta_field();
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

/* What a thread keeps of a pool's for itself no other thread can have. */
static void flush_cache(struct rte_mempool *pool, void *unused)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());

	if (cache != NULL)
		rte_mempool_cache_flush(cache, pool);
}

void hairpin_thread_unregister(void)
{
	rte_mempool_walk(flush_cache, NULL);
	rte_thread_unregister();
}
