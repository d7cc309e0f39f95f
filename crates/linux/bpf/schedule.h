/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which backend a connection gets that is set up without a worker. */
#ifndef HAIRPIN_SCHEDULE_H
#define HAIRPIN_SCHEDULE_H

/* Sized by the loader; one element where nothing is set up. */
ARRAY(schedules, BPF_MAP_TYPE_ARRAY, struct schedule, 1, BPF_F_MMAPABLE);

/* The hashes of crates/core/src/balance: bit for bit. */
#define HASH_FLOW 0x666c6f773a763031ULL
#define HASH_SOURCE 0x736f757263653a31ULL

static __always_inline __u64 mix(__u64 state, __u64 word)
{
	__u64 x = (state ^ word) + 0x9E3779B97F4A7C15ULL;

	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
	return x ^ (x >> 31);
}

static __always_inline __u64 hash_address(__u64 seed, const struct end *end)
{
	__u64 words[2];

	__builtin_memcpy(words, end->address, 16);
	return mix(mix(seed, bpf_be64_to_cpu(words[0])), bpf_be64_to_cpu(words[1]));
}

static __always_inline __u64 hash_flow(const struct pending_key *key, __u32 ipv6)
{
	const struct end *client = &key->client, *vip = &key->vip;
	__u64 hash, ports = bpf_ntohs(client->port) << 16 | bpf_ntohs(vip->port);
	__be32 from, to;

	if (ipv6) {
		hash = mix(hash_address(HASH_FLOW, client), bpf_ntohs(client->port));
		hash = mix(hash_address(hash, vip), bpf_ntohs(vip->port));
		return mix(hash, vip->protocol);
	}
	__builtin_memcpy(&from, client->address + 12, 4);
	__builtin_memcpy(&to, vip->address + 12, 4);
	hash = mix(HASH_FLOW, (__u64)bpf_ntohl(from) << 32 | bpf_ntohl(to));
	return mix(hash, (__u64)vip->protocol << 32 | (__u32)ports);
}

/* The number of the backend for a new connection; SCHEDULE_NONE: the worker chooses. */
static __noinline __u32 choose(__u32 slot, const struct pending_key *key, __u32 ipv6)
{
	__u32 length, at;
	struct schedule *schedule = bpf_map_lookup_elem(&schedules, &slot);
	__u64 hash;

	if (!schedule)
		return SCHEDULE_NONE;
	length = *(volatile __u32 *)&schedule->length;
	if (!length)
		return SCHEDULE_NONE;
	if (schedule->kind == SCHEDULE_TURNS) {
		at = __sync_fetch_and_add(&schedule->turn, 1) % length;
	} else {
		hash = schedule->kind == SCHEDULE_SOURCE ? hash_address(HASH_SOURCE, &key->client) :
							   hash_flow(key, ipv6);
		/* The upper half of hash * SCHEDULE_MAX, which is 2^16 + 1. */
		at = (hash >> 48) + ((hash << 16) + hash < hash);
	}
	if (at >= SCHEDULE_MAX)
		return SCHEDULE_NONE;
	return *(volatile __u16 *)&schedule->backends[at];
}

/* Counts what has begun, or was answered first. */
static __noinline int note(__u32 slot, __u32 answered)
{
	struct schedule *schedule = bpf_map_lookup_elem(&schedules, &slot);

	if (!answered)
		count(EVENT_SET_UP_BEGUN);
	if (schedule)
		__sync_fetch_and_add(answered ? &schedule->answered : &schedule->begun, 1);
	return 0;
}
#endif
