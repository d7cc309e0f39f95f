/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a rule changes in a packet: the same bytes as Rewrite::apply in core/src/rewrite.rs.
 *
 * Checksums are kept in step incrementally (RFC 1624, equation 3). A changed one is never 0xffff, as with the
 * kernel's bpf_l4_csum_replace: the sum is kept from being 0, so that it folds to 1 to 0xffff. The helper itself is
 * not used: it is called once per field and costs more than the arithmetic. What it knows and __sk_buff hides,
 * ip_summed, is read from the socket buffer proper. */
#ifndef HAIRPIN_REWRITE_H
#define HAIRPIN_REWRITE_H

#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

struct sk_buff___kernel {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* From Linux 6.2 on; the verifier replaces it by a move. */
extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak;

static __always_inline __u32 checksum_state(struct __sk_buff *skb)
{
	if (bpf_ksym_exists(bpf_cast_to_kern_ctx)) {
		struct sk_buff___kernel *kernel = bpf_cast_to_kern_ctx(skb);

		return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
	}
	/* The context is the socket buffer; only the verifier does not know it. */
	return BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff___kernel *)skb, ip_summed);
}

/* One's complement sum in 16 bits of up to 2^48; 0 only for 0. */
static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u32)(sum & 0xffff) + (__u32)(sum >> 16);
}

/* What a 32-bit word that became another adds to a sum. */
static __always_inline __u64 difference(__be32 old, __be32 new)
{
	return (__u64)(__u32)~old + (__u32)new;
}

/* TCP options are walked with bpf_loop, one option a step. What changes from step to step is kept in a map, whose
 * contents the verifier does not follow: it need not see every way through the options. */
struct options {
	__u32 at, end; /* offsets in the frame */
	__u32 start;   /* of the TCP header */
	__u32 delta;
	__u64 sum;
};

ARRAY(options_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, struct options, 1, 0);

struct options_walk {
	struct __sk_buff *skb;
	struct options *options;
};

#define OPTIONS_LENGTH_MAX 40
#define SACK_BLOCKS_MAX 4
#define OFFSET_MAX 4096 /* above any offset parse() lets through */

/* A word in the frame, to read and write; NULL if it is not in the linear part. */
static __always_inline void *bytes_at(struct __sk_buff *skb, __u32 at, __u32 length)
{
	void *word;

	if (at > OFFSET_MAX)
		return NULL;
	word = (void *)(long)skb->data + at;
	return word + length > (void *)(long)skb->data_end ? NULL : word;
}

/* One edge of a SACK block. */
static __always_inline bool translate_edge(struct __sk_buff *skb, struct options *options, __u32 edge)
{
	void *word = bytes_at(skb, edge, 4);
	__be32 old, new;
	__u32 change;

	if (!word)
		return false;
	__builtin_memcpy(&old, word, 4);
	new = bpf_htonl(bpf_ntohl(old) + options->delta);
	__builtin_memcpy(word, &new, 4);
	/* At an odd offset, every byte counts for the other half of its word. */
	change = fold(difference(old, new));
	options->sum += (edge - options->start) & 1 ? __builtin_bswap16(change) : change;
	return true;
}

static long translate_option(__u32 index, void *argument)
{
	struct options_walk *walk = argument;
	struct options *options = walk->options;
	__u32 at = options->at, end = options->end, length;
	__u8 *option = bytes_at(walk->skb, at, 1);

	if (at >= end || !option || *option == 0)
		return 1;
	if (*option == 1) {
		options->at = at + 1;
		return 0;
	}
	option = bytes_at(walk->skb, at, 2);
	if (at + 1 >= end || !option)
		return 1;
	length = option[1];
	if (length < 2 || at + length > end)
		return 1;
	options->at = at + length;
	/* Whole blocks only, as the kernel reads them. */
	if (*option != 5 || (length - 2) % 8)
		return 0;
	for (__u32 i = 0; i < 2 * SACK_BLOCKS_MAX; i++) {
		if (2 + i * 4 >= length)
			break;
		if (!translate_edge(walk->skb, options, at + 2 + i * 4))
			return 1;
	}
	return 0;
}

/* Adds a rule's deltas to sequence and acknowledgement number and to the edges of SACK blocks. Returns what that
 * adds to a sum; ~0, and nothing is changed, if the headers do not lie in the linear part. */
