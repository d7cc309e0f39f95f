// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* What Hairpin's cost per packet is measured against: a program that parses the same headers, looks the same rules up in
 * a hash of the kernel's and rewrites only the key. No checksums, TTL, counters, next hop or hand-over. IPv4 without options, UDP, untagged. */
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

/* Hairpin's rules of IPv4, in a hash of the kernel's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct flow_v4);
	__type(value, struct rule_v4);
	__uint(max_entries, 1024);
} rules SEC(".maps");

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
	rule = bpf_map_lookup_elem(&rules, &key);
	if (!rule)
		return TC_ACT_UNSPEC;
	ip->saddr = rule->source;
	ip->daddr = rule->destination;
	udp->source = rule->head.source_port;
	udp->dest = rule->head.destination_port;
	return TC_ACT_REDIRECT;
}

char LICENSE[] SEC("license") = "GPL";
