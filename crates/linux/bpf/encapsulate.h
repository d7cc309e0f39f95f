/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The outer headers of packets to backends of direct server return that are hops away: IP in IP (RFC 2003, RFC 2473), or
 * IP in UDP, which is variant 1 of GUE (draft-ietf-intarea-gue-09, section 4). */
#ifndef HAIRPIN_ENCAPSULATE_H
#define HAIRPIN_ENCAPSULATE_H

#define OUTER_HOPS 64
#define DO_NOT_FRAGMENT 0x4000
/* Source ports of GUE are those that have no owner (RFC 6335, section 6). */
#define GUE_SOURCE_FIRST 0xc000

static __always_inline bool quoted_ends(struct __sk_buff *skb, __u32 at, struct end *source, struct end *destination,
					const bool ipv6);

struct outer_v4 {
	struct iphdr ip;
	struct udphdr udp;
};

struct outer_v6 {
	struct ipv6hdr ip;
	struct udphdr udp;
};

/* The backend that a rule of direct server return leads to. */
static __always_inline struct direct *direct_of(const struct rule_head *head)
{
	__u32 number = head->total / 2;

	return bpf_map_lookup_elem(&directs, &number);
}

/* Whether it is known which address the outer header has as its source. */
static __always_inline bool has_source(const struct direct *direct)
{
	__u64 words[2];

	__builtin_memcpy(words, direct->source, sizeof(words));
	return words[0] | words[1];
}

/* Routes the packet by its outer header. */
static __always_inline void aim_outer(struct routed *routed, const struct direct *direct, const bool ipv6)
{
	routed->overhead = direct->overhead;
	if (ipv6) {
		__builtin_memcpy(routed->source, direct->source, 16);
		__builtin_memcpy(routed->destination, direct->backend, 16);
	} else {
		__builtin_memcpy(routed->source, direct->source + 12, 4);
		__builtin_memcpy(routed->destination, direct->backend + 12, 4);
	}
}

/* The UDP header of GUE. The source port tells routers one client's flow from another's by its steering hash. A sum of zero is
 * allowed with IPv6, too: what is inside has its own (RFC 6935). */
static __always_inline void fill_udp(struct udphdr *udp, const struct direct *direct, __u32 length, __u64 hash)
{
	udp->source = bpf_htons(GUE_SOURCE_FIRST | (hash & ~GUE_SOURCE_FIRST & 0xffff));
	udp->dest = direct->port;
	udp->len = bpf_htons(length);
	udp->check = 0;
}

/* A super-packet's length that has no room in its field is zero, as the kernel's is; segments get theirs. */
static __always_inline __u32 length_field(__u32 length)
{
	return length > 0xffff ? 0 : length;
}

/* Fills in the outer headers of a packet of `length` bytes. Returns theirs. */
static __always_inline __u32 fill_outer_v4(struct outer_v4 *outer, const struct direct *direct, const struct iphdr *inner,
					   __u32 length, __u64 hash)
{
	const bool has_udp = direct->encapsulation == ENCAPSULATION_GUE;
	__u32 headers = sizeof(struct iphdr) + (has_udp ? sizeof(struct udphdr) : 0);

	__builtin_memset(outer, 0, sizeof(*outer));
	outer->ip.version = 4;
	outer->ip.ihl = sizeof(outer->ip) / 4;
	outer->ip.tos = inner->tos;
	outer->ip.tot_len = bpf_htons(length_field(length + headers));
	outer->ip.frag_off = bpf_htons(DO_NOT_FRAGMENT);
	outer->ip.ttl = OUTER_HOPS;
	outer->ip.protocol = has_udp ? IPPROTO_UDP : IPPROTO_IPIP;
	__builtin_memcpy(&outer->ip.saddr, direct->source + 12, 4);
	__builtin_memcpy(&outer->ip.daddr, direct->backend + 12, 4);
	outer->ip.check = ~fold(bpf_csum_diff(NULL, 0, (void *)&outer->ip, sizeof(outer->ip), 0));
	if (has_udp)
		fill_udp(&outer->udp, direct, length_field(length + sizeof(struct udphdr)), hash);
	return headers;
}

static __always_inline __u32 fill_outer_v6(struct outer_v6 *outer, const struct direct *direct, const struct ipv6hdr *inner,
					   __u32 length, __u64 hash)
{
	const bool has_udp = direct->encapsulation == ENCAPSULATION_GUE;
	__u32 headers = sizeof(struct ipv6hdr) + (has_udp ? sizeof(struct udphdr) : 0);

	__builtin_memset(outer, 0, sizeof(*outer));
	/* Version, traffic class and flow label. */
	__builtin_memcpy(&outer->ip, inner, 4);
	outer->ip.payload_len = bpf_htons(length_field(length + headers - sizeof(outer->ip)));
	outer->ip.nexthdr = has_udp ? IPPROTO_UDP : IPPROTO_IPV6;
	outer->ip.hop_limit = OUTER_HOPS;
	__builtin_memcpy(&outer->ip.saddr, direct->source, 16);
	__builtin_memcpy(&outer->ip.daddr, direct->backend, 16);
	if (has_udp)
		fill_udp(&outer->udp, direct, length_field(length + sizeof(struct udphdr)), hash);
	return headers;
}

/* The steering hash of a packet's source, where its outer header has a port; packets without ports, ICMP errors and later
 * fragments, share one. */
