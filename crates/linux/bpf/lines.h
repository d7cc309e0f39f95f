/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where rules lie. Those of IPv6 in a hash of the kernel's; those of IPv4 in a table of our own, in which a packet finds its
 * rule in one cache line more often than not, where the kernel's hash takes three or four.
 *
 * A flow has one bucket, by a hash with random keys: a sum of products of 32-bit words with random 64-bit numbers, which is the
 * same for two flows no more often than by chance, even if an attacker has chosen them (Dietzfelbinger, "Universal hashing and k-wise
 * independent random variables via integer arithmetic without primes", STACS 1996). The sums of flows with consecutive ports are
 * multiples of one number, which may come to lie in a few heaps, so they are mixed. A bucket has four lines; the search
 * begins at one that the hash tells. There are half as many lines again as rules, so that about 8 % of the rules of a full table
 * find none. They lie behind all buckets, and a hash of the kernel's, `spilled_v4`, tells where; the bucket's first line counts them, so
 * that packets without a rule need not look there.
 *
 * Packets read without locks. A line's key is there last when a rule is put in, its protocol is gone first when it is taken out, and
 * its version is another one before anything of it is written. A packet copies what it needs of a rule, reads the line's `state`
 * before and after that, and uses the copy alone, if protocol and version are still the same: then all of it was one rule's, at
 * one time. Changes lock the bucket. A thread that holds the lock may be interrupted by packets of the same CPU, so nothing waits for it
 * for long: putting in fails with EBUSY (rules.h).
 *
 * Order. The kernel promises it of BPF's atomics with BPF_FETCH, which are full barriers, and of an address that is computed from what
 * has been read before. Whatever publishes a line, or must be seen before what is written behind it, is such an atomic: xchg, cmpxchg,
 * or another one under ORDERED(), since clang drops BPF_FETCH from those whose result is not used, and the kernel then makes
 * instructions of them, as arm64's STADD, that order nothing. Packets read in order by after(). On x86 all of that is
 * as it was: every locked instruction is a barrier, and reads are not reordered. Counters need no order.
 *
 * A rule that moves is put into its new line first, and then taken out of the old one. A packet that has looked into the new line
 * before, and into the old one after that, finds neither, but sees that a line has changed meanwhile, and looks again. If that
 * happens to it once more, it goes the way of a packet without a rule, which is right at any time: to a worker, which knows the
 * connection. Packets of a rule that is being put in or taken out have the same choice. */
#ifndef HAIRPIN_LINES_H
#define HAIRPIN_LINES_H

/* What is read together of a rule, so that no packet takes the number of one next hop for as long as another one is good. Packets
 * change it as a whole, and only if it is still what they have read: the rule may have become another one. */
union rule_way {
	__u64 word;
	struct {
		__u32 until;
		__u16 next_hop;
		__u8 flags, worker;
	};
};

/* The result of an atomic that must be a barrier. */
#define ORDERED(atomic) \
	({ \
		__typeof__(atomic) before_it = (atomic); \
		barrier_var(before_it); \
		before_it; \
	})

/* The pointer, for reads behind that of `value`: the address is computed from it, whatever it is. */
static __always_inline const void *after(const volatile void *pointer, __u64 value)
{
	asm volatile("%1 &= 0\n\t%0 += %1" : "+r"(pointer), "+r"(value) : : "memory");
	return (const void *)pointer;
}

/* What the word of a rule without a next hop has in its place, of one that waits for a hand-over the lower 16 bits, so that the word is
 * no other rule's: a packet that has read it for a rule whose line is another one's by now must not change it. A word with a
 * next hop is told from others by the time until which that is good: a packet changes it when that is over, and a new
 * rule's is not. */
static __always_inline __u32 token(void)
{
	return bpf_ktime_get_ns();
}

static __always_inline __u64 read_way(const struct rule_head *head)
{
	return *(const volatile __u64 *)&head->until;
}

/* Makes the word another one if it is still `old`; whether it was. */
static __always_inline bool change_way(struct rule_head *head, __u64 old, __u64 new)
{
	return __sync_val_compare_and_swap((__u64 *)&head->until, old, new) == old;
}

/* The number of the next hop that the packets of an ACTIVE rule with this word go by; 0: none is known, or it is no longer good. */
static __always_inline __u32 way_of(const volatile union rule_way *word, __u32 now)
{
	union rule_way way = { .word = word->word };

	return (__s32)(way.until - now) <= 0 ? 0 : way.next_hop;
}

/* A flow's hash. */
static __always_inline __u64 hash_v4(const struct control *control, const struct flow_v4 *key)
{
	const __u64 *keys = control->rule_keys;
	__u32 ports;
	__u64 sum;

	__builtin_memcpy(&ports, &key->source_port, sizeof(ports));
	sum = keys[0] + key->source * keys[1] + key->destination * keys[2] + ports * keys[3] + key->protocol * keys[4];
	return (sum ^ sum >> 32) * 0xd6e8feb86659fd93 >> 32;
}

static __always_inline struct rule_bucket *bucket_of(const struct control *control, __u64 hash)
{
	__u32 index = hash * control->rule_buckets >> 32;

	return bpf_map_lookup_elem(&rules_v4, &index);
}

/* The line that is tried as number `i`. */
static __always_inline struct rule_line *line_of(struct rule_bucket *bucket, __u64 hash, __u32 i)
{
	return &bucket->lines[(hash ^ i) & (LINES - 1)];
}

static __always_inline __u32 read_state(const struct rule_line *line)
{
	return *(const volatile __u32 *)&line->state;
}

static __always_inline bool has_key(const struct rule_line *line, const struct flow_v4 *key)
{
	__u64 ends, wanted;
	__u32 ports, wanted_ports;

	__builtin_memcpy(&ends, &line->source, sizeof(ends));
	__builtin_memcpy(&wanted, &key->source, sizeof(wanted));
	__builtin_memcpy(&ports, &line->source_port, sizeof(ports));
	__builtin_memcpy(&wanted_ports, &key->source_port, sizeof(wanted_ports));
	return ends == wanted && ports == wanted_ports && (read_state(line) & LINE_PROTOCOL) == key->protocol;
}

/* What a packet takes of a rule of IPv4: a copy, of one time. */
struct found_v4 {
	union {
		__u64 way;     /* union rule_way */
		__u64 changed; /* where no rule was found: whether lines were changed meanwhile */
	};
	__u64 ends[2]; /* union ends */
};

/* Copies a line that has the rule of a flow, or only looks at it (NULL); whether it has. Each step reads after the one before. */
static __always_inline bool copy_line(const struct rule_line *line, const struct flow_v4 *key, __u32 state, struct found_v4 *found)
{
	const struct rule_line *read = after(line, state);
	__u64 wanted, ends = *(const volatile __u64 *)&read->source, first, second;
	__u32 wanted_ports, ports = *(const volatile __u32 *)&read->source_port;

	__builtin_memcpy(&wanted, &key->source, sizeof(wanted));
	__builtin_memcpy(&wanted_ports, &key->source_port, sizeof(wanted_ports));
	read = after(line, ends ^ ports);
	if (ends != wanted || ports != wanted_ports || (state & LINE_PROTOCOL) != key->protocol)
		return false;
	if (!found)
		return ((read_state(read) ^ state) & (LINE_PROTOCOL | -LINE_VERSION)) == 0;
	found->way = read_way(&read->rule.head);
	read = after(line, found->way);
	first = ((const volatile __u64 *)&read->rule.head.source_port)[0];
	second = ((const volatile __u64 *)&read->rule.head.source_port)[1];
	found->ends[0] = first;
	found->ends[1] = second;
	read = after(line, first ^ second);
	return !((read_state(read) ^ state) & (LINE_PROTOCOL | -LINE_VERSION));
}

/* The line with this number, as `spilled_v4` has them. */
static __always_inline struct rule_line *line_at(__u32 number)
{
	__u32 index = number / LINES;
	struct rule_bucket *bucket = bpf_map_lookup_elem(&rules_v4, &index);

	if (!bucket)
		return NULL;
	/* Keeps the compiler from adding to a pointer that may be NULL, which the verifier refuses. */
	barrier_var(bucket);
	return &bucket->lines[number % LINES];
}

/* The rule of a flow of IPv4; NULL: there is none, or `*changed` is not 0, and it may have moved. */
static __always_inline struct rule_v4 *search(const struct flow_v4 *key, struct found_v4 *found, __u32 *changed)
{
	struct control *control_now = single(&control);
	struct rule_bucket *bucket, *again;
	__u32 *number, state, states = 0;
	struct rule_line *line;
	__u64 hash;

	if (changed)
		*changed = 0;
	if (!control_now)
		return NULL;
	hash = hash_v4(control_now, key);
	bucket = bucket_of(control_now, hash);
	if (!bucket)
		return NULL;
#pragma unroll
	for (__u32 i = 0; i < LINES; i++) {
		line = line_of(bucket, hash, i);
		state = read_state(line);
		states += state;
		if (copy_line(line, key, state, found))
			return &line->rule;
	}
	number = read_state(&bucket->lines[0]) & LINE_ELSEWHERE_ALL ? bpf_map_lookup_elem(&spilled_v4, key) : NULL;
	line = number ? line_at(*number) : NULL;
	if (line && copy_line(line, key, read_state(line), found))
		return &line->rule;
	if (!changed)
		return NULL;
	again = (void *)after(bucket, states);
#pragma unroll
	for (__u32 i = 0; i < LINES; i++)
		states -= read_state(&again->lines[i]);
	*changed = states;
	return NULL;
}

/* Functions of their own: the verifier then follows what comes of them once for all lines. */
static __noinline struct rule_v4 *search_copy(const struct flow_v4 *key, struct found_v4 *found)
{
	struct rule_v4 *rule;
	__u32 changed;

	rule = search(key, found, &changed);
	if (!rule)
		found->changed = changed;
	return rule;
}

static __noinline struct rule_v4 *find_v4(const struct flow_v4 *key)
{
	return search(key, NULL, NULL);
}

/* The rule of a packet's flow, and a copy of it. If it may have moved, it is searched for again. */
static __always_inline struct rule_v4 *copy_v4(const struct flow_v4 *key, struct found_v4 *found)
{
	struct rule_v4 *rule = search_copy(key, found);

	return rule || !found->changed ? rule : search_copy(key, found);
}

/* Sets and clears flags of the flow's rule, if nothing else of the word changes meanwhile. */
static __always_inline bool change_flags(void *rule, const struct flow_v4 *key, __u8 set, __u8 clear, const bool ipv6)
{
	union rule_way old = { .word = read_way(rule) }, new = old;
	const struct rule_line *line;

	/* Read after the word, which is no other rule's word: if the key is still there, the word is its rule's. */
	line = ipv6 ? NULL : after(rule - offsetof(struct rule_line, rule), old.word);
	if (!ipv6 && !has_key(line, key))
		return false;
	new.flags = (old.flags | set) & ~clear;
	return change_way(rule, old.word, new.word);
}
#endif
