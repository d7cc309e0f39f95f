/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Health checks of backends of direct server return, on the way that clients' packets take: to the VIP, at the backend's
 * MAC. A check is an ordinary socket, connected to the backend's own address and marked (CHECK_MARK). On its way out the
 * destination becomes the VIP; in the answer the VIP becomes the backend's address again. So the kernel never sees the VIP as
 * the source of a packet that arrives, which it would drop where the VIP is an address of this host (a martian source).
 *
 * To a backend that is hops away they are wrapped as clients' packets are. The socket's source address is the one that the
 * kernel has for the backend, as the outer header's is where none is configured.
 *
 * A socket of the VIP's family cannot be connected to a backend of the other one. It is connected to an address that stands in
 * for it (CHECK_STAND_IN_*), which is routed to the device of checks. From the egress of that device the check is sent by the
 * route of its outer headers, and the answer comes in there.
 *
 * The kernel gives every such socket a port of its own (the check binds it before it connects): two of the same port to two
 * backends of one VIP could not be told apart. */
#ifndef HAIRPIN_CHECK_H
#define HAIRPIN_CHECK_H

/* Puts `new` in place of the address at `at` in the frame, and keeps the checksums of the packet right whose headers lie at
 * `l3` and `l4`. */
static __always_inline bool readdress(struct __sk_buff *skb, __u32 l3, __u32 l4, __u32 at, const __u8 *new, __u32 protocol,
				      const bool ipv6)
{
	__u32 check = l4 + (protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 flags = BPF_F_PSEUDO_HDR | (protocol == IPPROTO_TCP ? 0 : BPF_F_MARK_MANGLED_0);
	__be32 old[4] = {}, address[4];
	__s64 sum;

	__builtin_memcpy(address, new, 16);
	if (ipv6) {
		if (bpf_skb_load_bytes(skb, at, old, 16))
			return false;
		sum = bpf_csum_diff(old, 16, address, 16, 0);
		/* The helper takes it that a header checksum makes up for the address, which IPv6 has none for. */
		return !bpf_l4_csum_replace(skb, check, 0, sum, flags) &&
		       !bpf_skb_store_bytes(skb, at, address, 16, BPF_F_RECOMPUTE_CSUM);
	}
	if (bpf_skb_load_bytes(skb, at, old, 4))
		return false;
	return !bpf_l4_csum_replace(skb, check, old[0], address[3], flags | 4) &&
	       !bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), old[0], address[3], 4) &&
	       !bpf_skb_store_bytes(skb, at, &address[3], 4, 0);
}

static __always_inline bool is_same_address(const __u8 *a, const __u8 *b)
{
	__u64 of_a[2], of_b[2];

	__builtin_memcpy(of_a, a, 16);
	__builtin_memcpy(of_b, b, 16);
	return !((of_a[0] ^ of_b[0]) | (of_a[1] ^ of_b[1]));
}

/* The address that stands in for backends of the other family, as `struct end` has addresses. */
static __always_inline void stand_in(__u8 *address, const bool ipv6)
{
	__be32 *words = (void *)address;

	words[0] = ipv6 ? bpf_htonl(CHECK_STAND_IN_V6_FIRST) : 0;
	words[1] = 0;
	words[2] = ipv6 ? 0 : bpf_htonl(0xffff);
	words[3] = ipv6 ? bpf_htonl(CHECK_STAND_IN_V6_LAST) : bpf_htonl(CHECK_STAND_IN_V4);
}

/* Brings the answer to a check in by the device of checks, from which the kernel expects packets of the address that stands in. */
static __always_inline int enter_by_device(struct __sk_buff *skb, const struct control *control)
{
	const __u8 address[ETH_ALEN] = CHECK_ADDRESS;

	if (!control->check_device || bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), address, ETH_ALEN, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(control->check_device, BPF_F_INGRESS);
}

/* Judges a packet that may be the answer to a check: from the VIP that was asked, to where the check came from. Its source
 * becomes the address that the check's socket is connected to. */
