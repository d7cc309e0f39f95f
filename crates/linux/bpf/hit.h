/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet that a rule matches. This is the path that must be short. */
#ifndef HAIRPIN_HIT_H
#define HAIRPIN_HIT_H

/* Looks the route of a rule up again whose word, ends and total are in `route_buffer`; its MTU and number are then there, too. Returns a
 * verdict: TC_ACT_REDIRECT if the packet leaves by the kernel's neighbour entry, TC_ACT_OK if by the next hop that the rule now has,
 * TC_ACT_SHOT if there is no route. */
static __always_inline int find_route(struct __sk_buff *skb, void *rule, __u32 l3, __u32 now, const bool ipv6)
{
	struct route_buffer *buffer = single(&route_buffer);
	struct bpf_fib_lookup *found;
	const volatile union rule_way *old;
	enum route_result result;
	union rule_way new;
	struct routed *routed;
	__u32 number = 0, mtu = 0;

	if (!buffer)
		return TC_ACT_SHOT;
	old = (const void *)&buffer->way;
	routed = &buffer->routed;
	found = &buffer->found;
	__builtin_memset(routed, 0, sizeof(*routed));
	routed->ifindex = skb->ifindex;
	routed->ipv6 = ipv6;
	if (bpf_skb_load_bytes(skb, l3, &routed->traffic, sizeof(routed->traffic)))
		return TC_ACT_SHOT;
	if (ipv6) {
		struct rule_v6 *to = rule;

		__builtin_memcpy(routed->source, to->source, 16);
		__builtin_memcpy(routed->destination, to->destination, 16);
	} else {
		const union ends *to = (const void *)buffer->ends;

		routed->source[0] = to->addresses[0];
		routed->destination[0] = to->addresses[1];
	}
	if (old->flags & RULE_DIRECT) {
		struct direct *direct = direct_of(buffer->total);

		if (direct && direct->overhead)
			aim_outer(routed, direct);
		else if (direct && direct->mixed)
			return TC_ACT_SHOT;
	}
	result = look_up(skb, routed, found, &mtu);
	buffer->next_hop.mtu = mtu;
	if (result == NO_ROUTE || (result == NO_NEIGHBOUR && l3 != ETH_HLEN))
		return TC_ACT_SHOT;
	if (old->flags & RULE_DIRECT && !routed->overhead && !is_on_link(routed, found))
		return TC_ACT_SHOT;
	if (result == ROUTE_FOUND) {
		write_next_hop(&buffer->next_hop, found, mtu, routed->overhead);
		number = number_of(&buffer->next_hop, now);
	}
	new.word = old->word;
	new.until = number ? now + TICKS_PER_SECOND : token();
	new.next_hop = number;
	number = change_way(rule, old->word, new.word) ? number : 0;
	buffer->number = number;
	if (l3 == ETH_HLEN)
		return redirect_neighbour(found);
	return number ? TC_ACT_OK : TC_ACT_SHOT;
}

static __noinline int find_route_v4(struct __sk_buff *skb, struct rule_v4 *rule, __u32 l3, __u32 now)
{
	return find_route(skb, rule, l3, now, false);
}

static __noinline int find_route_v6(struct __sk_buff *skb, struct rule_v6 *rule, __u32 l3, __u32 now)
{
	return find_route(skb, rule, l3, now, true);
}

/* To the rule's worker, which knows the connection: no policer. */
__noinline int divert(struct __sk_buff *skb, __u32 worker, __u32 why)
{
	count(why);
	return to_worker(skb, worker);
}

/* SYN, FIN and RST that do not go by their rules (follow.h) are the worker's, so that it sees connections begin and end.
 * While no worker is there a rule goes on forwarding them: a connection whose balancer is being restarted may end, and its
 * rule then ages out. */
static __noinline bool is_served(void)
{
	struct control *control_now = single(&control);

	return control_now && !is_absent(control_now);
}

