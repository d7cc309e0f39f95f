/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The program in the drivers of the named interfaces, before the kernel makes a socket buffer. It forwards what a rule
 * takes as it stands, changes the same bytes as hit.h, answers SYNs with the cookies of cookie.h, and drops what tc would
 * refuse. Whatever needs more - a worker, a route, a hand-over, tags, extension headers - passes unchanged, and the program at
 * tc ingress decides. */
#ifndef HAIRPIN_XDP_H
#define HAIRPIN_XDP_H

/* The named interface that the frame came in by, if the frame is addressed to it; else NULL. */
static __always_inline const struct interface *addressed(const struct xdp_md *ctx, const struct ethhdr *ethernet)
{
	__u32 ifindex = ctx->ingress_ifindex, *slot = bpf_map_lookup_elem(&slots, &ifindex);
	const struct interface *interface;
	const __u16 *to = (const void *)ethernet->h_dest, *own;

	if (!slot)
		return NULL;
	interface = bpf_map_lookup_elem(&interfaces, slot);
	if (!interface)
		return NULL;
	own = (const void *)interface->address;
	return to[0] == own[0] && to[1] == own[1] && to[2] == own[2] ? interface : NULL;
}

static __always_inline bool is_followed(void)
{
	struct control *control_now = single(&control);

	return control_now && control_now->follow;
}

/* Whether a rule takes the packet by itself: what hit.h forwards without asking a worker or the kernel's tables. */
static __always_inline bool takes(__u8 flags, const struct frame *f, const struct next_hop *next_hop)
{
	if ((flags & (RULE_ACTIVE | RULE_PASS)) != RULE_ACTIVE)
		return false;
	if (f->hops <= 1 || f->length > next_hop->mtu)
		return false;
	return !(f->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) || (!is_served() && !is_followed());
}

/* Whether a rule of direct server return takes the packet by itself, too, under `overhead` bytes of outer headers: its next hop
 * is that of what the backend is to get, and the outer header's source is known. */
static __always_inline bool takes_direct(const struct next_hop *next_hop, const struct frame *f, const struct direct *direct,
					 __u32 overhead)
{
	if (!overhead != !next_hop->wrapped || f->length + overhead > next_hop->mtu)
		return false;
	return direct && (!overhead || has_source(direct));
}

static __always_inline int forward(struct xdp_md *ctx, const struct frame *f, void *rule, const struct found_v4 *found, void *changes,
				   const void *key, const struct headers *at, const struct interface *interface, const bool ipv6)
{
	union rule_way way = { .word = ipv6 ? read_way(rule) : found->way };
	const union ends *ends, *own = ipv6 ? ends_of(rule) : (const void *)found->ends;
	const struct next_hop *next_hop;
	__u32 now = ticks(), overhead = 0;
	struct out out = { .way = way_of(&way, now), .total = own->total };
	__u8 flags = way.flags;
	__u64 sum = 0;

	next_hop = next_hop_at(out.way);
	if (!next_hop || !takes(flags, f, next_hop))
		return XDP_PASS;
	if (flags & RULE_DIRECT) {
		const struct direct *direct = direct_of(out.total);

		overhead = direct ? direct->overhead : 0;
		if (!takes_direct(next_hop, f, direct, overhead))
			return XDP_PASS;
	}
	/* Nothing is changed before it is known that the packet goes out from here. */
	out.verdict = way_out(ctx, next_hop->egress, interface->sends_back);
	if (out.verdict == XDP_PASS)
		return XDP_PASS;
	if (flags & RULE_SEQUENCE && f->tcp)
		ends = renumber(rule, changes, key, f, at->ethernet, (void *)(long)ctx->data_end, own, &sum, ipv6);
	else
		ends = ipv6 ? copy_ends(rule, flags) : own;
	if (!ends || ends->total != out.total)
		return XDP_PASS;
	if (overhead) {
		int verdict = ipv6 ? wrap_in_driver_v6(ctx, &out, key) : wrap_in_driver_v4(ctx, &out, key);

		if (verdict == XDP_PASS || verdict == XDP_DROP)
			return verdict;
	} else {
		if (flags & RULE_DIRECT)
			lower_hops(at->network, ipv6);
		else
			rewrite(ends, at->network, at->transport, f, sum, CHECKSUM_WHOLE, ipv6);
		address_frame(at->ethernet, next_hop);
	}
	account(rule, f, 0, 0, now, out.total);
	count(EVENT_XDP);
	return out.verdict;
}

