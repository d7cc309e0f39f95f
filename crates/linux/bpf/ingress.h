/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The program at the ingress of the named interfaces. */
#ifndef HAIRPIN_INGRESS_H
#define HAIRPIN_INGRESS_H

/* Where the IP header may start. */
#define L3_MAX (ETH_HLEN + VLANS_MAX * VLAN_LENGTH)

#define PULL_MIN 256 /* enough for all headers of nearly any packet */

/* More of the frame is wanted than its linear part holds. A frame that has no more is truncated. */
static __noinline int pull(struct __sk_buff *skb, __u32 wanted)
{
	__u32 length = wanted < PULL_MIN ? PULL_MIN : wanted;

	if (wanted > skb->len)
		return TC_ACT_SHOT;
	return bpf_skb_pull_data(skb, length < skb->len ? length : skb->len) ? TC_ACT_SHOT : AGAIN;
}

/* A function that is not static, since the verifier follows such once and not anew for each of the attempts below:
 * half a million steps become a third. */
__noinline int ingress_v4(struct __sk_buff *skb, __u32 l3)
{
	struct frame frame = { .l3 = l3 }, *f = &frame;
	struct headers at = {};
	enum parsed parsed;

	if (l3 > L3_MAX)
		return TC_ACT_UNSPEC;
	parsed = parse(skb, f, &at, false);

	if (parsed == PARSED) {
		struct end source, destination;
		struct flow_v4 key = {};
		struct found_v4 found;
		struct rule_v4 *rule;

		flow_v4_of(&key, f, &at);
		rule = copy_v4(&key, &found);
		if (rule)
			return hit(skb, f, rule, (void *)&found.way, (void *)found.ends, &sequence_v4, &key, &at, false);
		end_from_v4(&source, key.source, key.source_port, key.protocol);
		end_from_v4(&destination, key.destination, key.destination_port, key.protocol);
		return miss(skb, &source, &destination, false, shape(f));
	}
	if (parsed == ICMP)
		return icmp_v4(skb, f->l4);
	if (parsed == FRAGMENT)
		return unfit_v4(skb, f->l3, EVENT_FRAGMENT);
	if (parsed == SHORT && pull(skb, f->wanted) == AGAIN)
		return AGAIN;
	return parsed == OTHER ? TC_ACT_UNSPEC : unfit_v4(skb, f->l3, EVENT_MALFORMED);
}

__noinline int ingress_v6(struct __sk_buff *skb, __u32 l3)
{
	struct frame frame = { .l3 = l3 }, *f = &frame;
	struct headers at = {};
	enum parsed parsed;

	if (l3 > L3_MAX)
		return TC_ACT_UNSPEC;
	parsed = parse(skb, f, &at, true);

	if (parsed == PARSED) {
		struct end source, destination;
		struct flow_v6 key = {};
		struct rule_v6 *rule;

		flow_v6_of(&key, f, &at);
		rule = bpf_map_lookup_elem(&rules_v6, &key);
		if (rule)
			return hit(skb, f, rule, (void *)&rule->head.until, ends_of(rule), &sequence_v6, &key, &at, true);
		end_from_v6(&source, key.source, key.source_port, key.protocol);
		end_from_v6(&destination, key.destination, key.destination_port, key.protocol);
		return miss(skb, &source, &destination, true, shape(f));
	}
	if (parsed == ICMP)
		return icmp_v6(skb, f->l4);
	if (parsed == FRAGMENT)
		return unfit_v6(skb, f->l3, EVENT_FRAGMENT);
	if (parsed == SHORT && pull(skb, f->wanted) == AGAIN)
		return AGAIN;
	return parsed == OTHER ? TC_ACT_UNSPEC : unfit_v6(skb, f->l3, EVENT_MALFORMED);
}

SEC("tc")
int hairpin_ingress(struct __sk_buff *skb)
{
	int verdict = TC_ACT_UNSPEC;
	__be16 type;
	__u32 l3;

	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (to_kernel_mark && skb->mark == to_kernel_mark) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	type = parse_ethernet(skb, &l3);
	/* Two pulls at most: one for nearly anything, one for what lies behind long extension headers. And once more for a
	 * connection that the packet has set up. */
	for (int i = 0; i < 4; i++) {
		if (type == bpf_htons(ETH_P_IP))
			verdict = ingress_v4(skb, l3);
		else if (type == bpf_htons(ETH_P_IPV6))
			verdict = ingress_v6(skb, l3);
		/* From here, where there is stack to put outer headers on. */
		if (verdict == ONE_WAY)
			verdict = one_way(skb);
		else if (verdict == ESTABLISH || verdict == SEND_ON)
			verdict = proceed(skb, verdict);
		if (verdict != AGAIN)
			return verdict;
	}
	return TC_ACT_UNSPEC;
}
#endif
