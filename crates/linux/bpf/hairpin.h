/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the BPF programs and the linux crate (src/abi.rs, the same layouts in Rust) share. Network byte order where a
 * type says __be; everything else in the machine's own. docs/internals/linux-plane.md says how it is used. */
#ifndef HAIRPIN_H
#define HAIRPIN_H

/* To be raised when something here, or in a map, comes to mean something else without looking different. */
#define ABI_VERSION 3

#define WORKERS_MAX 64
#define CPUS_MAX 256
#define INTERFACES_MAX 64
#define SERVICES_MAX 1024
#define BACKENDS_MAX 16384
#define POOL_ADDRESSES_MAX 1024
#define KNOWN_CELLS (1 << 22)
#define RULE_OPS_MAX 256
#define ACCESS_RULES_MAX 16

/* Flow keys of the rule maps. */
struct flow_v4 {
	__be32 source, destination;
	__be16 source_port, destination_port;
	__u8 protocol, zero[3];
}; /* 16 bytes */

struct flow_v6 {
	__be32 source[4], destination[4];
	__be16 source_port, destination_port;
	__u8 protocol, zero[3];
}; /* 40 bytes */

/* A rule's `flags`. The lower four bits are set by the process that installs it and never change; the others are BPF's
 * own, but ACTIVE may be asked for: then there is no hand-over. */
enum rule_flags {
	RULE_PASS = 1,     /* fate: leave the packet to the kernel */
	RULE_SEQUENCE = 2, /* TCP: sequence numbers are translated, by `sequence_v4` / `sequence_v6`, same key */
	RULE_DIRECT = 4,   /* nothing changes but the hops; the new destination is the backend, whose MAC the frame gets */
	RULE_FILLING = 8,  /* alone: its line is being written, no packet takes it; of IPv4 */
	RULE_ACTIVE = 16,  /* hand-over is done */
	RULE_FENCED = 32,  /* hand-over is under way: fence and until are set; neither of the two: no packet seen yet */
	RULE_OPENS = 64,     /* of a backend's flow: its client has begun anew, and the SYN-ACK goes by the rule */
};

/* The part of a rule that is the same in both families: 40 bytes. */
struct rule_head {
	__u64 packets;     /* segments of super-packets counted one by one */
	__u64 bytes;       /* of IP packets, headers of every segment included */
	__u32 last_seen;   /* coarse monotonic clock, ns >> 20; 0: never */
	__u32 fence;       /* the ticket to wait for (lower 24 bits) and the CPU that gave it (upper 8): read, written whole */
	__u32 until;       /* same clock: next hop good until; while fenced: hand over at the latest. Read with what follows */
	__u16 next_hop;    /* of an ACTIVE one: its number in `next_hops`; 0: not looked up yet, and `until` is any number */
	__u8 flags;
	__u8 worker;       /* whose connection it is: gets the packets the rule does not take */
	__be16 source_port, destination_port; /* the new ones */
	__u16 total;       /* index into `totals` */
	__u16 checksum_addresses; /* what new addresses for old add to a sum: RFC 1071 sum of ~old and new, 1 to 0xffff */
};

struct rule_v4 {
	struct rule_head head;
	__be32 source, destination; /* the new ones */
}; /* 48 bytes */

struct rule_v6 {
	struct rule_head head;
	__be32 source[4], destination[4];
}; /* 72 bytes: with the element's header and the key three cache lines */

/* A rule of IPv4 with its key: a cache line. */
struct rule_line {
	__be32 source, destination;
	__be16 source_port, destination_port;
	__u32 state; /* the protocol, 0: the line is free; and LINE_* */
	struct rule_v4 rule;
};

#define LINE_PROTOCOL 0xff
#define LINE_LOCKED 0x100      /* the bucket is being changed; of a line behind all buckets, the line is being filled */
#define LINE_ELSEWHERE 0x200   /* of a bucket's first line, times the number of its rules that lie behind all buckets */
#define LINE_ELSEWHERE_ALL 0xfe00
#define LINE_VERSION 0x10000   /* times how often the line has been written; what is more than 16 bits is lost */
#define LINES 4

/* Where a rule of IPv4 can lie: lines.h. */
struct rule_bucket {
	struct rule_line lines[LINES];
};

