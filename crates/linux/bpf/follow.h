/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Segments with SYN, FIN or RST of flows that have rules. Where the process wants it (`control.follow`) they go by their
 * rules, and workers are told, so that no worker has to see a connection end. A report that finds no place makes the
 * segment the worker's: no end is lost.
 *
 * As in the worker no sequence number is looked at: what a forged FIN or RST does is to shorten a timeout, after which the
 * rule's counters tell whether the connection goes on. */
#ifndef HAIRPIN_FOLLOW_H
#define HAIRPIN_FOLLOW_H

#define RESERVE_TRIES 8 /* at a place in the queue of reports that other CPUs want, too */

/* Sized by the loader; an element each where nothing is set up. */
ARRAY(targets, BPF_MAP_TYPE_ARRAY, struct target, 1, 0);
ARRAY(reports, BPF_MAP_TYPE_ARRAY, struct reports, 1, BPF_F_MMAPABLE);

/* A place for a report; NULL if there is none. `*sequence` makes it whole. */
static __always_inline struct report *reserve(struct reports *all, __u32 *sequence)
{
	for (int i = 0; i < RESERVE_TRIES; i++) {
		__u32 head = *(volatile __u32 *)&all->head;

		if (head - *(volatile __u32 *)&all->tail >= REPORTS_MAX)
			break;
		if (__sync_val_compare_and_swap(&all->head, head, head + 1) == head) {
			*sequence = head + 1;
			return &all->reports[head & (REPORTS_MAX - 1)];
		}
	}
	count(EVENT_REPORTS_FULL);
	return NULL;
}

/* Whether the worker has room for a connection more. */
static __always_inline bool has_room(struct reports *all)
{
	if ((__s32)(*(volatile __u32 *)&all->allowed - *(volatile __u32 *)&all->made) > 0)
		return true;
	count(EVENT_SET_UP_NO_ROOM);
	return false;
}

/* Whether the backend with this number takes connections that are set up here. */
static __always_inline bool is_open(__u32 number)
{
	struct target *target = bpf_map_lookup_elem(&targets, &number);
	struct schedule *schedule;
	__u32 slot;

	if (!target || target->state != TARGET_OPEN)
		return false;
	slot = target->schedule;
	schedule = bpf_map_lookup_elem(&schedules, &slot);
	return schedule && *(volatile __u32 *)&schedule->length;
}

/* Whether the service of this backend has access rules, which a worker asks when a client begins anew. */
static __always_inline bool is_guarded(__u32 number)
{
	struct target *target = bpf_map_lookup_elem(&targets, &number);
	struct end_roles *roles = target ? bpf_map_lookup_elem(&ends, &target->vip) : NULL;

	return roles && roles->roles & END_ACCESS;
}

/* Whether a segment with these flags of TCP goes by a rule with these of its own. A SYN does where a client may begin anew, between the same ends, with
 * a backend that takes connections; a SYN-ACK only after one: else it may answer a connection that the client has made to
 * the backend itself. */
static __noinline bool follows(__u32 flags, __u32 total, __u32 tcp_flags)
{
	struct control *control_now = single(&control);

	if (!control_now || !control_now->follow)
		return false;
	if ((flags & (RULE_PASS | RULE_SEQUENCE | RULE_ACTIVE)) != RULE_ACTIVE)
		return false;
	if (!(tcp_flags & TCP_SYN))
		return true;
	if (tcp_flags & (TCP_FIN | TCP_RST))
		return false;
	if (total & 1)
		return tcp_flags & TCP_ACK && flags & RULE_OPENS;
	return !(tcp_flags & TCP_ACK) && is_open(total / 2) && !is_guarded(total / 2);
}

/* The rule of the other direction lets the SYN-ACK by. */
static __always_inline bool expect_answer(const void *rule, const union ends *own, __u8 protocol, const bool ipv6)
{
	struct rule_head *other;

	if (ipv6) {
		const struct rule_v6 *to = rule;
		const struct rule_head *head = rule;
		struct flow_v6 back = { .source_port = head->destination_port, .destination_port = head->source_port,
					.protocol = protocol };

		__builtin_memcpy(back.source, to->destination, 16);
		__builtin_memcpy(back.destination, to->source, 16);
		other = find_rule(&back, true);
		return other && other->flags & RULE_ACTIVE && change_flags(other, NULL, RULE_OPENS, 0, true);
	} else {
		const __be16 *ports = (const void *)&own->ports;
		struct flow_v4 back = { .source = own->addresses[1], .destination = own->addresses[0],
					.source_port = ports[1], .destination_port = ports[0], .protocol = protocol };

		other = find_rule(&back, false);
		return other && other->flags & RULE_ACTIVE && change_flags(other, &back, RULE_OPENS, 0, false);
	}
}

/* Tells the worker of a rule, whose word is `word`, of a segment that is about to go by it; whether there was a place for that. */
static __always_inline bool report_segment(const void *key, void *rule, const union ends *own, __u32 tcp_flags, __u64 word,
					   const bool ipv6)
{
	union rule_way way = { .word = word };
	__u32 worker = way.worker, sequence = 0;
	struct reports *all = bpf_map_lookup_elem(&reports, &worker);
	const struct flow_v4 *v4 = key;
	const struct flow_v6 *v6 = key;
	struct report *report;

	if (!all)
		return false;
	if (tcp_flags & TCP_SYN) {
		if (tcp_flags & TCP_ACK)
			change_flags(rule, key, 0, RULE_OPENS, ipv6);
		else if (!(way.flags & RULE_DIRECT) && !expect_answer(rule, own, ipv6 ? v6->protocol : v4->protocol, ipv6))
			return false;
	}
	report = reserve(all, &sequence);
	if (!report)
		return false;
	report->kind = REPORT_SEGMENT;
	report->tcp_flags = tcp_flags;
	if (ipv6) {
		end_from_v6(&report->key.client, v6->source, v6->source_port, v6->protocol);
		end_from_v6(&report->key.vip, v6->destination, v6->destination_port, v6->protocol);
	} else {
		end_from_v4(&report->key.client, v4->source, v4->source_port, v4->protocol);
		end_from_v4(&report->key.vip, v4->destination, v4->destination_port, v4->protocol);
	}
	__sync_lock_test_and_set(&report->sequence, sequence);
	count(EVENT_FOLLOWED);
	return true;
}

/* Functions of their own, which save stack. */
static __noinline bool report_segment_v4(const struct flow_v4 *key, struct rule_v4 *rule, const union ends *own, __u32 tcp_flags,
				       __u64 word)
{
	return report_segment(key, rule, own, tcp_flags, word, false);
}

static __noinline bool report_segment_v6(const struct flow_v6 *key, struct rule_v6 *rule, __u32 tcp_flags, __u64 word)
{
	return report_segment(key, rule, NULL, tcp_flags, word, true);
}
#endif
