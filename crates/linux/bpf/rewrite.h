/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a rule changes in a packet: the same bytes as Rewrite::apply in crates/core/src/rewrite.rs.
 *
 * Checksums are kept in step incrementally (RFC 1624, equation 3). A changed one is never 0xffff, as with the
 * kernel's bpf_l4_csum_replace: the sum is kept from being 0, so that it folds to 1 to 0xffff. The helper itself is
 * not used: it is called once per field and costs more than the arithmetic. What it knows and __sk_buff hides,
 * ip_summed, is read from the socket buffer proper. */
#ifndef HAIRPIN_REWRITE_H
#define HAIRPIN_REWRITE_H

#define CHECKSUM_WHOLE 0 /* the kernel's CHECKSUM_NONE: all sums are in the frame, and nothing knows them beside it */
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
	__u32 checks;  /* 1: edges are checked only */
	__u32 outside; /* how many were outside the range */
	__u32 acknowledgement, acknowledgement_length; /* the range */
	__u32 delta;                      /* of edges */
	__u32 timestamp_delta, echo_delta;
	__u64 sum;
};

ARRAY(options_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, struct options, 1, 0);

struct options_walk {
	void *data, *data_end; /* of the frame */
	struct options *options;
};

#define OPTIONS_LENGTH_MAX 40
#define SACK_BLOCKS_MAX 4
#define OFFSET_MAX 4096 /* above any offset parse() lets through */

/* Bytes of the frame that lies from `data` to `data_end`, to read and write; NULL if they do not lie there. */
static __always_inline void *bytes_between(void *data, void *data_end, __u32 at, __u32 length)
{
	void *word;

	if (at > OFFSET_MAX)
		return NULL;
	word = data + at;
	return word + length > data_end ? NULL : word;
}

/* Bytes of the linear part. */
static __always_inline void *bytes_at(struct __sk_buff *skb, __u32 at, __u32 length)
{
	return bytes_between((void *)(long)skb->data, (void *)(long)skb->data_end, at, length);
}

static __always_inline void *option_at(const struct options_walk *walk, __u32 at, __u32 length)
{
	return bytes_between(walk->data, walk->data_end, at, length);
}

/* Adds to a word of an option. */
static __always_inline bool translate_word(const struct options_walk *walk, __u32 at, __u32 delta)
{
	struct options *options = walk->options;
	void *word = option_at(walk, at, 4);
	__be32 old, new;
	__u32 change;

	if (!word)
		return false;
	__builtin_memcpy(&old, word, 4);
	new = bpf_htonl(bpf_ntohl(old) + delta);
	__builtin_memcpy(word, &new, 4);
	/* At an odd offset, every byte counts for the other half of its word. */
	change = fold(difference(old, new));
	options->sum += (at - options->start) & 1 ? __builtin_bswap16(change) : change;
	return true;
}

/* One edge of a SACK block. */
static __always_inline bool translate_edge(const struct options_walk *walk, __u32 edge)
{
	struct options *options = walk->options;
	void *word;
	__be32 old;

	if (!options->checks)
		return translate_word(walk, edge, options->delta);
	word = option_at(walk, edge, 4);
	if (!word)
		return false;
	__builtin_memcpy(&old, word, 4);
	options->outside += bpf_ntohl(old) - options->acknowledgement > options->acknowledgement_length;
	return true;
}

static long translate_option(__u32 index, void *argument)
{
	const struct options_walk *walk = argument;
	struct options *options = walk->options;
	__u32 at = options->at, end = options->end, length;
	__u8 *option = option_at(walk, at, 1);

	if (at >= end || !option || *option == 0)
		return 1;
	if (*option == 1) {
		options->at = at + 1;
		return 0;
	}
	option = option_at(walk, at, 2);
	if (at + 1 >= end || !option)
		return 1;
	length = option[1];
	if (length < 2 || at + length > end)
		return 1;
	options->at = at + length;
	if (*option == 8 && length == 10 && !options->checks)
		return !translate_word(walk, at + 2, options->timestamp_delta) ||
		       !translate_word(walk, at + 6, options->echo_delta);
	/* Whole blocks only, as the kernel reads them. */
	if (*option != 5 || (length - 2) % 8)
		return 0;
	for (__u32 i = 0; i < 2 * SACK_BLOCKS_MAX; i++) {
		if (2 + i * 4 >= length)
			break;
		if (!translate_edge(walk, at + 2 + i * 4))
			return 1;
	}
	return 0;
}

