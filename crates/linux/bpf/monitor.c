// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Counts packets per flow, as they pass an interface, and changes none. Two programs, for what comes in and for what leaves, fill
 * one map. A flow here is both directions between two ends, as one interface sees them: the far end,
 * from which packets come in, and the near end. src/monitor.rs has the same layouts in Rust, and reads the map. */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define NETWORKS_MAX 1024
#define VLANS_MAX 2
#define EXTENSIONS_MAX 8
#define FRAGMENT_OFFSET 0x1fff

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* Addresses are IPv6 ones; those of IPv4 are mapped (::ffff:a.b.c.d). */
struct network {
	__u32 bits; /* 0 to 128 */
	__u8 address[16];
};

struct key {
	__u8 far[16], near[16];
	__be16 far_port, near_port; /* of TCP and UDP; of ICMP 0, and type << 8 | code; else 0, as of fragments but the first */
	__u32 ifindex;
	__u8 protocol, zero[3];
}; /* 44 bytes */

/* What passed in one direction. */
struct half {
	__u64 packets; /* as they are on the wire: segments of super-packets one by one */
	__u64 bytes;   /* of IP packets, headers of every segment included */
	__u64 first, last; /* CLOCK_MONOTONIC, ns; 0: nothing yet */
	__u64 resent;  /* packets of TCP that carried nothing new, by their sequence numbers */
	__u32 next;    /* TCP: the highest sequence number so far, plus one, if HALF_SEQUENCE */
	__u32 flags;   /* of TCP, all of them; and HALF_* */
}; /* 48 bytes */

#define HALF_SEQUENCE 0x100

struct flow {
	struct half in, out;
	__u64 syn, syn_ack, ack; /* when the handshake's segments passed, as `first`; 0: not seen */
	__u32 state;             /* FLOW_* */
	__u32 zero;
}; /* 128 bytes */

enum flow_state {
	FLOW_OPENED_IN = 1,      /* the far end opened it */
	FLOW_OPENED_OUT = 2,     /* the near end did */
	FLOW_SYN_AGAIN = 4,      /* so nothing tells which SYN was answered (RFC 6298, section 3) */
	FLOW_SYN_ACK_AGAIN = 8,
	FLOW_ENDED = 16,         /* RST, or FIN of both ends */
};

/* A flow whose ends have begun another one. */
struct former {
	struct key key;
	__u32 zero;
	struct flow flow;
}; /* 176 bytes */

/* What was not counted in a flow, and other incidents. */
struct counts {
	__u64 no_room_packets, no_room_bytes; /* there were too many flows */
	__u64 malformed;                      /* packets: truncated or impossible headers */
	__u64 merged;  /* flows counted with the flow before of the same ends, for lack of room in `news` */
	__u64 unheard; /* ends of flows that found no room in `news`: a sweep finds them, later */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct key);
	__type(value, struct flow);
	__uint(max_entries, 65536); /* the loader says how many */
} flows SEC(".maps");

/* Keys of flows that have ended, and flows whose ends have begun another one: told apart by their length. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} news SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct counts);
	__uint(max_entries, 1);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct network);
	__type(value, __u32);
	__uint(max_entries, NETWORKS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} networks SEC(".maps");

struct ports {
	__u64 bits[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ports);
	__uint(max_entries, 1);
} ports SEC(".maps");

/* Which flows are counted, and what of them: set by the loader, in this order. */
struct wanted {
	__u64 protocols[4]; /* a bit each */
	__u8 by_network;    /* 1: one end is in `networks` */
	__u8 by_port;       /* 1: TCP and UDP alone, one end's port is in `ports` */
	__u8 handshake;     /* 1: times of the handshake */
	__u8 resent;        /* 1: packets that were sent again */
	__u8 zero[4];
};

const volatile struct wanted wanted SEC(".rodata.wanted") = {};

/* A packet, beside its key. */
struct packet {
	__u32 headers;  /* bytes from the IP header to the transport header's end: what every segment repeats */
	__u32 length;   /* bytes from the IP header on, of the whole super-packet */
	__u32 sequence, tcp_flags;
	bool is_tcp;    /* with its header */
};

static __always_inline struct counts *counted(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counts, &zero);
}

