/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet that no rule matches: a worker's, if it goes to a service, comes from a backend or is an ICMP error about
 * either; else the kernel's. The kernel's are also those of terminated services, whose connections end at its sockets. */
#ifndef HAIRPIN_MISS_H
#define HAIRPIN_MISS_H

#define STATE_LISTEN 10 /* bpf_sock.state: TCP_LISTEN */

/* Whether `address` is that of a VIP or in the pool. */
static __always_inline bool is_ours(const struct end *end)
{
	return bpf_map_lookup_elem(&addresses, end->address);
}

/* Whether the kernel would deliver a packet from `source` to `destination` to this host itself. */
static __noinline bool is_local(struct __sk_buff *skb, const struct end *source, const struct end *destination,
			       __u32 ipv6)
{
	struct bpf_fib_lookup found;
	struct routed routed;

	__builtin_memset(&routed, 0, sizeof(routed));
	routed.ifindex = skb->ifindex;
	routed.ipv6 = ipv6;
	if (ipv6) {
		__builtin_memcpy(routed.source, source->address, 16);
		__builtin_memcpy(routed.destination, destination->address, 16);
	} else {
		__builtin_memcpy(routed.source, source->address + 12, 4);
		__builtin_memcpy(routed.destination, destination->address + 12, 4);
	}
	return fib(skb, &routed, &found, 1) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* What a packet finds among the sockets of this host. */
enum found_socket {
	NO_SOCKET,
	ANY_PEER, /* it listens, or is of UDP and has no peer */
	CONNECTED,
};

/* The socket that the kernel would deliver a packet from `source` to `destination` to. */
static __noinline int find_socket(struct __sk_buff *skb, const struct end *source, const struct end *destination,
				  __u32 ipv6)
{
	struct bpf_sock_tuple tuple;
	struct bpf_sock *socket;
	__u32 length;
	int found;

	__builtin_memset(&tuple, 0, sizeof(tuple));
	if (ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, source->address, 16);
		__builtin_memcpy(tuple.ipv6.daddr, destination->address, 16);
		tuple.ipv6.sport = source->port;
		tuple.ipv6.dport = destination->port;
		length = sizeof(tuple.ipv6);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, source->address + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, destination->address + 12, 4);
		tuple.ipv4.sport = source->port;
		tuple.ipv4.dport = destination->port;
		length = sizeof(tuple.ipv4);
	}
	/* The two helpers' results are of different kinds to the verifier. */
	if (source->protocol == IPPROTO_TCP) {
		socket = bpf_skc_lookup_tcp(skb, &tuple, length, BPF_F_CURRENT_NETNS, 0);
		if (!socket)
			return NO_SOCKET;
		found = socket->state != STATE_LISTEN ? CONNECTED : ANY_PEER;
		bpf_sk_release(socket);
	} else {
		socket = bpf_sk_lookup_udp(skb, &tuple, length, BPF_F_CURRENT_NETNS, 0);
		if (!socket)
			return NO_SOCKET;
		found = socket->dst_port != 0 ? CONNECTED : ANY_PEER;
		bpf_sk_release(socket);
	}
	return found;
}

/* Whether a socket of this host wants packets from `source` to `destination`. One that is connected to `source`
 * does. One that takes packets from any host does if it is bound to an address of this host that is neither VIP nor
 * pool: wildcards match any destination, also those of packets that are only passing. */
static __noinline bool socket_wants(struct __sk_buff *skb, const struct end *source, const struct end *destination,
				    __u32 ipv6)
{
	int found = find_socket(skb, source, destination, ipv6);

	return found == CONNECTED ||
	       (found == ANY_PEER && !is_ours(destination) && is_local(skb, source, destination, ipv6));
}

/* A packet to a terminated service. The kernel delivers it, or answers it with RST: a connection without a socket has
 * died with its process. A SYN without a socket means that no process listens, however new the heartbeat is. Where
 * packets without a process are dropped, so is this one: the client sends it again, but would give up if it were
 * refused. (A SYN in fragments is refused; no client sends one.) */
static __noinline int terminated(struct __sk_buff *skb, const struct end *source, const struct end *destination,
				 __u32 ipv6, __u64 shape)
{
	struct control *control_now = single(&control);

	if (!opens(shape) || !control_now || control_now->absent_drop == ABSENT_PASS)
		return TC_ACT_UNSPEC;
	if (find_socket(skb, source, destination, ipv6) != NO_SOCKET)
		return TC_ACT_UNSPEC;
	count(EVENT_ABSENT_SYN);
	return TC_ACT_SHOT;
}