/* Rules and their sequence changes. A rule with RULE_SEQUENCE lies in two maps, and its parts are not replaced
 * together; nor does either map promise that what a lookup has found stays what it was: an element that is deleted
 * or replaced may be given to another key while a packet's program still reads it. So the sequence change has a sum
 * over itself and over what the rule says of ends (addresses, ports, their share of a checksum). It is taken over
 * copies, and only copies with the right sum are used: then deltas, window shift and guard were written together,
 * for just these ends. Whatever else a packet meets - half of an update, old ends with a new sequence change,
 * another flow's - it goes to the worker.
 *
 * Old and new sequence changes of a rule are both right, each for what its guard admits, so it does not matter which
 * of them a packet meets during an update that leaves ends alone. But the new ones are to take nothing while packets
 * of the flow are inside the worker: rules_put() takes ACTIVE away before it touches the sequence change, and here
 * ACTIVE is read again after they have been read. */
#define CHECK_1 SEQUENCE_CHECK
#define CHECK_2 (CHECK_1 * SEQUENCE_CHECK)
#define CHECK_3 (CHECK_2 * SEQUENCE_CHECK)
#define CHECK_4 (CHECK_3 * SEQUENCE_CHECK)
#define CHECK_5 (CHECK_4 * SEQUENCE_CHECK)
#define CHECK_6 (CHECK_5 * SEQUENCE_CHECK)
#define CHECK_7 (CHECK_6 * SEQUENCE_CHECK)
#define CHECK_8 (CHECK_7 * SEQUENCE_CHECK)
#define CHECK_9 (CHECK_8 * SEQUENCE_CHECK)
#define CHECK_10 (CHECK_9 * SEQUENCE_CHECK)

/* What a rule says of ends: its last bytes. */
union ends {
	__u64 words[5]; /* IPv4: two */
	struct {
		__be32 ports;
		__u16 total, checksum_addresses;
		__be32 addresses[8]; /* the new source's, then the new destination's */
	};
};

static __always_inline const union ends *ends_of(const void *rule)
{
	return rule + offsetof(struct rule_head, source_port);
}

_Static_assert(__builtin_offsetof(struct rule_v4, source) == __builtin_offsetof(struct rule_head, source_port) + 8, "ends");
_Static_assert(__builtin_offsetof(struct rule_v6, source) == __builtin_offsetof(struct rule_v4, source), "ends");

struct change_copy {
	union {
		__u64 words[5];
		struct sequence_change change;
	};
	union ends ends;
};

/* The stack has no room for it. */
ARRAY(sequence_buffer, BPF_MAP_TYPE_PERCPU_ARRAY, struct change_copy, 1, 0);

static __always_inline void copy_end_words(union ends *to, const volatile __u64 *from, const bool ipv6)
{
	to->words[0] = from[0];
	to->words[1] = from[1];
	if (ipv6) {
		to->words[2] = from[2];
		to->words[3] = from[3];
		to->words[4] = from[4];
	}
}

/* Copies the sequence change `there` and the ends of `rule`, of IPv4 those that have been copied to `own`. False: they are not
 * whole, do not belong together, or are not to be used yet. */
static __always_inline bool copy_change(struct change_copy *copy, const void *there, const void *rule, const union ends *own,
					const bool ipv6)
{
	const volatile __u64 *words = there, *ends = ipv6 ? ends_of(rule)->words : own->words;
	const volatile __u8 *flags;
	__u64 check = words[5], sum;

	words = after(words, check);
	copy->words[0] = words[0];
	copy->words[1] = words[1];
	copy->words[2] = words[2];
	copy->words[3] = words[3];
	copy->words[4] = words[4];
	copy->ends.words[0] = ends[0];
	copy->ends.words[1] = ends[1];
	sum = copy->words[0] * CHECK_1 + copy->words[1] * CHECK_2 + copy->words[2] * CHECK_3 + copy->words[3] * CHECK_4 +
	      copy->words[4] * CHECK_5 + copy->ends.words[0] * CHECK_6 + copy->ends.words[1] * CHECK_7;
	if (ipv6) {
		copy->ends.words[2] = ends[2];
		copy->ends.words[3] = ends[3];
		copy->ends.words[4] = ends[4];
		sum += copy->ends.words[2] * CHECK_8 + copy->ends.words[3] * CHECK_9 + copy->ends.words[4] * CHECK_10;
	}
	flags = &((const struct rule_head *)after(rule, sum))->flags;
	return sum == check && *flags & RULE_ACTIVE;
}

/* Guard::admits of crates/core/src/engine.rs: all of the payload in the range, or, without any, a number from one
 * below it to its end; and the acknowledgement number in its own range. */
