/* Rules handed to a device, one or many at a time, and hairpin queues. Not yet run on hardware. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>

#include "flow.h"

static const struct hairpin_flow_calls rte_flow_calls = {
	.validate = rte_flow_validate,
	.create = rte_flow_create,
	.destroy = rte_flow_destroy,
	.query = rte_flow_query,
	.flush = rte_flow_flush,
	.info_get = rte_flow_info_get,
	.configure = rte_flow_configure,
	.pattern_template_create = rte_flow_pattern_template_create,
	.pattern_template_destroy = rte_flow_pattern_template_destroy,
	.actions_template_create = rte_flow_actions_template_create,
	.actions_template_destroy = rte_flow_actions_template_destroy,
	.template_table_create = rte_flow_template_table_create,
	.template_table_destroy = rte_flow_template_table_destroy,
	.async_create = rte_flow_async_create,
	.async_destroy = rte_flow_async_destroy,
	.push = rte_flow_push,
	.pull = rte_flow_pull,
};

static const struct hairpin_flow_calls *calls(uint16_t port)
{
#ifdef HAIRPIN_FAKE_FLOW
	if (hairpin_fake_flow_answers(port))
		return hairpin_fake_flow_calls();
#endif
	(void)port;
	return &rte_flow_calls;
}

/* Keeps what the device said: its words may go with the device. */
static int refused(int code, const struct rte_flow_error *said, struct hairpin_flow_error *error)
{
	code = code < 0 ? -code : code;
	code = code != 0 ? code : rte_errno != 0 ? rte_errno : EIO;
	if (error != NULL) {
		error->code = code;
		error->type = (int)said->type;
		snprintf(error->message, sizeof(error->message), "%s", said->message != NULL ? said->message : "");
	}
	return code;
}

int hairpin_flow_validate(uint16_t port, const struct hairpin_flow_rule *rule, struct hairpin_flow_error *error)
{
	struct hairpin_flow_arrays arrays;
	struct rte_flow_error said = {0};
	int code = hairpin_flow_build(rule, &arrays);

	if (code != 0)
		return refused(code, &said, error);
	code = calls(port)->validate(port, &arrays.attr, arrays.items, arrays.actions, &said);
	return code == 0 ? 0 : refused(code, &said, error);
}

int hairpin_flow_create(uint16_t port, const struct hairpin_flow_rule *rule, struct rte_flow **flow,
			struct hairpin_flow_error *error)
{
	struct hairpin_flow_arrays arrays;
	struct rte_flow_error said = {0};
	int code = hairpin_flow_build(rule, &arrays);

	if (code != 0)
		return refused(code, &said, error);
	rte_errno = 0;
	*flow = calls(port)->create(port, &arrays.attr, arrays.items, arrays.actions, &said);
	return *flow != NULL ? 0 : refused(0, &said, error);
}

int hairpin_flow_destroy(uint16_t port, struct rte_flow *flow, struct hairpin_flow_error *error)
{
	struct rte_flow_error said = {0};
	int code = calls(port)->destroy(port, flow, &said);

	return code == 0 ? 0 : refused(code, &said, error);
}

/* Asks a rule what its COUNT and its AGE say, as far as it has them. */
int hairpin_flow_query(uint16_t port, struct rte_flow *flow, uint32_t does, struct hairpin_flow_count *count)
{
	int code = ENOTSUP;

	memset(count, 0, sizeof(*count));
	if (does & HAIRPIN_DO_COUNT) {
		struct rte_flow_action_count conf = {0};
		struct rte_flow_action actions[] = {{RTE_FLOW_ACTION_TYPE_COUNT, &conf},
						    {RTE_FLOW_ACTION_TYPE_END, NULL}};
		struct rte_flow_query_count answer = {0};

		code = calls(port)->query(port, flow, actions, &answer, NULL);
		if (code == 0 && answer.hits_set) {
			count->packets = answer.hits;
			count->bytes = answer.bytes_set ? answer.bytes : 0;
			count->counted = 1;
		}
	}
	if (does & HAIRPIN_DO_AGE) {
		struct rte_flow_action_age conf = {0};
		struct rte_flow_action actions[] = {{RTE_FLOW_ACTION_TYPE_AGE, &conf},
						    {RTE_FLOW_ACTION_TYPE_END, NULL}};
		struct rte_flow_query_age answer = {0};

		if (calls(port)->query(port, flow, actions, &answer, NULL) == 0) {
			code = 0;
			count->idle_seconds = answer.sec_since_last_hit;
			count->aged = answer.sec_since_last_hit_valid;
		}
	}
	return code < 0 ? -code : code;
}

