// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Takes the outer headers off packets that a balancer has wrapped for this host: IP in IP (RFC 2003, RFC 2473), and IP in
 * UDP, variant 1 of GUE (draft-ietf-intarea-gue-09, section 4); inside may be a packet of the other family. For hosts whose
 * kernel has no tunnels. What is not wrapped for this host, by one of the senders, with a VIP inside, is left to the kernel as it
 * is. */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* Addresses are IPv6 ones; those of IPv4 are mapped (::ffff:a.b.c.d). */
struct network {
	__u32 bits; /* 0 to 128 */
	__u8 address[16];
};

#define NETWORKS_MAX 1024

#define NETWORKS(map_name) \
	struct { \
		__uint(type, BPF_MAP_TYPE_LPM_TRIE); \
		__type(key, struct network); \
		__type(value, __u32); \
		__uint(max_entries, NETWORKS_MAX); \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
	} map_name SEC(".maps")

NETWORKS(addresses); /* outer destinations */
NETWORKS(senders);   /* outer sources */
NETWORKS(vips);      /* inner destinations */

/* What became of packets to `addresses` that look wrapped; the names are in src/decapsulate.rs. */
enum fate {
	FATE_OPENED,
	FATE_SENDER,    /* not from one of `senders`: left to the kernel */
	FATE_VIP,       /* what is inside is not for a VIP: left to the kernel */
	FATE_MALFORMED, /* impossible headers: left to the kernel */
	FATE_CONGESTED, /* marked as having met congestion, and what is inside cannot be: dropped (RFC 6040) */
	FATE_FAILED,    /* the kernel could not take the headers off: dropped */
	FATES
};

struct fates {
	__u64 count[FATES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct fates);
	__uint(max_entries, 1);
} fates SEC(".maps");

const volatile __u16 port = 0; /* of GUE */

/* Flags of Linux 6.3, which its headers have and older ones lack. */
#define DECAP_L3_IPV4 (1ULL << 7)
#define DECAP_L3_IPV6 (1ULL << 8)

#define ECN_MASK 3
#define ECN_ECT_1 1
#define ECN_CE 3

static __always_inline int met(enum fate fate, int verdict)
{
	__u32 zero = 0;
	struct fates *all = bpf_map_lookup_elem(&fates, &zero);

	if (all)
		all->count[fate]++;
	return verdict;
}

static __always_inline bool is_in(void *networks, const struct network *address)
{
	return bpf_map_lookup_elem(networks, address);
}

static __always_inline void mapped(struct network *to, const __be32 *address, const bool ipv6)
{
	to->bits = 128;
	if (ipv6) {
		__builtin_memcpy(to->address, address, 16);
		return;
	}
	__builtin_memset(to->address, 0, 10);
	to->address[10] = 0xff;
	to->address[11] = 0xff;
	__builtin_memcpy(to->address + 12, address, 4);
}

/* How many bytes UDP takes in front of what is inside. -1: it is no GUE packet for us. */
static __always_inline int udp_length(struct __sk_buff *skb, __u32 at)
{
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)) || udp.dest != bpf_htons(port))
		return -1;
	return sizeof(udp);
}

/* The mark of congestion of the packet inside, from both (RFC 6040, section 4.2): its new two bits, -1 if it must go. */
static __always_inline int congestion(__u32 outer, __u32 inner)
{
	outer &= ECN_MASK;
	inner &= ECN_MASK;
	if (outer == ECN_CE)
		return inner ? ECN_CE : -1;
	return outer == ECN_ECT_1 && inner && inner != ECN_CE ? ECN_ECT_1 : inner;
}

/* A packet that is wrapped for this host. */
struct wrapped {
	struct network sender;
	__u32 headers;   /* bytes of outer headers */
	__u32 room;      /* bytes that the outer header's length leaves for what is inside */
	__u32 traffic;   /* TOS or traffic class of the outer header */
	bool ipv6;       /* of the outer header */
};

