/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Connections that are set up without a worker: of services whose choice of a backend is a function of the packet, or of a
 * list and a counter.
 *
 * A first packet gets a backend and an entry in `pending`, which is no connection: a flood of forged ones turns over that map
 * and touches nothing else. The client's word that it hears the backend (the ACK of the SYN-ACK's number; a datagram after
 * the answer, or the ONE_WAY_PACKETS-th without one) makes both rules and a report to the worker, which takes the connection
 * into its table. Whatever is unclear is the worker's, which takes the entry out of `pending` and goes on from there.
 *
 * A report is reserved before rules are made, and whole before the entry in `pending` is gone: none is lost. */
#ifndef HAIRPIN_SETUP_H
#define HAIRPIN_SETUP_H

#define AGAIN 0x7fffffff /* no verdict yet: parse anew. The headers have been pulled into the linear part, or there is a rule */

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
	union {
		struct flow_v4 v4;
		struct flow_v6 v6;
	} flow;
	union {
		struct rule_head head;
		struct rule_v4 v4;
		struct rule_v6 v6;
	} rule;
	__u32 service, schedule;
};

ARRAY(beginnings, BPF_MAP_TYPE_PERCPU_ARRAY, struct beginning, 1, 0);

#define FROM_CLIENT 0
#define FROM_BACKEND 1

static __always_inline __u32 tag_of(const struct pending_key *key, __u64 hash)
{
	__u32 vip;

	__builtin_memcpy(&vip, key->vip.address + 12, 4);
	return (__u32)hash ^ vip ^ (__u32)key->vip.port << 16;
}

