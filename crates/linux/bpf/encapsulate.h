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

/* Outer headers of either family. */
union outer {
	struct {
		struct iphdr ip;
		struct udphdr udp;
	} v4;
	struct {
		struct ipv6hdr ip;
		struct udphdr udp;
	} v6;
};

/* The packet inside, as far as outer headers depend on it. */
struct inside {
	__be32 traffic; /* the first word of its IP header */
	__u32 length;   /* bytes, from its IP header on */
	bool ipv6;
};

/* The backend that a rule of direct server return leads to, which is counted in `total`. */
static __always_inline struct direct *direct_of(__u32 total)
{
	__u32 number = total / 2;

	return bpf_map_lookup_elem(&directs, &number);
}

/* Whether it is known which address the outer header has as its source. */
static __always_inline bool has_source(const struct direct *direct)
{
	__u64 words[2];

	__builtin_memcpy(words, direct->source, sizeof(words));
	return words[0] | words[1];
}

/* The first word of an outer header, from that of the header inside: with the TOS or traffic class, which they share. An outer
 * header of IPv6 has the flow label of one inside. */
static __always_inline __be32 outer_traffic(__be32 inside, bool is_ipv6, bool outer_is_ipv6)
{
	__u32 word = bpf_ntohl(inside), class = is_ipv6 ? word >> 20 & 0xff : word >> 16 & 0xff;

	if (outer_is_ipv6)
		return is_ipv6 ? inside : bpf_htonl(6u << 28 | class << 20);
	return bpf_htonl(0x45u << 24 | class << 16);
}

/* Routes the packet by its outer header. */
static __always_inline void aim_outer(struct routed *routed, const struct direct *direct)
{
	routed->overhead = direct->overhead;
	routed->traffic = outer_traffic(routed->traffic, routed->ipv6, direct->ipv6);
	routed->ipv6 = direct->ipv6;
	if (direct->ipv6) {
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

static __always_inline __u32 fill_outer_v4(union outer *outer, const struct direct *direct, const struct inside *inside, __u64 hash)
{
	const bool has_udp = direct->encapsulation == ENCAPSULATION_GUE;
	__u32 headers = sizeof(struct iphdr) + (has_udp ? sizeof(struct udphdr) : 0);
	struct iphdr *ip = &outer->v4.ip;
	__be32 traffic = outer_traffic(inside->traffic, inside->ipv6, false);

	/* Version, header length and TOS; the total length is written below. */
	__builtin_memcpy(ip, &traffic, 4);
	ip->tot_len = bpf_htons(length_field(inside->length + headers));
	ip->frag_off = bpf_htons(DO_NOT_FRAGMENT);
	ip->ttl = OUTER_HOPS;
	ip->protocol = has_udp ? IPPROTO_UDP : inside->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	__builtin_memcpy(&ip->saddr, direct->source + 12, 4);
	__builtin_memcpy(&ip->daddr, direct->backend + 12, 4);
	ip->check = ~fold(bpf_csum_diff(NULL, 0, (void *)ip, sizeof(*ip), 0));
	if (has_udp)
		fill_udp(&outer->v4.udp, direct, length_field(inside->length + sizeof(struct udphdr)), hash);
	return headers;
}

static __always_inline __u32 fill_outer_v6(union outer *outer, const struct direct *direct, const struct inside *inside, __u64 hash)
{
	const bool has_udp = direct->encapsulation == ENCAPSULATION_GUE;
	__u32 headers = sizeof(struct ipv6hdr) + (has_udp ? sizeof(struct udphdr) : 0);
	struct ipv6hdr *ip = &outer->v6.ip;
	__be32 traffic = outer_traffic(inside->traffic, inside->ipv6, true);

	__builtin_memcpy(ip, &traffic, 4);
	ip->payload_len = bpf_htons(length_field(inside->length + headers - sizeof(*ip)));
	ip->nexthdr = has_udp ? IPPROTO_UDP : inside->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	ip->hop_limit = OUTER_HOPS;
	__builtin_memcpy(&ip->saddr, direct->source, 16);
	__builtin_memcpy(&ip->daddr, direct->backend, 16);
	if (has_udp)
		fill_udp(&outer->v6.udp, direct, length_field(inside->length + sizeof(struct udphdr)), hash);
	return headers;
}

/* Fills in the outer headers of a packet. Returns their bytes. */
static __always_inline __u32 fill_outer(union outer *outer, const struct direct *direct, const struct inside *inside, __u64 hash)
{
	__builtin_memset(outer, 0, sizeof(*outer));
	return direct->ipv6 ? fill_outer_v6(outer, direct, inside, hash) : fill_outer_v4(outer, direct, inside, hash);
}

/* Notes what outer headers depend on, from the first eight bytes of the packet's IP header. */
static __always_inline void look_inside(struct inside *inside, const __be16 *words, bool is_ipv6)
{
	__builtin_memcpy(&inside->traffic, words, 4);
	inside->length = is_ipv6 ? sizeof(struct ipv6hdr) + bpf_ntohs(words[2]) : bpf_ntohs(words[1]);
	inside->ipv6 = is_ipv6;
}

/* The steering hash of a packet's source, where its outer header has a port; packets without ports, ICMP errors and later
 * fragments, share one. */
static __noinline __u64 source_hash(struct __sk_buff *skb, __u32 encapsulation, __u32 is_ipv6)
{
	struct control *control_now = single(&control);
	struct end source, destination;

	if (encapsulation != ENCAPSULATION_GUE || !control_now)
		return 0;
	if (!(is_ipv6 ? quoted_ends(skb, ETH_HLEN, &source, &destination, true) :
			quoted_ends(skb, ETH_HLEN, &source, &destination, false)))
		return 0;
	return steer_hash(control_now, &source);
}

static __always_inline bool put_outer(struct __sk_buff *skb, const struct direct *direct, bool is_ipv6)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO |
		      (direct->ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4) |
		      (direct->encapsulation == ENCAPSULATION_GUE ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	__be16 words[4], type = direct->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	struct inside inside;
	union outer outer;
	__u32 headers;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, words, sizeof(words)))
		return false;
	look_inside(&inside, words, is_ipv6);
	if (skb->gso_size)
		inside.length = skb->len - ETH_HLEN;
	headers = fill_outer(&outer, direct, &inside, source_hash(skb, direct->encapsulation, is_ipv6));
	if (bpf_skb_adjust_room(skb, headers, BPF_ADJ_ROOM_MAC, flags) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, &outer, headers, BPF_F_RECOMPUTE_CSUM))
		return false;
	/* The kernel has told the packet its new family, but not the frame. */
	return !direct->mixed || !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0);
}

