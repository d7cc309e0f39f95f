/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* From a frame to a flow: Ethernet with up to two VLAN tags in band, IPv4 with options, IPv6 with up to eight extension
 * headers, TCP, UDP. Reads the linear part of the socket buffer only; SHORT says how much more is wanted. The XDP program
 * shares all but tags and extension headers. */
#ifndef HAIRPIN_PARSE_H
#define HAIRPIN_PARSE_H

#define VLAN_LENGTH 4
#define VLANS_MAX 2
#define EXTENSIONS_MAX 8
/* Where a transport header may start, in bytes from the IP header: more extension headers than this are malformed. */
#define NETWORK_LENGTH_MAX 2048

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum parsed {
	PARSED,    /* TCP or UDP, not a fragment */
	SHORT,     /* `wanted` bytes are needed in the linear part, or in the frame */
	MALFORMED, /* truncated or impossible */
	FRAGMENT,  /* of a TCP or UDP packet */
	ICMP,      /* ICMP over IPv4, ICMPv6 over IPv6 */
	OTHER,     /* nothing we know */
};

struct frame {
	__u32 l3, l4;  /* offsets of the IP and of the transport header */
	__u32 headers; /* bytes of both: what every segment of a super-packet repeats */
	__u32 length;  /* bytes of the IP packet: of the whole super-packet */
	__u32 wanted;  /* SHORT: bytes of frame */
	__u32 protocol;
	__u32 tcp; /* 1: TCP, 0: UDP */
	__u32 tcp_flags;
	__u32 hops; /* TTL or hop limit */
};

/* What later steps need to know of a frame, in one word, which costs no stack: TCP flags (8 bits),
 * whether it carries anything, and other SHAPE_ (8), offset of the IP header (16), of the transport header (16),
 * bytes of the latter (16). */
static __always_inline __u64 shape(const struct frame *f)
{
	__u64 length = f->headers - (f->l4 - f->l3);

	return (__u8)f->tcp_flags | (f->length != f->headers) << 8 | f->l3 << 16 | (__u64)f->l4 << 32 | length << 48;
}

#define SHAPE_PAYLOAD 0x100
#define SHAPE_TIMESTAMPS 0x200 /* not of the frame: its sender may be offered timestamps */
#define SHAPE_IPV6 0x400 /* not of every frame's: where it says so */
#define SHAPE_PLAIN 0x1000 /* not of the frame: its service takes connections up without data */
#define SHAPE_SENDS_BACK 0x800 /* not of the frame: its interface's driver sends what XDP_TX returns */

static __always_inline __u32 shape_l3(__u64 shape)
{
	return (shape >> 16) & 0xffff;
}

static __always_inline __u32 shape_l4(__u64 shape)
{
	return (shape >> 32) & 0xffff;
}

static __always_inline __u32 shape_header(__u64 shape)
{
	return shape >> 48;
}

/* Whether it is the first packet of a TCP connection. */
static __always_inline bool opens(__u64 shape)
{
	return (shape & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Skips VLAN tags left in band. The first is usually in the socket buffer's metadata, where the kernel keeps it.
 * Returns the Ethernet type after them, 0 if there is none. */
static __always_inline __be16 parse_ethernet(struct __sk_buff *skb, __u32 *l3)
{
	__be16 type = skb->protocol;

	*l3 = ETH_HLEN;
	if (type == bpf_htons(ETH_P_IP) || type == bpf_htons(ETH_P_IPV6))
		return type;
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, *l3 + 2, &type, sizeof(type)))
			return 0;
		*l3 += VLAN_LENGTH;
	}
	return type;
}

/* Where the transport header is behind IPv6 extension headers that start `at` an offset in the frame with one of type
 * `next`: its offset << 16 | its type << 8 | enum parsed. A routing header whose segments are not used up is another
 * node's business. */
__noinline __u64 parse_extensions(struct __sk_buff *skb, __u32 at, __u32 next)
{
	__u32 start = at;

	for (int i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 header[4];

		switch (next & 0xff) {
		case IPPROTO_TCP:
		case IPPROTO_UDP:
			return (__u64)at << 16 | next << 8 | PARSED;
		case IPPROTO_ICMPV6:
			return (__u64)at << 16 | next << 8 | ICMP;
		case IPPROTO_FRAGMENT:
			if (bpf_skb_load_bytes(skb, at, header, sizeof(header)))
				return MALFORMED;
			return header[0] == IPPROTO_TCP || header[0] == IPPROTO_UDP ? FRAGMENT : OTHER;
		case IPPROTO_HOPOPTS:
		case IPPROTO_DSTOPTS:
		case IPPROTO_ROUTING:
			break;
		default:
			return OTHER;
		}
		if (bpf_skb_load_bytes(skb, at, header, sizeof(header)))
			return MALFORMED;
		if (next == IPPROTO_ROUTING && header[3])
			return OTHER;
		next = header[0];
		at += (header[1] + 1) * 8;
		if (at - start > NETWORK_LENGTH_MAX)
			return MALFORMED;
	}
	return MALFORMED;
}

/* The IP header. Fills in everything but the transport header's share. Without a socket buffer extension headers are
 * OTHER. */
