/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* SYN cookies: a client of a spliced service is answered here, and reaches a worker with its first data and a cookie
 * that is right. The same cookies, and the same SYN-ACKs, as crates/core/src/l7/cookie.rs, which says what they are.
 *
 * Functions with `in_driver` serve both contexts: struct xdp_md there, struct __sk_buff at tc. In XDP nothing is known of a
 * frame but its bytes, so whatever looks wrong there is left to tc. */
#ifndef HAIRPIN_COOKIE_H
#define HAIRPIN_COOKIE_H

#define COUNT_SHIFT 36       /* ns to time counts */
#define EPOCH_SHIFT 6        /* time counts to epochs */
#define OFFER_BITS 7
#define OFFER_UNSCALED 15    /* instead of a window scale */
#define PLAIN_BITS 9         /* bits of a cookie that are not hash */

#define MSS_V4 1460          /* what we announce */
#define MSS_V6 1440
#define MSS_UNSAID_V4 536    /* of a SYN that says nothing of it */
#define MSS_UNSAID_V6 1220
#define SCALE 7
#define SCALE_MAX 14
#define HOPS 64

#define TCP_LENGTH_MAX 60
#define SYN_ACK_LENGTH 24    /* with an MSS, the option that is always there */
#define SYN_ACK_LENGTH_MAX 40

#define UNDECIDED 0x7ffffffe /* no verdict yet: to be treated like a packet to any other service */
#define STRANGE 0x7ffffffd   /* no verdict yet: of no known connection, no RST, and bare or with FIN alone */
#define STRANGE_DATA 0x7ffffffc /* the same with data */

/* Whose packet it is, as a cookie's hash is taken of it: the source's and the destination's address, IPv4 as
 * ::ffff:a.b.c.d, their ports, the SYN's sequence number; all in network byte order. */
union meeting {
	struct {
		__u8 source[16], destination[16];
		__be16 source_port, destination_port;
		__be32 sequence;
	};
	__be32 halves[10];
	__u64 words[5];
};

/* What the programs work on: too much for the stack, and the verifier need not follow it. */
struct syn {
	union meeting of;
	__be32 numbers[2];                  /* its sequence and acknowledgement number */
	__u8 network[sizeof(struct iphdr)]; /* the SYN's IPv4 header */
	__u8 segment[TCP_LENGTH_MAX + 8];   /* the SYN's TCP header, and what is read beyond its end */
	__u8 answer[sizeof(struct ipv6hdr) + SYN_ACK_LENGTH_MAX];
	__u8 macs[2 * ETH_ALEN];            /* the answer's */
	__u32 at, end; /* of the options, in `segment` */
	__u32 mss, scale, sack, stamped;
	__be32 timestamp, clock; /* if `stamped`: its sender's clock, and ours */
};

ARRAY(syn_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, struct syn, 1, 0);

/* Clients that have just come with a right cookie: what else they have sent with it is not to be refused while their
 * worker has not counted them among the known yet. By the lower bits of the steering hash: 16 more bits of it, and when
 * (coarse clock, ns >> NEW_FLOW_SHIFT). */
#define NEW_FLOW_CELLS (1 << 16)
#define NEW_FLOW_SHIFT 27 /* 134 ms */
#define NEW_FLOW_FOR 8    /* 1.07 s */

struct new_flows {
	__u32 cells[NEW_FLOW_CELLS];
};

ARRAY(new_flows, BPF_MAP_TYPE_ARRAY, struct new_flows, 1, 0);

static __always_inline __u32 new_flow_now(void)
{
	return (bpf_ktime_get_coarse_ns() >> NEW_FLOW_SHIFT) & 0xffff;
}

static __always_inline bool is_new_flow(__u64 hash)
{
	struct new_flows *all = single(&new_flows);
	__u32 cell = all ? all->cells[hash & (NEW_FLOW_CELLS - 1)] : 0;

	return cell >> 16 == hash >> 48 && ((new_flow_now() - cell) & 0xffff) <= NEW_FLOW_FOR;
}

