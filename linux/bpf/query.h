/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reading, taking away and passing on many rules at a time, called by the process. */
#ifndef HAIRPIN_QUERY_H
#define HAIRPIN_QUERY_H

enum query_what { QUERY_SAMPLE, QUERY_TAKE, QUERY_ASSIGN };

struct query {
	struct rule_query *query;
	__u32 ipv6;
	__u32 what;
	__u32 worker;
};

/* Takes a rule away, with its numbers. A packet that hits between the reading of its counters and here is not
 * counted. */
static __always_inline void take(const struct rule_head *rule, void *rules, void *numbers, void *key)
{
	__u8 flags = rule->flags;

	bpf_map_delete_elem(rules, key);
	if (flags & RULE_NUMBERS)
		bpf_map_delete_elem(numbers, key);
}

/* Makes a rule another worker's. Tickets are counted by worker: a fence says nothing about the new one's, so a
 * hand-over that is under way starts again. A packet that sets or reaches the fence at the same time may undo this;
 * then the rule becomes ACTIVE by its bound, or, if the new worker's tickets happen to be beyond the fence, a little
 * early. */
static __always_inline void assign(struct rule_head *rule, __u32 worker)
{
	__u8 flags = rule->flags;

	rule->worker = worker;
	if (!(flags & RULE_ACTIVE))
		rule->flags = flags & ~RULE_FENCED;
}

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
	if (all->what == QUERY_ASSIGN)
		assign(rule, all->worker);
	if (all->what != QUERY_TAKE)
		return 0;
	if (all->ipv6)
		take(rule, &rules_v6, &numbers_v6, &v6);
	else
		take(rule, &rules_v4, &numbers_v4, &v4);
	return 0;
}

static __always_inline long query_all(const struct rule_request *request, __u32 what)
{
	__u32 index = request->query;
	struct query query = {
		.query = bpf_map_lookup_elem(&queries, &index),
		.ipv6 = request->ipv6,
		.what = what,
		.worker = request->worker,
	};

	if (!query.query || request->count > RULE_OPS_MAX || query.worker >= WORKERS_MAX)
		return -1;
	bpf_loop(request->count, query_one, &query, 0);
	return 0;
}

SEC("syscall")
long rules_take(struct rule_request *request)
{
	return query_all(request, QUERY_TAKE);
}

SEC("syscall")
long rules_sample(struct rule_request *request)
{
	return query_all(request, QUERY_SAMPLE);
}

SEC("syscall")
long rules_assign(struct rule_request *request)
{
	return query_all(request, QUERY_ASSIGN);
}
#endif
