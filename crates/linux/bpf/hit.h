/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet that a rule matches. This is the path that must be short. */
#ifndef HAIRPIN_HIT_H
#define HAIRPIN_HIT_H

/* Looks the rule's route up again; its MTU is then in `route_buffer`. Returns a verdict: TC_ACT_REDIRECT if the packet leaves by the
 * kernel's neighbour entry, TC_ACT_OK if by the next hop that the rule now has, TC_ACT_SHOT if there is no route. */
static __always_inline int find_route(struct __sk_buff *skb, void *rule, __u32 l3, __u32 now, const bool ipv6)
{
	struct rule_head *head = rule;
	struct route_buffer *buffer = single(&route_buffer);
	struct bpf_fib_lookup *found;
	enum route_result result;
	union rule_way new;
	struct routed *routed;
	__u32 number = 0, mtu = 0;

	if (!buffer)
		return TC_ACT_SHOT;
	buffer->way = read_way(head);
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
		struct rule_v4 *to = rule;

		routed->source[0] = to->source;
		routed->destination[0] = to->destination;
	}
	if (head->flags & RULE_DIRECT) {
		struct direct *direct = direct_of(head);

		if (direct && direct->overhead)
			aim_outer(routed, direct);
		else if (direct && direct->mixed)
			return TC_ACT_SHOT;
	}
	result = look_up(skb, routed, found, &mtu);
	buffer->next_hop.mtu = mtu;
	if (result == NO_ROUTE || (result == NO_NEIGHBOUR && l3 != ETH_HLEN))
		return TC_ACT_SHOT;
	if (head->flags & RULE_DIRECT && !routed->overhead && !is_on_link(routed, found))
		return TC_ACT_SHOT;
	if (result == ROUTE_FOUND) {
		write_next_hop(&buffer->next_hop, found, mtu, routed->overhead);
		number = number_of(&buffer->next_hop, now);
	}
	new.word = buffer->way;
	new.until = number ? now + TICKS_PER_SECOND : now;
	new.next_hop = number;
	number = change_way(head, buffer->way, new.word) ? number : 0;
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

static __always_inline int hit(struct __sk_buff *skb, const struct frame *f, void *rule, void *changes, void *key,
			       const struct headers *at, const bool ipv6)
{
	struct rule_head *head = rule;
	__u32 now = ticks(), gso_size = skb->gso_size, state, overhead = 0, mtu = 0, way;
	const struct next_hop *next_hop;
	const union ends *ends;
	__u64 own[2]; /* ends of IPv4 */
	__u64 sequence_sum = 0, sum;
	int verdict = TC_ACT_OK;
	__u8 flags = head->flags;
	bool followed = false;

	if (f->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) {
		followed = follows(head, f->tcp_flags);
		if (!followed && is_served())
			return divert(skb, head->worker, EVENT_RULE_FLAGS);
	}
	if (flags & RULE_PASS) {
		account(head, f, gso_size, skb->gso_segs, now);
		count(EVENT_PASS_RULE);
		return TC_ACT_UNSPEC;
	}
	if (f->hops <= 1)
		return divert(skb, head->worker, EVENT_RULE_TTL);
	if (flags & RULE_DIRECT) {
		struct direct *direct = direct_of(head);

		overhead = direct ? direct->overhead : 0;
		/* The kernel puts no outer header behind a tag in band. */
		if (overhead && f->l3 != ETH_HLEN)
			return divert(skb, head->worker, EVENT_RULE_NO_ROUTE);
	}
	if (!(flags & RULE_ACTIVE) && !handed_over(head, now))
		return divert(skb, head->worker, EVENT_RULE_FENCED);
	way = way_of(head, now);
	next_hop = next_hop_at(way);
	/* A router that gets what is wrapped must not get it bare: it would send it back. */
	if (next_hop && !overhead == !next_hop->wrapped) {
		mtu = next_hop->mtu;
	} else {
		const struct route_buffer *buffer = single(&route_buffer);

		verdict = ipv6 ? find_route_v6(skb, rule, f->l3, now) : find_route_v4(skb, rule, f->l3, now);
		if (verdict == TC_ACT_SHOT || !buffer)
			return divert(skb, head->worker, EVENT_RULE_NO_ROUTE);
		mtu = buffer->next_hop.mtu;
		way = head->next_hop;
	}
	if ((gso_size ? f->headers + gso_size : f->length) + overhead > mtu)
		return divert(skb, head->worker, EVENT_RULE_MTU);
	if (flags & RULE_SEQUENCE && f->tcp)
		ends = renumber(rule, changes, key, f, at->ethernet, (void *)(long)skb->data_end, (union ends *)own, &sequence_sum, ipv6);
	else
		ends = copy_ends(rule, key, flags, (union ends *)own, ipv6);
	if (!ends)
		return divert(skb, head->worker, EVENT_RULE_GUARD);
	/* Last of all that may make it the worker's. */
	if (followed && !(ipv6 ? report_segment_v6(key, rule, f->tcp_flags) : report_segment_v4(key, rule, f->tcp_flags)) &&
	    is_served())
		return divert(skb, head->worker, EVENT_RULE_FLAGS);
	state = checksum_state(skb);
	if (flags & RULE_DIRECT)
		sum = lower_hops(at->network, ipv6);
	else
		sum = rewrite(ends, at->network, at->transport, f, sequence_sum, state, ipv6);
	if (state == CHECKSUM_COMPLETE)
		bpf_csum_update(skb, fold(sum));
	account(head, f, gso_size, skb->gso_segs, now);
	if (overhead)
		return send_wrapped(skb, head->total / 2, way, verdict);
	if (verdict != TC_ACT_OK)
		return verdict;
	next_hop = next_hop_at(way);
	/* The rule has been replaced since its route was looked up. */
	if (!next_hop) {
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
	address_frame(at->ethernet, next_hop);
	return bpf_redirect(next_hop->egress, 0);
}
#endif
