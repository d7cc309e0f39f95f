/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The program in the drivers of the named interfaces, before the kernel makes a socket buffer. It forwards what a rule
 * takes as it stands, changes the same bytes as hit.h, and drops what the policer would refuse. Whatever needs more - a
 * worker, a route, a hand-over, tags, extension headers, new sequence numbers - passes unchanged, and the program at tc
 * ingress decides. */
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
static __always_inline bool takes(const struct rule_head *head, const struct frame *f, __u32 now)
{
	__u8 flags = head->flags;

	if ((flags & (RULE_ACTIVE | RULE_PASS)) != RULE_ACTIVE || (flags & RULE_SEQUENCE && f->tcp))
		return false;
	if (f->hops <= 1 || (__s32)(head->until - now) <= 0 || f->length > head->mtu)
		return false;
	return !(f->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) || (!is_served() && !is_followed());
}

static __always_inline int forward(const struct xdp_md *ctx, const struct frame *f, void *rule, const struct headers *at,
				   const struct interface *interface, const bool ipv6)
{
	struct rule_head *head = rule;
	__u32 now = ticks(), egress = head->egress;
	int verdict = XDP_TX;

	if (!takes(head, f, now))
		return XDP_PASS;
	if (head->flags & RULE_DIRECT) {
		const struct direct *direct = direct_of(head);

		/* The outer header is put on at tc. */
		if (!direct || direct->overhead || head->flags & RULE_WRAPPED)
			return XDP_PASS;
	}
	/* Before anything is changed: a device that is not in the map leaves the packet to tc. */
	if (egress != ctx->ingress_ifindex || !interface->sends_back)
		verdict = bpf_redirect_map(&devices, egress, XDP_PASS);
	if (verdict == XDP_PASS)
		return XDP_PASS;
	if (head->flags & RULE_DIRECT)
		lower_hops(at->network, ipv6);
	else
		rewrite(ends_of(rule), at->network, at->transport, f, 0, CHECKSUM_WHOLE, ipv6);
	account(head, f, 0, 0, now);
	address_frame(at->ethernet, head);
	count(EVENT_XDP);
	return verdict;
}

/* Whether the packet is of a connection that is being set up. */
static __always_inline bool is_pending(const struct end *source, const struct end *destination, const struct end_roles *roles)
{
	struct pending_key key = { .client = *source, .vip = *destination };

	return roles->roles & END_SET_UP && bpf_map_lookup_elem(&pending, &key);
}

/* A packet that no rule takes, to an end that may be a service's. The policer's bucket is only looked into: the program
 * at tc ingress takes the token of a packet that passes. */
static __noinline int refuse(const struct end *source, const struct end *destination, __u32 is_opening)
{
	struct control *control_now = single(&control);
	struct end_roles *roles = bpf_map_lookup_elem(&ends, destination);
	struct policer_rates *rates;
	struct policer *policer;
	__u32 bucket, pps;

	if (!control_now || !control_now->workers || !roles)
		return XDP_PASS;
	/* Terminated services are the kernel's, spliced ones answer with cookies. */
	if ((roles->roles & (END_SERVICE | END_SPLICED | END_TERMINATED)) != END_SERVICE)
		return XDP_PASS;
	if (!is_opening && (is_known(steer_hash(control_now, source)) || is_pending(source, destination, roles)))
		return XDP_PASS;
	rates = single(&policer_rates);
	bucket = roles->service;
	policer = bpf_map_lookup_elem(&policers, &bucket);
	if (!rates || !policer || bucket >= SERVICES_MAX)
		return XDP_PASS;
	pps = rates->client_pps[bucket];
	if (pps == 0xffffffff || tokens_of(policer, pps, bpf_ktime_get_coarse_ns()) >= TOKEN)
		return XDP_PASS;
	count(EVENT_POLICED_CLIENT);
	return XDP_DROP;
}

/* Whether the packet is as long as it says. */
static __always_inline bool is_whole(const struct frame *f, const void *data, const void *end)
{
	return f->length >= f->headers && f->length + ETH_HLEN <= (__u64)(end - data);
}

static __always_inline int xdp_v4(const struct xdp_md *ctx, struct frame *f, void *data, void *end,
				  const struct interface *interface)
{
	struct end source, destination;
	struct flow_v4 key = {};
	struct headers at = {};
	struct rule_v4 *rule;

	if (parse_headers(NULL, data, end, f, &at, false) != PARSED || !is_whole(f, data, end))
		return XDP_PASS;
	flow_v4_of(&key, f, &at);
	rule = bpf_map_lookup_elem(&rules_v4, &key);
	if (rule)
		return forward(ctx, f, rule, &at, interface, false);
	end_from_v4(&source, key.source, key.source_port, key.protocol);
	end_from_v4(&destination, key.destination, key.destination_port, key.protocol);
	return refuse(&source, &destination, opens(shape(f)));
}

static __always_inline int xdp_v6(const struct xdp_md *ctx, struct frame *f, void *data, void *end,
				  const struct interface *interface)
{
	struct end source, destination;
	struct flow_v6 key = {};
	struct headers at = {};
	struct rule_v6 *rule;

	if (parse_headers(NULL, data, end, f, &at, true) != PARSED || !is_whole(f, data, end))
		return XDP_PASS;
	flow_v6_of(&key, f, &at);
	rule = bpf_map_lookup_elem(&rules_v6, &key);
	if (rule)
		return forward(ctx, f, rule, &at, interface, true);
	end_from_v6(&source, key.source, key.source_port, key.protocol);
	end_from_v6(&destination, key.destination, key.destination_port, key.protocol);
	return refuse(&source, &destination, opens(shape(f)));
}

/* Frames in several fragments are let in, so that interfaces with a large MTU can have the program; they pass. */
SEC("xdp.frags")
int hairpin_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct interface *interface;
	struct ethhdr *ethernet = data;
	struct frame f;

	if ((void *)(ethernet + 1) > end || (__u64)(end - data) != bpf_xdp_get_buff_len(ctx))
		return XDP_PASS;
	interface = addressed(ctx, ethernet);
	if (!interface)
		return XDP_PASS;
	f.l3 = ETH_HLEN;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return xdp_v4(ctx, &f, data, end, interface);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return xdp_v6(ctx, &f, data, end, interface);
	return XDP_PASS;
}
#endif