static __always_inline void welcome(__u64 hash)
{
	struct new_flows *all = single(&new_flows);

	if (all)
		all->cells[hash & (NEW_FLOW_CELLS - 1)] = (__u32)(hash >> 48) << 16 | new_flow_now();
}

static __always_inline __u64 rotated(__u64 word, __u32 by)
{
	return word << by | word >> (64 - by);
}

#define SIP_ROUND(v0, v1, v2, v3) \
	do { \
		v0 += v1; v1 = rotated(v1, 13) ^ v0; v0 = rotated(v0, 32); \
		v2 += v3; v3 = rotated(v3, 16) ^ v2; \
		v0 += v3; v3 = rotated(v3, 21) ^ v0; \
		v2 += v1; v1 = rotated(v1, 17) ^ v2; v2 = rotated(v2, 32); \
	} while (0)

/* The cookie in the time count and with the offer that `plain` holds as count << OFFER_BITS | offer: SipHash-1-3 of 48
 * bytes. */
static __noinline __u32 make_cookie(const struct control *control, const union meeting *of, __u64 plain)
{
	const __u64 *key = control->cookie_keys[(plain >> (OFFER_BITS + EPOCH_SHIFT)) & 1];
	__u64 v0 = key[0] ^ 0x736f6d6570736575ULL, v1 = key[1] ^ 0x646f72616e646f6dULL;
	__u64 v2 = key[0] ^ 0x6c7967656e657261ULL, v3 = key[1] ^ 0x7465646279746573ULL;
	__u64 word;

#pragma unroll
	for (int i = 0; i < 7; i++) {
		word = i < 5 ? little_endian(of->words[i]) : i == 5 ? plain : 48ULL << 56;
		v3 ^= word;
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= word;
	}
	v2 ^= 0xff;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	return (__u32)(v0 ^ v1 ^ v2 ^ v3) << PLAIN_BITS | (plain & ((1 << PLAIN_BITS) - 1));
}

/* The time count, by the clock that cookies go by. */
static __always_inline __u64 count_now(const struct control *control)
{
	return (bpf_ktime_get_coarse_ns() + control->cookie_ahead_ns) >> COUNT_SHIFT;
}

/* Whether `cookie` was made in this time count, one of the three before or, by another clock, the next. */
static __always_inline bool is_cookie(const struct control *control, const union meeting *of, __u32 cookie)
{
	__u64 now = count_now(control), offer = cookie & ((1 << OFFER_BITS) - 1);
	__u32 age = (now - (cookie >> OFFER_BITS)) & 3;

	if (make_cookie(control, of, (now - age) << OFFER_BITS | offer) == cookie)
		return true;
	return age == 3 && make_cookie(control, of, (now + 1) << OFFER_BITS | offer) == cookie;
}

struct syn_walk {
	struct syn *syn;
};

/* The next of a SYN's options, as the kernel reads them: the last of several counts. */
static long read_option(__u32 index, void *argument)
{
	struct syn *syn = ((struct syn_walk *)argument)->syn;
	__u32 at = syn->at, end = syn->end, length, value;
	__u8 *option = syn->segment + at;

	if (at >= end || at >= TCP_LENGTH_MAX || *option == 0)
		return 1;
	if (*option == 1) {
		syn->at = at + 1;
		return 0;
	}
	length = option[1];
	if (at + 1 >= end || length < 2 || at + length > end)
		return 1;
	syn->at = at + length;
	if (*option == 2 && length == 4) {
		value = option[2] << 8 | option[3];
		if (value)
			syn->mss = value;
	} else if (*option == 3 && length == 3) {
		syn->scale = option[2] < SCALE_MAX ? option[2] : SCALE_MAX;
	} else if (*option == 4 && length == 2) {
		syn->sack = 1;
	} else if (*option == 8 && length == 10) {
		syn->stamped = 1;
		__builtin_memcpy(&syn->timestamp, option + 2, 4);
	}
	return 0;
}