/* Where packets go, under its number in `next_hops`. Rules share them. */
struct next_hop {
	__u32 egress;       /* ifindex of the egress interface */
	__u8 addresses[12]; /* destination MAC, source MAC */
	__u16 mtu;          /* IP bytes the egress takes */
	__u16 wrapped;      /* 1: it is that of packets in outer headers */
	__u32 used;         /* ticks: last found by a route lookup; 0: never, NEXT_HOP_BUSY: being written */
	__u32 zero[2];
};

#define NEXT_HOPS_MAX 65536
#define NEXT_HOP_BUSY 1

/* How a rule with RULE_SEQUENCE translates sequence numbers, and which packets it takes (struct Guard in
 * crates/core/src/engine.rs). rewrite.h, "Rules and their sequence changes", says what `check` is for. */
struct sequence_change {
	__u32 sequence_delta, acknowledgement_delta; /* added, wrapping */
	__u32 sequence, sequence_length;
	__u32 acknowledgement, acknowledgement_length;
	__s32 window_shift; /* -16 to 16: to the left if positive */
	__u32 guarded;      /* 0: all packets, with any sequence numbers */
	__u32 timestamp_delta, echo_delta; /* added to both values of a timestamps option, wrapping */
	__u64 check;        /* SEQUENCE_CHECK over the words before it and what the rule itself says of ends; 0: being written */
};

/* Number i of the 64-bit words of `sequence_change` (0 to 4), then of the rule from its ports on (5, 6; IPv6: to 9),
 * is multiplied by this to the power of i + 1; the check is the sum. Any one word that differs makes another sum,
 * several do but once in 2^64. */
#define SEQUENCE_CHECK 0x9e3779b97f4a7c15ULL

/* Ends that concern us, VIPs and backends: key of `ends`. IPv4 as ::ffff:a.b.c.d. */
struct end {
	__u8 address[16];
	__be16 port;
	__u8 protocol, zero;
};

enum end_role { END_SERVICE = 1, END_BACKEND = 2, END_SPLICED = 4 /* a service: clients meet SYN cookies */,
		END_RESETS = 8 /* such a service: packets of no known connection are answered with RST */,
		END_TIMESTAMPS = 16 /* such a service: clients are offered timestamps */,
		END_TERMINATED = 32 /* a service whose connections end at sockets of this host; not an END_SERVICE */,
		END_SET_UP = 64 /* a service whose connections are set up here: setup.h */,
		END_SET_UP_BACKEND = 128 /* a backend of such a service, and of no other */,
		END_SET_UP_DIRECT = 256 /* with END_SET_UP: the service has direct server return: setup_direct.h */,
		END_ACCESS = 512 /* with END_SERVICE: the service has access rules: access.h */,
		END_PLAIN = 1024 /* with END_SPLICED: the acknowledgement that ends the handshake begins a connection */ };

struct end_roles {
	__u16 roles;   /* END_* */
	__u16 service; /* of END_SERVICE */
	__u16 backend_service; /* a service END_BACKEND serves */
	__u16 set_up;  /* of END_SET_UP: its schedule, in `schedules`; of END_SET_UP_BACKEND: its number, in `targets` */
};

/* Key of a trie in `access_rules`: the clients of a service in a network. IPv4 as ::ffff:a.b.c.d. */
struct access_key {
	__u32 length; /* bits of what follows, those of `service` included */
	__u32 service;
	__u8 client[16];
};

#define ACCESS_KEY_BITS 160
#define ACCESS_NO_RULE 0xff

/* The rules that refuse and count such clients, by number; or ACCESS_NO_RULE. */
struct access_value {
	__u8 denied, counted;
	__u8 zero[2];
};

enum encapsulation { ENCAPSULATION_NONE, ENCAPSULATION_IPIP, ENCAPSULATION_GUE };

/* A backend of direct server return, under its number in `directs`; zeros: none. IPv4 as ::ffff:a.b.c.d. From `source` on it
 * is about the outer headers of what is sent to it. */