static __noinline int check_answered(struct __sk_buff *skb, const struct end *source, const struct end *destination,
				     __u32 ipv6, __u64 shape)
{
	__u32 *number = bpf_map_lookup_elem(&checks, destination), l3 = shape_l3(shape), protocol = destination->protocol;
	struct control *control_now = single(&control);
	__u8 peer[16] __attribute__((aligned(8)));
	struct direct *direct;
	bool changed;

	if (!number || !control_now)
		return UNDECIDED;
	direct = bpf_map_lookup_elem(&directs, number);
	if (!direct || !is_same_address(direct->vip, source->address))
		return UNDECIDED;
	if (direct->mixed)
		stand_in(peer, ipv6);
	else
		__builtin_memcpy(peer, direct->backend, 16);
	if (ipv6)
		changed = readdress(skb, l3, shape_l4(shape), l3 + offsetof(struct ipv6hdr, saddr), peer, protocol, true);
	else
		changed = readdress(skb, l3, shape_l4(shape), l3 + offsetof(struct iphdr, saddr), peer, protocol, false);
	if (!changed)
		return UNDECIDED;
	return direct->mixed ? enter_by_device(skb, control_now) : TC_ACT_UNSPEC;
}

/* Leaves one hop. That must do: a backend that lacks the VIP and forwards packets would else send the check back, and
 * another backend would answer in its place. */
static __always_inline bool leave_one_hop(struct __sk_buff *skb, const bool ipv6)
{
	__be16 old, new;
	__u8 hops = 1;

	if (ipv6)
		return !bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &hops, 1, 0);
	/* With the protocol, which makes a word of the checksum. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &old, sizeof(old)))
		return false;
	new = (old & bpf_htons(0xff)) | bpf_htons(0x100);
	return !bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), old, new, sizeof(new)) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &new, sizeof(new), 0);
}

/* Sends a check from the device of checks, by the route of its outer headers. */
static __always_inline int send_check(struct __sk_buff *skb, const struct direct *direct, __u32 number, const bool ipv6)
{
	struct routed routed = { .ifindex = skb->ifindex, .ipv6 = ipv6 };
	struct bpf_fib_lookup found;

	aim_outer(&routed, direct);
	switch (fib(skb, &routed, &found, 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return wrap(skb, number) ? redirect_neighbour(&found) : TC_ACT_SHOT;
	default:
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
}

/* A check of backend `number`. */
static __always_inline int check_sent(struct __sk_buff *skb, __u32 number, const bool ipv6)
{
	struct direct *direct = bpf_map_lookup_elem(&directs, &number);
	__u32 l3 = ETH_HLEN, l4 = l3 + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	__u32 at = l3 + (ipv6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr));
	__u8 peer[16] __attribute__((aligned(8)));
	struct end source, destination;

	if (!direct || !quoted_ends(skb, l3, &source, &destination, ipv6))
		return TC_ACT_UNSPEC;
	if (direct->mixed)
		stand_in(peer, ipv6);
	else
		__builtin_memcpy(peer, direct->backend, 16);
	if (!is_same_address(peer, destination.address))
		return TC_ACT_UNSPEC;
	if (bpf_map_update_elem(&checks, &source, &number, BPF_ANY) || !leave_one_hop(skb, ipv6) ||
	    !readdress(skb, l3, l4, at, direct->vip, source.protocol, ipv6))
		return TC_ACT_SHOT;
	if (direct->mixed)
		return send_check(skb, direct, number, ipv6);
	return direct->overhead && !wrap(skb, number) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* The program at the egress of the named interfaces, where a service has direct server return, and of the device of checks. */
SEC("tc")
int hairpin_check(struct __sk_buff *skb)
{
	if ((skb->mark & 0xffff0000) != CHECK_MARK)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return check_sent(skb, skb->mark & 0xffff, false);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return check_sent(skb, skb->mark & 0xffff, true);
	return TC_ACT_UNSPEC;
}
#endif