/* What the SYN offers, as a cookie tells it. */
static __always_inline __u32 read_offer(struct syn *syn, __u32 length, const bool ipv6)
{
	struct syn_walk walk = { .syn = syn };
	__u32 class;

	syn->at = sizeof(struct tcphdr);
	syn->end = length;
	syn->mss = ipv6 ? MSS_UNSAID_V6 : MSS_UNSAID_V4;
	syn->scale = OFFER_UNSCALED;
	syn->sack = 0;
	syn->stamped = 0;
	bpf_loop(TCP_LENGTH_MAX - sizeof(struct tcphdr), read_option, &walk, 0);
	if (ipv6)
		class = syn->mss < MSS_UNSAID_V6 ? 0 : syn->mss < 1360 ? 1 : syn->mss < MSS_V6 ? 2 : 3;
	else
		class = syn->mss < MSS_UNSAID_V4 ? 0 : syn->mss < 1300 ? 1 : syn->mss < MSS_V4 ? 2 : 3;
	return syn->sack << 6 | syn->scale << 2 | class;
}

/* Whether no other host can have sent a packet from its source address: such a packet is not answered. */
static __always_inline bool has_impossible_source(const union meeting *of, const bool ipv6)
{
	const __u64 *words = of->words;

	if (words[0] == words[2] && words[1] == words[3])
		return true;
	if (!ipv6)
		return of->source[12] == 0 || of->source[12] == 127 || of->source[12] >= 224;
	/* Groups, ::, ::1, and what would pass for IPv4. */
	return of->source[0] == 0xff ||
	       (!words[0] && (!(words[1] & ~bpf_cpu_to_be64(1)) || of->halves[2] == bpf_htonl(0xffff)));
}

/* The pseudo-header's sum, in either direction. */
static __always_inline __u32 pseudo_sum(const union meeting *of, __u32 length)
{
	__u64 sum = (__u64)bpf_htons(IPPROTO_TCP) + bpf_htons(length);

	/* IPv4's mapping prefix adds 0xffff for each of the two: nothing. */
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += of->halves[i];
	return fold(sum);
}

static __always_inline long load_bytes(void *ctx, __u32 at, void *to, __u32 length, const bool in_driver)
{
	return in_driver ? bpf_xdp_load_bytes(ctx, at, to, length) : bpf_skb_load_bytes(ctx, at, to, length);
}

/* Reads the SYN into `syn`. Whether its checksums are right, as far as that is the receiver's to tell; that of a SYN
 * with data is not looked at, as nothing of the data is used. */
static __always_inline bool read_syn(void *ctx, struct syn *syn, __u64 shape, __u32 state, const bool ipv6, const bool in_driver)
{
	__u32 length = shape_header(shape), sum;

	if (!ipv6) {
		if (load_bytes(ctx, shape_l3(shape), syn->network, sizeof(syn->network), in_driver))
			return false;
		if (fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)syn->network, sizeof(syn->network), 0)) != 0xffff)
			return false;
	}
	/* Two checks: joined to one of `length - 20`, as clang likes them, the bounds would be those of a copy, and the
	 * verifiers of 6.1 and 6.12 would not know them of `length`. */
	if (length < sizeof(struct tcphdr))
		return false;
	barrier_var(length);
	if (length > TCP_LENGTH_MAX)
		return false;
	if (load_bytes(ctx, shape_l4(shape), syn->segment, length, in_driver))
		return false;
	if (shape & SHAPE_PAYLOAD || state & 1)
		return true; /* 1 and 3: the device has verified it, or it never was on a wire */
	sum = bpf_csum_diff(NULL, 0, (__be32 *)syn->segment, length, pseudo_sum(&syn->of, length));
	return fold(sum) == 0xffff;
}

