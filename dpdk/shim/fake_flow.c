/*
 * A device for tests (feature fake-flow): a table of rules that fills up, refuses, answers late and out of order, and
 * notices when its caller breaks the rules of rte_flow: a handle used after its removal, values of another shape than
 * their template's, answers never asked for.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_errno.h>

#include "flow.h"

#define RULES_MAX 8192
#define TABLES_MAX 64
#define WORDS_MAX 400

enum life { FREE, COMING, LIVE, GOING };

/* What a rule says, as bytes without pointers. */
struct words {
	uint32_t length;
	uint8_t bytes[WORDS_MAX];
};

struct rule {
	enum life life;
	uint32_t generation;
	struct words matches, does;
	uint64_t packets, bytes;
	int counts, ages;
};

struct operation {
	void *ticket;
	uint32_t rule, due;
	int pushed, coming, succeeds;
};

/* A template or a table of them: only what its rules must agree with. */
struct shape {
	int kind; /* 0: free, 1: pattern, 2: actions, 3: table */
	uint32_t users;
	struct words types;
	struct shape *pattern, *actions;
};

struct fake {
	pthread_mutex_t lock;
	struct hairpin_fake_flow_options options;
	struct hairpin_fake_flow_state state;
	uint32_t creates, destroys, loses, pulls, random, operation_count;
	uint32_t top; /* no rule was ever at or above it */
	struct rule rules[RULES_MAX];
	struct operation operations[RULES_MAX];
	struct shape shapes[TABLES_MAX];
};

static struct fake *fakes[HAIRPIN_FAKE_PORTS];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static struct fake *at(uint16_t port)
{
	unsigned int which = (port - HAIRPIN_FAKE_PORT) % HAIRPIN_FAKE_PORTS;

	pthread_mutex_lock(&making);
	if (fakes[which] == NULL) {
		fakes[which] = calloc(1, sizeof(struct fake));
		if (fakes[which] == NULL)
			abort();
		pthread_mutex_init(&fakes[which]->lock, NULL);
	}
	pthread_mutex_unlock(&making);
	return fakes[which];
}

static struct fake *locked(uint16_t port)
{
	struct fake *fake = at(port);

	pthread_mutex_lock(&fake->lock);
	return fake;
}

__attribute__((format(printf, 2, 3))) static void violated(struct fake *fake, const char *format, ...)
{
	va_list arguments;

	if (fake->state.violations++ > 0)
		return;
	va_start(arguments, format);
	vsnprintf(fake->state.first_violation, sizeof(fake->state.first_violation), format, arguments);
	va_end(arguments);
}

static void write_bytes(struct words *words, const void *bytes, size_t length)
{
	if (bytes == NULL || words->length + length > WORDS_MAX)
		return;
	memcpy(words->bytes + words->length, bytes, length);
	words->length += (uint32_t)length;
}

static int same(const struct words *a, const struct words *b)
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
static void write_items(struct words *words, const struct rte_flow_item *items, int values)
{
	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		write_bytes(words, &items->type, sizeof(items->type));
		write_bytes(words, items->mask, item_size(items->type));
		if (values)
			write_bytes(words, items->spec, item_size(items->type));
	}
}

static void write_actions(struct words *words, const struct rte_flow_action *actions, int values)
{
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		write_bytes(words, &actions->type, sizeof(actions->type));
		if (actions->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD && !values) {
			const struct rte_flow_action_modify_field *field = actions->conf;
			write_bytes(words, &field->operation, sizeof(field->operation));
			write_bytes(words, &field->dst.field, sizeof(field->dst.field));
			write_bytes(words, &field->width, sizeof(field->width));
		} else if (values) {
			write_bytes(words, actions->conf, action_size(actions->type));
		}
	}
}

static int refuse(struct fake *fake, struct rte_flow_error *error, int code, enum rte_flow_error_type type,
		  const char *message)
{
	fake->state.refused++;
	return rte_flow_error_set(error, code, type, NULL, message);
}