/* To the backend `number`, which is hops away, by the verdict of the route. */
static __always_inline int send_wrapped(struct __sk_buff *skb, __u32 number, __u32 way, int verdict)
{
	const struct next_hop *next_hop;
	void *ethernet;

	if (!wrap(skb, number))
		return TC_ACT_SHOT;
	if (verdict != TC_ACT_OK)
		return verdict;
	next_hop = next_hop_at(way);
	if (!next_hop)
		return TC_ACT_SHOT;
	ethernet = (void *)(long)skb->data;
	if (ethernet + 2 * ETH_ALEN > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	address_frame(ethernet, next_hop);
	return bpf_redirect(next_hop->egress, 0);
}

/* `word` and `own`, the ends, are the rule's; of IPv4 a copy, so that nothing is read of a line that may be another rule's by now. (In
 * memory, not in registers: what is called has little stack.) */
static __always_inline int hit(struct __sk_buff *skb, const struct frame *f, void *rule, volatile union rule_way *word,
			       const union ends *own, void *changes, void *key, const struct headers *at, const bool ipv6)
{
	const volatile __u16 *total = &own->total;
	__u32 now = ticks(), gso_size = skb->gso_size, state, overhead = 0, mtu = 0, way;
	const union ends *ends;
	const struct next_hop *next_hop;
	__u64 sequence_sum = 0, sum;
	int verdict = TC_ACT_OK;
	__u8 flags = word->flags;
	bool followed = false;

	if (f->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) {
		followed = follows(flags, *total, f->tcp_flags);
		if (!followed && is_served())
			return divert(skb, word->worker, EVENT_RULE_FLAGS);
	}
	if (flags & RULE_PASS) {
		account(rule, f, gso_size, skb->gso_segs, now, *total);
		count(EVENT_PASS_RULE);
		return TC_ACT_UNSPEC;
	}
	if (f->hops <= 1)
		return divert(skb, word->worker, EVENT_RULE_TTL);
	if (flags & RULE_DIRECT) {
		struct direct *direct = direct_of(*total);

		overhead = direct ? direct->overhead : 0;
		/* The kernel puts no outer header behind a tag in band. */
		if (overhead && f->l3 != ETH_HLEN)
			return divert(skb, word->worker, EVENT_RULE_NO_ROUTE);
	}
	if (!(flags & RULE_ACTIVE)) {
		__u64 active = handed_over(rule, word->word, now);

		if (!active)
			return divert(skb, word->worker, EVENT_RULE_FENCED);
		if (!ipv6)
			word->word = active;
	}
	way = way_of(word, now);
	next_hop = next_hop_at(way);
	/* A router that gets what is wrapped must not get it bare: it would send it back. */
	if (next_hop && !overhead == !next_hop->wrapped) {
		mtu = next_hop->mtu;
	} else {
		struct route_buffer *buffer = single(&route_buffer);

		if (!buffer)
			return TC_ACT_SHOT;
		buffer->way = word->word;
		buffer->total = *total;
		if (!ipv6)
			__builtin_memcpy(buffer->ends, own, sizeof(buffer->ends));
		verdict = ipv6 ? find_route_v6(skb, rule, f->l3, now) : find_route_v4(skb, rule, f->l3, now);
		if (verdict == TC_ACT_SHOT)
			return divert(skb, word->worker, EVENT_RULE_NO_ROUTE);
		mtu = buffer->next_hop.mtu;
		way = buffer->number;
	}
	if ((gso_size ? f->headers + gso_size : f->length) + overhead > mtu)
		return divert(skb, word->worker, EVENT_RULE_MTU);
	if (flags & RULE_SEQUENCE && f->tcp)
		ends = renumber(rule, changes, key, f, at->ethernet, (void *)(long)skb->data_end, own, &sequence_sum, ipv6);
	else
		ends = ipv6 ? copy_ends(rule, flags) : own;
	if (!ends || ends->total != *total)
		return divert(skb, word->worker, EVENT_RULE_GUARD);
	/* Last of all that may make it the worker's. */
	if (followed && !(ipv6 ? report_segment_v6(key, rule, f->tcp_flags, word->word)
			       : report_segment_v4(key, rule, own, f->tcp_flags, word->word)) && is_served())
		return divert(skb, word->worker, EVENT_RULE_FLAGS);
	state = checksum_state(skb);
	if (flags & RULE_DIRECT)
		sum = lower_hops(at->network, ipv6);
	else
		sum = rewrite(ends, at->network, at->transport, f, sequence_sum, state, ipv6);
	if (state == CHECKSUM_COMPLETE)
		bpf_csum_update(skb, fold(sum));
	account(rule, f, gso_size, skb->gso_segs, now, *total);
	if (overhead)
		return send_wrapped(skb, *total / 2, way, verdict);
	if (verdict != TC_ACT_OK)
		return verdict;
	next_hop = next_hop_at(way);
	/* Never: a way that has been found is there. */
	if (!next_hop) {
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
	address_frame(at->ethernet, next_hop);
	return bpf_redirect(next_hop->egress, 0);
}
#endif