/* The Ethernet type behind tags in band, and where what follows lies. The kernel keeps the first tag beside the packet. */
static __always_inline __be16 parse_ethernet(struct __sk_buff *skb, __u32 *l3)
{
	__be16 type = skb->protocol;

	*l3 = ETH_HLEN;
#pragma unroll
	for (int i = 0; i < VLANS_MAX; i++) {
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, *l3 + 2, &type, sizeof(type)))
			return 0;
		*l3 += 4;
	}
	return type;
}

/* Goes on to the transport header of IPv6: its protocol and offset. `rest`: it is a fragment but the first. Returns whether the
 * headers are whole. */
static __always_inline bool parse_extensions(struct __sk_buff *skb, __u32 *at, __u8 *protocol, bool *rest)
{
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 next = *protocol, header[4];

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT &&
		    next != IPPROTO_AH)
			return true;
		if (bpf_skb_load_bytes(skb, *at, header, sizeof(header)))
			return false;
		*protocol = header[0];
		if (next == IPPROTO_FRAGMENT) {
			*at += 8;
			if ((header[2] << 8 | header[3]) & 0xfff8) {
				*rest = true;
				return true;
			}
		} else {
			*at += next == IPPROTO_AH ? (header[1] + 2) * 4 : (header[1] + 1) * 8;
		}
	}
	return true;
}

static __always_inline void set_ports(struct key *key, const __be16 *source_and_destination, const bool out)
{
	key->far_port = source_and_destination[out];
	key->near_port = source_and_destination[!out];
}

static __always_inline bool parse_transport(struct __sk_buff *skb, __u32 l3, __u32 l4, struct key *key, struct packet *packet,
					    const bool out)
{
	packet->headers = l4 - l3;
	if (key->protocol == IPPROTO_TCP) {
		struct tcphdr tcp;

		if (bpf_skb_load_bytes(skb, l4, &tcp, sizeof(tcp)))
			return false;
		set_ports(key, &tcp.source, out);
		packet->headers += tcp.doff * 4;
		packet->sequence = bpf_ntohl(tcp.seq);
		packet->tcp_flags = ((__u8 *)&tcp)[13];
		packet->is_tcp = true;
		return tcp.doff >= 5 && packet->headers <= packet->length;
	}
	if (key->protocol == IPPROTO_UDP) {
		__be16 of_udp[4];

		if (bpf_skb_load_bytes(skb, l4, of_udp, sizeof(of_udp)))
			return false;
		set_ports(key, of_udp, out);
		packet->headers += sizeof(of_udp);
	}
	if (key->protocol == IPPROTO_ICMP || key->protocol == IPPROTO_ICMPV6)
		return !bpf_skb_load_bytes(skb, l4, &key->near_port, sizeof(key->near_port));
	return true;
}

static __always_inline bool parse_v4(struct __sk_buff *skb, __u32 l3, struct key *key, struct packet *packet, const bool out)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return false;
	key->far[10] = key->far[11] = key->near[10] = key->near[11] = 0xff;
	__builtin_memcpy(key->far + 12, out ? &ip.daddr : &ip.saddr, 4);
	__builtin_memcpy(key->near + 12, out ? &ip.saddr : &ip.daddr, 4);
	key->protocol = ip.protocol;
	packet->headers = ip.ihl * 4;
	packet->length = skb->gso_size ? skb->len - l3 : bpf_ntohs(ip.tot_len);
	if (packet->length < packet->headers || packet->length > skb->len - l3)
		return false;
	if (ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return true;
	return parse_transport(skb, l3, l3 + ip.ihl * 4, key, packet, out);
}

static __always_inline bool parse_v6(struct __sk_buff *skb, __u32 l3, struct key *key, struct packet *packet, const bool out)
{
	__u32 l4 = l3 + sizeof(struct ipv6hdr);
	struct ipv6hdr ip;
	bool rest = false;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	__builtin_memcpy(key->far, out ? &ip.daddr : &ip.saddr, 16);
	__builtin_memcpy(key->near, out ? &ip.saddr : &ip.daddr, 16);
	key->protocol = ip.nexthdr;
	packet->headers = sizeof(ip);
	packet->length = skb->gso_size ? skb->len - l3 : sizeof(ip) + bpf_ntohs(ip.payload_len);
	if (!parse_extensions(skb, &l4, &key->protocol, &rest))
		return false;
	packet->headers = l4 - l3;
	if (packet->length < packet->headers || packet->length > skb->len - l3)
		return false;
	return rest || parse_transport(skb, l3, l4, key, packet, out);
}

