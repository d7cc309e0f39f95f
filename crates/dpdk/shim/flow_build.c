/* rte_flow's arrays from a plain description. Pure: no device, no EAL. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include <rte_byteorder.h>

#include "flow.h"

#define SYN_FIN_RST 0x07
#define ACK 0x10
/* More fragments, and the offset. */
#define FRAGMENT 0x3fff
#define HEADER_WORDS 5

#define FATES                                                                                                          \
	(HAIRPIN_DO_QUEUE | HAIRPIN_DO_RSS | HAIRPIN_DO_PORT_ID | HAIRPIN_DO_REPRESENTED_PORT |                         \
	 HAIRPIN_DO_PORT_REPRESENTOR | HAIRPIN_DO_JUMP)
#define TRANSPORT_MATCHES                                                                                              \
	(HAIRPIN_MATCH_SOURCE_PORT | HAIRPIN_MATCH_DESTINATION_PORT | TCP_MATCHES)
#define TCP_MATCHES (HAIRPIN_MATCH_NO_CONTROL | HAIRPIN_MATCH_ACK | HAIRPIN_MATCH_NO_OPTIONS)
#define NETWORK_MATCHES                                                                                                \
	(HAIRPIN_MATCH_SOURCE | HAIRPIN_MATCH_DESTINATION | HAIRPIN_MATCH_WHOLE | HAIRPIN_MATCH_LAST_HOP)
#define NUMBERS (HAIRPIN_DO_SEQUENCE | HAIRPIN_DO_ACKNOWLEDGEMENT)
#define PORTS (HAIRPIN_DO_SOURCE_PORT | HAIRPIN_DO_DESTINATION_PORT)
#define ADDRESSES (HAIRPIN_DO_SOURCE | HAIRPIN_DO_DESTINATION | HAIRPIN_DO_TTL)

static int contradicts_itself(const struct hairpin_flow_rule *rule)
{
	uint32_t fates = rule->does & FATES;

	if (fates == 0 || (fates & (fates - 1)) != 0)
		return 1;
	if (rule->family != 0 && rule->family != 4 && rule->family != 6)
		return 1;
	if (rule->protocol != 0 && rule->protocol != IPPROTO_TCP && rule->protocol != IPPROTO_UDP)
		return 1;
	if (rule->family == 0 && ((rule->match & NETWORK_MATCHES) != 0 || (rule->does & ADDRESSES) != 0 || rule->protocol != 0))
		return 1;
	if (rule->protocol == 0 && ((rule->match & TRANSPORT_MATCHES) != 0 || (rule->does & (PORTS | NUMBERS)) != 0))
		return 1;
	if (rule->protocol == IPPROTO_UDP && ((rule->match & TCP_MATCHES) != 0 || (rule->does & NUMBERS) != 0))
		return 1;
	return (rule->does & HAIRPIN_DO_RSS) != 0 && (rule->queue == 0 || rule->queue > HAIRPIN_FLOW_QUEUES_MAX);
}

static void item(struct hairpin_flow_arrays *arrays, enum rte_flow_item_type type, const void *spec, const void *mask)
{
	struct rte_flow_item *item = &arrays->items[arrays->item_count++];

	item->type = type;
	item->spec = spec;
	item->mask = mask;
}

static void action(struct hairpin_flow_arrays *arrays, enum rte_flow_action_type type, const void *conf,
		   const void *mask)
{
	unsigned int at = arrays->action_count++;

	arrays->actions[at].type = type;
	arrays->actions[at].conf = conf;
	arrays->masks[at].type = type;
	arrays->masks[at].conf = mask;
}

static void match_ipv4(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	struct rte_ipv4_hdr *spec = &arrays->ipv4_spec.hdr, *mask = &arrays->ipv4_mask.hdr;

	if (rule->match & HAIRPIN_MATCH_SOURCE) {
		memcpy(&spec->src_addr, rule->source, 4);
		mask->src_addr = UINT32_MAX;
	}
	if (rule->match & HAIRPIN_MATCH_DESTINATION) {
		memcpy(&spec->dst_addr, rule->destination, 4);
		mask->dst_addr = UINT32_MAX;
	}
	if (rule->match & HAIRPIN_MATCH_WHOLE)
		mask->fragment_offset = rte_cpu_to_be_16(FRAGMENT);
	if (rule->match & HAIRPIN_MATCH_LAST_HOP)
		mask->time_to_live = 0xfe;
	int fields = (rule->match & NETWORK_MATCHES) != 0;
	item(arrays, RTE_FLOW_ITEM_TYPE_IPV4, fields ? &arrays->ipv4_spec : NULL, fields ? &arrays->ipv4_mask : NULL);
}

