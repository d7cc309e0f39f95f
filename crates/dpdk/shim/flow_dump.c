/* What is in rte_flow's arrays, as text: read from the arrays, not from the description they were made of. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_byteorder.h>
#include <rte_ethdev.h>

#include "flow.h"

struct text {
	char *at;
	size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *text, const char *format, ...)
{
	va_list arguments;
	size_t room = text->length < text->size ? text->size - text->length : 0;

	va_start(arguments, format);
	int length = vsnprintf(room > 0 ? text->at + text->length : NULL, room, format, arguments);
	va_end(arguments);
	text->length += length > 0 ? (size_t)length : 0;
}

static void say_bytes(struct text *text, const void *bytes, size_t count)
{
	for (size_t at = 0; at < count; at++)
		say(text, "%02x", ((const uint8_t *)bytes)[at]);
}

/* A name as rte_flow_conv() knows it. */
static void say_name(struct text *text, enum rte_flow_conv_op operation, int type)
{
	char name[40] = "";

	if (rte_flow_conv(operation, name, sizeof(name), (const void *)(uintptr_t)type, NULL) < 0)
		snprintf(name, sizeof(name), "unknown-%d", type);
	say(text, "%s", name);
}

/* Fields with a mask that is not zero; masks that are not all ones are told. */
static void say_number(struct text *text, const char *name, uint32_t spec, uint32_t mask, uint32_t all)
{
	if (mask == 0)
		return;
	say(text, " %s %" PRIu32, name, spec);
	if (mask != all)
		say(text, " mask 0x%" PRIx32, mask);
}

static void say_address(struct text *text, const char *name, int family, const void *spec, const void *mask)
{
	static const uint8_t nothing[16];
	char address[INET6_ADDRSTRLEN];
	size_t length = family == AF_INET ? 4 : 16;

	if (memcmp(mask, nothing, length) == 0)
		return;
	say(text, " %s %s mask ", name, inet_ntop(family, spec, address, sizeof(address)));
	say_bytes(text, mask, length);
}

static void say_ipv4(struct text *text, const struct rte_ipv4_hdr *spec, const struct rte_ipv4_hdr *mask)
{
	say_number(text, "version_ihl", spec->version_ihl, mask->version_ihl, 0xff);
	say_number(text, "tos", spec->type_of_service, mask->type_of_service, 0xff);
	say_number(text, "total_length", rte_be_to_cpu_16(spec->total_length), rte_be_to_cpu_16(mask->total_length), 0xffff);
	say_number(text, "packet_id", rte_be_to_cpu_16(spec->packet_id), rte_be_to_cpu_16(mask->packet_id), 0xffff);
	say_number(text, "fragment_offset", rte_be_to_cpu_16(spec->fragment_offset),
		   rte_be_to_cpu_16(mask->fragment_offset), 0xffff);
	say_number(text, "ttl", spec->time_to_live, mask->time_to_live, 0xff);
	say_number(text, "proto", spec->next_proto_id, mask->next_proto_id, 0xff);
	say_number(text, "checksum", spec->hdr_checksum, mask->hdr_checksum, 0xffff);
	say_address(text, "src", AF_INET, &spec->src_addr, &mask->src_addr);
	say_address(text, "dst", AF_INET, &spec->dst_addr, &mask->dst_addr);
}

static void say_ipv6(struct text *text, const struct rte_flow_item_ipv6 *spec, const struct rte_flow_item_ipv6 *mask)
{
	say_number(text, "vtc_flow", rte_be_to_cpu_32(spec->hdr.vtc_flow), rte_be_to_cpu_32(mask->hdr.vtc_flow), UINT32_MAX);
	say_number(text, "payload_len", rte_be_to_cpu_16(spec->hdr.payload_len),
		   rte_be_to_cpu_16(mask->hdr.payload_len), 0xffff);
	say_number(text, "proto", spec->hdr.proto, mask->hdr.proto, 0xff);
	say_number(text, "hop", spec->hdr.hop_limits, mask->hdr.hop_limits, 0xff);
	say_number(text, "has_frag_ext", spec->has_frag_ext, mask->has_frag_ext, 1);
	say_address(text, "src", AF_INET6, spec->hdr.src_addr, mask->hdr.src_addr);
	say_address(text, "dst", AF_INET6, spec->hdr.dst_addr, mask->hdr.dst_addr);
}

