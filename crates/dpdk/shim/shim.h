/* What Rust calls (src/ffi.rs says the same). Everything works on bursts: no call per key. */
#ifndef HAIRPIN_DPDK_SHIM_H
#define HAIRPIN_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* eal.c. Functions that return int return 0 or a positive errno (rte_errno). */
int hairpin_eal_start(unsigned int memory_mib, int huge, int pci);
void hairpin_log_listen(void);
void hairpin_log_heard(char *log, size_t log_size);
const char *hairpin_strerror(int error);
int hairpin_thread_register(void);
void hairpin_thread_unregister(void);

#endif