static void match_ipv6(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	struct rte_flow_item_ipv6 *spec = &arrays->ipv6_spec, *mask = &arrays->ipv6_mask;

	if (rule->match & HAIRPIN_MATCH_SOURCE) {
		memcpy(spec->hdr.src_addr, rule->source, 16);
		memset(mask->hdr.src_addr, 0xff, 16);
	}
	if (rule->match & HAIRPIN_MATCH_DESTINATION) {
		memcpy(spec->hdr.dst_addr, rule->destination, 16);
		memset(mask->hdr.dst_addr, 0xff, 16);
	}
	if (rule->match & HAIRPIN_MATCH_WHOLE)
		mask->has_frag_ext = 1;
	if (rule->match & HAIRPIN_MATCH_LAST_HOP)
		mask->hdr.hop_limits = 0xfe;
	int fields = (rule->match & NETWORK_MATCHES) != 0;
	item(arrays, RTE_FLOW_ITEM_TYPE_IPV6, fields ? spec : NULL, fields ? mask : NULL);
}

static rte_be16_t port_mask(uint16_t bits)
{
	return rte_cpu_to_be_16(bits == 0 ? UINT16_MAX : bits);
}

static void match_tcp(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	struct rte_tcp_hdr *spec = &arrays->tcp_spec.hdr, *mask = &arrays->tcp_mask.hdr;

	if (rule->match & HAIRPIN_MATCH_SOURCE_PORT) {
		spec->src_port = rte_cpu_to_be_16(rule->source_port);
		mask->src_port = port_mask(rule->source_port_bits);
	}
	if (rule->match & HAIRPIN_MATCH_DESTINATION_PORT) {
		spec->dst_port = rte_cpu_to_be_16(rule->destination_port);
		mask->dst_port = port_mask(rule->destination_port_bits);
	}
	if (rule->match & HAIRPIN_MATCH_NO_CONTROL)
		mask->tcp_flags |= SYN_FIN_RST;
	if (rule->match & HAIRPIN_MATCH_ACK) {
		spec->tcp_flags |= ACK;
		mask->tcp_flags |= ACK;
	}
	if (rule->match & HAIRPIN_MATCH_NO_OPTIONS) {
		spec->data_off = HEADER_WORDS << 4;
		mask->data_off = 0xf0;
	}
	int fields = (rule->match & TRANSPORT_MATCHES) != 0;
	item(arrays, RTE_FLOW_ITEM_TYPE_TCP, fields ? &arrays->tcp_spec : NULL, fields ? &arrays->tcp_mask : NULL);
}

static void match_udp(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	struct rte_udp_hdr *spec = &arrays->udp_spec.hdr, *mask = &arrays->udp_mask.hdr;

	if (rule->match & HAIRPIN_MATCH_SOURCE_PORT) {
		spec->src_port = rte_cpu_to_be_16(rule->source_port);
		mask->src_port = port_mask(rule->source_port_bits);
	}
	if (rule->match & HAIRPIN_MATCH_DESTINATION_PORT) {
		spec->dst_port = rte_cpu_to_be_16(rule->destination_port);
		mask->dst_port = port_mask(rule->destination_port_bits);
	}
	int fields = (rule->match & TRANSPORT_MATCHES) != 0;
	item(arrays, RTE_FLOW_ITEM_TYPE_UDP, fields ? &arrays->udp_spec : NULL, fields ? &arrays->udp_mask : NULL);
}

static void match(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	item(arrays, RTE_FLOW_ITEM_TYPE_ETH, NULL, NULL);
	if (rule->family == 4)
		match_ipv4(rule, arrays);
	else if (rule->family == 6)
		match_ipv6(rule, arrays);
	if (rule->protocol == IPPROTO_TCP)
		match_tcp(rule, arrays);
	else if (rule->protocol == IPPROTO_UDP)
		match_udp(rule, arrays);
	item(arrays, RTE_FLOW_ITEM_TYPE_END, NULL, NULL);
}

static void set(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays, uint32_t what,
		enum rte_flow_action_type type, const void *conf)
{
	if (rule->does & what)
		action(arrays, type, conf, NULL);
}