static void say_tcp(struct text *text, const struct rte_tcp_hdr *spec, const struct rte_tcp_hdr *mask)
{
	say_number(text, "src", rte_be_to_cpu_16(spec->src_port), rte_be_to_cpu_16(mask->src_port), 0xffff);
	say_number(text, "dst", rte_be_to_cpu_16(spec->dst_port), rte_be_to_cpu_16(mask->dst_port), 0xffff);
	say_number(text, "seq", rte_be_to_cpu_32(spec->sent_seq), rte_be_to_cpu_32(mask->sent_seq), UINT32_MAX);
	say_number(text, "ack", rte_be_to_cpu_32(spec->recv_ack), rte_be_to_cpu_32(mask->recv_ack), UINT32_MAX);
	say_number(text, "data_off", spec->data_off, mask->data_off, 0xff);
	say_number(text, "flags", spec->tcp_flags, mask->tcp_flags, 0xff);
	say_number(text, "window", rte_be_to_cpu_16(spec->rx_win), rte_be_to_cpu_16(mask->rx_win), 0xffff);
}

static void say_udp(struct text *text, const struct rte_udp_hdr *spec, const struct rte_udp_hdr *mask)
{
	say_number(text, "src", rte_be_to_cpu_16(spec->src_port), rte_be_to_cpu_16(mask->src_port), 0xffff);
	say_number(text, "dst", rte_be_to_cpu_16(spec->dst_port), rte_be_to_cpu_16(mask->dst_port), 0xffff);
	say_number(text, "length", rte_be_to_cpu_16(spec->dgram_len), rte_be_to_cpu_16(mask->dgram_len), 0xffff);
}

static void say_item(struct text *text, const struct rte_flow_item *item)
{
	say(text, "item ");
	say_name(text, RTE_FLOW_CONV_OP_ITEM_NAME, item->type);
	if (item->spec != NULL && item->mask != NULL) {
		if (item->type == RTE_FLOW_ITEM_TYPE_IPV4)
			say_ipv4(text, &((const struct rte_flow_item_ipv4 *)item->spec)->hdr,
				 &((const struct rte_flow_item_ipv4 *)item->mask)->hdr);
		else if (item->type == RTE_FLOW_ITEM_TYPE_IPV6)
			say_ipv6(text, item->spec, item->mask);
		else if (item->type == RTE_FLOW_ITEM_TYPE_TCP)
			say_tcp(text, &((const struct rte_flow_item_tcp *)item->spec)->hdr,
				&((const struct rte_flow_item_tcp *)item->mask)->hdr);
		else if (item->type == RTE_FLOW_ITEM_TYPE_UDP)
			say_udp(text, &((const struct rte_flow_item_udp *)item->spec)->hdr,
				&((const struct rte_flow_item_udp *)item->mask)->hdr);
		else
			say(text, " (unexpected fields)");
	} else if (item->spec != NULL || item->mask != NULL || item->last != NULL) {
		say(text, " (incomplete)");
	}
	say(text, "\n");
}

