/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The maps, what the loader sets before it loads, and counting. */
#ifndef HAIRPIN_MAPS_H
#define HAIRPIN_MAPS_H

/* Sizes that depend on the configuration; the loader sets the real ones. */
#define RULES_MAX_DEFAULT 1024

/* Read-only data: constants to the verifier. */
const volatile __u32 to_kernel_mark = 0; /* skb->mark of frames that a worker passes to the kernel; the loader draws it */
/* What TTL and hop limit are lowered by; 0 only where programs are measured by repetition. */
const volatile __u8 hop = 1;

#define HASH(map_name, key_type, value_type, entries, flags) \
	struct { \
		__uint(type, BPF_MAP_TYPE_HASH); \
		__type(key, key_type); \
		__type(value, value_type); \
		__uint(max_entries, entries); \
		__uint(map_flags, flags); \
	} map_name SEC(".maps")

/* Where rules of IPv4 lie that find no line in their bucket: LINES times the number of an element of `rules_v4`, and a line. */
HASH(spilled_v4, struct flow_v4, __u32, RULES_MAX_DEFAULT, BPF_F_NO_PREALLOC);
/* Preallocated: an element starts at a cache line, which one from the allocator does not, and installing never
 * waits for memory or fails for want of it. */
HASH(rules_v6, struct flow_v6, struct rule_v6, RULES_MAX_DEFAULT, 0);
/* Few rules have them. */
HASH(sequence_v4, struct flow_v4, struct sequence_change, RULES_MAX_DEFAULT, BPF_F_NO_PREALLOC);
HASH(sequence_v6, struct flow_v6, struct sequence_change, RULES_MAX_DEFAULT, BPF_F_NO_PREALLOC);
HASH(ends, struct end, struct end_roles, SERVICES_MAX + BACKENDS_MAX, BPF_F_NO_PREALLOC);
HASH(slots, __u32, __u32, INTERFACES_MAX, 0);

/* Health checks under way: this host's end, and the number of the backend. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct end);
	__type(value, __u32);
	__uint(max_entries, CHECKS_MAX);
} checks SEC(".maps");

struct address {
	__u8 bytes[16];
};
HASH(addresses, struct address, __u32, SERVICES_MAX + POOL_ADDRESSES_MAX, BPF_F_NO_PREALLOC);

#define ARRAY(map_name, map_type, value_type, entries, flags) \
	struct { \
		__uint(type, map_type); \
		__type(key, __u32); \
		__type(value, value_type); \
		__uint(max_entries, entries); \
		__uint(map_flags, flags); \
	} map_name SEC(".maps")

ARRAY(rules_v4, BPF_MAP_TYPE_ARRAY, struct rule_bucket, RULES_MAX_DEFAULT, 0);
ARRAY(rules_v4_count, BPF_MAP_TYPE_ARRAY, __u32, 1, 0);
ARRAY(next_hops, BPF_MAP_TYPE_ARRAY, struct next_hop, NEXT_HOPS_MAX, 0);
ARRAY(control, BPF_MAP_TYPE_ARRAY, struct control, 1, BPF_F_MMAPABLE);
ARRAY(processed, BPF_MAP_TYPE_ARRAY, struct processed, 1, BPF_F_MMAPABLE);
ARRAY(known, BPF_MAP_TYPE_ARRAY, struct known, 1, BPF_F_MMAPABLE);
ARRAY(policer_rates, BPF_MAP_TYPE_ARRAY, struct policer_rates, 1, BPF_F_MMAPABLE);
ARRAY(queries, BPF_MAP_TYPE_ARRAY, struct rule_query, WORKERS_MAX + 1, BPF_F_MMAPABLE);
ARRAY(interfaces, BPF_MAP_TYPE_ARRAY, struct interface, INTERFACES_MAX, 0);
ARRAY(workers, BPF_MAP_TYPE_ARRAY, __u32, WORKERS_MAX, 0); /* ifindex of the worker's device */
ARRAY(tickets, BPF_MAP_TYPE_PERCPU_ARRAY, struct tickets, 1, 0);
ARRAY(policers, BPF_MAP_TYPE_PERCPU_ARRAY, struct policer, SERVICES_MAX * 2, 0);
ARRAY(events, BPF_MAP_TYPE_PERCPU_ARRAY, struct events, 1, 0);
ARRAY(directs, BPF_MAP_TYPE_ARRAY, struct direct, BACKENDS_MAX, 0);
ARRAY(totals, BPF_MAP_TYPE_PERCPU_ARRAY, struct total, BACKENDS_MAX * 2, 0);

/* The interfaces that XDP may send by, under their ifindex. The kernel takes a device out that goes. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, INTERFACES_MAX);
} devices SEC(".maps");

/* The only element of a map that has one. */
static __always_inline void *single(void *map)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(map, &zero);
}

static __always_inline void count(__u32 event)
{
	struct events *all = single(&events);

	if (all && event < EVENTS)
		all->count[event]++;
}

/* The clock of rules: coarse monotonic time, 1.05 ms a tick. */
static __always_inline __u32 ticks(void)
{
	return bpf_ktime_get_coarse_ns() >> 20;
}

#define TICKS_PER_SECOND 954
#endif