/* Wraps a packet to the backend `number`. Pointers into the frame are void afterwards. 0: it could not be wrapped. */
__noinline int wrap(struct __sk_buff *skb, __u32 number)
{
	struct direct *direct = bpf_map_lookup_elem(&directs, &number);
	const bool is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	bool is_wrapped = false;

	if (direct && has_source(direct) && (is_ipv6 || skb->protocol == bpf_htons(ETH_P_IP)))
		is_wrapped = put_outer(skb, direct, is_ipv6);
	if (!is_wrapped)
		count(EVENT_NOT_WRAPPED);
	return is_wrapped;
}

/* How a packet leaves a driver: the program's verdict, the number of the next hop, and the total that it is counted in. */
struct out {
	__u32 verdict, way, total;
};

/* Wraps a packet from `source`, in a driver that sends it as `out` says: the outer headers and the Ethernet header are written,
 * and what is inside loses a hop. Pointers into the frame are void afterwards. XDP_PASS: there is no room, and nothing is
 * changed. */
static __always_inline int wrap_in_driver(struct xdp_md *ctx, const struct out *out, const struct end *source, const bool ipv6)
{
	const struct next_hop *next_hop = next_hop_at(out->way);
	const struct direct *direct = direct_of(out->total);
	struct control *control_now = single(&control);
	struct ethhdr *ethernet;
	void *data_end, *network;
	struct inside inside;
	union outer outer;
	__be16 words[4];
	__u32 headers;

	if (!direct || !control_now || !next_hop || bpf_xdp_load_bytes(ctx, ETH_HLEN, words, sizeof(words)))
		return XDP_PASS;
	look_inside(&inside, words, ipv6);
	headers = fill_outer(&outer, direct, &inside, steer_hash(control_now, source));
	if (bpf_xdp_adjust_head(ctx, -(int)headers))
		return XDP_PASS;
	if (bpf_xdp_store_bytes(ctx, ETH_HLEN, &outer, headers))
		return XDP_DROP;
	ethernet = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	network = bytes_between(ethernet, data_end, ETH_HLEN + headers, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!network || (void *)(ethernet + 1) > data_end)
		return XDP_DROP;
	lower_hops(network, ipv6);
	address_frame(ethernet, next_hop);
	ethernet->h_proto = direct->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return out->verdict;
}

static __noinline int wrap_in_driver_v4(struct xdp_md *ctx, const struct out *out, const struct flow_v4 *key)
{
	struct end source;

	end_from_v4(&source, key->source, key->source_port, key->protocol);
	return wrap_in_driver(ctx, out, &source, false);
}

static __noinline int wrap_in_driver_v6(struct xdp_md *ctx, const struct out *out, const struct flow_v6 *key)
{
	struct end source;

	end_from_v6(&source, key->source, key->source_port, key->protocol);
	return wrap_in_driver(ctx, out, &source, true);
}
#endif
