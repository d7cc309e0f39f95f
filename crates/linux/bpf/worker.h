/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The program at the ingress of the workers' devices: what a worker writes comes in there. */
#ifndef HAIRPIN_WORKER_H
#define HAIRPIN_WORKER_H

static __noinline int worker_malformed(void)
{
	count(EVENT_WORKER_MALFORMED);
	return TC_ACT_SHOT;
}

/* Not ours: into the interface it came from again, with that interface's address, past the ingress program. */
static __noinline int pass_to_kernel(struct __sk_buff *skb, __u32 slot)
{
	struct interface *interface = bpf_map_lookup_elem(&interfaces, &slot);
	void *data = (void *)(long)skb->data;

	if (!interface || !interface->ifindex || data + ETH_ALEN > (void *)(long)skb->data_end)
		return worker_malformed();
	__builtin_memcpy(data, interface->address, ETH_ALEN);
	skb->mark = to_kernel_mark;
	count(EVENT_TO_KERNEL);
	return bpf_redirect(interface->ifindex, BPF_F_INGRESS);
}

/* Back to the worker, which answers with an ICMP error or fragments it. */
static __noinline int too_big(struct __sk_buff *skb, __u32 mtu)
{
	__u8 *mark = (void *)(long)skb->data;

	if ((void *)mark + ETH_ALEN > (void *)(long)skb->data_end)
		return worker_malformed();
	mark[0] = MARK_TOO_BIG;
	mark[2] = 0;
	mark[3] = 0;
	mark[4] = mtu >> 8;
	mark[5] = mtu;
	count(EVENT_SENT_TOO_BIG);
	return bpf_redirect(skb->ifindex, 0);
}

/* The bytes of IP packet the egress must take: of the biggest segment. */
static __always_inline __u32 segment_length(struct __sk_buff *skb, __u32 l3, __u32 l4, __u32 length, __u32 protocol)
{
	__u8 offset = 0;

	if (!skb->gso_size)
		return length;
	if (protocol != IPPROTO_TCP)
		return l4 - l3 + sizeof(struct udphdr) + skb->gso_size;
	if (bpf_skb_load_bytes(skb, l4 + 12, &offset, 1))
		return length;
	return l4 - l3 + (offset >> 4) * 4 + skb->gso_size;
}

/* Where a frame goes: with MARK_DIRECT, to the backend whose number it says; else its destination. */
static __always_inline bool aim(struct __sk_buff *skb, struct routed *routed, __u32 *number, const bool ipv6)
{
	struct direct *direct;
	__u8 mark[4];

	if (bpf_skb_load_bytes(skb, 0, mark, sizeof(mark)))
		return false;
	if (mark[0] != MARK_DIRECT)
		return true;
	*number = mark[2] << 8 | mark[3];
	direct = bpf_map_lookup_elem(&directs, number);
	if (!direct)
		return false;
	if (direct->overhead) {
		aim_outer(routed, direct);
		return true;
	}
	if (direct->mixed)
		__builtin_memset(routed->destination, 0, sizeof(routed->destination)); /* which has no route */
	else if (ipv6)
		__builtin_memcpy(routed->destination, direct->backend, 16);
	else
		__builtin_memcpy(routed->destination, direct->backend + 12, 4);
	routed->direct = 1;
	return true;
}

static __always_inline int route(struct __sk_buff *skb, __u32 slot, __u32 l3, const bool ipv6)
{
	struct interface *interface = bpf_map_lookup_elem(&interfaces, &slot);
	struct bpf_fib_lookup found;
	struct routed routed;
	__u32 mtu = 0, number = 0, length;
	enum route_result result;

	if (!interface || !interface->ifindex)
		return worker_malformed();
	__builtin_memset(&routed, 0, sizeof(routed));
	routed.ifindex = interface->ifindex;
	routed.ipv6 = ipv6;
	if (ipv6) {
		struct ipv6hdr ip;
		__u64 behind;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
			return worker_malformed();
		__builtin_memcpy(&routed.traffic, &ip, 4);
		__builtin_memcpy(routed.source, &ip.saddr, 16);
		__builtin_memcpy(routed.destination, &ip.daddr, 16);
		behind = (__u64)(l3 + sizeof(ip)) << 16 | ip.nexthdr << 8;
		if (skb->gso_size && ip.nexthdr != IPPROTO_TCP && ip.nexthdr != IPPROTO_UDP)
			behind = parse_extensions(skb, l3 + sizeof(ip), ip.nexthdr);
		length = segment_length(skb, l3, (behind >> 16) & 0xffff, sizeof(ip) + bpf_ntohs(ip.payload_len),
					(behind >> 8) & 0xff);
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
			return worker_malformed();
		__builtin_memcpy(&routed.traffic, &ip, 4);
		routed.source[0] = ip.saddr;
		routed.destination[0] = ip.daddr;
		length = segment_length(skb, l3, l3 + ip.ihl * 4, bpf_ntohs(ip.tot_len), ip.protocol);
	}
	if (!aim(skb, &routed, &number, ipv6))
		return worker_malformed();
	result = look_up(skb, &routed, &found, &mtu);
	if (routed.direct && !is_on_link(&routed, &found))
		result = NO_ROUTE;
	/* The kernel puts no outer header behind a tag in band. */
	if (result == NO_ROUTE || (l3 != ETH_HLEN && (result == NO_NEIGHBOUR || routed.overhead))) {
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
	if (length + routed.overhead > mtu)
		return too_big(skb, mtu - routed.overhead);
	if (routed.overhead && !wrap(skb, number))
		return TC_ACT_SHOT;
	count(EVENT_SENT);
	if (l3 != ETH_HLEN) {
		__u8 *ethernet = (void *)(long)skb->data;

		if ((void *)ethernet + 2 * ETH_ALEN > (void *)(long)skb->data_end)
			return worker_malformed();
		__builtin_memcpy(ethernet, found.dmac, ETH_ALEN);
		__builtin_memcpy(ethernet + ETH_ALEN, found.smac, ETH_ALEN);
		return bpf_redirect(found.ifindex, 0);
	}
	return redirect_neighbour(&found);
}

static __noinline int route_v4(struct __sk_buff *skb, __u32 slot, __u32 l3)
{
	return route(skb, slot, l3, false);
}

static __noinline int route_v6(struct __sk_buff *skb, __u32 slot, __u32 l3)
{
	return route(skb, slot, l3, true);
}

SEC("tc")
int hairpin_worker(struct __sk_buff *skb)
{
	__u8 mark[2];
	__be16 type;
	__u32 l3;

	if (bpf_skb_load_bytes(skb, 0, mark, sizeof(mark)))
		return worker_malformed();
	if (mark[0] == MARK_TO_KERNEL)
		return pass_to_kernel(skb, mark[1]);
	if (mark[0] != MARK_ROUTE && mark[0] != MARK_DIRECT)
		return worker_malformed();
	type = parse_ethernet(skb, &l3);
	if (type == bpf_htons(ETH_P_IP))
		return route_v4(skb, mark[1], l3);
	if (type == bpf_htons(ETH_P_IPV6))
		return route_v6(skb, mark[1], l3);
	return worker_malformed();
}
#endif