/* Whether a packet of a backend's end that no process can be asked about is none of a balanced connection. Hosts
 * that talk to a backend directly go on doing so; the others' packets wait for the next process, as both ends send
 * again what is dropped, but would give up what the kernel refuses. */
static __always_inline bool is_direct(const struct control *control, const struct end *destination, __u64 hash)
{
	return control->absent_drop == ABSENT_DROP && is_absent(control) && !is_known(hash) && !is_ours(destination);
}

static __always_inline void count_strange(int verdict)
{
	count(verdict == STRANGE_DATA ? EVENT_COOKIE_INVALID : EVENT_COOKIE_BARE);
}

/* A packet to a spliced service that is of no known connection and begins none: a worker answers it with RST where its
 * service is so configured, as often as the policer lets it; else it has no effect. */
static __always_inline int strange(struct __sk_buff *skb, const struct control *control, const struct end *source,
				   const struct end_roles *roles, int verdict)
{
	if (roles->roles & END_RESETS && client_admitted(roles->service))
		return to_worker(skb, steer_worker(control, steer_hash(control, source)));
	count_strange(verdict);
	return TC_ACT_SHOT;
}

/* SHAPE_TIMESTAMPS, if clients of the service are offered timestamps, and SHAPE_PLAIN, if its servers may speak first. */
static __always_inline __u64 offered(const struct end_roles *roles)
{
	return (roles->roles & END_TIMESTAMPS) * (SHAPE_TIMESTAMPS / END_TIMESTAMPS) |
	       (roles->roles & END_PLAIN) * (SHAPE_PLAIN / END_PLAIN);
}

/* A packet of this shape from `source` to `destination`, whichever of them is one of ours. One that opens a connection
 * is policed even if it seems known: the same SYN can be sent again and again. */
static __noinline int miss(struct __sk_buff *skb, struct end *source, struct end *destination, __u32 ipv6, __u64 shape)
{
	struct control *control_now = single(&control);
	struct end_roles *roles;
	__u64 hash;
	int verdict;

	if (!control_now || !control_now->workers)
		return TC_ACT_UNSPEC;
	roles = bpf_map_lookup_elem(&ends, destination);
	if (roles && roles->roles & END_TERMINATED)
		return terminated(skb, source, destination, ipv6, shape);
	if (roles && roles->roles & END_SERVICE) {
		if (is_denied(source, destination, roles, shape, false))
			return TC_ACT_SHOT;
		if (roles->roles & END_SPLICED) {
			verdict = spliced(skb, source, destination, ipv6, shape | offered(roles));
			if (verdict == STRANGE || verdict == STRANGE_DATA)
				return strange(skb, control_now, source, roles, verdict);
			if (verdict != UNDECIDED)
				return verdict;
		}
		if (roles->roles & END_SET_UP) {
			verdict = begin_from_client(skb, source, destination, roles, shape | (ipv6 ? SHAPE_IPV6 : 0));
			if (verdict != UNDECIDED)
				return verdict;
		}
		hash = steer_hash(control_now, source);
		if ((opens(shape) || !is_known(hash)) && !client_admitted(roles->service)) {
			count(EVENT_POLICED_CLIENT);
			return TC_ACT_SHOT;
		}
		return to_worker(skb, steer_worker(control_now, hash));
	}
	roles = bpf_map_lookup_elem(&ends, source);
	if (control_now->direct) {
		verdict = check_answered(skb, source, destination, ipv6, shape);
		if (verdict != UNDECIDED)
			return verdict;
	}
	if (!roles || !(roles->roles & END_BACKEND))
		return TC_ACT_UNSPEC;
	if (roles->roles & END_SET_UP_BACKEND) {
		verdict = answer_from_backend(skb, destination, roles, shape | (ipv6 ? SHAPE_IPV6 : 0));
		if (verdict != UNDECIDED)
			return verdict;
	}
	if (socket_wants(skb, source, destination, ipv6)) {
		count(EVENT_LOCAL_SOCKET);
		return TC_ACT_UNSPEC;
	}
	hash = steer_hash(control_now, destination);
	if (is_direct(control_now, destination, hash)) {
		count(EVENT_ABSENT_PASS);
		return TC_ACT_UNSPEC;
	}
	if (!is_known(hash) && !backend_admitted(control_now, roles->backend_service)) {
		count(EVENT_POLICED_BACKEND);
		return TC_ACT_SHOT;
	}
	return to_worker(skb, steer_worker(control_now, hash));
}

