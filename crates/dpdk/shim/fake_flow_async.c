/* The fake device: templates, and rules that come and go by them, in batches, late and out of order. */
#include <errno.h>
#include <string.h>

#include <rte_errno.h>

#include "fake_flow.h"

int fake_info_get(uint16_t port, struct rte_flow_port_info *info, struct rte_flow_queue_info *queue,
			 struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	int code = 0;

	if (fake->options.no_templates)
		code = fake_refuse(fake, error, ENOSYS, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "no templates");
	info->max_nb_queues = 4;
	queue->max_size = fake->options.queue_size;
	pthread_mutex_unlock(&fake->lock);
	return code;
}

int fake_configure(uint16_t port, const struct rte_flow_port_attr *attributes, uint16_t queues,
			  const struct rte_flow_queue_attr *all[], struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	int code = 0;

	if (fake->options.no_templates || queues > 4 || all[0]->size > fake->options.queue_size)
		code = fake_refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not so");
	else if (fake->options.ages_by_counters && attributes->nb_aging_objects > attributes->nb_counters)
		code = fake_refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "ageing takes counters");
	if (code == 0) {
		fake->counters = attributes->nb_counters;
		fake->ages = attributes->nb_aging_objects;
	}
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static struct shape *new_shape(struct fake *fake, int kind)
{
	for (unsigned int at = 0; at < TABLES_MAX; at++) {
		if (fake->shapes[at].kind != 0)
			continue;
		memset(&fake->shapes[at], 0, sizeof(fake->shapes[at]));
		fake->shapes[at].kind = kind;
		fake->state.templates++;
		return &fake->shapes[at];
	}
	fake_violated(fake, "more than %d templates and tables", TABLES_MAX);
	rte_errno = ENOSPC;
	return NULL;
}

static int free_shape(uint16_t port, struct shape *shape, int kind)
{
	struct fake *fake = fake_locked(port);

	if (shape->kind != kind || shape->users != 0)
		fake_violated(fake, "a template was removed while in use, or twice");
	if (shape->pattern != NULL)
		shape->pattern->users--;
	if (shape->actions != NULL)
		shape->actions->users--;
	shape->kind = 0;
	fake->state.templates--;
	pthread_mutex_unlock(&fake->lock);
	return 0;
}

struct rte_flow_pattern_template *fake_pattern(uint16_t port, const struct rte_flow_pattern_template_attr *attr,
						      const struct rte_flow_item items[], struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct shape *shape = NULL;

	if (fake_refuses_items(fake, items, error) == 0)
		shape = new_shape(fake, 1);
	if (shape != NULL)
		fake_write_items(&shape->types, items, 0);
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_pattern_template *)shape;
}

struct rte_flow_actions_template *fake_actions(uint16_t port, const struct rte_flow_actions_template_attr *attr,
						      const struct rte_flow_action actions[],
						      const struct rte_flow_action masks[], struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct shape *shape = NULL;

	if (fake_refuses_actions(fake, actions, error) == 0)
		shape = new_shape(fake, 2);
	if (shape != NULL)
		fake_write_actions(&shape->types, actions, 0);
	for (unsigned int at = 0; actions[at].type != RTE_FLOW_ACTION_TYPE_END; at++)
		if (actions[at].type != masks[at].type)
			fake_violated(fake, "masks of other actions than the template's");
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_actions_template *)shape;
}

struct rte_flow_template_table *fake_table(uint16_t port, const struct rte_flow_template_table_attr *attr,
						  struct rte_flow_pattern_template *patterns[], uint8_t pattern_count,
						  struct rte_flow_actions_template *actions[], uint8_t action_count,
						  struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct shape *shape = new_shape(fake, 3);

	if (shape != NULL) {
		shape->pattern = (struct shape *)patterns[0];
		shape->actions = (struct shape *)actions[0];
		shape->pattern->users++;
		shape->actions->users++;
		fake_write_bytes(&shape->types, &attr->flow_attr.group, sizeof(attr->flow_attr.group));
	}
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_template_table *)shape;
}

int fake_pattern_destroy(uint16_t port, struct rte_flow_pattern_template *pattern, struct rte_flow_error *error)
{
	return free_shape(port, (struct shape *)pattern, 1);
}

int fake_actions_destroy(uint16_t port, struct rte_flow_actions_template *actions, struct rte_flow_error *error)
{
	return free_shape(port, (struct shape *)actions, 2);
}

int fake_table_destroy(uint16_t port, struct rte_flow_template_table *table, struct rte_flow_error *error)
{
	return free_shape(port, (struct shape *)table, 3);
}

