// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* What Hairpin's cost per packet is measured against: a program that parses the same headers, looks the same map up and
 * rewrites only the key. No checksums, TTL, counters, next hop or hand-over. IPv4 without options, UDP, untagged. */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "hairpin.h"

/* The loader puts Hairpin's own map here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct flow_v4);
	__type(value, struct rule_v4);
	__uint(max_entries, 1024);
} rules_v4 SEC(".maps");

/* A rule in one cache line: what is new, and room for the rest. */
struct line {
	struct flow_v4 key; /* zeros: none */
	__be32 source, destination;
	__be16 source_port, destination_port;
	__u32 rest[9];
};

/* A power of two of them, which the loader sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct line);
	__uint(max_entries, 1);
} lines SEC(".maps");

const volatile __u32 mask = 0; /* their number less one */

/* A rule is at the place of its hash or one of those that follow. */
#define PROBES 64

_Static_assert(sizeof(struct line) == 64, "line");

static __always_inline bool read_key(struct __sk_buff *skb, struct flow_v4 *key, struct iphdr **ip, struct udphdr **udp)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	*ip = data + ETH_HLEN;
	*udp = (void *)(*ip + 1);
	if (skb->pkt_type != PACKET_HOST || skb->protocol != bpf_htons(ETH_P_IP) || (void *)(*udp + 1) > end)
		return false;
	if ((*ip)->version != 4 || (*ip)->ihl != 5 || (*ip)->protocol != IPPROTO_UDP || (*ip)->frag_off & bpf_htons(0x3fff))
		return false;
	key->source = (*ip)->saddr;
	key->destination = (*ip)->daddr;
	key->source_port = (*udp)->source;
	key->destination_port = (*udp)->dest;
	key->protocol = (*ip)->protocol;
	return true;
}

SEC("tc")
int reference(struct __sk_buff *skb)
{
	struct flow_v4 key = {};
	struct rule_v4 *rule;
	struct udphdr *udp;
	struct iphdr *ip;

	if (!read_key(skb, &key, &ip, &udp))
		return TC_ACT_UNSPEC;
	rule = bpf_map_lookup_elem(&rules_v4, &key);
	if (!rule)
		return TC_ACT_UNSPEC;
	ip->saddr = rule->source;
	ip->daddr = rule->destination;
	udp->source = rule->head.source_port;
	udp->dest = rule->head.destination_port;
	return TC_ACT_REDIRECT;
}

/* A lookup in a table of our own, whose rules take one cache line: the least that it could cost, since nothing keeps a
 * lookup from an element that changes meanwhile. place() of src/cost/line.rs is the same hash. */
SEC("tc")
int one_line(struct __sk_buff *skb)
{
	struct flow_v4 key = {};
	struct udphdr *udp;
	struct line *line;
	struct iphdr *ip;
	__u64 words[2], hash;
	__u32 place;

	if (!read_key(skb, &key, &ip, &udp))
		return TC_ACT_UNSPEC;
	__builtin_memcpy(words, &key, sizeof(words));
	hash = (words[0] ^ 0x2545f4914f6cdd1d) * 0x9e3779b97f4a7c15;
	hash = (hash ^ hash >> 32 ^ words[1]) * 0xd6e8feb86659fd93;
	hash ^= hash >> 32;
	for (int i = 0; i < PROBES; i++) {
		__u64 found[2];

		place = (hash + i) & mask;
		line = bpf_map_lookup_elem(&lines, &place);
		if (!line)
			return TC_ACT_UNSPEC;
		__builtin_memcpy(found, &line->key, sizeof(found));
		if (!((found[0] ^ words[0]) | (found[1] ^ words[1]))) {
			ip->saddr = line->source;
			ip->daddr = line->destination;
			udp->source = line->source_port;
			udp->dest = line->destination_port;
			return TC_ACT_REDIRECT;
		}
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