static const char *field(enum rte_flow_field_id field)
{
	switch (field) {
	case RTE_FLOW_FIELD_MAC_DST: return "mac_dst";
	case RTE_FLOW_FIELD_MAC_SRC: return "mac_src";
	case RTE_FLOW_FIELD_IPV4_TTL: return "ipv4_ttl";
	case RTE_FLOW_FIELD_IPV4_SRC: return "ipv4_src";
	case RTE_FLOW_FIELD_IPV4_DST: return "ipv4_dst";
	case RTE_FLOW_FIELD_IPV6_HOPLIMIT: return "ipv6_hoplimit";
	case RTE_FLOW_FIELD_IPV6_SRC: return "ipv6_src";
	case RTE_FLOW_FIELD_IPV6_DST: return "ipv6_dst";
	case RTE_FLOW_FIELD_TCP_PORT_SRC: return "tcp_port_src";
	case RTE_FLOW_FIELD_TCP_PORT_DST: return "tcp_port_dst";
	case RTE_FLOW_FIELD_TCP_SEQ_NUM: return "tcp_seq_num";
	case RTE_FLOW_FIELD_TCP_ACK_NUM: return "tcp_ack_num";
	case RTE_FLOW_FIELD_UDP_PORT_SRC: return "udp_port_src";
	case RTE_FLOW_FIELD_UDP_PORT_DST: return "udp_port_dst";
	case RTE_FLOW_FIELD_VALUE: return "value";
	default: return "another";
	}
}

static void say_modification(struct text *text, const struct rte_flow_action_modify_field *modification)
{
	static const char *const operations[] = {"set", "add", "sub"};

	say(text, " op %s dst %s", operations[modification->operation % 3], field(modification->dst.field));
	if (modification->dst.level != 0 || modification->dst.offset != 0)
		say(text, " level %u offset %u", modification->dst.level, modification->dst.offset);
	say(text, " src %s ", field(modification->src.field));
	say_bytes(text, modification->src.value, sizeof(modification->src.value));
	say(text, " width %u", modification->width);
}

static void say_conf(struct text *text, const struct rte_flow_action *action)
{
	const void *conf = action->conf;
	char address[INET6_ADDRSTRLEN];

	switch (action->type) {
	case RTE_FLOW_ACTION_TYPE_SET_MAC_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_MAC_DST:
		say(text, " ");
		say_bytes(text, conf, 6);
		break;
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_DST:
		say(text, " %s", inet_ntop(AF_INET, conf, address, sizeof(address)));
		break;
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_DST:
		say(text, " %s", inet_ntop(AF_INET6, conf, address, sizeof(address)));
		break;
	case RTE_FLOW_ACTION_TYPE_SET_TP_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_TP_DST:
		say(text, " %u", rte_be_to_cpu_16(((const struct rte_flow_action_set_tp *)conf)->port));
		break;
	case RTE_FLOW_ACTION_TYPE_INC_TCP_SEQ:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_SEQ:
	case RTE_FLOW_ACTION_TYPE_INC_TCP_ACK:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_ACK:
		say(text, " %" PRIu32, rte_be_to_cpu_32(*(const rte_be32_t *)conf));
		break;
	case RTE_FLOW_ACTION_TYPE_MODIFY_FIELD:
		say_modification(text, conf);
		break;
	case RTE_FLOW_ACTION_TYPE_AGE:
		say(text, " timeout %u context 0x%" PRIxPTR, ((const struct rte_flow_action_age *)conf)->timeout,
		    (uintptr_t)((const struct rte_flow_action_age *)conf)->context);
		break;
	case RTE_FLOW_ACTION_TYPE_COUNT:
		say(text, " id %u", ((const struct rte_flow_action_count *)conf)->id);
		break;
	case RTE_FLOW_ACTION_TYPE_MARK:
		say(text, " %u", ((const struct rte_flow_action_mark *)conf)->id);
		break;
	case RTE_FLOW_ACTION_TYPE_QUEUE:
		say(text, " %u", ((const struct rte_flow_action_queue *)conf)->index);
		break;
	case RTE_FLOW_ACTION_TYPE_RSS: {
		const struct rte_flow_action_rss *rss = conf;
		say(text, " types 0x%" PRIx64 " queues", rss->types);
		for (uint32_t at = 0; at < rss->queue_num; at++)
			say(text, " %u", rss->queue[at]);
		break;
	}
	case RTE_FLOW_ACTION_TYPE_PORT_ID:
		say(text, " %u", ((const struct rte_flow_action_port_id *)conf)->id);
		break;
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT:
	case RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR:
		say(text, " %u", ((const struct rte_flow_action_ethdev *)conf)->port_id);
		break;
	case RTE_FLOW_ACTION_TYPE_JUMP:
		say(text, " group %u", ((const struct rte_flow_action_jump *)conf)->group);
		break;
	default:
		say(text, " (unexpected fields)");
	}
}