struct direct {
	__u8 backend[16], vip[16];
	__u8 source[16];    /* zeros: not known, nothing can be sent */
	__be16 port;        /* of ENCAPSULATION_GUE */
	__u8 encapsulation; /* ENCAPSULATION_* */
	__u8 overhead;      /* bytes of outer headers */
	__u8 ipv6;          /* 1: they are of IPv6 */
	__u8 mixed;         /* 1: the backend is of another family than the VIP: without outer headers nothing can be sent */
	__u8 zero[10];
};

/* skb->mark of health checks to such a backend: this, and the backend's number in the lower 16 bits. They are sent to the
 * backend's address, and leave with the VIP's in its place (check.h). */
#define CHECK_MARK 0x48500000

/* Where checks are sent to whose backend is of another family than the VIP: 192.0.0.8 (RFC 7600) or 100::48:50 (RFC 6666), for
 * which there is a route to the device of checks. They leave from there in outer headers. */
#define CHECK_ADDRESS { 0x02, 0x48, 0x50, 'c', 'h', 'k' } /* the device's own */
#define CHECK_STAND_IN_V4 0xc0000008
#define CHECK_STAND_IN_V6_FIRST 0x01000000
#define CHECK_STAND_IN_V6_LAST 0x00480050
#define CHECKS_MAX 2048 /* noted; fewer are under way (IN_FLIGHT_MAX of crates/hairpin/src/health/schedule.rs) */

/* Set-up of connections without a worker (setup.h). What must be there for it has room for nothing where it is off. */
#define SCHEDULES_MAX 64
#define SCHEDULE_MAX 65537 /* TABLE_SIZE of crates/core/src/balance/maglev.rs */
#define SCHEDULE_NONE 0xffff /* an entry, or a whole schedule's length of 0: the worker chooses */

enum schedule_kind { SCHEDULE_FLOW = 1, SCHEDULE_SOURCE = 2, /* an entry by the hash of the flow, or of the client's address */
		     SCHEDULE_TURNS = 3 /* one entry after the other */ };

/* Which backends a service's new connections get, by number. The process writes an entry at any time, each whole; of a
 * hash there are SCHEDULE_MAX. Mapped. */
struct schedule {
	__u32 kind, length;
	__u32 turn; /* of SCHEDULE_TURNS: connections so far */
	__u32 begun;    /* first packets so far, and of UDP those that were answered */
	__u32 answered;
	__u32 zero[3];
	__u16 backends[SCHEDULE_MAX + 3];
};

enum target_state { TARGET_NONE, /* all is zero */ TARGET_CLOSED, /* takes no new connections */ TARGET_OPEN };

/* A backend of such a service, under its number. IPv4 as ::ffff:a.b.c.d. */
struct target {
	struct end backend, vip;
	__u16 service;  /* the service's number */
	__u8 schedule;  /* its schedule's */
	__u8 state;     /* TARGET_* */
	__u32 lifetime; /* of what is half-open, in ticks of rules' clock */
};

/* The client's flow. */
struct pending_key {
	struct end client, vip;
};

enum pending_state { PENDING_ANSWERED = 1, /* the backend has answered; of direct server return, the client has gone on */
		     PENDING_ENDED = 2 /* of direct server return: the client has sent FIN or RST */ };

/* A half-open connection; of direct server return also one that has been established and has no rule yet. */
struct pending {
	__u32 tag;     /* of the key: an element can become another key's while it is being read */
	__u32 begun;   /* ticks of rules' clock */
	__u32 proof;   /* TCP, once answered: what its client acknowledges at least (proof() in crates/core/src/l4/tcp.rs); of
			* direct server return, the number that follows its SYN's */
	__u16 backend; /* its number */
	__u8 answered; /* 0, or PENDING_* */
	__u8 sent;     /* datagrams of the client so far; of direct server return, packets */
	__u32 until[2];     /* of the client's packets, of the backend's: as in a rule */
	__u16 next_hops[2]; /* likewise */
};

enum report_kind { REPORT_VOID, /* nothing came of it */ REPORT_SET_UP, REPORT_SEGMENT, /* with SYN, FIN or RST, sent on */
		   REPORT_BEGUN /* of direct server return: the client has gone on after its SYN; there is no rule yet */ };

