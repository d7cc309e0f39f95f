/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is half-open and set up without a worker (setup.h, setup_direct.h): where it is kept, and how rules are made of it.
 *
 * A report is reserved before rules are made, and whole before the entry in `pending` is gone: none is lost. */
#ifndef HAIRPIN_PENDING_H
#define HAIRPIN_PENDING_H

#define AGAIN 0x7fffffff /* no verdict yet: parse anew. The headers have been pulled into the linear part, or there is a rule */
/* No verdict yet either: for proceed() to do, where there is more stack, with what is in `beginnings`. */
#define ESTABLISH 0x7ffffff9
#define SEND_ON 0x7ffffff8
#define ONE_WAY 0x7ffffffa /* no verdict yet: for one_way() to judge, which finds the packet's flow in `beginnings` */

#define ONE_WAY_PACKETS 8        /* as in crates/core/src/worker/states.rs */
#define PROOF_WINDOW (1 << 16)   /* as in crates/core/src/l4/tcp.rs */

/* Sized by the loader; one element where nothing is set up. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct pending_key);
	__type(value, struct pending);
	__uint(max_entries, 1);
} pending SEC(".maps");

/* What the functions here work on, which is too much for the stack. */
struct beginning {
	struct pending_key key;
	struct pending pending;
	struct target target;
	struct routed routed;
	struct bpf_fib_lookup found, again;
	struct bpf_redir_neigh next;
	struct next_hop next_hop;
	union {
		struct flow_v4 v4;
		struct flow_v6 v6;
	} flow;
	union {
		struct rule_head head;
		struct rule_v4 v4;
		struct rule_v6 v6;
	} rule;
	__u64 shape; /* of the packet, if it is of direct server return or proceed() is to do something */
	__u32 service, schedule;
	__u32 one_way; /* 1: the service has direct server return */
	__u32 worker, direction, update; /* for proceed() */
};

ARRAY(beginnings, BPF_MAP_TYPE_PERCPU_ARRAY, struct beginning, 1, 0);

#define FROM_CLIENT 0
#define FROM_BACKEND 1

/* Whether the packet is of a connection that is being set up. */
static __always_inline bool is_pending(const struct end *source, const struct end *destination, const struct end_roles *roles)
{
	struct pending_key key = { .client = *source, .vip = *destination };

	return roles->roles & END_SET_UP && bpf_map_lookup_elem(&pending, &key);
}

static __always_inline __u32 tag_of(const struct pending_key *key, __u64 hash)
{
	__u32 vip;

	__builtin_memcpy(&vip, key->vip.address + 12, 4);
	return (__u32)hash ^ vip ^ (__u32)key->vip.port << 16;
}

enum found_pending { PENDING_NONE, PENDING_OLD, /* its time is over, or its backend takes none of it any more */ PENDING_LIVE };

/* Of a connection of direct server return whose client has ended it: as long as its last packets may be on their way. The
 * worker judges its silence, and must see it go on. */
#define ENDED_LIFETIME (2 * TICKS_PER_SECOND)

/* Copies what is half-open with the key in `begun`, and its backend. */
static __noinline int find_pending(struct beginning *begun, __u64 hash)
{
	struct pending *found = bpf_map_lookup_elem(&pending, &begun->key);
	struct target *target;
	__u32 number, lifetime;

	if (!found)
		return PENDING_NONE;
	begun->pending = *found;
	number = begun->pending.backend;
	target = bpf_map_lookup_elem(&targets, &number);
	if (!target || begun->pending.tag != tag_of(&begun->key, hash))
		return PENDING_NONE;
	begun->target = *target;
	lifetime = target->lifetime;
	if (begun->pending.answered == PENDING_ENDED && lifetime > ENDED_LIFETIME)
		lifetime = ENDED_LIFETIME;
	return begun->target.state && ticks() - begun->pending.begun < lifetime ? PENDING_LIVE : PENDING_OLD;
}

/* The four words of an end's address, which lies at a multiple of four bytes in `struct beginning`. */
static __always_inline const __be32 *words_of(const struct end *end)
{
	return (const void *)end->address;
}