int hairpin_flow_flush(uint16_t port, struct hairpin_flow_error *error)
{
	struct rte_flow_error said = {0};
	int code = calls(port)->flush(port, &said);

	return code == 0 ? 0 : refused(code, &said, error);
}

int hairpin_flow_queue_info(uint16_t port, uint32_t *queues, uint32_t *size, struct hairpin_flow_error *error)
{
	struct rte_flow_port_info info = {0};
	struct rte_flow_queue_info queue = {0};
	struct rte_flow_error said = {0};
	int code = calls(port)->info_get(port, &info, &queue, &said);

	*queues = info.max_nb_queues;
	*size = queue.max_size;
	return code == 0 ? 0 : refused(code, &said, error);
}

int hairpin_flow_configure(uint16_t port, uint32_t counters, uint32_t ages, uint16_t queues, uint32_t size,
			   struct hairpin_flow_error *error)
{
	struct rte_flow_port_attr attributes = {.nb_counters = counters, .nb_aging_objects = ages};
	struct rte_flow_queue_attr queue = {.size = size};
	const struct rte_flow_queue_attr *all[64];
	struct rte_flow_error said = {0};

	if (queues > 64)
		return refused(EINVAL, &said, error);
	for (uint16_t at = 0; at < queues; at++)
		all[at] = &queue;
	/* DPDK takes this only from a port that is stopped. Ours are started when they are opened. */
	int is_real = calls(port) == &rte_flow_calls;
	int code = is_real ? rte_eth_dev_stop(port) : 0;
	if (code == 0)
		code = calls(port)->configure(port, &attributes, queues, all, &said);
	int started = is_real ? rte_eth_dev_start(port) : 0;
	code = code != 0 ? code : started;
	return code == 0 ? 0 : refused(code, &said, error);
}

int hairpin_flow_table_destroy(uint16_t port, struct hairpin_flow_table *table, struct hairpin_flow_error *error)
{
	struct rte_flow_error said = {0};
	int first = 0;

	if (table->table != NULL)
		first = calls(port)->template_table_destroy(port, table->table, &said);
	if (table->actions != NULL) {
		int code = calls(port)->actions_template_destroy(port, table->actions, first == 0 ? &said : NULL);
		first = first != 0 ? first : code;
	}
	if (table->pattern != NULL) {
		int code = calls(port)->pattern_template_destroy(port, table->pattern, first == 0 ? &said : NULL);
		first = first != 0 ? first : code;
	}
	memset(table, 0, sizeof(*table));
	return first == 0 ? 0 : refused(first, &said, error);
}

/* A table of so many rules of one shape: what a rule's own values are does not matter here. */
int hairpin_flow_table_create(uint16_t port, const struct hairpin_flow_rule *shape, uint32_t rules,
			      struct hairpin_flow_table *table, struct hairpin_flow_error *error)
{
	struct hairpin_flow_arrays arrays;
	struct rte_flow_error said = {0};
	int code = hairpin_flow_build(shape, &arrays);

	memset(table, 0, sizeof(*table));
	if (code != 0)
		return refused(code, &said, error);
	struct rte_flow_pattern_template_attr pattern = {.ingress = arrays.attr.ingress, .transfer = arrays.attr.transfer};
	struct rte_flow_actions_template_attr actions = {.ingress = arrays.attr.ingress, .transfer = arrays.attr.transfer};
	struct rte_flow_template_table_attr attributes = {.flow_attr = arrays.attr, .nb_flows = rules};

	rte_errno = 0;
	table->pattern = calls(port)->pattern_template_create(port, &pattern, arrays.items, &said);
	if (table->pattern != NULL)
		table->actions = calls(port)->actions_template_create(port, &actions, arrays.actions, arrays.masks, &said);
	if (table->actions != NULL)
		table->table = calls(port)->template_table_create(port, &attributes, &table->pattern, 1, &table->actions, 1,
								  &said);
	if (table->table != NULL)
		return 0;
	code = refused(0, &said, error);
	hairpin_flow_table_destroy(port, table, NULL);
	return code;
}

