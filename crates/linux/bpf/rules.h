/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What changes rules. Those of IPv4 lie in the lines of lines.h, which says how packets read them meanwhile. */
#ifndef HAIRPIN_RULES_H
#define HAIRPIN_RULES_H

#define LOCK_TRIES 64

static __always_inline bool try_lock(struct rule_bucket *bucket)
{
	__u32 *state = &bucket->lines[0].state, old = *(volatile __u32 *)state;

	return !(old & LINE_LOCKED) && __sync_val_compare_and_swap(state, old, old | LINE_LOCKED) == old;
}

/* Loops are calls of functions where rules are changed: the verifier would else follow every way through each of their rounds. */
struct locking {
	__u32 index;
	__u32 locked;
};

static long lock_again(__u32 round, void *argument)
{
	struct locking *locking = argument;
	__u32 index = locking->index;
	struct rule_bucket *bucket = bpf_map_lookup_elem(&rules_v4, &index);

	locking->locked = bucket && try_lock(bucket);
	return !bucket || locking->locked;
}

/* Locks the bucket of a flow with this hash. */
static __always_inline bool lock(const struct control *control, struct rule_bucket *bucket, __u64 hash)
{
	struct locking locking = { .index = hash * control->rule_buckets >> 32 };

	if (try_lock(bucket))
		return true;
	bpf_loop(LOCK_TRIES, lock_again, &locking, 0);
	return *(volatile __u32 *)&locking.locked;
}

static __always_inline void unlock(struct rule_bucket *bucket)
{
	ORDERED(__sync_fetch_and_and(&bucket->lines[0].state, ~LINE_LOCKED));
}

/* A rule of the bucket lies behind all buckets (1), or no longer (-1). A count that has come to its end stays there. */
static __always_inline void count_elsewhere(struct rule_bucket *bucket, __s32 change)
{
	__u32 *state = &bucket->lines[0].state;

	if ((*(volatile __u32 *)state & LINE_ELSEWHERE_ALL) != LINE_ELSEWHERE_ALL)
		ORDERED(__sync_fetch_and_add(state, (__u32)change * LINE_ELSEWHERE));
}

/* Writes a line that is free, or, without RULE_ACTIVE, one that has another rule for the same flow; of the rule's flags those in
 * `kept`. A packet that still reads what was there finds another version, and RULE_FILLING for its flags, before anything else
 * changes, and the flags of the new rule after everything else. */
static __always_inline void fill_line(struct rule_line *line, const struct flow_v4 *key, const struct rule_v4 *rule, __u8 kept)
{
	union rule_way way = { .word = read_way(&rule->head) }, filling = { .flags = RULE_FILLING, .worker = way.worker };
	__u64 *word = (__u64 *)&line->rule.head.until;
	volatile __u64 *to = (void *)&line->rule;
	const __u64 *from = (const void *)rule;

	filling.until = token();
	ORDERED(__sync_fetch_and_add(&line->state, LINE_VERSION));
	__sync_lock_test_and_set(word, filling.word);
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[4] = from[4];
	to[5] = from[5];
	line->source = key->source;
	line->destination = key->destination;
	line->source_port = key->source_port;
	line->destination_port = key->destination_port;
	way.flags &= kept;
	/* What set-up has found may be over. */
	if (!way.next_hop || (__s32)(way.until - (__u32)(bpf_ktime_get_ns() >> 20)) <= 0) {
		way.next_hop = 0;
		way.until = token();
	}
	__sync_lock_test_and_set(word, way.word);
	ORDERED(__sync_fetch_and_or(&line->state, (__u32)key->protocol));
}

#define ALL_FLAGS 0xff

_Static_assert(__builtin_offsetof(struct rule_head, until) == 3 * 8 && sizeof(struct rule_v4) == 6 * 8, "fill_line");

/* Counts a rule, unless there are as many as there may be. */
static __always_inline bool has_room_v4(const struct control *control, __u32 *rules)
{
	if ((__s32)__sync_fetch_and_add(rules, 1) < (__s32)control->rules_v4_max)
		return true;
	__sync_fetch_and_sub(rules, 1);
	return false;
}

/* 1 if a number is not zero, else 0; without a branch, of which the verifier would follow both ways. */
static __always_inline __u32 is_not_zero(__u64 number)
{
	__u64 negative = -number;

	/* Hides from the compiler what it would make a branch of. */
	barrier_var(negative);
	return (number | negative) >> 63;
}

/* The lines that are free, and those that have the key: a bit each. */
static __always_inline __u32 free_lines(const struct rule_bucket *bucket)
{
	__u32 free = 0;

#pragma unroll
	for (__u32 i = 0; i < LINES; i++)
		free |= (1 - is_not_zero(bucket->lines[i].state & LINE_PROTOCOL)) << i;
	return free;
}