/* What a worker is told. */
struct report {
	__u32 sequence; /* its place in the order of all, plus one, once it is whole */
	__u16 backend;
	__u8 kind, answered;
	struct pending_key key; /* of a segment: its source and destination, as it came */
	__u8 tcp_flags;         /* of a segment */
	__u8 sent;              /* of REPORT_BEGUN: as in `pending` */
	__u8 zero[2];
	__u32 proof;            /* of REPORT_BEGUN: as in `pending` */
	__u8 reserved[8];
};

#define REPORTS_MAX 4096

/* A worker's queue: any CPU puts in, the worker takes out. Mapped. */
struct reports {
	__u32 head;    /* reports so far, those that are being written included */
	__u32 tail;    /* those that the worker has done with */
	__u32 made;    /* connections set up so far */
	__u32 allowed; /* the worker has room for so many, counted as `made` */
	__u64 zero[6];
	struct report reports[REPORTS_MAX];
};

/* Addresses of VIPs and pools are the keys of `addresses` (16 bytes; value: __u32 1): fragments and malformed
 * packets to them are dropped. A VIP that terminated services alone have is not among them: its fragments and malformed
 * packets go to the kernel, which reassembles the ones and judges the others. On a VIP that a terminated service shares
 * with another one they are dropped, since a fragment does not tell which of the two it is for. */

/* A named interface, under its slot in `interfaces`; `slots` tells the slot (__u32) of an ifindex. */
struct interface {
	__u32 ifindex; /* 0: none */
	__u8 address[6];
	__u8 sends_back; /* 1: what XDP_TX returns leaves; 0: only what is redirected does */
	__u8 zero;
};

/* One element, mapped into the process. The first eight bytes stay what they are in every version: by them a process
 * tells whether it understands the maps that another one has left. */
struct control {
	__u32 abi_version;         /* of the meanings, ABI_VERSION; 0: what has been pinned is not complete */
	__u32 abi_layout;          /* a hash of this file without its comments */
	__u64 steering_key[2];
	__u32 workers;             /* 1 to WORKERS_MAX; 0: not configured yet, nothing is a miss of ours */
	__u32 absent_drop;         /* no process serves the workers: ABSENT_* of handover.h says what becomes of misses */
	__u64 heartbeat_ns;        /* CLOCK_MONOTONIC, written by the process */
	__u64 heartbeat_timeout_ns;
	__u32 policer_backend_pps; /* packets from backends, per CPU and service */
	__u32 handover_ms;         /* bound of a hand-over */
	__u64 programs;            /* for the process: a hash of the programs that are pinned; 0: they are being replaced */
	__u32 to_kernel_mark;      /* for the process: the constant of the same name in these programs */
	__u32 network;             /* for the process: the network namespace it all belongs to, by inode number */
	__u64 cookie_keys[2][2];   /* of SYN cookies: of even and of odd epochs */
	__u64 cookie_epoch;        /* for the process: the last epoch that has its key */
	__u64 cookie_ahead_ns;     /* added to CLOCK_MONOTONIC before it is counted: what real time is ahead of it, of keys
				    * that balancers share; else 0 */
	__u32 clock_ahead;         /* of the clock in timestamps, in ms, before CLOCK_MONOTONIC */
	__u32 direct;              /* 1: there is a service of direct server return */
	__u32 follow;              /* 1: segments with SYN, FIN or RST go by their rules, and are reported (follow.h) */
	__u32 serve_ms;            /* connections are set up for so long after the heartbeat has become too old */
	__u32 check_device;        /* ifindex of the device of checks; 0: there is none */
	__u32 rule_buckets;        /* elements of `rules_v4` that are buckets; lines behind them are `spill_buckets` times LINES */
	__u64 rule_keys[5];        /* of the hash that tells a flow's bucket: random */
	__u32 rules_v4_max;        /* rules of IPv4 */
	__u32 spill_buckets;
};

/* The last ticket of each CPU whose packet a worker has finished with (lower 24 bits). One element, mapped. */
struct processed {
	__u32 ticket[WORKERS_MAX][CPUS_MAX];
};

/* The tickets this CPU gave last, per worker. One element per CPU. */
struct tickets {
	__u32 last[WORKERS_MAX];
};

/* How many live connections share each cell of the steering hash; 255: many, for good. One element, mapped. */
struct known {
	__u8 cells[KNOWN_CELLS];
};