static __noinline __u64 translate_numbers(struct __sk_buff *skb, __u32 l4, const struct numbers *numbers)
{
	struct tcphdr *tcp = bytes_at(skb, l4, sizeof(*tcp));
	struct options_walk walk = { .skb = skb, .options = single(&options_scratch) };
	struct options *options = walk.options;
	__u64 sum;
	__be32 old;

	if (!tcp || !options)
		return ~0ULL;
	options->start = l4;
	options->at = l4 + sizeof(*tcp);
	options->end = l4 + tcp->doff * 4;
	options->delta = numbers->acknowledgement_delta;
	options->sum = 0;
	if (!bytes_at(skb, options->end - 1, 1))
		return ~0ULL;
	old = tcp->seq;
	tcp->seq = bpf_htonl(bpf_ntohl(old) + numbers->sequence_delta);
	sum = difference(old, tcp->seq);
	if (tcp->ack) {
		old = tcp->ack_seq;
		tcp->ack_seq = bpf_htonl(bpf_ntohl(old) + numbers->acknowledgement_delta);
		sum += difference(old, tcp->ack_seq);
	}
	if (options->delta)
		bpf_loop(OPTIONS_LENGTH_MAX, translate_option, &walk, 0);
	return sum + options->sum;
}

/* The transport checksum after `addresses` (of the pseudo-header) and `rest` (of the transport header) were added. */
static __always_inline __u16 updated(__u16 checksum, __u32 state, __u32 addresses, __u64 rest)
{
	if (state == CHECKSUM_PARTIAL)
		return fold((__u64)checksum + addresses);
	return ~fold((__u64)(__u16)~checksum + addresses + rest + 0xffff);
}

/* Everything but layer 2 and TCP numbers, whose share of the sum is `numbers`. Returns what the packet's bytes now
 * sum up to more than before, for a socket buffer that knows its sum: an IPv4 header's own checksum keeps it where
 * it was, and so does a transport checksum, but for the pseudo-header's share, which is not in the packet. */
static __always_inline __u64 rewrite(void *rule, void *network, void *transport, const struct frame *f, __u64 numbers,
				     __u32 state, const bool ipv6)
{
	struct rule_head *head = rule;
	__u32 addresses = head->checksum_addresses;
	__be32 *ports = transport, old_ports = *ports, new_ports;
	__u64 rest, sum = 0;
	bool covered = true;

	__builtin_memcpy(&new_ports, &head->source_port, 4);
	if (ipv6) {
		struct rule_v6 *to = rule;
		struct ipv6hdr *ip = network;

		__builtin_memcpy(&ip->saddr, to->source, 16);
		__builtin_memcpy(&ip->daddr, to->destination, 16);
		ip->hop_limit -= hop;
		sum = (__u64)addresses + bpf_htons((__u16)~(__u16)hop);
	} else {
		struct rule_v4 *to = rule;
		struct iphdr *ip = network;

		ip->saddr = to->source;
		ip->daddr = to->destination;
		ip->ttl -= hop;
		ip->check = ~fold((__u64)(__u16)~ip->check + addresses + bpf_htons((__u16)~((__u16)hop << 8)));
	}
	*ports = new_ports;
	rest = difference(old_ports, new_ports);
	if (f->tcp) {
		struct tcphdr *tcp = transport;

		tcp->check = updated(tcp->check, state, addresses, rest + numbers);
	} else {
		struct udphdr *udp = transport;
		__u16 checksum = udp->check;

		covered = checksum;
		if (checksum) {
			checksum = updated(checksum, state, addresses, rest);
			udp->check = checksum ? checksum : 0xffff;
		}
	}
	/* A transport checksum takes the addresses' share out again; without one the ports' share stays in. */
	return sum + (covered ? (__u16)~addresses : rest);
}

/* What each packet of the flow does to its counters, in the rule and in the total. */
static __always_inline void account(struct rule_head *rule, const struct frame *f, __u32 gso_size, __u32 gso_segs,
				    __u32 now)
{
	__u32 packets = 1, index = rule->total;
	__u64 bytes = f->length;
	struct total *total;

	if (gso_size) {
		/* Super-packets from a guest do not say how many segments they are. */
		packets = gso_segs ? gso_segs : (f->length - f->headers + gso_size - 1) / gso_size;
		if (packets > 1)
			bytes += (__u64)(packets - 1) * f->headers;
		else
			packets = 1;
	}
	__sync_fetch_and_add(&rule->packets, packets);
	__sync_fetch_and_add(&rule->bytes, bytes);
	if (rule->last_seen != now)
		rule->last_seen = now;
	total = bpf_map_lookup_elem(&totals, &index);
	if (total) {
		total->packets += packets;
		total->bytes += bytes;
	}
}
#endif