static __always_inline __u32 lines_with(const struct rule_bucket *bucket, const struct flow_v4 *key)
{
	__u32 ports, wanted_ports, lines = 0;
	__u64 ends, wanted;

	__builtin_memcpy(&wanted, &key->source, sizeof(wanted));
	__builtin_memcpy(&wanted_ports, &key->source_port, sizeof(wanted_ports));
#pragma unroll
	for (__u32 i = 0; i < LINES; i++) {
		const struct rule_line *line = &bucket->lines[i];

		__builtin_memcpy(&ends, &line->source, sizeof(ends));
		__builtin_memcpy(&ports, &line->source_port, sizeof(ports));
		lines |= (1 - is_not_zero((ends ^ wanted) | (ports ^ wanted_ports) | ((line->state & LINE_PROTOCOL) ^ key->protocol))) << i;
	}
	return lines;
}

/* The line of a set of lines that is tried first of them; any one if the set is empty. */
static __always_inline __u32 first_in(__u32 lines, __u64 hash)
{
	/* Two bits for each of the 16 sets, in an order by the lower two bits of the hash: line_of(). */
	const __u64 low = 0x5353525012131210ULL, high = 0xffffaa50aaffaa10ULL;
	__u64 table = low ^ ((low ^ high) & -(hash >> 1 & 1));

	return table >> ((hash & 1) * 32 + (lines & 15) * 2) & 3;
}

/* A full table whose rules lie as chance will have it finds no place within 8 for one rule in a million. */
#define SPILL_TRIES 32

/* The search for a free line behind all buckets. */
struct claim {
	__u64 hash;
	__u32 number; /* of the line, 0: none yet */
};

static long claim_in_bucket(__u32 round, void *argument)
{
	struct control *control_now = single(&control);
	struct claim *claim = argument;
	struct rule_bucket *bucket;
	__u64 hash = claim->hash;
	__u32 element, at, state;

	if (!control_now)
		return 1;
	element = control_now->rule_buckets + (hash + round) % control_now->spill_buckets;
	bucket = bpf_map_lookup_elem(&rules_v4, &element);
	if (!bucket)
		return 1;
	at = first_in(free_lines(bucket), hash);
	state = read_state(&bucket->lines[at]);
	if (state & (LINE_PROTOCOL | LINE_LOCKED))
		return 0;
	if (__sync_val_compare_and_swap(&bucket->lines[at].state, state, state | LINE_LOCKED) != state)
		return 0;
	claim->number = element * LINES + at;
	return 1;
}

/* The number of a free line behind all buckets, which is marked as being filled; 0: there is none. */
static __always_inline __u32 claim_line(__u64 hash)
{
	struct claim claim = { .hash = hash * 0x9e3779b1 & 0xffffffff };

	bpf_loop(SPILL_TRIES, claim_in_bucket, &claim, 0);
	return *(volatile __u32 *)&claim.number;
}

/* Lets packets find the rule in a line that has been claimed. There may be an element that has outlived a rule: take_v4(). */
static __always_inline int show_claimed(struct rule_bucket *bucket, const struct flow_v4 *key, struct rule_line *line, __u32 number)
{
	int error;

	count_elsewhere(bucket, 1);
	error = bpf_map_update_elem(&spilled_v4, key, &number, BPF_ANY);
	ORDERED(__sync_fetch_and_and(&line->state, ~(error ? LINE_LOCKED | LINE_PROTOCOL : LINE_LOCKED)));
	if (error)
		count_elsewhere(bucket, -1);
	return error;
}

/* Puts a rule for a flow that has none into the locked bucket: into the line that is `free`, or else behind all buckets. */
static __always_inline int put_new(struct rule_bucket *bucket, __u64 hash, const struct flow_v4 *key, const struct rule_v4 *rule,
				   __u32 free)
{
	struct control *control_now = single(&control);
	__u32 *rules = single(&rules_v4_count), number;
	struct rule_line *line;
	int error = 0;

	if (!control_now || !rules || !has_room_v4(control_now, rules))
		return -E2BIG;
	number = free ? 0 : claim_line(hash);
	line = free ? &bucket->lines[first_in(free, hash)] : line_at(number);
	if (!line || (!free && !number)) {
		error = -E2BIG;
	} else {
		fill_line(line, key, rule, ALL_FLAGS);
		if (number)
			error = show_claimed(bucket, key, line, number);
	}
	if (error)
		__sync_fetch_and_sub(rules, 1);
	return error;
}

/* Where the rule of a flow is behind all buckets; NULL: not there. An element of `spilled_v4` may have outlived its rule: the line is
 * another flow's, then. */
static __always_inline struct rule_line *spilled_line(const struct rule_bucket *bucket, const struct flow_v4 *key)
{
	__u32 *number = bucket->lines[0].state & LINE_ELSEWHERE_ALL ? bpf_map_lookup_elem(&spilled_v4, key) : NULL;
	struct rule_line *line = number ? line_at(*number) : NULL;

	return line && has_key(line, key) ? line : NULL;
}