static __always_inline bool admits(const struct sequence_change *change, const struct tcphdr *tcp, __u32 payload)
{
	__u32 start = bpf_ntohl(tcp->seq) - change->sequence;

	if (payload ? start > change->sequence_length || payload > change->sequence_length - start
		    : (__u64)(__u32)(start + 1) > (__u64)change->sequence_length + 1)
		return false;
	return tcp->ack && bpf_ntohl(tcp->ack_seq) - change->acknowledgement <= change->acknowledgement_length;
}

/* Walks the options of the TCP header from `at` on, whose edges and timestamps `options` says what to do with. */
static __always_inline void walk_options(struct options_walk *walk, __u32 at)
{
	walk->options->at = at;
	bpf_loop(OPTIONS_LENGTH_MAX, translate_option, walk, 0);
}

#define NOT_TRANSLATED (~0ULL)

/* Timestamps as RFC 7323, appendix A, recommends them, which is how all send them: first, and aligned. */
struct aligned_timestamps {
	__be32 kind; /* ALIGNED_TIMESTAMPS */
	__be32 value, echo;
};

#define ALIGNED_TIMESTAMPS 0x0101080a

/* Changes sequence and acknowledgement number, timestamps, the edges of SACK blocks and the window as the copied change says, if
 * they let the packet, which has `payload` bytes, through. All of its headers lie from `data` to `data_end`. Returns what that
 * adds to a sum; NOT_TRANSLATED, and nothing is changed, if the worker is to have the packet.
 *
 * One delta serves all SACK edges: those outside the range of the guard make the packet the worker's. */
static __noinline __u64 translate_sequence(void *data, void *data_end, __u32 l4, __u32 payload,
					   const struct sequence_change *change)
{
	struct tcphdr *tcp = bytes_between(data, data_end, l4, sizeof(*tcp));
	struct options *options = single(&options_scratch);
	struct options_walk walk = { .data = data, .data_end = data_end, .options = options };
	struct aligned_timestamps *stamps;
	__u64 sum;
	__be32 old;
	__u32 at;

	if (!tcp || !options || (change->guarded && !admits(change, tcp, payload)))
		return NOT_TRANSLATED;
	options->start = l4;
	options->end = l4 + tcp->doff * 4;
	options->sum = 0;
	if (!bytes_between(data, data_end, options->end - 1, 1))
		return NOT_TRANSLATED;
	at = l4 + sizeof(*tcp);
	stamps = tcp->doff >= 8 ? bytes_between(data, data_end, at, sizeof(*stamps)) : NULL;
	if (stamps && stamps->kind != bpf_htonl(ALIGNED_TIMESTAMPS))
		stamps = NULL;
	if (stamps)
		at += sizeof(*stamps);
	/* Nearly all packets of a connection with timestamps have these alone: there is nothing to walk. */
	if (options->end > at) {
		options->delta = change->acknowledgement_delta;
		options->timestamp_delta = change->timestamp_delta;
		options->echo_delta = change->echo_delta;
		if (change->guarded) {
			options->checks = 1;
			options->outside = 0;
			options->acknowledgement = change->acknowledgement;
			options->acknowledgement_length = change->acknowledgement_length;
			walk_options(&walk, at);
			if (options->outside)
				return NOT_TRANSLATED;
		}
		options->checks = 0;
		if (options->delta || options->timestamp_delta || options->echo_delta)
			walk_options(&walk, at);
	}
	sum = options->sum;
	if (stamps) {
		old = stamps->value;
		stamps->value = bpf_htonl(bpf_ntohl(old) + change->timestamp_delta);
		sum += difference(old, stamps->value);
		old = stamps->echo;
		stamps->echo = bpf_htonl(bpf_ntohl(old) + change->echo_delta);
		sum += difference(old, stamps->echo);
	}
	old = tcp->seq;
	tcp->seq = bpf_htonl(bpf_ntohl(old) + change->sequence_delta);
	sum += difference(old, tcp->seq);
	if (tcp->ack) {
		old = tcp->ack_seq;
		tcp->ack_seq = bpf_htonl(bpf_ntohl(old) + change->acknowledgement_delta);
		sum += difference(old, tcp->ack_seq);
	}
	if (change->window_shift && !tcp->syn) {
		__s32 shift = change->window_shift;
		__u32 window = bpf_ntohs(tcp->window);
		__be16 before = tcp->window;

		window = shift < 0 ? window >> (-shift & 31) : window << (shift & 31);
		tcp->window = bpf_htons(window > 0xffff ? 0xffff : window);
		sum += (__u64)(__u16)~before + tcp->window;
	}
	return sum;
}

/* Translates a packet of TCP by a rule with RULE_SEQUENCE, whose sequence change lies in `changes`; `*sum` is what that adds to
 * a sum. Returns the ends that go with it, of IPv4 `own`, which are the rule's. NULL, and nothing is changed: the worker is to have the
 * packet. */