/* How many packets of no known connection a CPU admits per second and service; 0xffffffff: all. One element, mapped. */
struct policer_rates {
	__u32 client_pps[SERVICES_MAX];
};

/* Token buckets of a CPU: towards a service, and from its backends (index + SERVICES_MAX). */
struct policer {
	__u64 last_ns;
	__u64 tokens; /* millionths of a packet */
};

/* What became of packets that took no rule; of those that took one, which were sent from XDP. */
enum event {
	EVENT_TO_WORKER,        /* handed to a worker, for any of the reasons below or none */
	EVENT_POLICED_CLIENT,   /* dropped by the policer, towards a service */
	EVENT_POLICED_BACKEND,  /* dropped by the policer, from a backend */
	EVENT_FRAGMENT,         /* fragment to a VIP or pool address, dropped */
	EVENT_MALFORMED,        /* truncated or impossible headers to a VIP or pool address, dropped */
	EVENT_ABSENT_DROP,      /* no process serves the workers: dropped */
	EVENT_ABSENT_PASS,      /* no process serves the workers: left to the kernel */
	EVENT_LOCAL_SOCKET,     /* from a backend's end, but a local socket wants it */
	EVENT_PASS_RULE,        /* left to the kernel by a Pass rule */
	EVENT_RULE_FLAGS,       /* rule hit, but SYN, FIN or RST: to the worker */
	EVENT_RULE_TTL,         /* rule hit, TTL or hop limit used up: to the worker */
	EVENT_RULE_MTU,         /* rule hit, too big for the egress MTU: to the worker */
	EVENT_RULE_FENCED,      /* rule hit, hand-over under way: to the worker */
	EVENT_RULE_NO_ROUTE,    /* rule hit, no route: to the worker */
	EVENT_RULE_GUARD,       /* rule hit, sequence numbers outside its guard, or just being replaced: to the worker */
	EVENT_HANDOVER_BOUND,   /* a hand-over ended by its bound */
	EVENT_SENT,             /* frame from a worker routed out */
	EVENT_SENT_NO_ROUTE,    /* frame from a worker dropped: no route */
	EVENT_SENT_TOO_BIG,     /* frame from a worker sent back to it: too big for the egress MTU */
	EVENT_TO_KERNEL,       /* frame that a worker passes to the kernel */
	EVENT_WORKER_MALFORMED, /* frame on a worker device that no worker sent, dropped */
	EVENT_COOKIE_SENT,      /* SYN to a spliced service, answered with a cookie */
	EVENT_COOKIE_BARE,      /* of no known connection and without data to a spliced service: has no effect */
	EVENT_COOKIE_INVALID,   /* of no known connection to a spliced service, with data but no right cookie: dropped */
	EVENT_ABSENT_SYN,       /* SYN to a terminated service that no process listens for: dropped */
	EVENT_XDP,              /* sent from XDP: rule hit, or a SYN that is also counted as EVENT_COOKIE_SENT */
	EVENT_NOT_WRAPPED,      /* to a backend hops away, but could not be encapsulated: dropped */
	EVENT_SET_UP_BEGUN,     /* first packet of a connection that is set up here, sent to its backend */
	EVENT_SET_UP,           /* connection set up here */
	EVENT_SET_UP_DEFERRED,  /* packet of such a connection that is left to the worker: no room, no way, a conflict */
	EVENT_FOLLOWED,         /* SYN, FIN or RST that went by its rule, and was reported */
	EVENT_SET_UP_NO_ROOM,   /* packet that would set up a connection here, but the worker's table has no room for it */
	EVENT_REPORTS_FULL,     /* packet to be reported, but the worker's queue of reports is full */
	EVENT_NEXT_HOPS_FULL,   /* packet that found no place for its next hop: it goes by the kernel's neighbour entry */
	EVENT_DENIED,           /* of no known connection, towards a service whose access rules refuse its client: dropped */
	EVENTS
};

/* One element per CPU. */
struct events {
	__u64 count[EVENTS];
};

struct total {
	__u64 packets;
	__u64 bytes;
};