static __always_inline void copy_words(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

/* Writes the flow and the rule of packets from `from` to `to`, whose `old` end becomes `new`: all of the rule's head that
 * follows from that. */
static __always_inline void write_rule(struct beginning *begun, const struct end *from, const struct end *to,
				       const struct end *source, const struct end *destination, const struct end *old,
				       const struct end *new, __u32 ipv6)
{
	const __be32 *of_old = words_of(old), *of_new = words_of(new);
	__u64 sum = difference(of_old[3], of_new[3]);

	if (ipv6) {
		sum += difference(of_old[0], of_new[0]) + difference(of_old[1], of_new[1]) + difference(of_old[2], of_new[2]);
		copy_words(begun->flow.v6.source, words_of(from));
		copy_words(begun->flow.v6.destination, words_of(to));
		begun->flow.v6.source_port = from->port;
		begun->flow.v6.destination_port = to->port;
		begun->flow.v6.protocol = to->protocol;
		copy_words(begun->rule.v6.source, words_of(source));
		copy_words(begun->rule.v6.destination, words_of(destination));
	} else {
		begun->flow.v4.source = words_of(from)[3];
		begun->flow.v4.destination = words_of(to)[3];
		begun->flow.v4.source_port = from->port;
		begun->flow.v4.destination_port = to->port;
		begun->flow.v4.protocol = to->protocol;
		begun->rule.v4.source = words_of(source)[3];
		begun->rule.v4.destination = words_of(destination)[3];
	}
	begun->rule.head.source_port = source->port;
	begun->rule.head.destination_port = destination->port;
	begun->rule.head.checksum_addresses = sum ? fold(sum) : 0xffff;
}

/* Writes the flow of one direction, and its rule. A function of its own, which saves stack. */
static __noinline int make_rule(struct beginning *begun, __u32 direction, __u32 ipv6)
{
	const struct end *client = &begun->key.client, *vip = &begun->key.vip, *backend = &begun->target.backend;

	__builtin_memset(&begun->flow, 0, sizeof(begun->flow));
	__builtin_memset(&begun->rule, 0, sizeof(begun->rule));
	if (direction == FROM_CLIENT)
		write_rule(begun, client, vip, client, backend, vip, backend, ipv6);
	else
		write_rule(begun, backend, client, vip, client, backend, vip, ipv6);
	begun->rule.head.total = begun->pending.backend * 2 + direction;
	return 0;
}

_Static_assert(!(__builtin_offsetof(struct beginning, target) % 4) && !(__builtin_offsetof(struct pending_key, vip) % 4), "words_of");

/* Has find_hop() look for the way by the rule in `begun` of a packet whose IP header's first word is `traffic`. */
static __always_inline void aim_by_rule(struct __sk_buff *skb, struct beginning *begun, __be32 traffic, const bool ipv6)
{
	struct routed *routed = &begun->routed;

	__builtin_memset(routed, 0, sizeof(*routed));
	routed->ifindex = skb->ifindex;
	routed->ipv6 = ipv6;
	routed->traffic = traffic;
	if (ipv6) {
		__builtin_memcpy(routed->source, begun->rule.v6.source, 16);
		__builtin_memcpy(routed->destination, begun->rule.v6.destination, 16);
	} else {
		routed->source[0] = begun->rule.v4.source;
		routed->destination[0] = begun->rule.v4.destination;
	}
}

/* Finds the next hop of a packet in this direction that is aimed; what is known of it is in `begun`. */
static __always_inline enum route_result find_hop(struct __sk_buff *skb, struct beginning *begun, __u32 direction)
{
	struct routed *routed = &begun->routed;
	struct bpf_fib_lookup *found = &begun->found;
	__u32 now = ticks(), number;
	long result;

	direction &= 1;
	begun->pending.until[direction] = now;
	begun->pending.next_hops[direction] = 0;
	result = fib(skb, routed, found, 1);
	/* As look_up() in route.h, with less on the stack. */
	if (result == BPF_FIB_LKUP_RET_SUCCESS) {
		write_next_hop(&begun->next_hop, found, found->mtu_result ? found->mtu_result : 0xffff, routed->overhead);
		number = number_of(&begun->next_hop, now);
		begun->pending.next_hops[direction] = number;
		if (number)
			begun->pending.until[direction] = now + TICKS_PER_SECOND;
		return ROUTE_FOUND;
	}
	if (result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NO_ROUTE;
	begun->next_hop.mtu = 0xffff;
	if (fib(skb, routed, &begun->again, 0xffff) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		begun->next_hop.mtu = begun->again.mtu_result;
	return NO_NEIGHBOUR;
}

#define DEFERRED 0x7ffffffb /* no verdict yet: the worker is to have the packet, as it came */

static __always_inline int defer(struct __sk_buff *skb, __u32 worker)
{
	count(EVENT_SET_UP_DEFERRED);
	return to_worker(skb, worker);
}

/* Of a function that does not call to_worker() itself, which saves stack. */
static __always_inline int verdict_of(struct __sk_buff *skb, __u32 worker, int verdict)
{
	return verdict == DEFERRED ? defer(skb, worker) : verdict;
}

static __noinline int count_total(__u32 index, __u32 packets, __u64 bytes)
{
	struct total *total = bpf_map_lookup_elem(&totals, &index);

	if (total) {
		total->packets += packets;
		total->bytes += bytes;
	}
	return 0;
}

#define PENDING_AS_IT_IS 4 /* no update, beside BPF_ANY, BPF_NOEXIST and BPF_EXIST */

/* Makes the rule of one direction, which no packet can overtake: none is inside a worker. */
static __always_inline int put_direction(struct beginning *begun, __u32 direction, __u32 worker, __u32 ipv6)
{
	struct rule_head *head = &begun->rule.head;
	__u32 until = begun->pending.until[direction];

	make_rule(begun, direction, ipv6);
	head->flags = RULE_ACTIVE | (begun->one_way ? RULE_DIRECT : 0);
	head->worker = worker;
	head->until = until ? until : ticks();
	head->next_hop = begun->pending.next_hops[direction];
	return ipv6 ? put_rule(&begun->flow, &begun->rule, false, true) : put_rule(&begun->flow, &begun->rule, false, false);
}

/* The client of the half-open connection in `begun` hears its backend, or has sent as much as one that does: from here on
 * rules carry it. The backend's, where its packets pass, comes first, so that no packet of the client's meets half a pair. */
__noinline int establish(__u32 worker, __u32 ipv6)
{
	struct beginning *begun = single(&beginnings);
	struct reports *all = bpf_map_lookup_elem(&reports, &worker);
	struct report *report;
	__u32 sequence = 0;
	bool made;

	if (!begun || !all || !has_room(all))
		return DEFERRED;
	report = reserve(all, &sequence);
	if (!report)
		return DEFERRED;
	made = begun->one_way || !put_direction(begun, FROM_BACKEND, worker, ipv6);
	if (made && put_direction(begun, FROM_CLIENT, worker, ipv6)) {
		made = false;
		make_rule(begun, FROM_BACKEND, ipv6);
		if (ipv6 && !begun->one_way)
			take_rule(&begun->flow, true);
		else if (!begun->one_way)
			take_rule(&begun->flow, false);
	}
	report->kind = made ? REPORT_SET_UP : REPORT_VOID;
	report->backend = begun->pending.backend;
	report->answered = begun->pending.answered;
	report->key = begun->key;
	if (made)
		__sync_fetch_and_add(&all->made, 1);
	__sync_lock_test_and_set(&report->sequence, sequence);
	if (!made)
		return DEFERRED;
	bpf_map_delete_elem(&pending, &begun->key);
	count(EVENT_SET_UP);
	return AGAIN;
}

/* Whether a rule has the backend's flow, as of another connection between the same ends. */
static __always_inline bool is_taken(struct beginning *begun, __u32 ipv6)
{
	make_rule(begun, FROM_BACKEND, ipv6);
	return ipv6 ? find_rule(&begun->flow, true) != NULL : find_rule(&begun->flow, false) != NULL;
}

/* Gives the connection of a first packet its backend; whether there is one. */
__noinline int begin(__u64 hash, __u32 ipv6)
{
	struct beginning *begun = single(&beginnings);
	struct target *target;
	__u32 number;

	if (!begun)
		return false;
	number = choose(begun->schedule, &begun->key, ipv6);
	target = bpf_map_lookup_elem(&targets, &number);
	if (number == SCHEDULE_NONE || !target)
		return false;
	begun->target = *target;
	__builtin_memset(&begun->pending, 0, sizeof(begun->pending));
	begun->pending.backend = number;
	begun->pending.begun = ticks();
	begun->pending.tag = tag_of(&begun->key, hash);
	begun->pending.sent = 1;
	/* Schedules and targets are not written together. */
	if (!begun->target.state || begun->target.service != begun->service)
		return false;
	return begun->one_way || !is_taken(begun, ipv6);
}

/* Whether connections begin: while a process serves the workers, and for a while after that. */
static __always_inline bool serves(const struct control *control)
{
	__u64 until = control->heartbeat_ns + control->heartbeat_timeout_ns + control->serve_ms * 1000000ULL;

	return !is_absent(control) || bpf_ktime_get_coarse_ns() < until;
}
#endif