/* Puts a rule into the place of another one for the same flow: into a line of its bucket that is free, so that what packets have
 * found of the old one stays as it is until its line is used again; or else into the old one's line. Then it waits for a hand-over in
 * any case, so that no packet takes ends that are half the old rule's and half the new one's. */
static __always_inline int put_again(struct rule_bucket *bucket, __u64 hash, const struct flow_v4 *key, const struct rule_v4 *rule,
				     __u32 same, __u32 free)
{
	struct rule_line *old = same ? &bucket->lines[first_in(same, hash)] : spilled_line(bucket, key);

	if (!old)
		return put_new(bucket, hash, key, rule, free);
	fill_line(free ? &bucket->lines[first_in(free, hash)] : old, key, rule, free ? ALL_FLAGS : (__u8)~RULE_ACTIVE);
	if (!free)
		return 0;
	/* The kernel may not be able to delete: the element stays, and points to a line that is not the flow's. */
	if (!same && !bpf_map_delete_elem(&spilled_v4, key))
		count_elsewhere(bucket, -1);
	ORDERED(__sync_fetch_and_and(&old->state, ~LINE_PROTOCOL));
	return 0;
}

static __always_inline int put_v4(const struct flow_v4 *key, const struct rule_v4 *rule, const bool replaces)
{
	struct control *control_now = single(&control);
	struct rule_bucket *bucket;
	__u32 same, free;
	__u64 hash;
	int error;

	if (!control_now)
		return -EINVAL;
	hash = hash_v4(control_now, key);
	bucket = bucket_of(control_now, hash);
	if (!bucket)
		return -EINVAL;
	if (!lock(control_now, bucket, hash))
		return -EBUSY;
	same = lines_with(bucket, key);
	free = free_lines(bucket);
	if (replaces)
		error = put_again(bucket, hash, key, rule, same, free);
	else if (same || spilled_line(bucket, key))
		error = -EEXIST;
	else
		error = put_new(bucket, hash, key, rule, free);
	unlock(bucket);
	return error;
}

static __noinline int put_new_v4(const struct flow_v4 *key, const struct rule_v4 *rule)
{
	return put_v4(key, rule, false);
}

static __noinline int put_any_v4(const struct flow_v4 *key, const struct rule_v4 *rule)
{
	return put_v4(key, rule, true);
}

/* Takes a rule out. That must not fail: if the lock is not to be had, because its holder has been interrupted, it is done
 * without. Each step is one of a kind that the holder's do not undo. If the kernel cannot delete the element of `spilled_v4`,
 * it stays, and the bucket goes on counting it; it is found to point to no line of the flow's, and is used again with the flow. */
static __noinline int take_v4(const struct flow_v4 *key)
{
	struct control *control_now = single(&control);
	__u32 *rules = single(&rules_v4_count);
	struct rule_bucket *bucket;
	struct rule_line *line;
	__u32 state = 0, same;
	bool locked;
	__u64 hash;

	if (!control_now || !rules)
		return 0;
	hash = hash_v4(control_now, key);
	bucket = bucket_of(control_now, hash);
	if (!bucket)
		return 0;
	locked = lock(control_now, bucket, hash);
	same = lines_with(bucket, key);
	line = same ? &bucket->lines[first_in(same, hash)] : spilled_line(bucket, key);
	if (line && !same && !bpf_map_delete_elem(&spilled_v4, key))
		count_elsewhere(bucket, -1);
	if (line)
		state = ORDERED(__sync_fetch_and_and(&line->state, ~LINE_PROTOCOL));
	if (state & LINE_PROTOCOL)
		__sync_fetch_and_sub(rules, 1);
	if (locked)
		unlock(bucket);
	return 0;
}

/* Of either family. Keys are `struct flow_v4` and `struct rule_v4` goes with them, or those of IPv6. */
static __always_inline void *find_rule(const void *key, const bool ipv6)
{
	return ipv6 ? bpf_map_lookup_elem(&rules_v6, key) : (void *)find_v4(key);
}

/* Puts a rule in: a new one, or, if it `replaces` one, in that one's place or anew. Of errors, -EEXIST: there is one. (Errors are
 * of 32 bits: before Linux 6.4 what the maps' own functions return has no more, and the upper half of the register may be
 * anything.) */
static __always_inline int put_rule(const void *key, const void *rule, const bool replaces, const bool ipv6)
{
	if (ipv6)
		return bpf_map_update_elem(&rules_v6, key, rule, replaces ? BPF_ANY : BPF_NOEXIST);
	return replaces ? put_any_v4(key, rule) : put_new_v4(key, rule);
}

static __always_inline void take_rule(const void *key, const bool ipv6)
{
	if (ipv6)
		bpf_map_delete_elem(&rules_v6, key);
	else
		take_v4(key);
}

static __always_inline const struct next_hop *next_hop_at(__u32 number)
{
	return number ? bpf_map_lookup_elem(&next_hops, &number) : NULL;
}
#endif
