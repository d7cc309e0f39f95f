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

/* Writes the next hop's MACs. By words: a copy of bytes is compiled to as many loads and stores. */
static __always_inline void address_frame(void *ethernet, const struct next_hop *next_hop)
{
	const __u32 *addresses = (const void *)next_hop->addresses;
	__u32 *to = ethernet;

	to[0] = addresses[0];
	to[1] = addresses[1];
	to[2] = addresses[2];
}

#define NEXT_HOP_TRIES 8
#define NEXT_HOP_FRESH (TICKS_PER_SECOND / 4)
/* Longer than any rule goes on with a number without a look at the route, by far. */
#define NEXT_HOP_LIFETIME (8 * TICKS_PER_SECOND)

static __always_inline bool is_same_way(const struct next_hop *a, const struct next_hop *b)
{
	const volatile __u32 *of_a = (const void *)a;
	const __u32 *of_b = (const void *)b;

	return !((of_a[0] ^ of_b[0]) | (of_a[1] ^ of_b[1]) | (of_a[2] ^ of_b[2]) | (of_a[3] ^ of_b[3]) | (of_a[4] ^ of_b[4]));
}

_Static_assert(__builtin_offsetof(struct next_hop, used) == 5 * 4, "next_hop");

/* What a route lookup has found, which the stack has no room for. */
struct route_buffer {
	struct next_hop next_hop;
	__u64 way;     /* of the rule, before the lookup */
	__u64 ends[2]; /* of IPv4, the rule's */
	__u32 total;   /* the rule's */
	__u32 number;  /* of the next hop that has been found; 0: packets go by the kernel's neighbour entry, or not at all */
	struct routed routed;
	struct bpf_fib_lookup found;
};

ARRAY(route_buffer, BPF_MAP_TYPE_PERCPU_ARRAY, struct route_buffer, 1, 0);

/* The search for a next hop in `next_hops`. */
struct seeking {
	const struct next_hop *wanted;
	__u64 hash;
	__u32 now;
	__u32 found;           /* its number; 0: not found yet */
	__u32 free, free_used; /* the number of one that is no rule's any more, and its `used` */
};

#define STAMP(now) ((now) | 2) /* neither 0 nor NEXT_HOP_BUSY */

static long seek_next_hop(__u32 round, void *argument)
{
	struct seeking *seeking = argument;
	__u32 at = (seeking->hash + round) & (NEXT_HOPS_MAX - 1), used;
	struct next_hop *there = at ? bpf_map_lookup_elem(&next_hops, &at) : NULL;
	__s32 age;

	if (!there)
		return 0;
	used = __sync_fetch_and_add(&there->used, 0);
	age = seeking->now - used;
	if (used == NEXT_HOP_BUSY)
		return 0;
	if (used && is_same_way(there, seeking->wanted)) {
		if (age < NEXT_HOP_FRESH || __sync_val_compare_and_swap(&there->used, used, STAMP(seeking->now)) == used)
			seeking->found = at;
		return seeking->found != 0;
	}
	if (!seeking->free && (!used || age > NEXT_HOP_LIFETIME)) {
		seeking->free = at;
		seeking->free_used = used;
	}
	return 0;
}

/* The number in `next_hops` of a next hop that a route lookup has just found; 0: there is no room. Then packets go by the
 * kernel's neighbour entry.
 *
 * One that has not been found for NEXT_HOP_LIFETIME is no rule's any more, and can become another one. `used` is read before
 * the rest and, if it is old, replaced only if it has not changed: so a next hop that is taken has not been given away meanwhile,
 * and while it is being written nothing else is known of it. */
static __noinline __u32 number_of(const struct next_hop *wanted, __u32 now)
{
	const __u32 *words = (const void *)wanted;
	struct control *control_now = single(&control);
	struct seeking seeking = { .wanted = wanted, .now = now };
	struct next_hop *free;

	if (!control_now)
		return 0;
	seeking.hash = (words[0] * control_now->rule_keys[0] + words[1] * control_now->rule_keys[1] +
			words[2] * control_now->rule_keys[2] + words[3] * control_now->rule_keys[3] +
			words[4] * control_now->rule_keys[4]) >> 32;
	bpf_loop(NEXT_HOP_TRIES, seek_next_hop, &seeking, 0);
	if (seeking.found)
		return seeking.found;
	if (!seeking.free) {
		count(EVENT_NEXT_HOPS_FULL);
		return 0;
	}
	free = bpf_map_lookup_elem(&next_hops, &seeking.free);
	if (!free || __sync_val_compare_and_swap(&free->used, seeking.free_used, NEXT_HOP_BUSY) != seeking.free_used)
		return 0;
	free->egress = wanted->egress;
	__builtin_memcpy(free->addresses, wanted->addresses, sizeof(free->addresses));
	free->mtu = wanted->mtu;
	free->wrapped = wanted->wrapped;
	__sync_lock_test_and_set(&free->used, STAMP(now));
	return seeking.free;
}

/* Notes in `next_hop` what a route lookup has found. */
static __always_inline void write_next_hop(struct next_hop *next_hop, const struct bpf_fib_lookup *found, __u32 mtu, __u32 overhead)
{
	next_hop->egress = found->ifindex;
	__builtin_memcpy(next_hop->addresses, found->dmac, ETH_ALEN);
	__builtin_memcpy(next_hop->addresses + ETH_ALEN, found->smac, ETH_ALEN);
	next_hop->mtu = mtu;
	next_hop->wrapped = !!overhead;
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
