/* The fake device: rules as words that can be compared, and what it refuses. */
#include <errno.h>
#include <string.h>

#include "fake_flow.h"

void fake_write_bytes(struct words *words, const void *bytes, size_t length)
{
	if (bytes == NULL || words->length + length > WORDS_MAX)
		return;
	memcpy(words->bytes + words->length, bytes, length);
	words->length += (uint32_t)length;
}

int fake_same(const struct words *a, const struct words *b)
{
	return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static size_t item_size(enum rte_flow_item_type type)
{
	switch (type) {
	case RTE_FLOW_ITEM_TYPE_IPV4: return sizeof(struct rte_flow_item_ipv4);
	case RTE_FLOW_ITEM_TYPE_IPV6: return sizeof(struct rte_flow_item_ipv6);
	case RTE_FLOW_ITEM_TYPE_TCP: return sizeof(struct rte_flow_item_tcp);
	case RTE_FLOW_ITEM_TYPE_UDP: return sizeof(struct rte_flow_item_udp);
	default: return 0;
	}
}

static size_t action_size(enum rte_flow_action_type type)
{
	switch (type) {
	case RTE_FLOW_ACTION_TYPE_SET_MAC_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_MAC_DST: return 6;
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV4_DST:
	case RTE_FLOW_ACTION_TYPE_INC_TCP_SEQ:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_SEQ:
	case RTE_FLOW_ACTION_TYPE_INC_TCP_ACK:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_ACK:
	case RTE_FLOW_ACTION_TYPE_PORT_ID:
	case RTE_FLOW_ACTION_TYPE_MARK:
	case RTE_FLOW_ACTION_TYPE_JUMP: return 4;
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_IPV6_DST: return 16;
	case RTE_FLOW_ACTION_TYPE_SET_TP_SRC:
	case RTE_FLOW_ACTION_TYPE_SET_TP_DST:
	case RTE_FLOW_ACTION_TYPE_QUEUE:
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT:
	case RTE_FLOW_ACTION_TYPE_PORT_REPRESENTOR: return 2;
	case RTE_FLOW_ACTION_TYPE_MODIFY_FIELD: return sizeof(struct rte_flow_action_modify_field);
	default: return 0;
	}
}

/* With `values`, what the fields are to be; else only which ones there are. */
void fake_write_items(struct words *words, const struct rte_flow_item *items, int values)
{
	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		fake_write_bytes(words, &items->type, sizeof(items->type));
		fake_write_bytes(words, items->mask, item_size(items->type));
		if (values)
			fake_write_bytes(words, items->spec, item_size(items->type));
	}
}

void fake_write_actions(struct words *words, const struct rte_flow_action *actions, int values)
{
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		fake_write_bytes(words, &actions->type, sizeof(actions->type));
		if (actions->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD && !values) {
			const struct rte_flow_action_modify_field *field = actions->conf;
			fake_write_bytes(words, &field->operation, sizeof(field->operation));
			fake_write_bytes(words, &field->dst.field, sizeof(field->dst.field));
			fake_write_bytes(words, &field->width, sizeof(field->width));
		} else if (values) {
			fake_write_bytes(words, actions->conf, action_size(actions->type));
		}
	}
}

int fake_refuse(struct fake *fake, struct rte_flow_error *error, int code, enum rte_flow_error_type type,
		  const char *message)
{
	fake->state.refused++;
	return rte_flow_error_set(error, code, type, NULL, message);
}

int fake_refuses_items(struct fake *fake, const struct rte_flow_item *items, struct rte_flow_error *error)
{
	uint32_t match = fake->options.refuse_match;

	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		const struct rte_flow_item_tcp *tcp = items->mask;
		const struct rte_flow_item_ipv4 *ipv4 = items->mask;
		if (items->type == RTE_FLOW_ITEM_TYPE_IPV6 && fake->options.refuse_ipv6)
			return fake_refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM, "no IPv6 here");
		if (items->mask == NULL)
			continue;
		if (items->type == RTE_FLOW_ITEM_TYPE_TCP &&
		    (((match & HAIRPIN_MATCH_NO_CONTROL) && (tcp->hdr.tcp_flags & 0x07)) ||
		     ((match & HAIRPIN_MATCH_NO_OPTIONS) && tcp->hdr.data_off)))
			return fake_refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, "a field of TCP's it cannot match");
		if (items->type == RTE_FLOW_ITEM_TYPE_IPV4 &&
		    (((match & HAIRPIN_MATCH_WHOLE) && ipv4->hdr.fragment_offset) ||
		     ((match & HAIRPIN_MATCH_LAST_HOP) && ipv4->hdr.time_to_live)))
			return fake_refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, "a field of IPv4's it cannot match");
	}
	return 0;
}

static uint32_t does(enum rte_flow_action_type type)
{
	switch (type) {
	case RTE_FLOW_ACTION_TYPE_SET_MAC_SRC: return HAIRPIN_DO_SOURCE_MAC;
	case RTE_FLOW_ACTION_TYPE_SET_MAC_DST: return HAIRPIN_DO_DESTINATION_MAC;
	case RTE_FLOW_ACTION_TYPE_DEC_TTL: return HAIRPIN_DO_TTL;
	case RTE_FLOW_ACTION_TYPE_INC_TCP_SEQ:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_SEQ: return HAIRPIN_DO_SEQUENCE;
	case RTE_FLOW_ACTION_TYPE_INC_TCP_ACK:
	case RTE_FLOW_ACTION_TYPE_DEC_TCP_ACK: return HAIRPIN_DO_ACKNOWLEDGEMENT;
	case RTE_FLOW_ACTION_TYPE_AGE: return HAIRPIN_DO_AGE;
	case RTE_FLOW_ACTION_TYPE_COUNT: return HAIRPIN_DO_COUNT;
	case RTE_FLOW_ACTION_TYPE_MARK: return HAIRPIN_DO_MARK;
	case RTE_FLOW_ACTION_TYPE_QUEUE: return HAIRPIN_DO_QUEUE;
	case RTE_FLOW_ACTION_TYPE_RSS: return HAIRPIN_DO_RSS;
	case RTE_FLOW_ACTION_TYPE_PORT_ID: return HAIRPIN_DO_PORT_ID;
	case RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT: return HAIRPIN_DO_REPRESENTED_PORT;
	case RTE_FLOW_ACTION_TYPE_JUMP: return HAIRPIN_DO_JUMP;
	default: return 0;
	}
}

/* Whether an action sends packets out of another port than the rule's. */
static int leads_elsewhere(const struct fake *fake, const struct rte_flow_action *action)
{
	const struct rte_flow_action_ethdev *represented = action->conf;
	const struct rte_flow_action_port_id *named = action->conf;

	return (action->type == RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT && represented->port_id != fake->port) ||
	       (action->type == RTE_FLOW_ACTION_TYPE_PORT_ID && named->id != fake->port);
}

int fake_refuses_actions(struct fake *fake, const struct rte_flow_action *actions, struct rte_flow_error *error)
{
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		int modifies = actions->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD;
		int names = actions->type == RTE_FLOW_ACTION_TYPE_SET_MAC_SRC;
		if ((fake->options.refuse_does & does(actions->type)) != 0 || (modifies && fake->options.refuse_modify) ||
		    (names && fake->options.refuse_names))
			return fake_refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, "an action it does not have");
		if (fake->options.refuse_others && leads_elsewhere(fake, actions))
			return fake_refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_ACTION_CONF, "the switch does not lead there");
	}
	return 0;
}