/* The ends of the packet whose first bytes lie at `at`. It left, or passed, in the direction they say. */
static __always_inline bool quoted_ends(struct __sk_buff *skb, __u32 at, struct end *source, struct end *destination,
					const bool ipv6)
{
	__be16 ports[2];
	__u32 protocol;

	if (ipv6) {
		struct ipv6hdr ip;
		__u64 found;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 6)
			return false;
		found = parse_extensions(skb, at + sizeof(ip), ip.nexthdr);
		if ((found & 0xff) != PARSED)
			return false;
		at = (found >> 16) & 0xffff;
		protocol = (found >> 8) & 0xff;
		if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
			return false;
		end_from_v6(source, ip.saddr.in6_u.u6_addr32, ports[0], protocol);
		end_from_v6(destination, ip.daddr.in6_u.u6_addr32, ports[1], protocol);
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
			return false;
		protocol = ip.protocol;
		/* Only a first fragment has ports. */
		if (ip.frag_off & bpf_htons(0x1fff) || (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP))
			return false;
		if (bpf_skb_load_bytes(skb, at + ip.ihl * 4, ports, sizeof(ports)))
			return false;
		end_from_v4(source, ip.saddr, ports[0], protocol);
		end_from_v4(destination, ip.daddr, ports[1], protocol);
	}
	return true;
}

/* An ICMP message whose header lies at `at`. Errors about packets of balanced connections are the workers': they know
 * whom to send them on to. They are policed like any packet of an unknown connection: they can be forged. Errors about
 * packets from a terminated service are the kernel's, like those about packets of any of its sockets. */
static __always_inline int icmp(struct __sk_buff *skb, __u32 at, const bool ipv6)
{
	struct control *control_now = single(&control);
	struct end source, destination;
	struct end_roles *roles;
	__u64 hash;
	__u8 type;

	if (!control_now || !control_now->workers || bpf_skb_load_bytes(skb, at, &type, sizeof(type)))
		return TC_ACT_UNSPEC;
	if (ipv6 ? type < 1 || type > 4 : type != 3 && type != 11 && type != 12)
		return TC_ACT_UNSPEC;
	if (!quoted_ends(skb, at + 8, &source, &destination, ipv6))
		return TC_ACT_UNSPEC;
	roles = bpf_map_lookup_elem(&ends, &source);
	if (roles && roles->roles & END_TERMINATED)
		return TC_ACT_UNSPEC;
	if (roles && roles->roles & END_SERVICE) {
		hash = steer_hash(control_now, &destination);
		if (is_known(hash) || client_admitted(roles->service))
			return to_worker(skb, steer_worker(control_now, hash));
		count(EVENT_POLICED_CLIENT);
		return TC_ACT_SHOT;
	}
	roles = bpf_map_lookup_elem(&ends, &destination);
	if (!roles || !(roles->roles & END_BACKEND))
		return TC_ACT_UNSPEC;
	/* A socket of this host that sent the quoted packet would get its answer the other way round. */
	if (socket_wants(skb, &destination, &source, ipv6)) {
		count(EVENT_LOCAL_SOCKET);
		return TC_ACT_UNSPEC;
	}
	hash = steer_hash(control_now, &source);
	if (is_direct(control_now, &source, hash)) {
		count(EVENT_ABSENT_PASS);
		return TC_ACT_UNSPEC;
	}
	if (is_known(hash) || backend_admitted(control_now, roles->backend_service))
		return to_worker(skb, steer_worker(control_now, hash));
	count(EVENT_POLICED_BACKEND);
	return TC_ACT_SHOT;
}

__noinline int icmp_v4(struct __sk_buff *skb, __u32 at)
{
	return icmp(skb, at, false);
}

__noinline int icmp_v6(struct __sk_buff *skb, __u32 at)
{
	return icmp(skb, at, true);
}

/* A packet that cannot be balanced, to be dropped if it goes to one of our addresses. */
static __always_inline int unfit(struct __sk_buff *skb, __u32 l3, enum event event, const bool ipv6)
{
	struct end end;
	__be32 address[4];

	if (ipv6) {
		if (bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, daddr), address, 16))
			return TC_ACT_UNSPEC;
		end_from_v6(&end, address, 0, 0);
	} else {
		if (bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, daddr), address, 4))
			return TC_ACT_UNSPEC;
		end_from_v4(&end, address[0], 0, 0);
	}
	if (!is_ours(&end))
		return TC_ACT_UNSPEC;
	count(event);
	return TC_ACT_SHOT;
}

__noinline int unfit_v4(struct __sk_buff *skb, __u32 l3, __u32 event)
{
	return unfit(skb, l3, event, false);
}

__noinline int unfit_v6(struct __sk_buff *skb, __u32 l3, __u32 event)
{
	return unfit(skb, l3, event, true);
}
#endif