/* Which part of an action is the same for all rules of a template. */
static void say_mask(struct text *text, const struct rte_flow_action *mask)
{
	if (mask->conf == NULL)
		return;
	if (mask->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD) {
		const struct rte_flow_action_modify_field *modification = mask->conf;
		say(text, " fixed op %x dst %x src %x value ", (unsigned int)modification->operation,
		    (unsigned int)modification->dst.field, (unsigned int)modification->src.field);
		say_bytes(text, modification->src.value, sizeof(modification->src.value));
		say(text, " width %x", modification->width);
	} else {
		say(text, " fixed");
	}
}

static void say_arrays(struct text *text, const struct rte_flow_attr *attr, const struct rte_flow_item *items,
		       const struct rte_flow_action *actions, const struct rte_flow_action *masks)
{
	say(text, "attr group %u priority %u%s%s%s\n", attr->group, attr->priority, attr->ingress ? " ingress" : "",
	    attr->egress ? " egress" : "", attr->transfer ? " transfer" : "");
	for (;; items++) {
		say_item(text, items);
		if (items->type == RTE_FLOW_ITEM_TYPE_END)
			break;
	}
	for (;; actions++) {
		say(text, "action ");
		say_name(text, RTE_FLOW_CONV_OP_ACTION_NAME, actions->type);
		if (actions->conf != NULL)
			say_conf(text, actions);
		if (masks != NULL)
			say_mask(text, masks++);
		say(text, "\n");
		if (actions->type == RTE_FLOW_ACTION_TYPE_END)
			break;
	}
}

int hairpin_flow_dump(const struct hairpin_flow_rule *rule, int template_masks, char *out, size_t size)
{
	struct hairpin_flow_arrays arrays;
	struct text text = {.at = out, .size = size};
	int error = hairpin_flow_build(rule, &arrays);

	if (error != 0)
		return -error;
	say_arrays(&text, &arrays.attr, arrays.items, arrays.actions, template_masks ? arrays.masks : NULL);
	return (int)text.length;
}

/* Dumps what rte_flow_conv() makes of the arrays: it reads every object to its full size and copies it. */
int hairpin_flow_dump_converted(const struct hairpin_flow_rule *rule, char *out, size_t size)
{
	struct hairpin_flow_arrays arrays;
	struct text text = {.at = out, .size = size};
	int error = hairpin_flow_build(rule, &arrays);

	if (error != 0)
		return -error;
	struct rte_flow_conv_rule description = {
		.attr_ro = &arrays.attr, .pattern_ro = arrays.items, .actions_ro = arrays.actions};
	int length = rte_flow_conv(RTE_FLOW_CONV_OP_RULE, NULL, 0, &description, NULL);
	if (length < 0)
		return length;
	struct rte_flow_conv_rule *copy = malloc((size_t)length);
	if (copy == NULL)
		return -ENOMEM;
	int copied = rte_flow_conv(RTE_FLOW_CONV_OP_RULE, copy, (size_t)length, &description, NULL);
	/* The copy must not lean on the original. */
	memset(&arrays, 0xa5, sizeof(arrays));
	if (copied == length)
		say_arrays(&text, copy->attr_ro, copy->pattern_ro, copy->actions_ro, NULL);
	free(copy);
	return copied == length ? (int)text.length : copied < 0 ? copied : -EIO;
}