static __always_inline enum parsed parse_network(struct __sk_buff *skb, struct frame *f, void *data, void *end,
						 const bool ipv6)
{
	if (ipv6) {
		struct ipv6hdr *ip = data + f->l3;

		f->wanted = f->l3 + sizeof(*ip);
		if ((void *)(ip + 1) > end)
			return SHORT;
		if (ip->version != 6)
			return MALFORMED;
		f->length = sizeof(*ip) + bpf_ntohs(ip->payload_len);
		f->hops = ip->hop_limit;
		f->protocol = ip->nexthdr;
		f->l4 = f->l3 + sizeof(*ip);
		if (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP) {
			__u64 found;

			if (!skb)
				return OTHER;
			found = parse_extensions(skb, f->l4, f->protocol);
			f->l4 = (found >> 16) & 0xffff;
			f->protocol = (found >> 8) & 0xff;
			if ((found & 0xff) != PARSED)
				return found & 0xff;
		}
	} else {
		struct iphdr *ip = data + f->l3;
		__u32 length;

		f->wanted = f->l3 + sizeof(*ip);
		if ((void *)(ip + 1) > end)
			return SHORT;
		length = ip->ihl * 4;
		if (ip->version != 4 || length < sizeof(*ip))
			return MALFORMED;
		f->length = bpf_ntohs(ip->tot_len);
		f->hops = ip->ttl;
		f->protocol = ip->protocol;
		f->l4 = f->l3 + length;
		if (f->protocol == IPPROTO_ICMP)
			return ip->frag_off & bpf_htons(0x3fff) ? OTHER : ICMP;
		if (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP)
			return OTHER;
		if (ip->frag_off & bpf_htons(0x3fff))
			return FRAGMENT;
	}
	return PARSED;
}

/* Where the headers lie; as many bytes as each has fixed ones can be read and written. */
struct headers {
	void *ethernet, *network, *transport;
};

/* The flow of the packet, all of whose key is zero. */
static __always_inline void flow_v4_of(struct flow_v4 *key, const struct frame *f, const struct headers *at)
{
	const struct iphdr *ip = at->network;
	const __be16 *ports = at->transport;

	key->source = ip->saddr;
	key->destination = ip->daddr;
	key->source_port = ports[0];
	key->destination_port = ports[1];
	key->protocol = f->protocol;
}

static __always_inline void flow_v6_of(struct flow_v6 *key, const struct frame *f, const struct headers *at)
{
	const struct ipv6hdr *ip = at->network;
	const __be16 *ports = at->transport;

	__builtin_memcpy(key->source, &ip->saddr, 16);
	__builtin_memcpy(key->destination, &ip->daddr, 16);
	key->source_port = ports[0];
	key->destination_port = ports[1];
	key->protocol = f->protocol;
}

/* The headers of the frame that lies from `data` to `end`, but its Ethernet type; not whether all of the packet is there.
 * `skb` as in parse_network(). */
static __always_inline enum parsed parse_headers(struct __sk_buff *skb, void *data, void *end, struct frame *f,
						 struct headers *at, const bool ipv6)
{
	enum parsed parsed = parse_network(skb, f, data, end, ipv6);
	__u32 l4 = f->l4;
	void *header;

	if (parsed != PARSED)
		return parsed;
	/* Long true; the verifier does not derive it from offsets that it does not know. */
	if (data + ETH_HLEN > end)
		return MALFORMED;
	/* The verifier wants to see the bound of what is used, not of a copy. */
	barrier_var(l4);
	if (l4 > ETH_HLEN + VLANS_MAX * VLAN_LENGTH + sizeof(struct ipv6hdr) + NETWORK_LENGTH_MAX)
		return MALFORMED;
	header = data + l4;
	at->ethernet = data;
	at->network = data + f->l3;
	at->transport = header;
	f->tcp_flags = 0;
	f->tcp = 0;
	if (f->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = header;

		/* Keeps the compiler from comparing `protocol` again later: that it is not TCP, the verifier would
		 * not know. */
		f->tcp = 1;
		barrier_var(f->tcp);

		f->wanted = l4 + sizeof(*tcp);
		if ((void *)(tcp + 1) > end)
			return SHORT;
		f->tcp_flags = ((__u8 *)tcp)[13];
		f->headers = tcp->doff * 4;
		if (f->headers < sizeof(*tcp))
			return MALFORMED;
		f->wanted = l4 + f->headers;
		if (header + f->headers > end)
			return SHORT;
	} else {
		f->headers = sizeof(struct udphdr);
		f->wanted = l4 + f->headers;
		if (header + sizeof(struct udphdr) > end)
			return SHORT;
	}
	f->headers += l4 - f->l3;
	return PARSED;
}

/* The whole frame but its Ethernet type. */
static __always_inline enum parsed parse(struct __sk_buff *skb, struct frame *f, struct headers *at, const bool ipv6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	enum parsed parsed = parse_headers(skb, data, end, f, at, ipv6);

	if (parsed != PARSED)
		return parsed;
	/* Super-packets above 64 KiB have no length of their own. */
	if (f->length <= (ipv6 ? sizeof(struct ipv6hdr) : 0) && skb->gso_size)
		f->length = skb->len - f->l3;
	if (f->length < f->headers || f->length > skb->len - f->l3)
		return MALFORMED;
	return PARSED;
}
#endif