/* A packet of no known connection, as far as the policer has to be asked. */
static __noinline int police_in_driver(const struct control *control, const struct end *source, const struct end *destination,
				       const struct end_roles *roles, __u32 is_opening)
{
	if (!is_opening && (is_known(steer_hash(control, source)) || is_pending(source, destination, roles)))
		return XDP_PASS;
	if (!is_exhausted(roles->service))
		return XDP_PASS;
	count(EVENT_POLICED_CLIENT);
	return XDP_DROP;
}

/* A packet that no rule takes, to a service: the same as miss(), as far as nothing is needed for it but the frame's bytes. */
static __always_inline int miss_in_driver(struct xdp_md *ctx, const struct end *source, const struct end *destination,
					  __u32 ipv6, __u64 shape)
{
	struct control *control_now = single(&control);
	struct end_roles *roles = bpf_map_lookup_elem(&ends, destination);
	int verdict;

	if (!control_now || !control_now->workers || !roles ||
	    (roles->roles & (END_SERVICE | END_TERMINATED)) != END_SERVICE)
		return XDP_PASS;
	if (is_denied(source, destination, roles, shape, true))
		return XDP_DROP;
	if (roles->roles & END_SPLICED) {
		verdict = spliced_in_driver(ctx, source, destination, ipv6, shape | offered(roles));
		if (verdict == STRANGE || verdict == STRANGE_DATA) {
			if (roles->roles & END_RESETS && !is_exhausted(roles->service))
				return XDP_PASS;
			count_strange(verdict);
			return XDP_DROP;
		}
		if (verdict != UNDECIDED)
			return verdict;
	}
	return police_in_driver(control_now, source, destination, roles, opens(shape));
}

/* Whether the packet is as long as it says. */
static __always_inline bool is_whole(const struct frame *f, const void *data, const void *end)
{
	return f->length >= f->headers && f->length + ETH_HLEN <= (__u64)(end - data);
}

#define MISSED -1 /* no verdict: no rule has the packet, whose ends are known */

static __always_inline int xdp_v4(struct xdp_md *ctx, struct frame *f, const struct interface *interface, struct end *source,
				  struct end *destination)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow_v4 key = {};
	struct headers at = {};
	struct found_v4 found;
	struct rule_v4 *rule;

	if (parse_headers(NULL, data, end, f, &at, false) != PARSED || !is_whole(f, data, end))
		return XDP_PASS;
	flow_v4_of(&key, f, &at);
	rule = copy_v4(&key, &found);
	if (rule)
		return forward(ctx, f, rule, &found, &sequence_v4, &key, &at, interface, false);
	end_from_v4(source, key.source, key.source_port, key.protocol);
	end_from_v4(destination, key.destination, key.destination_port, key.protocol);
	return MISSED;
}

static __always_inline int xdp_v6(struct xdp_md *ctx, struct frame *f, const struct interface *interface, struct end *source,
				  struct end *destination)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow_v6 key = {};
	struct headers at = {};
	struct rule_v6 *rule;

	if (parse_headers(NULL, data, end, f, &at, true) != PARSED || !is_whole(f, data, end))
		return XDP_PASS;
	flow_v6_of(&key, f, &at);
	rule = bpf_map_lookup_elem(&rules_v6, &key);
	if (rule)
		return forward(ctx, f, rule, NULL, &sequence_v6, &key, &at, interface, true);
	end_from_v6(source, key.source, key.source_port, key.protocol);
	end_from_v6(destination, key.destination, key.destination_port, key.protocol);
	return MISSED;
}

/* Frames in several fragments are let in, so that interfaces with a large MTU can have the program; they pass. */
SEC("xdp.frags")
int hairpin_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const struct interface *interface;
	struct end source, destination;
	struct ethhdr *ethernet = data;
	int verdict = XDP_PASS;
	struct frame f = { .l3 = ETH_HLEN };
	__u32 ipv6;

	if ((void *)(ethernet + 1) > data_end || (__u64)(data_end - data) != bpf_xdp_get_buff_len(ctx))
		return XDP_PASS;
	interface = addressed(ctx, ethernet);
	if (!interface)
		return XDP_PASS;
	ipv6 = ethernet->h_proto == bpf_htons(ETH_P_IPV6);
	if (ipv6)
		verdict = xdp_v6(ctx, &f, interface, &source, &destination);
	else if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		verdict = xdp_v4(ctx, &f, interface, &source, &destination);
	if (verdict != MISSED)
		return verdict;
	return miss_in_driver(ctx, &source, &destination, ipv6, shape(&f) | (interface->sends_back ? SHAPE_SENDS_BACK : 0));
}
#endif