/* The clock in timestamps (`clock` of crates/core/src/l7/splice/tcp/timestamps.rs). */
static __always_inline __u32 clock_now(const struct control *control)
{
	return (__u32)(bpf_ktime_get_coarse_ns() / 1000000) + control->clock_ahead;
}

/* Writes the SYN-ACK behind the place of its IP header in `syn->answer`; its length. */
static __always_inline __u32 write_segment(struct syn *syn, __u32 at, __u32 cookie, const bool ipv6)
{
	struct tcphdr *from = (void *)syn->segment, *to = (void *)(syn->answer + at);
	__u32 mss = ipv6 ? MSS_V6 : MSS_V4, length = SYN_ACK_LENGTH, scale = 1 << 24 | 3 << 16 | 3 << 8 | SCALE;
	__u32 sack = syn->sack ? 4 << 8 | 2 : 1 << 8 | 1;
	__be32 *options = (void *)(to + 1);

	__builtin_memset(to, 0, sizeof(*to));
	to->source = from->dest;
	to->dest = from->source;
	to->seq = bpf_htonl(cookie);
	to->ack_seq = bpf_htonl(bpf_ntohl(from->seq) + 1);
	to->syn = 1;
	to->ack = 1;
	to->window = 0xffff;
	options[0] = bpf_htonl(2 << 24 | 4 << 16 | mss);
	if (syn->stamped) {
		options[1] = bpf_htonl(sack << 16 | 8 << 8 | 10);
		options[2] = syn->clock;
		options[3] = syn->timestamp;
		options[4] = bpf_htonl(scale);
		length += 12;
	} else {
		options[1] = bpf_htonl(syn->sack ? sack << 16 | 1 << 8 | 1 : scale);
		options[2] = bpf_htonl(scale);
		length += syn->sack ? 4 : 0;
	}
	length += syn->scale != OFFER_UNSCALED ? 4 : 0;
	to->doff = length / 4;
	return length;
}