/* By the actions that say one thing each: "legacy", and the only ones that most drivers know. */
static void rewrite_by_names(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	memcpy(arrays->source_mac.mac_addr, rule->source_mac, 6);
	memcpy(arrays->destination_mac.mac_addr, rule->destination_mac, 6);
	set(rule, arrays, HAIRPIN_DO_SOURCE_MAC, RTE_FLOW_ACTION_TYPE_SET_MAC_SRC, &arrays->source_mac);
	set(rule, arrays, HAIRPIN_DO_DESTINATION_MAC, RTE_FLOW_ACTION_TYPE_SET_MAC_DST, &arrays->destination_mac);
	if (rule->family == 4) {
		memcpy(&arrays->source_ipv4.ipv4_addr, rule->new_source, 4);
		memcpy(&arrays->destination_ipv4.ipv4_addr, rule->new_destination, 4);
		set(rule, arrays, HAIRPIN_DO_SOURCE, RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC, &arrays->source_ipv4);
		set(rule, arrays, HAIRPIN_DO_DESTINATION, RTE_FLOW_ACTION_TYPE_SET_IPV4_DST, &arrays->destination_ipv4);
	} else {
		memcpy(arrays->source_ipv6.ipv6_addr, rule->new_source, 16);
		memcpy(arrays->destination_ipv6.ipv6_addr, rule->new_destination, 16);
		set(rule, arrays, HAIRPIN_DO_SOURCE, RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC, &arrays->source_ipv6);
		set(rule, arrays, HAIRPIN_DO_DESTINATION, RTE_FLOW_ACTION_TYPE_SET_IPV6_DST, &arrays->destination_ipv6);
	}
	arrays->source_port.port = rte_cpu_to_be_16(rule->new_source_port);
	arrays->destination_port.port = rte_cpu_to_be_16(rule->new_destination_port);
	set(rule, arrays, HAIRPIN_DO_SOURCE_PORT, RTE_FLOW_ACTION_TYPE_SET_TP_SRC, &arrays->source_port);
	set(rule, arrays, HAIRPIN_DO_DESTINATION_PORT, RTE_FLOW_ACTION_TYPE_SET_TP_DST, &arrays->destination_port);
	set(rule, arrays, HAIRPIN_DO_TTL, RTE_FLOW_ACTION_TYPE_DEC_TTL, NULL);

	uint32_t sequence = rule->sequence_delta, acknowledgement = rule->acknowledgement_delta;
	int fewer = (rule->how & HAIRPIN_HOW_SIGNED) && (int32_t)sequence < 0;
	arrays->sequence = rte_cpu_to_be_32(fewer ? -sequence : sequence);
	set(rule, arrays, HAIRPIN_DO_SEQUENCE,
	    fewer ? RTE_FLOW_ACTION_TYPE_DEC_TCP_SEQ : RTE_FLOW_ACTION_TYPE_INC_TCP_SEQ, &arrays->sequence);
	fewer = (rule->how & HAIRPIN_HOW_SIGNED) && (int32_t)acknowledgement < 0;
	arrays->acknowledgement = rte_cpu_to_be_32(fewer ? -acknowledgement : acknowledgement);
	set(rule, arrays, HAIRPIN_DO_ACKNOWLEDGEMENT,
	    fewer ? RTE_FLOW_ACTION_TYPE_DEC_TCP_ACK : RTE_FLOW_ACTION_TYPE_INC_TCP_ACK, &arrays->acknowledgement);
}

static void modify(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays, uint32_t what,
		   enum rte_flow_modify_op operation, enum rte_flow_field_id field, const void *value, uint32_t bytes)
{
	if (!(rule->does & what))
		return;
	unsigned int at = arrays->modification_count++;
	struct rte_flow_action_modify_field *modification = &arrays->modifications[at];
	struct rte_flow_action_modify_field *mask = &arrays->modification_masks[at];

	modification->operation = operation;
	modification->dst.field = field;
	modification->src.field = RTE_FLOW_FIELD_VALUE;
	memcpy(modification->src.value, value, bytes);
	modification->width = bytes * 8;
	/* All is the same for the rules of a template but the value; and that too where it is no rule's own. */
	memset(mask, 0xff, sizeof(*mask));
	if (what != HAIRPIN_DO_TTL)
		memset(mask->src.value, 0, sizeof(mask->src.value));
	action(arrays, RTE_FLOW_ACTION_TYPE_MODIFY_FIELD, modification, mask);
}

