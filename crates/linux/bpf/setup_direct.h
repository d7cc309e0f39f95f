/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Connections of direct server return that are set up without a worker. Only the client's packets pass here, and none of
 * them shows that it hears its backend: a forged sender can send an ACK behind its SYN. So it takes as much as in the worker
 * (crates/core/src/worker/one_way.rs):
 *
 * - The packet with the number that follows the SYN's establishes the connection. The worker is told, and has it in its
 *   table among those that give way to new ones. What is in `pending` then saves its packets the way there.
 * - The ONE_WAY_PACKETS-th packet makes the rule, and the worker is told.
 * - A FIN or a RST near the client's number is sent on, and the worker is told. The last packets of the connection, and a
 *   SYN between the same ends, go by what is left in `pending`.
 *
 * Datagrams' flows are half-open before their ONE_WAY_PACKETS-th packet, and workers hear of them with that.
 *
 * A connection that the worker knows leaves `pending` with the first packet that is left to the worker: the next one must not
 * overtake it. */
#ifndef HAIRPIN_SETUP_DIRECT_H
#define HAIRPIN_SETUP_DIRECT_H

/* As in crates/core/src/worker/one_way.rs. */
#define BEHIND_MAX (1 << 16)
#define BEFORE_MAX (1 << 20)
#define FIRST_MAX (1 << 16)

static __always_inline __u32 headers_of(__u64 shape)
{
	return shape_l4(shape) - shape_l3(shape) + shape_header(shape);
}

/* Segments of a super-packet count one by one. */
static __always_inline __u32 packets_of(struct __sk_buff *skb, __u64 shape)
{
	__u32 size = skb->gso_size;

	if (!size)
		return 1;
	return skb->gso_segs ? skb->gso_segs : (skb->len - shape_l3(shape) - headers_of(shape) + size - 1) / size;
}

/* Sends a packet to the backend of what is in `begun`, once that is in `pending` as `update` says. What cannot go stays as
 * it came: DEFERRED. */
static __always_inline int send_direct(struct __sk_buff *skb, struct beginning *begun, __u32 update, const bool ipv6)
{
	__u32 size = skb->gso_size, number = begun->pending.backend, length, packets, state, hops;
	struct direct *direct = bpf_map_lookup_elem(&directs, &number);
	__u64 shape = begun->shape, sum;
	void *network;
	__be32 traffic;

	/* Tags in band need MACs that may not be known. */
	if (!direct || shape_l3(shape) != ETH_HLEN || (direct->mixed && !direct->overhead))
		return DEFERRED;
	network = bytes_at(skb, ETH_HLEN, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!network)
		return DEFERRED;
	__builtin_memcpy(&traffic, network, 4);
	hops = ipv6 ? ((struct ipv6hdr *)network)->hop_limit : ((struct iphdr *)network)->ttl;
	length = ipv6 ? sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)network)->payload_len) :
			bpf_ntohs(((struct iphdr *)network)->tot_len);
	if (hops <= 1)
		return DEFERRED;
	if (size)
		length = skb->len - ETH_HLEN;
	make_rule(begun, FROM_CLIENT, ipv6);
	aim_by_rule(skb, begun, traffic, ipv6);
	if (direct->overhead)
		aim_outer(&begun->routed, direct);
	if (find_hop(skb, begun, FROM_CLIENT) == NO_ROUTE ||
	    (!direct->overhead && !is_on_link(&begun->routed, &begun->found)))
		return DEFERRED;
	if ((size ? headers_of(shape) + size : length) + direct->overhead > begun->next_hop.mtu)
		return DEFERRED;
	if (update != PENDING_AS_IT_IS && bpf_map_update_elem(&pending, &begun->key, &begun->pending, update))
		return DEFERRED;
	packets = packets_of(skb, shape);
	network = bytes_at(skb, ETH_HLEN, ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!network)
		return TC_ACT_SHOT;
	state = checksum_state(skb);
	sum = lower_hops(network, ipv6);
	if (state == CHECKSUM_COMPLETE)
		bpf_csum_update(skb, fold(sum));
	if (update == BPF_ANY)
		note(begun->schedule, false);
	count_total(begun->rule.head.total, packets, length + (__u64)(packets - 1) * headers_of(shape));
	if (direct->overhead && !wrap(skb, number))
		return TC_ACT_SHOT;
	begun->next.nh_family = begun->found.family;
	__builtin_memcpy(begun->next.ipv6_nh, begun->found.ipv6_dst, 16);
	return bpf_redirect_neigh(begun->found.ifindex, &begun->next, sizeof(begun->next), 0);
}