/* Notes an operation; the caller has seen to it that there is room. */
static void begin(struct fake *fake, void *ticket, uint32_t rule, int coming, int succeeds)
{
	fake->operations[fake->operation_count++] = (struct operation){
		.ticket = ticket, .rule = rule, .coming = coming, .succeeds = succeeds,
		.due = fake->pulls + fake->options.delay};
	fake->state.pending = fake->operation_count;
}

static int has_room(struct fake *fake, struct rte_flow_error *error)
{
	if (fake->operation_count < fake->options.queue_size && fake->operation_count < RULES_MAX)
		return 1;
	fake_refuse(fake, error, EAGAIN, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "the queue is full");
	return 0;
}

struct rte_flow *fake_async_create(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr,
					  struct rte_flow_template_table *opaque, const struct rte_flow_item items[],
					  uint8_t pattern, const struct rte_flow_action actions[], uint8_t action,
					  void *ticket, struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct shape *table = (struct shape *)opaque;
	struct words item_types = {0}, action_types = {0};
	struct rte_flow *flow = NULL;
	struct rte_flow_attr group = {0};
	uint32_t position;

	memcpy(&group.group, table->types.bytes, sizeof(group.group));
	fake_write_items(&item_types, items, 0);
	fake_write_actions(&action_types, actions, 0);
	if (table->kind != 3 || !fake_same(&item_types, &table->pattern->types) || !fake_same(&action_types, &table->actions->types))
		fake_violated(fake, "a rule of another shape than its template's");
	if (has_room(fake, error)) {
		int refused = group.group != 0 && fake_every(&fake->creates, fake->options.refuse_create_every) &&
			      fake->creates > fake->options.healthy;
		if (refused && !fake->options.refuse_late)
			fake_refuse(fake, error, EIO, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not this one");
		else if (fake_add(fake, &group, items, actions, COMING, &position, error) == 0) {
			begin(fake, ticket, position, 1, !refused);
			flow = fake_handle(fake, position);
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return flow;
}

int fake_async_destroy(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr, struct rte_flow *flow,
			      void *ticket, struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct rule *rule = fake_rule_of(fake, flow, LIVE);
	int code = 0;

	if (rule == NULL)
		code = fake_refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_HANDLE, "no such rule");
	else if (!has_room(fake, error))
		code = -EAGAIN;
	else if (fake_every(&fake->destroys, fake->options.refuse_destroy_every) &&
		 fake->destroys > fake->options.healthy)
		code = fake_refuse(fake, error, EBUSY, RTE_FLOW_ERROR_TYPE_HANDLE, "not now");
	else {
		rule->life = GOING;
		begin(fake, ticket, (uint32_t)(rule - fake->rules), 0, !fake_every(&fake->loses, fake->options.lose_every));
	}
	pthread_mutex_unlock(&fake->lock);
	return code;
}

int fake_push(uint16_t port, uint32_t queue, struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);

	fake->state.pushes++;
	for (uint32_t at = 0; at < fake->operation_count; at++)
		fake->operations[at].pushed = 1;
	pthread_mutex_unlock(&fake->lock);
	return 0;
}

/* The next operation whose answer is there: the oldest, or any of them by the seed. */
static uint32_t next_done(struct fake *fake)
{
	uint32_t done = 0, chosen = RULES_MAX;

	for (uint32_t at = 0; at < fake->operation_count; at++) {
		const struct operation *operation = &fake->operations[at];
		if (!operation->pushed || operation->due > fake->pulls)
			continue;
		done++;
		if (fake->options.seed == 0)
			return at;
		fake->random = fake->random * 1664525 + 1013904223;
		if ((fake->random >> 8) % done == 0)
			chosen = at;
	}
	return chosen;
}

int fake_pull(uint16_t port, uint32_t queue, struct rte_flow_op_result results[], uint16_t count,
		     struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	uint16_t pulled = 0;

	fake->pulls++;
	while (pulled < count) {
		uint32_t at = next_done(fake);
		if (at >= fake->operation_count)
			break;
		struct operation operation = fake->operations[at];
		struct rule *rule = &fake->rules[operation.rule];
		memmove(&fake->operations[at], &fake->operations[at + 1],
			(fake->operation_count - at - 1) * sizeof(operation));
		fake->state.pending = --fake->operation_count;
		rule->life = operation.coming && operation.succeeds ? LIVE : FREE;
		fake->state.created += operation.coming && operation.succeeds;
		fake->state.destroyed += !operation.coming;
		fake->state.refused += !operation.succeeds;
		results[pulled++] = (struct rte_flow_op_result){
			.status = operation.succeeds ? RTE_FLOW_OP_SUCCESS : RTE_FLOW_OP_ERROR, .user_data = operation.ticket};
	}
	pthread_mutex_unlock(&fake->lock);
	return pulled;
}
