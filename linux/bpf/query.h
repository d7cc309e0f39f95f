/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reading and taking away many rules at a time, called by the process. */
#ifndef HAIRPIN_QUERY_H
#define HAIRPIN_QUERY_H

struct query {
	struct rule_query *query;
	__u32 ipv6;
	__u32 take;
};

static long query_one(__u32 index, void *argument)
{
	struct query *all = argument;
	struct rule_query *query = all->query;
	struct rule_counters *counters;
	struct rule_head *rule;
	struct flow_v4 v4;
	struct flow_v6 v6;

	if (index >= RULE_OPS_MAX)
		return 1;
	/* The process may write here at any time: use a copy of the key. */
	counters = &query->counters[index];
	if (all->ipv6) {
		v6 = query->v6[index];
		rule = bpf_map_lookup_elem(&rules_v6, &v6);
	} else {
		v4 = query->v4[index];
		rule = bpf_map_lookup_elem(&rules_v4, &v4);
	}
	counters->found = rule != NULL;
	if (!rule)
		return 0;
	counters->packets = rule->packets;
	counters->bytes = rule->bytes;
	counters->last_seen = rule->last_seen;
	if (all->take) {
		/* A packet that hits between here and there is not counted. */
		if (all->ipv6)
			bpf_map_delete_elem(&rules_v6, &v6);
		else
			bpf_map_delete_elem(&rules_v4, &v4);
	}
	return 0;
}

static __always_inline long query_all(const struct rule_request *request, __u32 take)
{
	__u32 index = request->query;
	struct query query = {
		.query = bpf_map_lookup_elem(&queries, &index),
		.ipv6 = request->ipv6,
		.take = take,
	};

	if (!query.query || request->count > RULE_OPS_MAX)
		return -1;
	bpf_loop(request->count, query_one, &query, 0);
	return 0;
}

SEC("syscall")
long rules_take(struct rule_request *request)
{
	return query_all(request, 1);
}

SEC("syscall")
long rules_sample(struct rule_request *request)
{
	return query_all(request, 0);
}
#endif