static __always_inline bool is_in_networks(const __u8 *address)
{
	struct network network = { .bits = 128 };

	__builtin_memcpy(network.address, address, 16);
	return bpf_map_lookup_elem(&networks, &network);
}

static __always_inline bool is_in_ports(const struct ports *all, __be16 port)
{
	__u16 number = bpf_ntohs(port);

	return all->bits[number >> 6] >> (number & 63) & 1;
}

static __always_inline bool is_wanted(const struct key *key)
{
	__u32 zero = 0;

	if (!(wanted.protocols[key->protocol >> 6] >> (key->protocol & 63) & 1))
		return false;
	if (wanted.by_port) {
		const struct ports *all = bpf_map_lookup_elem(&ports, &zero);

		if (!all || (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP))
			return false;
		if (!is_in_ports(all, key->near_port) && !is_in_ports(all, key->far_port))
			return false;
	}
	return !wanted.by_network || is_in_networks(key->near) || is_in_networks(key->far);
}

/* Packets of `packet` that carry nothing new. */
static __always_inline __u32 resent(struct half *half, const struct packet *packet, __u32 gso_size)
{
	__u32 payload = packet->length - packet->headers;
	__u32 end = packet->sequence + payload + !!(packet->tcp_flags & TCP_SYN) + !!(packet->tcp_flags & TCP_FIN);
	__s32 ahead = end - half->next, behind = half->next - packet->sequence;

	if (!(half->flags & HALF_SEQUENCE)) {
		half->next = end;
		return 0;
	}
	if (end == packet->sequence)
		return 0;
	if (ahead > 0)
		half->next = end;
	if (behind <= 0)
		return 0;
	if (!gso_size)
		return 1;
	if ((__u32)behind > payload)
		behind = payload;
	return (behind + gso_size - 1) / gso_size;
}

/* When the segments of the handshake pass. */
static __always_inline void follow(struct flow *flow, const struct packet *packet, __u64 now, const bool out)
{
	__u32 flags = packet->tcp_flags, mine = out ? FLOW_OPENED_OUT : FLOW_OPENED_IN;

	if (!wanted.handshake || flow->ack || !(flags & (TCP_SYN | TCP_ACK)))
		return;
	if (!(flags & TCP_ACK)) {
		if (!flow->syn) {
			flow->syn = now;
			flow->state |= mine;
		} else if (!flow->syn_ack) {
			flow->state |= FLOW_SYN_AGAIN;
		}
	} else if (flags & TCP_SYN) {
		if (!flow->syn || flow->state & mine)
			return;
		if (flow->syn_ack)
			flow->state |= FLOW_SYN_ACK_AGAIN;
		else
			flow->syn_ack = now;
	} else if (flow->syn_ack && flow->state & mine) {
		flow->ack = now;
	}
}

/* Puts what is counted of one direction into `to`, and begins anew. */
static __always_inline void take(struct half *to, struct half *from)
{
	to->packets = __sync_lock_test_and_set(&from->packets, 0);
	to->bytes = __sync_lock_test_and_set(&from->bytes, 0);
	to->first = from->first;
	to->last = from->last;
	to->resent = __sync_lock_test_and_set(&from->resent, 0);
	to->next = 0;
	to->flags = __sync_lock_test_and_set(&from->flags, 0);
	from->first = 0;
	from->last = 0;
}