/* Not static: see ingress_v4(). */
__noinline int send_direct_v4(struct __sk_buff *skb, __u32 update)
{
	struct beginning *begun = single(&beginnings);

	return begun ? send_direct(skb, begun, update, false) : TC_ACT_SHOT;
}

__noinline int send_direct_v6(struct __sk_buff *skb, __u32 update)
{
	struct beginning *begun = single(&beginnings);

	return begun ? send_direct(skb, begun, update, true) : TC_ACT_SHOT;
}

/* No verdict yet: the packet is to be sent, with one of the updates of send_direct() in the lower bits. The functions that
 * judge a packet say so to one_way(), since functions may not be nested deeply. */
#define SEND 0x7ffffe00

/* Treats the packet like one to a service that workers set up. */
static __noinline int refer(struct __sk_buff *skb, struct beginning *begun, __u64 hash, __u32 worker)
{
	if ((opens(begun->shape) || !is_known(hash)) && !client_admitted(begun->service)) {
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	return to_worker(skb, worker);
}

/* Tells the worker that the connection in `begun` has been established, or has begun anew if it is not `answered`
 * (REPORT_BEGUN), for which it must have room; or that a segment of its client with these flags has passed. Whether there was a
 * place for that. */
static __noinline int tell(struct beginning *begun, __u32 worker, __u32 kind, __u32 answered, __u32 tcp_flags)
{
	struct reports *all = bpf_map_lookup_elem(&reports, &worker);
	struct report *report;
	__u32 sequence = 0;

	if (!all || (kind == REPORT_BEGUN && !has_room(all)))
		return false;
	report = reserve(all, &sequence);
	if (!report)
		return false;
	report->kind = kind;
	report->key = begun->key;
	report->backend = begun->pending.backend;
	report->answered = answered;
	report->tcp_flags = tcp_flags;
	report->sent = begun->pending.sent;
	report->proof = begun->pending.proof;
	if (kind == REPORT_BEGUN)
		__sync_fetch_and_add(&all->made, 1);
	__sync_lock_test_and_set(&report->sequence, sequence);
	if (kind == REPORT_SEGMENT)
		count(EVENT_FOLLOWED);
	return true;
}

/* Gives a first packet's connection its backend, or the one that it had, if the client begins anew where the worker may still
 * remember the connection before: that goes on as the new one. Whether there is one. */
static __always_inline bool begin_direct(struct beginning *begun, __u64 hash, __u32 worker, __u32 next, bool is_anew)
{
	bool has_begun;

	if (!is_anew) {
		has_begun = begin(hash, !!(begun->shape & SHAPE_IPV6));
		begun->pending.proof = next;
		return has_begun;
	}
	begun->pending.begun = ticks();
	begun->pending.answered = 0;
	begun->pending.sent = 1;
	begun->pending.proof = next;
	return tell(begun, worker, REPORT_BEGUN, 0, 0);
}

/* A first packet. `found`: what `pending` had. */
static __noinline int first_direct(struct __sk_buff *skb, struct beginning *begun, __u64 hash, __u32 worker, __u32 found)
{
	struct reports *all = bpf_map_lookup_elem(&reports, &worker);
	bool tcp = begun->key.vip.protocol == IPPROTO_TCP, is_anew;
	struct control *control_now = single(&control);
	__u32 sequence = 0;

	if (!control_now)
		return TC_ACT_SHOT;
	is_anew = found != PENDING_NONE && begun->pending.answered == PENDING_ENDED;
	if (is_anew) {
		bpf_map_delete_elem(&pending, &begun->key);
		is_anew = is_known(hash) && begun->target.service == begun->service && is_open(begun->pending.backend);
	}
	/* Without a process a SYN begins a connection all the same: as in meet_client(). */
	if (!serves(control_now) || (is_known(hash) && !is_anew && !(tcp && is_absent(control_now))))
		return refer(skb, begun, hash, worker);
	if (!client_admitted(begun->service)) {
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	if (tcp && bpf_skb_load_bytes(skb, shape_l4(begun->shape) + offsetof(struct tcphdr, seq), &sequence, 4))
		return TC_ACT_SHOT;
	if (!all || !has_room(all) || !begin_direct(begun, hash, worker, bpf_ntohl(sequence) + 1, is_anew))
		return DEFERRED;
	return SEND | BPF_ANY;
}

/* Counts a packet, and makes the rule if it is the ONE_WAY_PACKETS-th. */
static __noinline int count_direct(struct __sk_buff *skb, struct beginning *begun, __u32 worker)
{
	struct control *control_now = single(&control);
	__u32 sent = begun->pending.sent + packets_of(skb, begun->shape);
	int verdict;

	if (sent >= ONE_WAY_PACKETS) {
		verdict = establish(worker, !!(begun->shape & SHAPE_IPV6));
		if (verdict != DEFERRED)
			return verdict;
		if (control_now && !is_absent(control_now))
			return DEFERRED;
		/* Without a process it is tried again later. */
		sent = 1;
	}
	begun->pending.sent = sent;
	return SEND | BPF_EXIST;
}

/* A SYN of a connection that has not been ended. */
static __noinline int again_direct(struct __sk_buff *skb, struct beginning *begun, __u32 worker, __u32 sequence)
{
	struct control *control_now = single(&control);

	if (!client_admitted(begun->service)) {
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	if (!begun->pending.answered) {
		begun->pending.proof = sequence + 1;
		return count_direct(skb, begun, worker);
	}
	/* One that is forged, or of a client that has forgotten: the worker judges that, if there is one. */
	if (control_now && is_absent(control_now))
		return SEND | PENDING_AS_IT_IS;
	return DEFERRED;
}

/* A segment of a TCP connection in `begun`. */
static __noinline int segment_direct(struct __sk_buff *skb, struct beginning *begun, __u32 worker)
{
	struct control *control_now = single(&control);
	__u32 flags = begun->shape & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN), sequence, ahead, state = begun->pending.answered;

	if (!control_now || bpf_skb_load_bytes(skb, shape_l4(begun->shape) + offsetof(struct tcphdr, seq), &sequence, 4))
		return TC_ACT_SHOT;
	sequence = bpf_ntohl(sequence);
	ahead = sequence - begun->pending.proof;
	if (flags == TCP_SYN && !(begun->shape & SHAPE_PAYLOAD))
		return again_direct(skb, begun, worker, sequence);
	if (flags & TCP_SYN)
		return DEFERRED;
	if (flags & (TCP_FIN | TCP_RST)) {
		if (!state || ahead + BEHIND_MAX > BEHIND_MAX + BEFORE_MAX)
			return DEFERRED;
		if (!tell(begun, worker, REPORT_SEGMENT, 1, flags) && !is_absent(control_now))
			return DEFERRED;
		begun->pending.answered = PENDING_ENDED;
		begun->pending.begun = ticks();
		return SEND | BPF_EXIST;
	}
	if (state == PENDING_ENDED)
		return SEND | PENDING_AS_IT_IS;
	if (!state) {
		if (!(flags & TCP_ACK) || ahead >= FIRST_MAX || !tell(begun, worker, REPORT_BEGUN, 1, 0))
			return DEFERRED;
		begun->pending.answered = PENDING_ANSWERED;
	}
	begun->pending.begun = ticks();
	return count_direct(skb, begun, worker);
}

/* A packet of the client whose key is in `beginnings`. */
__noinline int one_way(struct __sk_buff *skb)
{
	struct control *control_now = single(&control);
	struct beginning *begun = single(&beginnings);
	bool tcp, is_first;
	__u32 found, worker;
	int verdict;
	__u64 hash;

	if (!begun || !control_now)
		return TC_ACT_UNSPEC;
	tcp = begun->key.vip.protocol == IPPROTO_TCP;
	is_first = !tcp || (begun->shape & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN | SHAPE_PAYLOAD)) == TCP_SYN;
	hash = steer_hash(control_now, &begun->key.client);
	worker = steer_worker(control_now, hash);
	found = find_pending(begun, hash);
	if (is_first && (found != PENDING_LIVE || begun->pending.answered == PENDING_ENDED))
		verdict = first_direct(skb, begun, hash, worker, found);
	else if (found != PENDING_LIVE)
		return refer(skb, begun, hash, worker);
	else
		verdict = tcp ? segment_direct(skb, begun, worker) : count_direct(skb, begun, worker);
	if ((verdict & ~0xff) == SEND && begun->shape & SHAPE_IPV6)
		verdict = send_direct_v6(skb, verdict & 0xff);
	else if ((verdict & ~0xff) == SEND)
		verdict = send_direct_v4(skb, verdict & 0xff);
	if (verdict != DEFERRED)
		return verdict;
	if (begun->pending.answered)
		bpf_map_delete_elem(&pending, &begun->key);
	return defer(skb, worker);
}
#endif