int hairpin_flow_async_create(uint16_t port, uint32_t queue, const struct hairpin_flow_table *table,
			      const struct hairpin_flow_rule *rule, uint64_t ticket, struct rte_flow **flow,
			      struct hairpin_flow_error *error)
{
	static const struct rte_flow_op_attr postponed = {.postpone = 1};
	struct hairpin_flow_arrays arrays;
	struct rte_flow_error said = {0};
	int code = hairpin_flow_build(rule, &arrays);

	if (code != 0)
		return refused(code, &said, error);
	rte_errno = 0;
	*flow = calls(port)->async_create(port, queue, &postponed, table->table, arrays.items, 0, arrays.actions, 0,
					  (void *)(uintptr_t)ticket, &said);
	return *flow != NULL ? 0 : refused(0, &said, error);
}

int hairpin_flow_async_destroy(uint16_t port, uint32_t queue, struct rte_flow *flow, uint64_t ticket,
			       struct hairpin_flow_error *error)
{
	static const struct rte_flow_op_attr postponed = {.postpone = 1};
	struct rte_flow_error said = {0};
	int code = calls(port)->async_destroy(port, queue, &postponed, flow, (void *)(uintptr_t)ticket, &said);

	return code == 0 ? 0 : refused(code, &said, error);
}

int hairpin_flow_push(uint16_t port, uint32_t queue, struct hairpin_flow_error *error)
{
	struct rte_flow_error said = {0};
	int code = calls(port)->push(port, queue, &said);

	return code == 0 ? 0 : refused(code, &said, error);
}

/* Takes answers that are there, 64 at most. */
int hairpin_flow_pull(uint16_t port, uint32_t queue, struct hairpin_flow_result *results, uint16_t count,
		      uint16_t *pulled, struct hairpin_flow_error *error)
{
	struct rte_flow_op_result answers[64];
	struct rte_flow_error said = {0};

	*pulled = 0;
	int found = calls(port)->pull(port, queue, answers, count < 64 ? count : 64, &said);
	if (found < 0)
		return refused(found, &said, error);
	for (int at = 0; at < found; at++) {
		results[at].ticket = (uint64_t)(uintptr_t)answers[at].user_data;
		results[at].succeeded = answers[at].status == RTE_FLOW_OP_SUCCESS;
	}
	*pulled = (uint16_t)found;
	return 0;
}

int hairpin_flow_hairpin_capability(uint16_t port, struct hairpin_flow_hairpin *capability)
{
	struct rte_eth_hairpin_cap found = {0};

	memset(capability, 0, sizeof(*capability));
#ifdef HAIRPIN_FAKE_FLOW
	if (hairpin_fake_flow_answers(port)) {
		capability->queues = hairpin_fake_flow_hairpins(port);
		return capability->queues > 0 ? 0 : ENOTSUP;
	}
#endif
	int code = rte_eth_dev_hairpin_capability_get(port, &found);
	if (code != 0)
		return -code;
	capability->queues = found.max_nb_queues;
	capability->rx_per_tx = found.max_rx_2_tx;
	capability->tx_per_rx = found.max_tx_2_rx;
	capability->descriptors = found.max_nb_desc;
	return 0;
}

/*
 * Ties a port's receive queue to its transmit queue of the same number: what comes in on one leaves by the other without
 * having been in memory of ours. Between rte_eth_dev_configure(), which has to count both, and rte_eth_dev_start().
 */
int hairpin_flow_hairpin_queue(uint16_t port, uint16_t queue, uint16_t descriptors)
{
	struct rte_eth_hairpin_conf conf = {.peer_count = 1, .peers[0] = {.port = port, .queue = queue}};
	int code = rte_eth_rx_hairpin_queue_setup(port, queue, descriptors, &conf);

	if (code == 0)
		code = rte_eth_tx_hairpin_queue_setup(port, queue, descriptors, &conf);
	return code < 0 ? -code : code;
}

size_t hairpin_flow_rule_size(void)
{
	return sizeof(struct hairpin_flow_rule);
}
