/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Putting in, reading, taking away and passing on many rules at a time, called by the process. */
#ifndef HAIRPIN_QUERY_H
#define HAIRPIN_QUERY_H

enum query_what { QUERY_SAMPLE, QUERY_TAKE, QUERY_ASSIGN };

struct query {
	struct rule_query *query;
	__u32 ipv6;
	__u32 what;
	__u32 worker;
};

/* Removes a rule, with its sequence change. A packet that hits between the reading of its counters and here is not
 * counted. */
static __always_inline void take(const struct rule_head *rule, void *changes, void *key, const bool ipv6)
{
	__u8 flags = rule->flags;

	take_rule(key, ipv6);
	if (flags & RULE_SEQUENCE)
		bpf_map_delete_elem(changes, key);
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
		rule = find_rule(&v6, true);
	} else {
		v4 = query->v4[index];
		rule = find_rule(&v4, false);
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
		take(rule, &sequence_v6, &v6, true);
	else
		take(rule, &sequence_v4, &v4, false);
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

/* Whether packets of both rules meet the same ends and what is done with them is of the same kind. */
static __always_inline bool same_ends(const struct rule_head *a, const struct rule_head *b, const bool ipv6)
{
	const __u64 *of_a = (const void *)a, *of_b = (const void *)b;
	const __u32 first = offsetof(struct rule_head, source_port) / 8;
	__u64 differ = (of_a[first] ^ of_b[first]) | (of_a[first + 1] ^ of_b[first + 1]);

	if (ipv6)
		differ |= (of_a[first + 2] ^ of_b[first + 2]) | (of_a[first + 3] ^ of_b[first + 3]) |
			  (of_a[first + 4] ^ of_b[first + 4]);
	return !differ && !((a->flags ^ b->flags) & (RULE_PASS | RULE_SEQUENCE | RULE_DIRECT));
}

/* Writes a sequence change that packets may be reading: what they copy meanwhile fails the check. */
static __always_inline void write_change(struct sequence_change *there, const struct sequence_change *wanted)
{
	const volatile __u64 *from = (const void *)wanted;
	volatile __u64 *to = (void *)there;

	__sync_lock_test_and_set(&there->check, 0);
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
	to[4] = from[4];
	__sync_lock_test_and_set(&there->check, from[5]);
}

/* Replaces a rule. Whatever fails, fails before the old one is touched.
 *
 * One with the same ends is changed in place: its counters run on. ACTIVE is gone before the sequence change is
 * another (a packet that sets it at the same time can only undo that, and then a few may overtake others; nothing
 * else of the byte differs). Another takes the element's place, with its counters: a packet that has found the old
 * one and has not counted yet is not counted. Meanwhile old ends meet a new sequence change or the reverse, which
 * the check tells. */
static __always_inline int replace(struct rule_head *old, struct rule_head *new, struct sequence_change *wanted, void *key,
				    void *changes, const bool ipv6)
{
	const bool in_place = same_ends(old, new, ipv6);
	struct sequence_change *there = NULL;
	int error = 0;

	if (old->flags & RULE_SEQUENCE)
		there = bpf_map_lookup_elem(changes, key);
	if (new->flags & RULE_SEQUENCE && !there)
		error = bpf_map_update_elem(changes, key, wanted, BPF_ANY);
	if (error)
		return error;
	if (in_place) {
		*(volatile __u8 *)&old->flags = new->flags & ~RULE_ACTIVE;
		old->worker = new->worker;
	} else {
		new->packets = old->packets;
		new->bytes = old->bytes;
		new->last_seen = old->last_seen;
		error = put_rule(key, new, true, ipv6);
		if (error && !there)
			bpf_map_delete_elem(changes, key);
		if (error)
			return error;
	}
	if (there && new->flags & RULE_SEQUENCE)
		write_change(there, wanted);
	else if (there)
		bpf_map_delete_elem(changes, key);
	if (in_place && new->flags & RULE_ACTIVE) {
		union rule_way way = { .word = read_way(new) };

		/* As in handed_over(). */
		way.next_hop = 0;
		way.until = token();
		*(volatile __u64 *)&old->until = way.word;
	}
	return 0;
}

/* Puts one rule in, new or in place of another. */
static __always_inline int put(struct rule_head *new, struct sequence_change *wanted, void *key, void *changes, const bool ipv6)
{
	__u32 numbered = new->flags & RULE_SEQUENCE;
	struct rule_head *old;
	int error = 0;

	/* Most are new and have none. */
	if (!numbered)
		error = put_rule(key, new, false, ipv6);
	if (!numbered && error != -EEXIST)
		return error;
	old = find_rule(key, ipv6);
	if (old)
		return replace(old, new, wanted, key, changes, ipv6);
	/* The sequence change first: without it all its packets would be the worker's. */
	if (numbered)
		error = bpf_map_update_elem(changes, key, wanted, BPF_ANY);
	if (error)
		return error;
	error = put_rule(key, new, true, ipv6);
	if (error)
		bpf_map_delete_elem(changes, key);
	return error;
}

static long put_one(__u32 index, void *argument)
{
	struct query *all = argument;
	struct rule_query *query = all->query;
	struct flow_v4 v4;
	struct flow_v6 v6;
	int error;

	if (index >= RULE_OPS_MAX)
		return 1;
	if (all->ipv6) {
		v6 = query->v6[index];
		error = put(&query->rule_v6[index].head, &query->changes[index], &v6, &sequence_v6, true);
	} else {
		v4 = query->v4[index];
		error = put(&query->rule_v4[index].head, &query->changes[index], &v4, &sequence_v4, false);
	}
	query->counters[index].found = -error;
	return 0;
}

SEC("syscall")
long rules_put(struct rule_request *request)
{
	__u32 index = request->query;
	struct query query = {
		.query = bpf_map_lookup_elem(&queries, &index),
		.ipv6 = request->ipv6,
	};

	if (!query.query || request->count > RULE_OPS_MAX)
		return -1;
	bpf_loop(request->count, put_one, &query, 0);
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
