/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The path to a worker, and handing a flow over from the worker to a rule without reordering it. */
#ifndef HAIRPIN_HANDOVER_H
#define HAIRPIN_HANDOVER_H

#define TICKET_MASK 0xffffff

/* What becomes of packets that no rule takes while no process serves the workers (`control.absent_drop`): they are left
 * to the kernel; dropped, but for what a backend's end sends to hosts that have no connection here; or dropped, all of
 * them, where no connection is tracked by which the two could be told apart. */
#define ABSENT_PASS 0
#define ABSENT_DROP 1
#define ABSENT_DROP_ALL 2

/* Whether no process serves the workers: the process has not written its heartbeat in time. */
static __always_inline bool is_absent(const struct control *control)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	/* The process reads a finer clock, which is a little ahead. */
	return now > control->heartbeat_ns && now - control->heartbeat_ns > control->heartbeat_timeout_ns;
}

/* Hands the frame to a worker, under a mark and with a ticket; or, without a process, does what is configured then. */
__noinline int to_worker(struct __sk_buff *skb, __u32 worker)
{
	struct control *control_now = single(&control);
	struct tickets *given = single(&tickets);
	__u32 ifindex = skb->ifindex, *device, *slot, ticket, cpu;
	__u8 *mark;

	if (!control_now || !given || worker >= WORKERS_MAX)
		return TC_ACT_SHOT;
	device = bpf_map_lookup_elem(&workers, &worker);
	slot = bpf_map_lookup_elem(&slots, &ifindex);
	if (is_absent(control_now) || !device || !*device || !slot) {
		count(control_now->absent_drop ? EVENT_ABSENT_DROP : EVENT_ABSENT_PASS);
		return control_now->absent_drop ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	}
	mark = (void *)(long)skb->data;
	if ((void *)mark + ETH_ALEN > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	/* The mask is for the verifier, which forgets the bound of what the map lookup took the address of. */
	ticket = ++given->last[worker & (WORKERS_MAX - 1)];
	cpu = bpf_get_smp_processor_id();
	mark[0] = MARK_RECEIVED;
	mark[1] = *slot;
	mark[2] = cpu;
	mark[3] = ticket >> 16;
	mark[4] = ticket >> 8;
	mark[5] = ticket;
	count(EVENT_TO_WORKER);
	return bpf_redirect(*device, 0);
}

/* Whether a rule that is not ACTIVE, whose word was `word`, takes this packet: the word that it has then, or 0. If not, the packet
 * must go to the rule's worker next: the fence is set to the ticket it will get there.
 *
 * Two CPUs may be here at once for one rule. Whatever they interleave to, the rule ends up either ACTIVE or behind
 * one of their fences, and `until` bounds that. */
static __noinline __u64 handed_over(struct rule_head *rule, __u64 word, __u32 now)
{
	union rule_way old = { .word = word }, new = old;
	struct processed *done = single(&processed);
	struct tickets *given = single(&tickets);
	struct control *control_now = single(&control);
	__u32 worker = old.worker, cpu = bpf_get_smp_processor_id(), fence, fence_cpu, finished;
	bool is_fenced = old.flags & RULE_FENCED, is_over = false;

	if (!done || !given || !control_now || worker >= WORKERS_MAX || cpu >= CPUS_MAX)
		return word;
	/* Behind that: 6.1 loses sight of the bound of `worker` otherwise. What is half written is no fresh rule. */
	if (old.flags & RULE_FILLING)
		return 0;
	fence = is_fenced ? rule->fence : cpu << 24 | (given->last[worker] & TICKET_MASK);
	fence_cpu = fence >> 24;
	finished = done->ticket[worker][fence_cpu];
	/* 24-bit signed difference. */
	if ((__s32)((finished - fence) << 8) >= 0 || is_absent(control_now)) {
		is_over = true;
	} else if (!is_fenced) {
		new.until = now + ((__u64)control_now->handover_ms * 1000000 >> 20) + 1;
	} else if ((__s32)(now - old.until) >= 0) {
		count(EVENT_HANDOVER_BOUND);
		is_over = true;
	}
	/* A next hop that was looked up before may be another one by the time that `until` says. What waits has a token there, what is
	 * ACTIVE has it in `until`. */
	new.next_hop = is_over ? 0 : token();
	if (is_over)
		new.until = token();
	else
		rule->fence = cpu << 24 | ((given->last[worker] + 1) & TICKET_MASK);
	new.flags = (old.flags & ~(RULE_ACTIVE | RULE_FENCED)) | (is_over ? RULE_ACTIVE : RULE_FENCED);
	/* Else another packet was faster, or the rule is another one: the worker gets this one. */
	return change_way(rule, old.word, new.word) && is_over ? new.word : 0;
}
#endif