static int refuses_items(struct fake *fake, const struct rte_flow_item *items, struct rte_flow_error *error)
{
	uint32_t match = fake->options.refuse_match;

	for (; items->type != RTE_FLOW_ITEM_TYPE_END; items++) {
		const struct rte_flow_item_tcp *tcp = items->mask;
		const struct rte_flow_item_ipv4 *ipv4 = items->mask;
		if (items->type == RTE_FLOW_ITEM_TYPE_IPV6 && fake->options.refuse_ipv6)
			return refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM, "no IPv6 here");
		if (items->mask == NULL)
			continue;
		if (items->type == RTE_FLOW_ITEM_TYPE_TCP &&
		    (((match & HAIRPIN_MATCH_NO_CONTROL) && (tcp->hdr.tcp_flags & 0x07)) ||
		     ((match & HAIRPIN_MATCH_NO_OPTIONS) && tcp->hdr.data_off)))
			return refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, "a field of TCP's it cannot match");
		if (items->type == RTE_FLOW_ITEM_TYPE_IPV4 &&
		    (((match & HAIRPIN_MATCH_WHOLE) && ipv4->hdr.fragment_offset) ||
		     ((match & HAIRPIN_MATCH_LAST_HOP) && ipv4->hdr.time_to_live)))
			return refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ITEM_MASK, "a field of IPv4's it cannot match");
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

static int refuses_actions(struct fake *fake, const struct rte_flow_action *actions, struct rte_flow_error *error)
{
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		int modifies = actions->type == RTE_FLOW_ACTION_TYPE_MODIFY_FIELD;
		int names = actions->type == RTE_FLOW_ACTION_TYPE_SET_MAC_SRC;
		if ((fake->options.refuse_does & does(actions->type)) != 0 || (modifies && fake->options.refuse_modify) ||
		    (names && fake->options.refuse_names))
			return refuse(fake, error, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, "an action it does not have");
	}
	return 0;
}

static int fake_validate(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
			 const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	int code = refuses_items(fake, items, error);

	if (code == 0)
		code = refuses_actions(fake, actions, error);
	pthread_mutex_unlock(&fake->lock);
	return code;
}

/* A handle says position and generation, so that an old one is noticed. */
static struct rte_flow *handle(const struct fake *fake, uint32_t rule)
{
	return (struct rte_flow *)(uintptr_t)((uint64_t)fake->rules[rule].generation << 32 | (rule + 1));
}

static struct rule *rule_of(struct fake *fake, const struct rte_flow *flow, enum life expected)
{
	uint32_t at = (uint32_t)(uintptr_t)flow - 1, generation = (uint32_t)((uint64_t)(uintptr_t)flow >> 32);

	if (at < RULES_MAX && fake->rules[at].generation == generation && fake->rules[at].life == expected)
		return &fake->rules[at];
	violated(fake, "rule %u of generation %u was used when it was not there", at, generation);
	return NULL;
}

/* Finds room for a rule, or says why there is none; positive errno. */
static int add(struct fake *fake, const struct rte_flow_attr *attr, const struct rte_flow_item *items,
	       const struct rte_flow_action *actions, enum life life, uint32_t *position, struct rte_flow_error *error)
{
	struct words matches = {0};
	uint32_t used = 0, found = RULES_MAX;

	if (attr != NULL)
		write_bytes(&matches, &attr->group, sizeof(attr->group));
	write_items(&matches, items, 1);
	for (uint32_t at = 0; at < fake->top; at++) {
		const struct rule *rule = &fake->rules[at];
		used += rule->life != FREE;
		if (rule->life == FREE && found == RULES_MAX)
			found = at;
		if ((rule->life == LIVE || rule->life == COMING) && same(&rule->matches, &matches)) {
			violated(fake, "two rules match the same");
			return -refuse(fake, error, EEXIST, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "it is there");
		}
	}
	if (found == RULES_MAX && fake->top < RULES_MAX)
		found = fake->top++;
	if (used >= fake->options.capacity || found == RULES_MAX)
		return -refuse(fake, error, ENOSPC, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "the table is full");
	struct rule *rule = &fake->rules[found];
	uint32_t generation = rule->generation + 1;
	memset(rule, 0, sizeof(*rule));
	rule->generation = generation;
	rule->life = life;
	rule->matches = matches;
	write_actions(&rule->does, actions, 1);
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		rule->counts |= actions->type == RTE_FLOW_ACTION_TYPE_COUNT;
		rule->ages |= actions->type == RTE_FLOW_ACTION_TYPE_AGE;
	}
	*position = found;
	return 0;
}