static __always_inline __u64 source_hash(struct __sk_buff *skb, const struct direct *direct, const bool ipv6)
{
	struct control *control_now = single(&control);
	struct end source, destination;

	if (direct->encapsulation != ENCAPSULATION_GUE || !control_now ||
	    !quoted_ends(skb, ETH_HLEN, &source, &destination, ipv6))
		return 0;
	return steer_hash(control_now, &source);
}

static __always_inline bool wrap_v4(struct __sk_buff *skb, const struct direct *direct)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
		      (direct->encapsulation == ENCAPSULATION_GUE ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	__u32 headers, length;
	struct outer_v4 outer;
	struct iphdr inner;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &inner, sizeof(inner)))
		return false;
	length = skb->gso_size ? skb->len - ETH_HLEN : bpf_ntohs(inner.tot_len);
	headers = fill_outer_v4(&outer, direct, &inner, length, source_hash(skb, direct, false));
	return !bpf_skb_adjust_room(skb, headers, BPF_ADJ_ROOM_MAC, flags) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &outer, headers, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline bool wrap_v6(struct __sk_buff *skb, const struct direct *direct)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
		      (direct->encapsulation == ENCAPSULATION_GUE ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	__u32 headers, length;
	struct outer_v6 outer;
	struct ipv6hdr inner;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &inner, sizeof(inner)))
		return false;
	length = skb->gso_size ? skb->len - ETH_HLEN : sizeof(inner) + bpf_ntohs(inner.payload_len);
	headers = fill_outer_v6(&outer, direct, &inner, length, source_hash(skb, direct, true));
	return !bpf_skb_adjust_room(skb, headers, BPF_ADJ_ROOM_MAC, flags) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &outer, headers, BPF_F_RECOMPUTE_CSUM);
}

/* Wraps a packet to the backend `number`. Pointers into the frame are void afterwards. 0: it could not be wrapped. */
__noinline int wrap(struct __sk_buff *skb, __u32 number)
{
	struct direct *direct = bpf_map_lookup_elem(&directs, &number);
	bool is_wrapped = false;

	if (direct && has_source(direct)) {
		if (skb->protocol == bpf_htons(ETH_P_IP))
			is_wrapped = wrap_v4(skb, direct);
		else if (skb->protocol == bpf_htons(ETH_P_IPV6))
			is_wrapped = wrap_v6(skb, direct);
	}
	if (!is_wrapped)
		count(EVENT_NOT_WRAPPED);
	return is_wrapped;
}

/* The rest of wrapping in a driver, whose frame has been grown by `headers` bytes of `outer` headers: they and the Ethernet
 * header are written, and what is inside loses a hop. */
static __always_inline bool fill_grown(struct xdp_md *ctx, const struct rule_head *head, void *outer, __u32 headers,
				       const bool ipv6)
{
	struct ethhdr *ethernet;
	void *data_end, *inner;

	if (bpf_xdp_store_bytes(ctx, ETH_HLEN, outer, headers))
		return false;
	ethernet = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	inner = bytes_between(ethernet, data_end, ETH_HLEN + headers, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!inner || (void *)(ethernet + 1) > data_end)
		return false;
	lower_hops(inner, ipv6);
	address_frame(ethernet, head);
	ethernet->h_proto = ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return true;
}

/* Wraps a packet of this flow, in a driver that sends it by `verdict`. Pointers into the frame are void afterwards. XDP_PASS:
 * there is no room, and nothing is changed. */
static __noinline int wrap_in_driver_v4(struct xdp_md *ctx, const struct rule_v4 *rule, const struct flow_v4 *key, int verdict)
{
	const struct direct *direct = direct_of(&rule->head);
	struct control *control_now = single(&control);
	struct outer_v4 outer;
	struct iphdr inner;
	struct end source;
	__u32 headers;

	if (!direct || !control_now || bpf_xdp_load_bytes(ctx, ETH_HLEN, &inner, sizeof(inner)))
		return XDP_PASS;
	end_from_v4(&source, key->source, key->source_port, key->protocol);
	headers = fill_outer_v4(&outer, direct, &inner, bpf_ntohs(inner.tot_len), steer_hash(control_now, &source));
	if (bpf_xdp_adjust_head(ctx, -(int)headers))
		return XDP_PASS;
	return fill_grown(ctx, &rule->head, &outer, headers, false) ? verdict : XDP_DROP;
}

static __noinline int wrap_in_driver_v6(struct xdp_md *ctx, const struct rule_v6 *rule, const struct flow_v6 *key, int verdict)
{
	const struct direct *direct = direct_of(&rule->head);
	struct control *control_now = single(&control);
	struct outer_v6 outer;
	struct ipv6hdr inner;
	struct end source;
	__u32 headers;

	if (!direct || !control_now || bpf_xdp_load_bytes(ctx, ETH_HLEN, &inner, sizeof(inner)))
		return XDP_PASS;
	end_from_v6(&source, key->source, key->source_port, key->protocol);
	headers = fill_outer_v6(&outer, direct, &inner, sizeof(inner) + bpf_ntohs(inner.payload_len),
				steer_hash(control_now, &source));
	if (bpf_xdp_adjust_head(ctx, -(int)headers))
		return XDP_PASS;
	return fill_grown(ctx, &rule->head, &outer, headers, true) ? verdict : XDP_DROP;
}
#endif