/* By MODIFY_FIELD. Values stand as in the packet. A TTL loses one by adding 255, so that only one operation is needed. */
static void rewrite_by_fields(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	static const uint8_t one_less = 0xff;
	int tcp = rule->protocol == IPPROTO_TCP, v4 = rule->family == 4;
	uint32_t length = v4 ? 4 : 16;
	rte_be16_t source_port = rte_cpu_to_be_16(rule->new_source_port);
	rte_be16_t destination_port = rte_cpu_to_be_16(rule->new_destination_port);
	rte_be32_t sequence = rte_cpu_to_be_32(rule->sequence_delta);
	rte_be32_t acknowledgement = rte_cpu_to_be_32(rule->acknowledgement_delta);

	modify(rule, arrays, HAIRPIN_DO_SOURCE_MAC, RTE_FLOW_MODIFY_SET, RTE_FLOW_FIELD_MAC_SRC, rule->source_mac, 6);
	modify(rule, arrays, HAIRPIN_DO_DESTINATION_MAC, RTE_FLOW_MODIFY_SET, RTE_FLOW_FIELD_MAC_DST,
	       rule->destination_mac, 6);
	modify(rule, arrays, HAIRPIN_DO_SOURCE, RTE_FLOW_MODIFY_SET,
	       v4 ? RTE_FLOW_FIELD_IPV4_SRC : RTE_FLOW_FIELD_IPV6_SRC, rule->new_source, length);
	modify(rule, arrays, HAIRPIN_DO_DESTINATION, RTE_FLOW_MODIFY_SET,
	       v4 ? RTE_FLOW_FIELD_IPV4_DST : RTE_FLOW_FIELD_IPV6_DST, rule->new_destination, length);
	modify(rule, arrays, HAIRPIN_DO_SOURCE_PORT, RTE_FLOW_MODIFY_SET,
	       tcp ? RTE_FLOW_FIELD_TCP_PORT_SRC : RTE_FLOW_FIELD_UDP_PORT_SRC, &source_port, 2);
	modify(rule, arrays, HAIRPIN_DO_DESTINATION_PORT, RTE_FLOW_MODIFY_SET,
	       tcp ? RTE_FLOW_FIELD_TCP_PORT_DST : RTE_FLOW_FIELD_UDP_PORT_DST, &destination_port, 2);
	modify(rule, arrays, HAIRPIN_DO_TTL, RTE_FLOW_MODIFY_ADD,
	       v4 ? RTE_FLOW_FIELD_IPV4_TTL : RTE_FLOW_FIELD_IPV6_HOPLIMIT, &one_less, 1);
	modify(rule, arrays, HAIRPIN_DO_SEQUENCE, RTE_FLOW_MODIFY_ADD, RTE_FLOW_FIELD_TCP_SEQ_NUM, &sequence, 4);
	modify(rule, arrays, HAIRPIN_DO_ACKNOWLEDGEMENT, RTE_FLOW_MODIFY_ADD, RTE_FLOW_FIELD_TCP_ACK_NUM,
	       &acknowledgement, 4);
}

static void fate(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	arrays->queue.index = rule->queue;
	set(rule, arrays, HAIRPIN_DO_QUEUE, RTE_FLOW_ACTION_TYPE_QUEUE, &arrays->queue);
	if (rule->does & HAIRPIN_DO_RSS) {
		for (uint16_t queue = 0; queue < rule->queue; queue++)
			arrays->rss_queues[queue] = queue;
		arrays->rss.types = rule->rss_types;
		arrays->rss.queue_num = rule->queue;
		arrays->rss.queue = arrays->rss_queues;
		action(arrays, RTE_FLOW_ACTION_TYPE_RSS, &arrays->rss, &arrays->rss);
	}
	arrays->port_id.id = rule->port;
	set(rule, arrays, HAIRPIN_DO_PORT_ID, RTE_FLOW_ACTION_TYPE_PORT_ID, &arrays->port_id);
	arrays->represented.port_id = rule->port;
	set(rule, arrays, HAIRPIN_DO_REPRESENTED_PORT, RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT, &arrays->represented);
	arrays->representor.port_id = rule->port;
	set(rule, arrays, HAIRPIN_DO_PORT_REPRESENTOR, RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR, &arrays->representor);
	if (rule->does & HAIRPIN_DO_JUMP) {
		arrays->jump.group = rule->jump;
		arrays->jump_mask.group = UINT32_MAX;
		action(arrays, RTE_FLOW_ACTION_TYPE_JUMP, &arrays->jump, &arrays->jump_mask);
	}
	action(arrays, RTE_FLOW_ACTION_TYPE_END, NULL, NULL);
}

int hairpin_flow_build(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays)
{
	if (contradicts_itself(rule))
		return EINVAL;
	memset(arrays, 0, sizeof(*arrays));
	arrays->attr.group = rule->group;
	arrays->attr.priority = rule->priority;
	arrays->attr.transfer = (rule->how & HAIRPIN_HOW_TRANSFER) != 0;
	arrays->attr.ingress = !arrays->attr.transfer;
	match(rule, arrays);
	if (rule->how & HAIRPIN_HOW_MODIFY)
		rewrite_by_fields(rule, arrays);
	else
		rewrite_by_names(rule, arrays);
	arrays->age.timeout = rule->age_seconds & 0xffffff;
	arrays->age.context = (void *)(uintptr_t)rule->context;
	set(rule, arrays, HAIRPIN_DO_AGE, RTE_FLOW_ACTION_TYPE_AGE, &arrays->age);
	set(rule, arrays, HAIRPIN_DO_COUNT, RTE_FLOW_ACTION_TYPE_COUNT, &arrays->count);
	arrays->mark.id = rule->mark;
	set(rule, arrays, HAIRPIN_DO_MARK, RTE_FLOW_ACTION_TYPE_MARK, &arrays->mark);
	fate(rule, arrays);
	return 0;
}
