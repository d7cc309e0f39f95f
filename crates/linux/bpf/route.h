/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Asking the kernel for the route. */
#ifndef HAIRPIN_ROUTE_H
#define HAIRPIN_ROUTE_H

#define AF_INET 2
#define AF_INET6 10

/* A packet to be routed: where it came in, its family, its addresses, the first word of its IP header. */
struct routed {
	__u32 ifindex;
	__u32 ipv6; /* 1: it is of IPv6 */
	__be32 traffic;
	__be32 source[4], destination[4]; /* IPv4: the first ones */
	__u32 direct;   /* whether a neighbour must have `destination` */
	__u32 overhead; /* bytes of outer headers that it is to get */
};

enum route_result {
	ROUTE_FOUND,  /* known, with both MACs */
	NO_NEIGHBOUR, /* known, but not the neighbour's MAC: the kernel must ask for it, bpf_redirect_neigh does */
	NO_ROUTE,
};

static __always_inline long fib(struct __sk_buff *skb, const struct routed *routed, struct bpf_fib_lookup *found, __u16 length)
{
	__builtin_memset(found, 0, sizeof(*found));
	found->ifindex = routed->ifindex;
	found->tot_len = length;
	if (routed->ipv6) {
		found->family = AF_INET6;
		found->flowinfo = routed->traffic & bpf_htonl(0x0fffffff);
		__builtin_memcpy(found->ipv6_src, routed->source, 16);
		__builtin_memcpy(found->ipv6_dst, routed->destination, 16);
	} else {
		found->family = AF_INET;
		found->tos = (bpf_ntohl(routed->traffic) >> 16) & 0xfc;
		found->ipv4_src = routed->source[0];
		found->ipv4_dst = routed->destination[0];
	}
	return bpf_fib_lookup(skb, found, sizeof(*found), 0);
}

/* Looks the route up. Forwarding must be on where the packet came in. `*mtu` is the route's, in bytes of IP packet. */
static __always_inline enum route_result look_up(struct __sk_buff *skb, const struct routed *routed,
					struct bpf_fib_lookup *found, __u32 *mtu)
{
	struct bpf_fib_lookup again;

	/* Given a length, the kernel compares it with the route's MTU and tells that; given none, the device's. */
	switch (fib(skb, routed, found, 1)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		*mtu = found->mtu_result ? found->mtu_result : 0xffff;
		return ROUTE_FOUND;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		/* It says so before it tells the MTU, unless the packet is too big. */
		*mtu = 0xffff;
		if (fib(skb, routed, &again, 0xffff) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
			*mtu = again.mtu_result;
		return NO_NEIGHBOUR;
	default:
		return NO_ROUTE;
	}
}

/* Whether the route found leads to a neighbour that has the destination itself, and not to a router, which would send the
 * packet back: the VIP is what it says. */
static __always_inline bool is_on_link(const struct routed *routed, const struct bpf_fib_lookup *found)
{
	__u32 differ = found->ipv6_dst[0] ^ routed->destination[0];

	if (routed->ipv6)
		differ |= (found->ipv6_dst[1] ^ routed->destination[1]) | (found->ipv6_dst[2] ^ routed->destination[2]) |
			  (found->ipv6_dst[3] ^ routed->destination[3]);
	return !differ;
}

/* Writes the MACs of the rule's next hop. By words: a copy of bytes is compiled to as many loads and stores. */
static __always_inline void address_frame(void *ethernet, const struct rule_head *head)
{
	const __u32 *next_hop = (const void *)head->next_hop;
	__u32 *to = ethernet;

	to[0] = next_hop[0];
	to[1] = next_hop[1];
	to[2] = next_hop[2];
}

/* Sends the packet by the route found, with the kernel's help for the MACs: that is what keeps its neighbour entry
 * alive. Only for frames without VLAN tags in band. */
static __always_inline int redirect_neighbour(const struct bpf_fib_lookup *found)
{
	struct bpf_redir_neigh next = { .nh_family = found->family };

	__builtin_memcpy(next.ipv6_nh, found->ipv6_dst, 16);
	return bpf_redirect_neigh(found->ifindex, &next, sizeof(next), 0);
}

/* How a frame leaves a driver by the interface `egress`; XDP_PASS if it cannot. */
static __always_inline int way_out(const struct xdp_md *ctx, __u32 egress, __u32 sends_back)
{
	return egress == ctx->ingress_ifindex && sends_back ? XDP_TX : bpf_redirect_map(&devices, egress, XDP_PASS);
}
#endif