/* Writes the SYN-ACK's IP header. */
static __always_inline void write_network(struct syn *syn, __u32 length, const bool ipv6)
{
	const union meeting *of = &syn->of;

	__builtin_memset(syn->answer, 0, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (ipv6) {
		struct ipv6hdr *ip = (void *)syn->answer;

		ip->version = 6;
		ip->payload_len = bpf_htons(length);
		ip->nexthdr = IPPROTO_TCP;
		ip->hop_limit = HOPS;
		__builtin_memcpy(&ip->saddr, of->destination, 16);
		__builtin_memcpy(&ip->daddr, of->source, 16);
	} else {
		struct iphdr *ip = (void *)syn->answer;

		ip->version = 4;
		ip->ihl = 5;
		ip->tot_len = bpf_htons(sizeof(*ip) + length);
		ip->frag_off = bpf_htons(0x4000);
		ip->ttl = HOPS;
		ip->protocol = IPPROTO_TCP;
		__builtin_memcpy(&ip->saddr, of->destination + 12, 4);
		__builtin_memcpy(&ip->daddr, of->source + 12, 4);
		ip->check = ~fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	}
}

/* Puts the answer, of `length` bytes of IP, in the frame's place, and sends it back the way the frame has come. A VLAN tag, in
 * the socket buffer's metadata, stays. */
static __always_inline int send_back(struct __sk_buff *skb, struct syn *syn, __u32 length)
{
	if (bpf_skb_change_tail(skb, ETH_HLEN + length, 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, syn->answer, length, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, 0, syn->macs, sizeof(syn->macs), 0))
		return TC_ACT_SHOT;
	count(EVENT_COOKIE_SENT);
	return bpf_redirect(skb->ifindex, 0);
}

/* send_back() in a driver. What cannot be sent from there, or made as long as the answer is, passes as it came. */
static __always_inline int send_back_in_driver(struct xdp_md *ctx, struct syn *syn, __u32 length, __u32 sends_back)
{
	int verdict = way_out(ctx, ctx->ingress_ifindex, sends_back);
	__u32 before = bpf_xdp_get_buff_len(ctx);

	if (verdict == XDP_PASS || bpf_xdp_adjust_tail(ctx, (int)(ETH_HLEN + length - before)))
		return XDP_PASS;
	if (bpf_xdp_store_bytes(ctx, ETH_HLEN, syn->answer, length) ||
	    bpf_xdp_store_bytes(ctx, 0, syn->macs, sizeof(syn->macs)))
		return XDP_DROP;
	count(EVENT_COOKIE_SENT);
	count(EVENT_XDP);
	return verdict;
}

static __always_inline int dropped(const bool in_driver)
{
	return in_driver ? XDP_DROP : TC_ACT_SHOT;
}

static __always_inline int malformed(const bool in_driver)
{
	if (in_driver)
		return XDP_PASS;
	count(EVENT_MALFORMED);
	return TC_ACT_SHOT;
}

/* Makes the frame the SYN-ACK that answers it. The answer is not longer than the SYN but for its MSS option: no use as an
 * amplifier. */
static __always_inline int answer_syn(void *ctx, const struct control *control, struct syn *syn, __u64 shape, const bool ipv6,
				      const bool in_driver)
{
	const __u32 network = ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	__u32 length, offer, pseudo, state = in_driver ? CHECKSUM_WHOLE : checksum_state(ctx);
	__u64 now = count_now(control);
	struct tcphdr *tcp;

	if (has_impossible_source(&syn->of, ipv6) || !read_syn(ctx, syn, shape, state, ipv6, in_driver))
		return malformed(in_driver);
	offer = read_offer(syn, shape_header(shape), ipv6);
	if (!(shape & SHAPE_TIMESTAMPS))
		syn->stamped = 0;
	syn->clock = bpf_htonl(clock_now(control));
	length = write_segment(syn, network, make_cookie(control, &syn->of, now << OFFER_BITS | offer), ipv6);
	write_network(syn, length, ipv6);
	tcp = (void *)(syn->answer + network);
	pseudo = pseudo_sum(&syn->of, length);
	/* Two checks, as in `read_syn`. */
	barrier_var(length);
	if (length < SYN_ACK_LENGTH)
		return dropped(in_driver);
	barrier_var(length);
	if (length > SYN_ACK_LENGTH_MAX)
		return dropped(in_driver);
	/* An unfinished checksum stays unfinished: the kernel or device that finishes it looks in the same place. */
	if (state != CHECKSUM_PARTIAL)
		pseudo = ~fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)tcp, length, pseudo));
	tcp->check = pseudo;
	if (load_bytes(ctx, 0, syn->macs + ETH_ALEN, ETH_ALEN, in_driver) ||
	    load_bytes(ctx, ETH_ALEN, syn->macs, ETH_ALEN, in_driver))
		return dropped(in_driver);
	if (in_driver)
		return send_back_in_driver(ctx, syn, network + length, !!(shape & SHAPE_SENDS_BACK));
	return send_back(ctx, syn, network + length);
}

#define ANSWER_SYN(name, context, ipv6, in_driver) \
	static __noinline int name(context *ctx, const struct control *control, struct syn *syn, __u64 shape) \
	{ \
		return answer_syn(ctx, control, syn, shape, ipv6, in_driver); \
	}

ANSWER_SYN(answer_syn_v4, struct __sk_buff, false, false)
ANSWER_SYN(answer_syn_v6, struct __sk_buff, true, false)
ANSWER_SYN(answer_syn_in_driver_v4, struct xdp_md, false, true)
ANSWER_SYN(answer_syn_in_driver_v6, struct xdp_md, true, true)

