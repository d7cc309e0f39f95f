/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Access rules: which clients' packets may begin a connection. They are asked for packets that no rule takes and that are of no
 * known connection, and for SYNs. crates/core/src/access.rs says how rules become prefixes.
 *
 * All services' prefixes lie in one trie. The process fills another one beside it, which then takes its place: each packet
 * meets the one or the other. */
#ifndef HAIRPIN_ACCESS_H
#define HAIRPIN_ACCESS_H

/* Of what is only pointed at here clang leaves out what a named structure has, so sizes stand for types. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, 1);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_LPM_TRIE);
		__uint(key_size, sizeof(struct access_key));
		__uint(value_size, sizeof(struct access_value));
		__uint(max_entries, 1); /* each that the process makes has as many as it needs */
		__uint(map_flags, BPF_F_NO_PREALLOC);
	});
} access_rules SEC(".maps");

/* By service and rule: packets that the rule has refused or counted. */
ARRAY(access_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u64, SERVICES_MAX * ACCESS_RULES_MAX, 0);

static __always_inline void count_access(__u32 service, __u32 rule)
{
	__u32 index = service * ACCESS_RULES_MAX + rule;
	__u64 *packets = bpf_map_lookup_elem(&access_counts, &index);

	if (packets)
		(*packets)++;
}

/* As is_pending(), with less on the stack. Who begins a connection writes the key anew. */
static __always_inline bool is_half_open(const struct end *source, const struct end *destination, const struct end_roles *roles)
{
	struct beginning *begun = single(&beginnings);

	if (!begun || !(roles->roles & END_SET_UP))
		return false;
	begun->key.client = *source;
	begun->key.vip = *destination;
	return bpf_map_lookup_elem(&pending, &begun->key);
}

/* Whether a rule of the service refuses a packet that may begin a connection: of none that is known or in `pending`. What passes in
 * a driver is judged again behind it, and counted there. All of it is here, where it costs callers no stack. */
__noinline int is_denied(const struct end *source, const struct end *destination, const struct end_roles *roles, __u64 shape,
			 __u32 in_driver)
{
	struct access_key key = { .length = ACCESS_KEY_BITS };
	struct control *control_now;
	struct access_value *value;
	void *trie;

	if (!source || !destination || !roles || !(roles->roles & END_ACCESS))
		return false;
	control_now = single(&control);
	trie = single(&access_rules);
	if (!control_now || !trie || (!opens(shape) && is_known(steer_hash(control_now, source))))
		return false;
	key.service = roles->service;
	__builtin_memcpy(key.client, source->address, 16);
	value = bpf_map_lookup_elem(trie, &key);
	if (!value || (value->denied == ACCESS_NO_RULE && value->counted == ACCESS_NO_RULE))
		return false;
	if (!opens(shape) && is_half_open(source, destination, roles))
		return false;
	/* Of TCP only a SYN can be counted: the packets that follow it may be of no known connection either. */
	if (value->counted != ACCESS_NO_RULE && (opens(shape) || source->protocol != IPPROTO_TCP) &&
	    (!in_driver || value->denied != ACCESS_NO_RULE))
		count_access(key.service, value->counted);
	if (value->denied == ACCESS_NO_RULE)
		return false;
	count_access(key.service, value->denied);
	count(EVENT_DENIED);
	return true;
}
#endif
