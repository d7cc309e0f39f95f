/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Holds back packets that belong to no known connection, so that a flood of them does not keep the workers from their
 * work: a token bucket per CPU and service. */
#ifndef HAIRPIN_POLICER_H
#define HAIRPIN_POLICER_H

#define TOKEN 1000000ULL /* one packet, in millionths */
#define BURST_MIN 64     /* packets */
#define SECOND 1000000000ULL

/* What a bucket of `pps` packets per second holds now: a tenth of a second's packets at most. */
static __always_inline __u64 tokens_of(const struct policer *policer, __u32 pps, __u64 now)
{
	__u64 elapsed = now - policer->last_ns, most, tokens;

	if (elapsed > SECOND)
		elapsed = SECOND;
	most = (__u64)pps * (TOKEN / 10);
	if (most < BURST_MIN * TOKEN)
		most = BURST_MIN * TOKEN;
	tokens = policer->tokens + elapsed * pps / 1000;
	return tokens > most ? most : tokens;
}

/* Whether a bucket of `pps` packets per second has a token for this packet, which takes it. */
__noinline int admitted(__u32 bucket, __u32 pps)
{
	struct policer *policer = bpf_map_lookup_elem(&policers, &bucket);
	__u64 now, tokens;

	if (pps == 0xffffffff || !policer)
		return true;
	now = bpf_ktime_get_coarse_ns();
	tokens = tokens_of(policer, pps, now);
	policer->last_ns = now;
	policer->tokens = tokens < TOKEN ? tokens : tokens - TOKEN;
	return tokens >= TOKEN;
}

/* Whether a packet that is policed towards this service would find no token: a look from XDP, which takes none. The program at
 * tc ingress takes that of a packet that passes. */
static __always_inline bool is_exhausted(__u32 service)
{
	struct policer_rates *rates = single(&policer_rates);
	struct policer *policer = bpf_map_lookup_elem(&policers, &service);

	if (!rates || !policer || service >= SERVICES_MAX || rates->client_pps[service] == 0xffffffff)
		return false;
	return tokens_of(policer, rates->client_pps[service], bpf_ktime_get_coarse_ns()) < TOKEN;
}

/* Whether a live connection may stand behind a packet with this steering hash. */
static __always_inline bool is_known(__u64 hash)
{
	struct known *all = single(&known);

	return all && all->cells[hash & (KNOWN_CELLS - 1)];
}

static __always_inline bool client_admitted(__u32 service)
{
	struct policer_rates *rates = single(&policer_rates);

	return rates && service < SERVICES_MAX && admitted(service, rates->client_pps[service]);
}

static __always_inline bool backend_admitted(const struct control *control, __u32 service)
{
	return service < SERVICES_MAX && admitted(SERVICES_MAX + service, control->policer_backend_pps);
}
#endif
