/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Connections that are set up without a worker: of services whose choice of a backend is a function of the packet, or of a
 * list and a counter.
 *
 * A first packet gets a backend and an entry in `pending`, which is no connection: a flood of forged ones turns over that map
 * and touches nothing else. The client's word that it hears the backend (the ACK of the SYN-ACK's number; a datagram after
 * the answer, or the ONE_WAY_PACKETS-th without one) makes both rules and a report to the worker, which takes the connection
 * into its table. Whatever is unclear is the worker's, which takes the entry out of `pending` and goes on from there. */
#ifndef HAIRPIN_SETUP_H
#define HAIRPIN_SETUP_H

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
	aim_by_rule(skb, begun, traffic, ipv6);
	if (find_hop(skb, begun, direction) == NO_ROUTE) {
		if (direction == FROM_CLIENT)
			return DEFERRED;
		/* To a forged client, which is to make no connection in the worker's table. */
		count(EVENT_SENT_NO_ROUTE);
		return TC_ACT_SHOT;
	}
	if (length > begun->next_hop.mtu)
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
	count_total(begun->rule.head.total, 1, length);
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

static __always_inline int establish_later(struct beginning *begun, __u64 shape, __u32 worker)
{
	begun->shape = shape;
	begun->worker = worker;
	return ESTABLISH;
}

static __always_inline int send_later(struct beginning *begun, __u64 shape, __u32 worker, __u32 direction, __u32 update)
{
	begun->shape = shape;
	begun->worker = worker;
	begun->direction = direction;
	begun->update = update;
	return SEND_ON;
}

/* Makes the rules of the connection in `beginnings`, whose packet is parsed anew then, or sends its packet on. */
static __noinline int proceed(struct __sk_buff *skb, int what)
{
	struct beginning *begun = single(&beginnings);
	int verdict;

	if (!begun)
		return TC_ACT_SHOT;
	if (what == ESTABLISH)
		verdict = establish(begun->worker, !!(begun->shape & SHAPE_IPV6));
	else
		verdict = send_family(skb, begun->shape, begun->direction, begun->update);
	return verdict_of(skb, begun->worker, verdict);
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
	if (find_pending(begun, hash) != PENDING_LIVE) {
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
		return send_later(begun, shape, worker, FROM_CLIENT, BPF_ANY);
	}
	if (opens(shape) && tcp && !client_admitted(begun->service)) {
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	if (first) {
		/* One that is not answered says something about its backend, and workers judge that, if there are any. */
		if (!begun->pending.answered && ticks() - begun->pending.begun > TICKS_PER_SECOND / 2 && !is_absent(control_now))
			return defer(skb, worker);
		return send_later(begun, shape, worker, FROM_CLIENT, PENDING_AS_IT_IS);
	}
	if (tcp) {
		if (flags != TCP_ACK || !begun->pending.answered ||
		    bpf_skb_load_bytes(skb, shape_l4(shape) + offsetof(struct tcphdr, ack_seq), &acknowledged, 4) ||
		    bpf_ntohl(acknowledged) - begun->pending.proof >= PROOF_WINDOW)
			return defer(skb, worker);
		return establish_later(begun, shape, worker);
	}
	if (begun->pending.answered || begun->pending.sent + 1 >= ONE_WAY_PACKETS)
		return establish_later(begun, shape, worker);
	begun->pending.sent++;
	return send_later(begun, shape, worker, FROM_CLIENT, BPF_EXIST);
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
	if (find_pending(begun, hash) != PENDING_LIVE || begun->pending.backend != number)
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
	return send_later(begun, shape, worker, FROM_BACKEND, update);
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
	begun->one_way = !!(roles->roles & END_SET_UP_DIRECT);
	if (begun->one_way) {
		begun->shape = shape;
		return ONE_WAY;
	}
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
	begun->one_way = 0;
	return meet_backend(skb, shape, roles->set_up);
}
#endif