/* The ends of a flow that has ended open another one: what was counted so far is the former flow's. */
static __always_inline void begin_anew(const struct key *key, struct flow *flow)
{
	struct former *former = bpf_ringbuf_reserve(&news, sizeof(*former), 0);

	if (!former) {
		struct counts *all = counted();

		if (all)
			all->merged++;
		flow->state &= ~FLOW_ENDED;
		return;
	}
	former->key = *key;
	former->zero = 0;
	take(&former->flow.in, &flow->in);
	take(&former->flow.out, &flow->out);
	former->flow.syn = flow->syn;
	former->flow.syn_ack = flow->syn_ack;
	former->flow.ack = flow->ack;
	former->flow.state = flow->state;
	former->flow.zero = 0;
	flow->syn = flow->syn_ack = flow->ack = 0;
	flow->state = 0;
	bpf_ringbuf_submit(former, BPF_RB_NO_WAKEUP);
}

/* A flow is ended by RST, or by FIN of both ends: the process hears of it. */
static __always_inline void end(const struct key *key, struct flow *flow, const struct half *other, const struct packet *packet)
{
	struct counts *all;

	if (flow->state & FLOW_ENDED || !(packet->tcp_flags & (TCP_FIN | TCP_RST)))
		return;
	if (!(packet->tcp_flags & TCP_RST) && !(other->flags & TCP_FIN))
		return;
	flow->state |= FLOW_ENDED;
	if (bpf_ringbuf_output(&news, (void *)key, sizeof(*key), BPF_RB_NO_WAKEUP)) {
		all = counted();
		if (all)
			all->unheard++;
	}
}

static const struct flow none;

static __always_inline void account(struct __sk_buff *skb, const struct key *key, const struct packet *packet, const bool out)
{
	__u32 gso_size = skb->gso_size, segments = 1, again;
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	struct half *own, *other;
	__u64 bytes, now = bpf_ktime_get_ns();
	struct counts *all;

	if (gso_size) {
		segments = skb->gso_segs;
		/* Not known of what a virtual machine has sent. */
		if (!segments)
			segments = (packet->length - packet->headers + gso_size - 1) / gso_size;
		if (!segments)
			segments = 1;
	}
	bytes = packet->length + (__u64)(segments - 1) * packet->headers;
	if (!flow) {
		bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST);
		flow = bpf_map_lookup_elem(&flows, key);
	}
	if (!flow) {
		all = counted();
		if (all) {
			all->no_room_packets += segments;
			all->no_room_bytes += bytes;
		}
		return;
	}
	own = out ? &flow->out : &flow->in;
	other = out ? &flow->in : &flow->out;
	if (packet->is_tcp) {
		if (flow->state & FLOW_ENDED && (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN)
			begin_anew(key, flow);
		if (wanted.resent) {
			again = resent(own, packet, gso_size);
			if (again)
				__sync_fetch_and_add(&own->resent, again);
		}
		/* What a reset is numbered by may be anything. */
		again = packet->tcp_flags | (packet->tcp_flags & TCP_RST ? 0 : HALF_SEQUENCE);
		if (again & ~own->flags)
			__sync_fetch_and_or(&own->flags, again);
		follow(flow, packet, now, out);
		end(key, flow, other, packet);
	}
	if (!own->first)
		own->first = now;
	own->last = now;
	__sync_fetch_and_add(&own->packets, segments);
	__sync_fetch_and_add(&own->bytes, bytes);
}

/* Whatever it is, the next program gets it, as it came. */
static __always_inline int observe(struct __sk_buff *skb, const bool out)
{
	struct packet packet = {};
	struct key key = {};
	struct counts *all;
	bool is_whole;
	__be16 type;
	__u32 l3;

	type = parse_ethernet(skb, &l3);
	if (type == bpf_htons(ETH_P_IP))
		is_whole = parse_v4(skb, l3, &key, &packet, out);
	else if (type == bpf_htons(ETH_P_IPV6))
		is_whole = parse_v6(skb, l3, &key, &packet, out);
	else
		return TC_ACT_UNSPEC;
	if (!is_whole) {
		all = counted();
		if (all)
			all->malformed++;
		return TC_ACT_UNSPEC;
	}
	if (!is_wanted(&key))
		return TC_ACT_UNSPEC;
	key.ifindex = skb->ifindex;
	account(skb, &key, &packet, out);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int monitor_ingress(struct __sk_buff *skb)
{
	return observe(skb, false);
}

SEC("tc")
int monitor_egress(struct __sk_buff *skb)
{
	return observe(skb, true);
}

char LICENSE[] SEC("license") = "GPL";