/* Ethernet destination address of frames on a worker device: what BPF and worker tell each other.
 * [0] is one of these (locally administered, unicast), [1] the interface's slot; then
 * MARK_RECEIVED, MARK_TO_KERNEL, MARK_ROUTE: [2] the cpu, [3..6] the ticket, most significant byte first;
 * MARK_DIRECT: [2] and [3] the backend's number, most significant byte first, the others 0;
 * MARK_TOO_BIG: [2] and [3] 0, [4..6] the MTU, most significant byte first. */
enum mark {
	MARK_RECEIVED = 0x0a,  /* to the worker: it arrived */
	MARK_TOO_BIG = 0x0e,   /* to the worker: it sent this, and it is too big for the egress MTU */
	MARK_ROUTE = 0x12,     /* from the worker: route it */
	MARK_TO_KERNEL = 0x16, /* from the worker: not ours */
	MARK_DIRECT = 0x1a,    /* from the worker: to the backend in `directs`, whatever its destination */
};

/* Element of `queries`, mapped into the process: one per worker, plus one for all other threads. */
struct rule_counters {
	__u64 packets;
	__u64 bytes;
	__u32 last_seen;
	__u32 found; /* 0: there is no such rule; of `rules_put`: why it is not in force (errno), 0: it is */
};

struct rule_query {
	struct rule_counters counters[RULE_OPS_MAX]; /* filled in */
	union {
		struct flow_v4 v4[RULE_OPS_MAX];
		struct flow_v6 v6[RULE_OPS_MAX];
	};
	union { /* of `rules_put`; `changes` where a rule has RULE_SEQUENCE */
		struct rule_v4 rule_v4[RULE_OPS_MAX];
		struct rule_v6 rule_v6[RULE_OPS_MAX];
	};
	struct sequence_change changes[RULE_OPS_MAX];
};

/* Argument of the syscall programs `rules_put`, `rules_take`, `rules_sample` and `rules_assign`. */
struct rule_request {
	__u32 query; /* which element of `queries` */
	__u32 count; /* of its keys, 0 to RULE_OPS_MAX */
	__u32 ipv6;  /* which keys: 0 v4, 1 v6 */
	__u32 worker; /* of `rules_assign`: the new owner, below WORKERS_MAX; else 0 */
};

/* The layouts are a contract: src/abi.rs asserts the same. */
_Static_assert(sizeof(struct flow_v4) == 16 && sizeof(struct flow_v6) == 40, "flow");
_Static_assert(sizeof(struct rule_head) == 40 && sizeof(struct rule_v4) == 48 && sizeof(struct rule_v6) == 72, "rule");
_Static_assert(__builtin_offsetof(struct rule_head, until) == 24, "rule_head.until");
_Static_assert(__builtin_offsetof(struct rule_head, flags) == 30, "rule_head.flags");
_Static_assert(__builtin_offsetof(struct rule_head, source_port) == 32, "rule_head.source_port");
_Static_assert(__builtin_offsetof(struct rule_head, checksum_addresses) == 38, "rule_head.checksum_addresses");
_Static_assert(sizeof(struct rule_line) == 64 && sizeof(struct rule_bucket) == 256 && sizeof(struct next_hop) == 32, "rule_line");
_Static_assert(sizeof(struct sequence_change) == 48 && __builtin_offsetof(struct sequence_change, check) == 40, "sequence_change");
_Static_assert(sizeof(struct end) == 20 && sizeof(struct end_roles) == 8 && sizeof(struct interface) == 12 && sizeof(struct direct) == 64, "ends");
_Static_assert(sizeof(struct access_key) == 24 && sizeof(struct access_value) == 4, "access");
_Static_assert(sizeof(struct schedule) == 131112 && sizeof(struct target) == 48, "schedule");
_Static_assert(sizeof(struct pending_key) == 40 && sizeof(struct pending) == 28, "pending");
_Static_assert(sizeof(struct report) == 64 && sizeof(struct reports) == 64 + REPORTS_MAX * 64, "reports");
_Static_assert(sizeof(struct control) == 192, "control");
_Static_assert(__builtin_offsetof(struct control, heartbeat_ns) == 32, "control.heartbeat_ns");
_Static_assert(sizeof(struct rule_counters) == 24 && sizeof(struct rule_query) == RULE_OPS_MAX * 184, "query");
#endif