static __always_inline const union ends *renumber(const void *rule, void *changes, const void *key, const struct frame *f,
						  void *data, void *data_end, const union ends *own, __u64 *sum, const bool ipv6)
{
	struct sequence_change *change = bpf_map_lookup_elem(changes, key);
	struct change_copy *copy = single(&sequence_buffer);

	if (!change || !copy || !copy_change(copy, change, rule, own, ipv6))
		return NULL;
	*sum = translate_sequence(data, data_end, f->l4, f->length - f->headers, &copy->change);
	if (*sum == NOT_TRANSLATED)
		return NULL;
	return ipv6 ? &copy->ends : own;
}

/* Copies the ends of a rule of IPv6 whose flags were `flags`, and that had no sequence change: the stack has no room for them. (Those of
 * IPv4 have been copied by search_v4().) NULL: it is another rule by now, since its element was replaced or deleted and is being filled
 * anew. That begins without ACTIVE, which is read again here after the ends were. (Rules that setup.h makes have ACTIVE at once; of those
 * one that follows within the time that a packet takes here, in the same element, is not told from its predecessor.) */
static __always_inline const union ends *copy_ends(const void *rule, __u8 flags)
{
	struct change_copy *copy = single(&sequence_buffer);
	const volatile __u8 *now;
	union ends *ends;

	if (!copy)
		return NULL;
	ends = &copy->ends;
	copy_end_words(ends, ends_of(rule)->words, true);
	now = &((const struct rule_head *)after(rule, ends->words[0] ^ ends->words[1] ^ ends->words[2] ^ ends->words[3] ^
						    ends->words[4]))->flags;
	if ((*now ^ (flags | RULE_ACTIVE)) & (RULE_PASS | RULE_SEQUENCE | RULE_DIRECT | RULE_ACTIVE))
		return NULL;
	return ends;
}

/* The transport checksum after `addresses` (of the pseudo-header) and `rest` (of the transport header) were added. */
static __always_inline __u16 updated(__u16 checksum, __u32 state, __u32 addresses, __u64 rest)
{
	if (state == CHECKSUM_PARTIAL)
		return fold((__u64)checksum + addresses);
	return ~fold((__u64)(__u16)~checksum + addresses + rest + 0xffff);
}

/* Everything but layer 2 and TCP sequence numbers, whose share of the sum is `sequence_sum`. Returns what the
 * packet's bytes now sum up to more than before, for a socket buffer that knows its sum: an IPv4 header's own
 * checksum keeps it where it was, and so does a transport checksum, but for the pseudo-header's share, which is not
 * in the packet. */
static __always_inline __u64 rewrite(const union ends *to, void *network, void *transport, const struct frame *f,
				     __u64 sequence_sum, __u32 state, const bool ipv6)
{
	__u32 addresses = to->checksum_addresses;
	__be32 *ports = transport, old_ports = *ports, new_ports = to->ports;
	__u64 rest, sum = 0;
	bool covered = true;

	if (ipv6) {
		struct ipv6hdr *ip = network;

		__builtin_memcpy(&ip->saddr, to->addresses, 16);
		__builtin_memcpy(&ip->daddr, to->addresses + 4, 16);
		ip->hop_limit -= hop;
		sum = (__u64)addresses + bpf_htons((__u16)~(__u16)hop);
	} else {
		struct iphdr *ip = network;

		ip->saddr = to->addresses[0];
		ip->daddr = to->addresses[1];
		ip->ttl -= hop;
		ip->check = ~fold((__u64)(__u16)~ip->check + addresses + bpf_htons((__u16)~((__u16)hop << 8)));
	}
	*ports = new_ports;
	rest = difference(old_ports, new_ports);
	if (f->tcp) {
		struct tcphdr *tcp = transport;

		tcp->check = updated(tcp->check, state, addresses, rest + sequence_sum);
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

/* Of a RULE_DIRECT: one hop less, and nothing else (lower_hops in crates/core/src/rewrite.rs). Returns what rewrite() does. */
static __always_inline __u64 lower_hops(void *network, const bool ipv6)
{
	struct iphdr *ip = network;

	if (ipv6) {
		((struct ipv6hdr *)network)->hop_limit -= hop;
		return bpf_htons((__u16)~(__u16)hop);
	}
	ip->ttl -= hop;
	ip->check = ~fold((__u64)(__u16)~ip->check + bpf_htons((__u16)~((__u16)hop << 8)));
	return 0;
}

/* What each packet of the flow does to its counters, in the rule and in the total with this index. */
static __always_inline void account(struct rule_head *rule, const struct frame *f, __u32 gso_size, __u32 gso_segs,
				    __u32 now, __u32 index)
{
	__u32 packets = 1;
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