/* Takes the outer headers off a packet of one family around one of the other. */
static __always_inline int opened_mixed(struct __sk_buff *skb, __u32 headers, const bool ipv6)
{
	__be16 type = ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	bool anew = false;

	if (bpf_skb_adjust_room(skb, -(__s32)headers, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | (ipv6 ? DECAP_L3_IPV6 : DECAP_L3_IPV4))) {
		/* A kernel before 6.3 does not tell the packet its new family: it is received anew, by what the frame says.
		 * It refuses to leave less than an IPv6 header has, which a short datagram of IPv4 does. */
		anew = true;
		if (bpf_skb_adjust_room(skb, -(__s32)headers, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
			return met(FATE_FAILED, TC_ACT_SHOT);
	}
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0))
		return met(FATE_FAILED, TC_ACT_SHOT);
	bpf_set_hash_invalid(skb);
	return met(FATE_OPENED, anew ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : TC_ACT_UNSPEC);
}

static __always_inline int opened(struct __sk_buff *skb, const struct wrapped *wrapped, const bool ipv6)
{
	if (wrapped->ipv6 != ipv6)
		return opened_mixed(skb, wrapped->headers, ipv6);
	if (bpf_skb_adjust_room(skb, -(__s32)wrapped->headers, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return met(FATE_FAILED, TC_ACT_SHOT);
	/* The hash, if there is one, is of the outer headers. */
	bpf_set_hash_invalid(skb);
	return met(FATE_OPENED, TC_ACT_UNSPEC);
}

/* Lengths of super-packets may have no room in their fields. */
static __always_inline bool is_too_long(struct __sk_buff *skb, const struct wrapped *wrapped, __u32 length)
{
	return !skb->gso_size &&
	       (length > wrapped->room || wrapped->headers + wrapped->room > skb->len - ETH_HLEN);
}

static __always_inline int open_v4(struct __sk_buff *skb, const struct wrapped *wrapped)
{
	__u32 at = ETH_HLEN + wrapped->headers;
	struct network vip;
	struct iphdr inner;
	int mark;

	if (bpf_skb_load_bytes(skb, at, &inner, sizeof(inner)) || inner.version != 4 || inner.ihl < sizeof(inner) / 4 ||
	    is_too_long(skb, wrapped, bpf_ntohs(inner.tot_len)))
		return met(FATE_MALFORMED, TC_ACT_UNSPEC);
	if (!is_in(&senders, &wrapped->sender))
		return met(FATE_SENDER, TC_ACT_UNSPEC);
	mapped(&vip, &inner.daddr, false);
	if (!is_in(&vips, &vip))
		return met(FATE_VIP, TC_ACT_UNSPEC);
	mark = congestion(wrapped->traffic, inner.tos);
	if (mark < 0)
		return met(FATE_CONGESTED, TC_ACT_SHOT);
	if (mark != (inner.tos & ECN_MASK)) {
		__be16 old, new;

		__builtin_memcpy(&old, &inner, sizeof(old));
		new = (old & bpf_htons(0xffff ^ ECN_MASK)) | bpf_htons(mark);
		if (bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check), old, new, sizeof(new)) ||
		    bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0))
			return met(FATE_FAILED, TC_ACT_SHOT);
	}
	return opened(skb, wrapped, false);
}

static __always_inline int open_v6(struct __sk_buff *skb, const struct wrapped *wrapped)
{
	__u32 at = ETH_HLEN + wrapped->headers, class;
	struct ipv6hdr inner;
	struct network vip;
	int mark;

	if (bpf_skb_load_bytes(skb, at, &inner, sizeof(inner)) || inner.version != 6 ||
	    is_too_long(skb, wrapped, sizeof(inner) + bpf_ntohs(inner.payload_len)))
		return met(FATE_MALFORMED, TC_ACT_UNSPEC);
	if (!is_in(&senders, &wrapped->sender))
		return met(FATE_SENDER, TC_ACT_UNSPEC);
	mapped(&vip, inner.daddr.in6_u.u6_addr32, true);
	if (!is_in(&vips, &vip))
		return met(FATE_VIP, TC_ACT_UNSPEC);
	class = inner.flow_lbl[0] >> 4;
	mark = congestion(wrapped->traffic, class);
	if (mark < 0)
		return met(FATE_CONGESTED, TC_ACT_SHOT);
	if (mark != (class & ECN_MASK)) {
		__u8 new = (inner.flow_lbl[0] & ~(ECN_MASK << 4)) | mark << 4;

		if (bpf_skb_store_bytes(skb, at + 1, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM))
			return met(FATE_FAILED, TC_ACT_SHOT);
	}
	return opened(skb, wrapped, true);
}