static int every(uint32_t *count, uint32_t each)
{
	(*count)++;
	return each != 0 && *count % each == 0;
}

static struct rte_flow *fake_create(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
				    const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct rte_flow *flow = NULL;
	uint32_t position;

	if (refuses_items(fake, items, error) == 0 && refuses_actions(fake, actions, error) == 0) {
		if (attr->group != 0 && every(&fake->creates, fake->options.refuse_create_every)) {
			refuse(fake, error, EIO, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not this one");
		} else if (add(fake, attr, items, actions, LIVE, &position, error) == 0) {
			fake->state.created++;
			flow = handle(fake, position);
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return flow;
}

static int fake_destroy(uint16_t port, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct rule *rule = rule_of(fake, flow, LIVE);
	int code = 0;

	if (rule == NULL)
		code = refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_HANDLE, "no such rule");
	else if (every(&fake->destroys, fake->options.refuse_destroy_every))
		code = refuse(fake, error, EBUSY, RTE_FLOW_ERROR_TYPE_HANDLE, "not now");
	else {
		rule->life = FREE;
		fake->state.destroyed++;
	}
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static int fake_query(uint16_t port, struct rte_flow *flow, const struct rte_flow_action *action, void *data,
		      struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	const struct rule *rule = rule_of(fake, flow, LIVE);
	int code = -EINVAL;

	if (rule != NULL && action->type == RTE_FLOW_ACTION_TYPE_COUNT && rule->counts) {
		struct rte_flow_query_count *count = data;
		*count = (struct rte_flow_query_count){
			.hits_set = 1, .bytes_set = 1, .hits = rule->packets, .bytes = rule->bytes};
		code = 0;
	} else if (rule != NULL && action->type == RTE_FLOW_ACTION_TYPE_AGE && rule->ages) {
		struct rte_flow_query_age *age = data;
		*age = (struct rte_flow_query_age){
			.sec_since_last_hit_valid = 1, .sec_since_last_hit = rule->packets > 0 ? 0 : 100};
		code = 0;
	}
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static int fake_flush(uint16_t port, struct rte_flow_error *error)
{
	struct fake *fake = locked(port);

	for (uint32_t at = 0; at < fake->top; at++)
		fake->rules[at].life = FREE;
	pthread_mutex_unlock(&fake->lock);
	return 0;
}

static int fake_info_get(uint16_t port, struct rte_flow_port_info *info, struct rte_flow_queue_info *queue,
			 struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	int code = 0;

	if (fake->options.no_templates)
		code = refuse(fake, error, ENOSYS, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "no templates");
	info->max_nb_queues = 4;
	queue->max_size = fake->options.queue_size;
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static int fake_configure(uint16_t port, const struct rte_flow_port_attr *attributes, uint16_t queues,
			  const struct rte_flow_queue_attr *all[], struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	int code = 0;

	if (fake->options.no_templates || queues > 4 || all[0]->size > fake->options.queue_size)
		code = refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not so");
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
	violated(fake, "more than %d templates and tables", TABLES_MAX);
	rte_errno = ENOSPC;
	return NULL;
}

static int free_shape(uint16_t port, struct shape *shape, int kind)
{
	struct fake *fake = locked(port);

	if (shape->kind != kind || shape->users != 0)
		violated(fake, "a template was removed while in use, or twice");
	if (shape->pattern != NULL)
		shape->pattern->users--;
	if (shape->actions != NULL)
		shape->actions->users--;
	shape->kind = 0;
	fake->state.templates--;
	pthread_mutex_unlock(&fake->lock);
	return 0;
}

static struct rte_flow_pattern_template *fake_pattern(uint16_t port, const struct rte_flow_pattern_template_attr *attr,
						      const struct rte_flow_item items[], struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct shape *shape = NULL;

	if (refuses_items(fake, items, error) == 0)
		shape = new_shape(fake, 1);
	if (shape != NULL)
		write_items(&shape->types, items, 0);
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_pattern_template *)shape;
}

static struct rte_flow_actions_template *fake_actions(uint16_t port, const struct rte_flow_actions_template_attr *attr,
						      const struct rte_flow_action actions[],
						      const struct rte_flow_action masks[], struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct shape *shape = NULL;

	if (refuses_actions(fake, actions, error) == 0)
		shape = new_shape(fake, 2);
	if (shape != NULL)
		write_actions(&shape->types, actions, 0);
	for (unsigned int at = 0; actions[at].type != RTE_FLOW_ACTION_TYPE_END; at++)
		if (actions[at].type != masks[at].type)
			violated(fake, "masks of other actions than the template's");
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_actions_template *)shape;
}

static struct rte_flow_template_table *fake_table(uint16_t port, const struct rte_flow_template_table_attr *attr,
						  struct rte_flow_pattern_template *patterns[], uint8_t pattern_count,
						  struct rte_flow_actions_template *actions[], uint8_t action_count,
						  struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct shape *shape = new_shape(fake, 3);

	if (shape != NULL) {
		shape->pattern = (struct shape *)patterns[0];
		shape->actions = (struct shape *)actions[0];
		shape->pattern->users++;
		shape->actions->users++;
		write_bytes(&shape->types, &attr->flow_attr.group, sizeof(attr->flow_attr.group));
	}
	pthread_mutex_unlock(&fake->lock);
	return (struct rte_flow_template_table *)shape;
}

static int fake_pattern_destroy(uint16_t port, struct rte_flow_pattern_template *pattern, struct rte_flow_error *error)
{
	return free_shape(port, (struct shape *)pattern, 1);
}

static int fake_actions_destroy(uint16_t port, struct rte_flow_actions_template *actions, struct rte_flow_error *error)
{
	return free_shape(port, (struct shape *)actions, 2);
}

static int fake_table_destroy(uint16_t port, struct rte_flow_template_table *table, struct rte_flow_error *error)
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
	refuse(fake, error, EAGAIN, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "the queue is full");
	return 0;
}

static struct rte_flow *fake_async_create(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr,
					  struct rte_flow_template_table *opaque, const struct rte_flow_item items[],
					  uint8_t pattern, const struct rte_flow_action actions[], uint8_t action,
					  void *ticket, struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct shape *table = (struct shape *)opaque;
	struct words item_types = {0}, action_types = {0};
	struct rte_flow *flow = NULL;
	struct rte_flow_attr group = {0};
	uint32_t position;

	memcpy(&group.group, table->types.bytes, sizeof(group.group));
	write_items(&item_types, items, 0);
	write_actions(&action_types, actions, 0);
	if (table->kind != 3 || !same(&item_types, &table->pattern->types) || !same(&action_types, &table->actions->types))
		violated(fake, "a rule of another shape than its template's");
	if (has_room(fake, error)) {
		int refused = group.group != 0 && every(&fake->creates, fake->options.refuse_create_every);
		if (refused && !fake->options.refuse_late)
			refuse(fake, error, EIO, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not this one");
		else if (add(fake, &group, items, actions, COMING, &position, error) == 0) {
			begin(fake, ticket, position, 1, !refused);
			flow = handle(fake, position);
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return flow;
}

static int fake_async_destroy(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr, struct rte_flow *flow,
			      void *ticket, struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
	struct rule *rule = rule_of(fake, flow, LIVE);
	int code = 0;

	if (rule == NULL)
		code = refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_HANDLE, "no such rule");
	else if (!has_room(fake, error))
		code = -EAGAIN;
	else if (every(&fake->destroys, fake->options.refuse_destroy_every))
		code = refuse(fake, error, EBUSY, RTE_FLOW_ERROR_TYPE_HANDLE, "not now");
	else {
		rule->life = GOING;
		begin(fake, ticket, (uint32_t)(rule - fake->rules), 0, !every(&fake->loses, fake->options.lose_every));
	}
	pthread_mutex_unlock(&fake->lock);
	return code;
}

static int fake_push(uint16_t port, uint32_t queue, struct rte_flow_error *error)
{
	struct fake *fake = locked(port);

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

static int fake_pull(uint16_t port, uint32_t queue, struct rte_flow_op_result results[], uint16_t count,
		     struct rte_flow_error *error)
{
	struct fake *fake = locked(port);
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

static const struct hairpin_flow_calls fake_calls = {
	.validate = fake_validate,
	.create = fake_create,
	.destroy = fake_destroy,
	.query = fake_query,
	.flush = fake_flush,
	.info_get = fake_info_get,
	.configure = fake_configure,
	.pattern_template_create = fake_pattern,
	.pattern_template_destroy = fake_pattern_destroy,
	.actions_template_create = fake_actions,
	.actions_template_destroy = fake_actions_destroy,
	.template_table_create = fake_table,
	.template_table_destroy = fake_table_destroy,
	.async_create = fake_async_create,
	.async_destroy = fake_async_destroy,
	.push = fake_push,
	.pull = fake_pull,
};

const struct hairpin_flow_calls *hairpin_fake_flow_calls(void)
{
	return &fake_calls;
}

void hairpin_fake_flow_reset(uint16_t port, const struct hairpin_fake_flow_options *options)
{
	struct fake *fake = locked(port);
	size_t from = offsetof(struct fake, options);

	memset((char *)fake + from, 0, sizeof(*fake) - from);
	fake->options = *options;
	fake->random = options->seed;
	pthread_mutex_unlock(&fake->lock);
}

void hairpin_fake_flow_change(uint16_t port, const struct hairpin_fake_flow_options *options)
{
	struct fake *fake = locked(port);

	fake->options = *options;
	pthread_mutex_unlock(&fake->lock);
}

void hairpin_fake_flow_state(uint16_t port, struct hairpin_fake_flow_state *state)
{
	struct fake *fake = locked(port);

	*state = fake->state;
	state->live = 0;
	for (uint32_t at = 0; at < fake->top; at++)
		state->live += fake->rules[at].life != FREE;
	pthread_mutex_unlock(&fake->lock);
}

int hairpin_fake_flow_hit(uint16_t port, const struct hairpin_flow_rule *description, uint64_t packets, uint64_t bytes)
{
	struct fake *fake = locked(port);
	struct hairpin_flow_arrays arrays;
	struct words matches = {0}, does = {0};
	int found = 0;

	if (hairpin_flow_build(description, &arrays) == 0) {
		write_bytes(&matches, &arrays.attr.group, sizeof(arrays.attr.group));
		write_items(&matches, arrays.items, 1);
		write_actions(&does, arrays.actions, 1);
		for (uint32_t at = 0; at < fake->top && found == 0; at++) {
			struct rule *rule = &fake->rules[at];
			if (rule->life != LIVE || !same(&rule->matches, &matches))
				continue;
			rule->packets += packets;
			rule->bytes += bytes;
			found = same(&rule->does, &does) ? 2 : 1;
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return found;
}