/* A SYN, and whatever else has the flag, to a spliced service: answered, if it is of the form nearly all are. */
static __always_inline int spliced_syn(void *ctx, const struct control *control, struct syn *syn, __u32 ipv6, __u64 shape,
				       const bool in_driver)
{
	__u32 l3 = shape_l3(shape), network = shape_l4(shape) - l3;

	if (shape & (TCP_FIN | TCP_RST))
		return malformed(in_driver);
	if (l3 != ETH_HLEN || network != (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		return UNDECIDED;
	if (in_driver)
		return ipv6 ? answer_syn_in_driver_v6(ctx, control, syn, shape) :
			      answer_syn_in_driver_v4(ctx, control, syn, shape);
	return ipv6 ? answer_syn_v6(ctx, control, syn, shape) : answer_syn_v4(ctx, control, syn, shape);
}

/* To the worker that has the client; from a driver by way of tc. */
static __always_inline int to_its_worker(void *ctx, const struct control *control, __u64 hash, const bool in_driver)
{
	return in_driver ? XDP_PASS : to_worker(ctx, steer_worker(control, hash));
}

/* A packet to a spliced service. A worker gets those of known connections, and of others the one that begins them: the
 * first data, with the cookie; or FIN with it, of who closes without having said anything and waits for an answer. The
 * acknowledgement that ends the handshake tells nothing that the data will not tell again, but of a plain service it is what
 * begins the connection. What has no right cookie is for `strange`. */
static __always_inline int meet_spliced(void *ctx, const struct end *source, const struct end *destination, __u32 ipv6,
					__u64 shape, const bool in_driver)
{
	struct control *control_now = single(&control);
	struct syn *syn = single(&syn_scratch);
	__u64 hash;

	/* While no process serves, no client is to be made to believe that one does. The ends are never NULL. */
	if (!control_now || !syn || !source || !destination || is_absent(control_now))
		return UNDECIDED;
	if (load_bytes(ctx, shape_l4(shape) + offsetof(struct tcphdr, seq), syn->numbers, sizeof(syn->numbers), in_driver))
		return dropped(in_driver);
	__builtin_memcpy(syn->of.source, source->address, 16);
	__builtin_memcpy(syn->of.destination, destination->address, 16);
	syn->of.source_port = source->port;
	syn->of.destination_port = destination->port;
	syn->of.sequence = syn->numbers[0];
	if (opens(shape))
		return spliced_syn(ctx, control_now, syn, ipv6, shape, in_driver);
	hash = steer_hash(control_now, source);
	if (is_known(hash) || is_new_flow(hash))
		return to_its_worker(ctx, control_now, hash, in_driver);
	if (!(shape & TCP_ACK) || shape & (TCP_SYN | TCP_RST)) {
		count(EVENT_COOKIE_BARE);
		return dropped(in_driver);
	}
	syn->of.sequence = bpf_htonl(bpf_ntohl(syn->numbers[0]) - 1);
	if (!is_cookie(control_now, &syn->of, bpf_ntohl(syn->numbers[1]) - 1))
		return shape & SHAPE_PAYLOAD ? STRANGE_DATA : STRANGE;
	if (!(shape & (SHAPE_PAYLOAD | SHAPE_PLAIN | TCP_FIN))) {
		count(EVENT_COOKIE_BARE);
		return dropped(in_driver);
	}
	/* In a driver, too: it sees the segments behind this one before tc has seen any. */
	if (shape & (SHAPE_PAYLOAD | SHAPE_PLAIN))
		welcome(hash);
	return to_its_worker(ctx, control_now, hash, in_driver);
}

__noinline int spliced(struct __sk_buff *skb, const struct end *source, const struct end *destination, __u32 ipv6, __u64 shape)
{
	return meet_spliced(skb, source, destination, ipv6, shape, false);
}

__noinline int spliced_in_driver(struct xdp_md *ctx, const struct end *source, const struct end *destination, __u32 ipv6,
				 __u64 shape)
{
	return meet_spliced(ctx, source, destination, ipv6, shape, true);
}
#endif