/* Opens a packet for one of `addresses`. `protocol` is what the last outer header says is inside; of GUE, what is inside says. */
static __always_inline int open_wrapped(struct __sk_buff *skb, const struct wrapped *wrapped, __u32 protocol)
{
	__u8 first;

	if (bpf_skb_load_bytes(skb, ETH_HLEN + wrapped->headers, &first, 1))
		return met(FATE_MALFORMED, TC_ACT_UNSPEC);
	if (protocol == IPPROTO_UDP)
		protocol = first >> 4 == 6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	return protocol == IPPROTO_IPV6 ? open_v6(skb, wrapped) : open_v4(skb, wrapped);
}

static __always_inline bool is_tunnel(__u32 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6 || protocol == IPPROTO_UDP;
}

static __always_inline int decapsulate_v4(struct __sk_buff *skb)
{
	struct wrapped wrapped = { .headers = sizeof(struct iphdr) };
	struct network address;
	struct iphdr outer;
	int length;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &outer, sizeof(outer)) || outer.ihl != sizeof(outer) / 4)
		return TC_ACT_UNSPEC;
	if (outer.frag_off & bpf_htons(0x3fff) || !is_tunnel(outer.protocol))
		return TC_ACT_UNSPEC;
	if (outer.protocol == IPPROTO_UDP) {
		length = udp_length(skb, ETH_HLEN + sizeof(outer));
		if (length < 0)
			return TC_ACT_UNSPEC;
		wrapped.headers += sizeof(struct udphdr);
	}
	mapped(&address, &outer.daddr, false);
	if (!is_in(&addresses, &address))
		return TC_ACT_UNSPEC;
	if (bpf_ntohs(outer.tot_len) < wrapped.headers && !skb->gso_size)
		return met(FATE_MALFORMED, TC_ACT_UNSPEC);
	mapped(&wrapped.sender, &outer.saddr, false);
	wrapped.room = bpf_ntohs(outer.tot_len) - wrapped.headers;
	wrapped.traffic = outer.tos;
	return open_wrapped(skb, &wrapped, outer.protocol);
}

static __always_inline int decapsulate_v6(struct __sk_buff *skb)
{
	struct wrapped wrapped = { .headers = sizeof(struct ipv6hdr), .ipv6 = true };
	struct network address;
	struct ipv6hdr outer;
	int length;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &outer, sizeof(outer)) || !is_tunnel(outer.nexthdr))
		return TC_ACT_UNSPEC;
	if (outer.nexthdr == IPPROTO_UDP) {
		length = udp_length(skb, ETH_HLEN + sizeof(outer));
		if (length < 0)
			return TC_ACT_UNSPEC;
		wrapped.headers += sizeof(struct udphdr);
	}
	mapped(&address, outer.daddr.in6_u.u6_addr32, true);
	if (!is_in(&addresses, &address))
		return TC_ACT_UNSPEC;
	if (bpf_ntohs(outer.payload_len) + sizeof(outer) < wrapped.headers && !skb->gso_size)
		return met(FATE_MALFORMED, TC_ACT_UNSPEC);
	mapped(&wrapped.sender, outer.saddr.in6_u.u6_addr32, true);
	wrapped.room = bpf_ntohs(outer.payload_len) + sizeof(outer) - wrapped.headers;
	wrapped.traffic = outer.flow_lbl[0] >> 4 | (outer.priority << 4);
	return open_wrapped(skb, &wrapped, outer.nexthdr);
}

SEC("tc")
int hairpin_decapsulate(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return decapsulate_v4(skb);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return decapsulate_v6(skb);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