/* Copies the half-open connection with the key in `begun`, and its backend; whether there is one. */
static __noinline int find_pending(struct beginning *begun, __u64 hash)
{
	struct pending *found = bpf_map_lookup_elem(&pending, &begun->key);
	struct target *target;
	__u32 number;

	if (!found)
		return false;
	begun->pending = *found;
	number = begun->pending.backend;
	target = bpf_map_lookup_elem(&targets, &number);
	if (!target || begun->pending.tag != tag_of(&begun->key, hash))
		return false;
	begun->target = *target;
	return begun->target.state && ticks() - begun->pending.begun < begun->target.lifetime;
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

/* Finds the way of a packet of this direction, whose IP header's first word is `traffic`. */
static __always_inline enum route_result find_hop(struct __sk_buff *skb, struct beginning *begun, __u32 direction,
						  __be32 traffic, struct hop *hop, const bool ipv6)
{
	struct routed *routed = &begun->routed;
	struct bpf_fib_lookup *found = &begun->found;
	long result;

	__builtin_memset(routed, 0, sizeof(*routed));
	__builtin_memset(hop, 0, sizeof(*hop));
	routed->ifindex = skb->ifindex;
	routed->traffic = traffic;
	if (ipv6) {
		__builtin_memcpy(routed->source, begun->rule.v6.source, 16);
		__builtin_memcpy(routed->destination, begun->rule.v6.destination, 16);
	} else {
		routed->source[0] = begun->rule.v4.source;
		routed->destination[0] = begun->rule.v4.destination;
	}
	result = fib(skb, routed, found, 1, ipv6);
	hop->egress = found->ifindex;
	hop->until = ticks();
	/* As look_up() in route.h, with less on the stack. */
	if (result == BPF_FIB_LKUP_RET_SUCCESS) {
		hop->mtu = found->mtu_result ? found->mtu_result : 0xffff;
		__builtin_memcpy(hop->next_hop, found->dmac, ETH_ALEN);
		__builtin_memcpy(hop->next_hop + ETH_ALEN, found->smac, ETH_ALEN);
		hop->until += TICKS_PER_SECOND;
		return ROUTE_FOUND;
	}
	if (result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NO_ROUTE;
	hop->mtu = 0xffff;
	if (fib(skb, routed, &begun->again, 0xffff, ipv6) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		hop->mtu = begun->again.mtu_result;
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

static __noinline int count_total(__u32 index, __u32 bytes)
{
	struct total *total = bpf_map_lookup_elem(&totals, &index);

	if (total) {
		total->packets++;
		total->bytes += bytes;
	}
	return 0;
}

#define PENDING_AS_IT_IS 4 /* no update, beside BPF_ANY, BPF_NOEXIST and BPF_EXIST */

/* Sends a packet of the half-open connection in `begun` on its way, once that is in `pending` as `update` says. What cannot
 * go stays as it came: DEFERRED. */
static __always_inline int send_on(struct __sk_buff *skb, struct beginning *begun, __u64 shape, __u32 direction,
				   __u32 update, const bool ipv6)
{
	__u32 l3 = shape_l3(shape), l4 = shape_l4(shape), length, state;
	bool tcp = begun->key.vip.protocol == IPPROTO_TCP;
	struct frame frame = {};
	void *network, *transport;
	__be32 traffic;
	__u64 sum;
	__u8 hops;

	/* Tags in band need MACs that may not be known; and segments' lengths are for rules to judge. */
	if (l3 != ETH_HLEN || skb->gso_size)
		return DEFERRED;
	make_rule(begun, direction, ipv6);
	network = bytes_at(skb, l3, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!network)
		return DEFERRED;
	__builtin_memcpy(&traffic, network, 4);
	hops = ipv6 ? ((struct ipv6hdr *)network)->hop_limit : ((struct iphdr *)network)->ttl;
	length = ipv6 ? sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)network)->payload_len) :
			bpf_ntohs(((struct iphdr *)network)->tot_len);
	if (hops <= 1)
		return DEFERRED;
	if (find_hop(skb, begun, direction, traffic, &begun->pending.hops[direction & 1], ipv6) == NO_ROUTE) {
		if (direction == FROM_CLIENT)
			return DEFERRED;
		/* To a forged client, which is to make no connection in the worker's table. */
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
	if (length > begun->pending.hops[direction & 1].mtu)
		return DEFERRED;
	if (update != PENDING_AS_IT_IS && bpf_map_update_elem(&pending, &begun->key, &begun->pending, update))
		return DEFERRED;
	network = bytes_at(skb, l3, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!network)
		return TC_ACT_SHOT;
	state = checksum_state(skb);
	if (tcp) {
		transport = bytes_at(skb, l4, sizeof(struct tcphdr));
		if (!transport)
			return TC_ACT_SHOT;
		frame.tcp = 1;
		sum = rewrite(ends_of(&begun->rule), network, transport, &frame, 0, state, ipv6);
	} else {
		transport = bytes_at(skb, l4, sizeof(struct udphdr));
		if (!transport)
			return TC_ACT_SHOT;
		sum = rewrite(ends_of(&begun->rule), network, transport, &frame, 0, state, ipv6);
	}
	if (state == CHECKSUM_COMPLETE)
		bpf_csum_update(skb, fold(sum));
	if (update == BPF_ANY)
		note(begun->schedule, false);
	count_total(begun->rule.head.total, length);
	begun->next.nh_family = begun->found.family;
	__builtin_memcpy(begun->next.ipv6_nh, begun->found.ipv6_dst, 16);
	return bpf_redirect_neigh(begun->found.ifindex, &begun->next, sizeof(begun->next), 0);
}

/* Not static: see ingress_v4(). */
__noinline int send_on_v4(struct __sk_buff *skb, __u64 shape, __u32 direction, __u32 update)
{
	struct beginning *begun = single(&beginnings);

	return begun ? send_on(skb, begun, shape, direction, update, false) : TC_ACT_SHOT;
}

__noinline int send_on_v6(struct __sk_buff *skb, __u64 shape, __u32 direction, __u32 update)
{
	struct beginning *begun = single(&beginnings);

	return begun ? send_on(skb, begun, shape, direction, update, true) : TC_ACT_SHOT;
}

static __always_inline int send_family(struct __sk_buff *skb, __u64 shape, __u32 direction, __u32 update)
{
	if (shape & SHAPE_IPV6)
		return send_on_v6(skb, shape, direction, update);
	return send_on_v4(skb, shape, direction, update);
}

/* Makes the rule of one direction, which no packet can overtake: none is inside a worker. */
static __always_inline long put_rule(struct beginning *begun, __u32 direction, __u32 worker, __u32 ipv6)
{
	struct rule_head *head = &begun->rule.head;
	const struct hop *hop = &begun->pending.hops[direction];

	make_rule(begun, direction, ipv6);
	head->flags = RULE_ACTIVE;
	head->worker = worker;
	head->until = hop->until ? hop->until : ticks();
	head->egress = hop->egress;
	head->mtu = hop->mtu;
	__builtin_memcpy(head->next_hop, hop->next_hop, sizeof(head->next_hop));
	if (ipv6)
		return bpf_map_update_elem(&rules_v6, &begun->flow, &begun->rule, BPF_NOEXIST);
	return bpf_map_update_elem(&rules_v4, &begun->flow, &begun->rule, BPF_NOEXIST);
}

/* The client of the half-open connection in `begun` hears its backend: from here on rules carry it. The backend's comes
 * first, so that no packet of the client's meets half a pair. */
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
	made = !put_rule(begun, FROM_BACKEND, worker, ipv6);
	if (made && put_rule(begun, FROM_CLIENT, worker, ipv6)) {
		made = false;
		make_rule(begun, FROM_BACKEND, ipv6);
		if (ipv6)
			bpf_map_delete_elem(&rules_v6, &begun->flow);
		else
			bpf_map_delete_elem(&rules_v4, &begun->flow);
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
	return ipv6 ? bpf_map_lookup_elem(&rules_v6, &begun->flow) != NULL :
		      bpf_map_lookup_elem(&rules_v4, &begun->flow) != NULL;
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
	return begun->target.state && begun->target.service == begun->service && !is_taken(begun, ipv6);
}

/* Whether connections begin: while a process serves the workers, and for a while after that. */
static __always_inline bool serves(const struct control *control)
{
	__u64 until = control->heartbeat_ns + control->heartbeat_timeout_ns + control->serve_ms * 1000000ULL;

	return !is_absent(control) || bpf_ktime_get_coarse_ns() < until;
}

/* A packet of the client whose key is in `begun`. */
__noinline int meet_client(struct __sk_buff *skb, __u64 shape)
{
	struct control *control_now = single(&control);
	struct beginning *begun = single(&beginnings);
	__u32 flags = shape & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN), worker, acknowledged;
	struct reports *all;
	bool tcp, first;
	__u64 hash;

	if (!begun || !control_now)
		return UNDECIDED;
	tcp = begun->key.vip.protocol == IPPROTO_TCP;
	first = tcp && flags == TCP_SYN && !(shape & SHAPE_PAYLOAD);
	hash = steer_hash(control_now, &begun->key.client);
	worker = steer_worker(control_now, hash);
	if (!find_pending(begun, hash)) {
		if ((tcp && !first) || !serves(control_now))
			return UNDECIDED;
		/* Without a process a SYN begins a connection all the same: the cell is another client's, or the table has a
		 * connection of these ends that is over for its client. The next process settles that (worker/set_up.rs). */
		if (is_known(hash) && !(tcp && is_absent(control_now)))
			return UNDECIDED;
		if (!client_admitted(begun->service)) {
			count(EVENT_POLICED_CLIENT);
			return TC_ACT_SHOT;
		}
		/* Where there is no room its client had better hear nothing than a SYN-ACK. */
		all = bpf_map_lookup_elem(&reports, &worker);
		if (!all || !has_room(all) || !begin(hash, !!(shape & SHAPE_IPV6)))
			return defer(skb, worker);
		return verdict_of(skb, worker, send_family(skb, shape, FROM_CLIENT, BPF_ANY));
	}
	if (opens(shape) && tcp && !client_admitted(begun->service)) {
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	if (first) {
		/* One that is not answered says something about its backend, and workers judge that, if there are any. */
		if (!begun->pending.answered && ticks() - begun->pending.begun > TICKS_PER_SECOND / 2 && !is_absent(control_now))
			return defer(skb, worker);
		return verdict_of(skb, worker, send_family(skb, shape, FROM_CLIENT, PENDING_AS_IT_IS));
	}
	if (tcp) {
		if (flags != TCP_ACK || !begun->pending.answered ||
		    bpf_skb_load_bytes(skb, shape_l4(shape) + offsetof(struct tcphdr, ack_seq), &acknowledged, 4) ||
		    bpf_ntohl(acknowledged) - begun->pending.proof >= PROOF_WINDOW)
			return defer(skb, worker);
		return verdict_of(skb, worker, establish(worker, !!(shape & SHAPE_IPV6)));
	}
	if (begun->pending.answered || begun->pending.sent + 1 >= ONE_WAY_PACKETS)
		return verdict_of(skb, worker, establish(worker, !!(shape & SHAPE_IPV6)));
	begun->pending.sent++;
	return verdict_of(skb, worker, send_family(skb, shape, FROM_CLIENT, BPF_EXIST));
}

/* A packet of a backend to the client in `begun`. Without a half-open connection that is no concern of ours. */
__noinline int meet_backend(struct __sk_buff *skb, __u64 shape, __u32 number)
{
	struct target *target = bpf_map_lookup_elem(&targets, &number);
	struct control *control_now = single(&control);
	struct beginning *begun = single(&beginnings);
	__u32 flags = shape & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN), worker, sequence, update = PENDING_AS_IT_IS;
	__u64 hash;

	if (!begun || !control_now || !target || !target->state)
		return UNDECIDED;
	begun->key.vip = target->vip;
	hash = steer_hash(control_now, &begun->key.client);
	if (!find_pending(begun, hash) || begun->pending.backend != number)
		return UNDECIDED;
	worker = steer_worker(control_now, hash);
	if (begun->key.vip.protocol == IPPROTO_TCP) {
		if (flags != (TCP_SYN | TCP_ACK) || shape & SHAPE_PAYLOAD ||
		    bpf_skb_load_bytes(skb, shape_l4(shape) + offsetof(struct tcphdr, seq), &sequence, 4))
			return defer(skb, worker);
		sequence = bpf_ntohl(sequence) + 1;
		begun->pending.proof = sequence ? sequence : 0xffffffff;
		update = BPF_EXIST;
	} else if (!begun->pending.answered) {
		note(begun->target.schedule, true);
		update = BPF_EXIST;
	}
	begun->pending.answered = 1;
	return verdict_of(skb, worker, send_family(skb, shape, FROM_BACKEND, update));
}

/* A packet from `source` to a service that is set up here: a verdict, or UNDECIDED if it is to be treated like one to any
 * other service. */
static __always_inline int begin_from_client(struct __sk_buff *skb, const struct end *source, const struct end *destination,
					     const struct end_roles *roles, __u64 shape)
{
	struct beginning *begun = single(&beginnings);

	if (!begun)
		return UNDECIDED;
	begun->key.client = *source;
	begun->key.vip = *destination;
	begun->service = roles->service;
	begun->schedule = roles->set_up;
	return meet_client(skb, shape);
}

/* A packet to `destination` from a backend of such a service: a verdict, or UNDECIDED if no half-open connection has it. */
static __always_inline int answer_from_backend(struct __sk_buff *skb, const struct end *destination,
					       const struct end_roles *roles, __u64 shape)
{
	struct beginning *begun = single(&beginnings);

	if (!begun)
		return UNDECIDED;
	begun->key.client = *destination;
	return meet_backend(skb, shape, roles->set_up);
}
#endif
