/*
 * A device for tests (feature fake-flow): a table of rules that fills up, refuses, answers late and out of order, and
 * notices when its caller breaks the rules of rte_flow: a handle used after its removal, values of another shape than
 * their template's, answers never asked for.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_errno.h>

#include "fake_flow.h"

static struct fake *fakes[HAIRPIN_FAKE_PORTS];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static struct fake *at(uint16_t port)
{
	unsigned int which = (unsigned int)port % HAIRPIN_FAKE_PORTS;

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

struct fake *fake_locked(uint16_t port)
{
	struct fake *fake = at(port);

	pthread_mutex_lock(&fake->lock);
	fake->port = port;
	return fake;
}

__attribute__((format(printf, 2, 3))) void fake_violated(struct fake *fake, const char *format, ...)
{
	va_list arguments;

	if (fake->state.violations++ > 0)
		return;
	va_start(arguments, format);
	vsnprintf(fake->state.first_violation, sizeof(fake->state.first_violation), format, arguments);
	va_end(arguments);
}

static int fake_validate(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
			 const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	int code = fake_refuses_items(fake, items, error);

	if (code == 0)
		code = fake_refuses_actions(fake, actions, error);
	pthread_mutex_unlock(&fake->lock);
	return code;
}

/* A handle says position and generation, so that an old one is noticed. */
struct rte_flow *fake_handle(const struct fake *fake, uint32_t rule)
{
	return (struct rte_flow *)(uintptr_t)((uint64_t)fake->rules[rule].generation << 32 | (rule + 1));
}

struct rule *fake_rule_of(struct fake *fake, const struct rte_flow *flow, enum life expected)
{
	uint32_t at = (uint32_t)(uintptr_t)flow - 1, generation = (uint32_t)((uint64_t)(uintptr_t)flow >> 32);

	if (at < RULES_MAX && fake->rules[at].generation == generation && fake->rules[at].life == expected)
		return &fake->rules[at];
	fake_violated(fake, "rule %u of generation %u was used when it was not there", at, generation);
	return NULL;
}

static int is_among(const struct rte_flow_action *actions, enum rte_flow_action_type type)
{
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++)
		if (actions->type == type)
			return 1;
	return 0;
}

/* Whether there are still the counter and the ageing object that a rule by template takes. */
static int has_objects(const struct fake *fake, const struct rte_flow_action *actions)
{
	int counts = is_among(actions, RTE_FLOW_ACTION_TYPE_COUNT), ages = is_among(actions, RTE_FLOW_ACTION_TYPE_AGE);
	uint32_t counters = 0, aging = 0;

	for (uint32_t at = 0; at < fake->top; at++) {
		counters += fake->rules[at].life != FREE && fake->rules[at].counts;
		aging += fake->rules[at].life != FREE && fake->rules[at].ages;
	}
	return (!counts || counters < fake->counters) && (!ages || aging < fake->ages);
}

/* Finds room for a rule, or says why there is none; positive errno. */
int fake_add(struct fake *fake, const struct rte_flow_attr *attr, const struct rte_flow_item *items,
	       const struct rte_flow_action *actions, enum life life, uint32_t *position, struct rte_flow_error *error)
{
	struct words matches = {0};
	uint32_t used = 0, found = RULES_MAX;

	if (attr != NULL)
		fake_write_bytes(&matches, &attr->group, sizeof(attr->group));
	fake_write_items(&matches, items, 1);
	for (uint32_t at = 0; at < fake->top; at++) {
		const struct rule *rule = &fake->rules[at];
		used += rule->life != FREE;
		if (rule->life == FREE && found == RULES_MAX)
			found = at;
		if ((rule->life == LIVE || rule->life == COMING) && fake_same(&rule->matches, &matches)) {
			fake_violated(fake, "two rules match the same");
			return -fake_refuse(fake, error, EEXIST, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "it is there");
		}
	}
	if (found == RULES_MAX && fake->top < RULES_MAX)
		found = fake->top++;
	if (used >= fake->options.capacity || found == RULES_MAX)
		return -fake_refuse(fake, error, ENOSPC, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "the table is full");
	if (life == COMING && !has_objects(fake, actions))
		return -fake_refuse(fake, error, ENOMEM, RTE_FLOW_ERROR_TYPE_ACTION, "more counters than were asked for");
	struct rule *rule = &fake->rules[found];
	uint32_t generation = rule->generation + 1;
	memset(rule, 0, sizeof(*rule));
	rule->generation = generation;
	rule->life = life;
	rule->matches = matches;
	fake_write_actions(&rule->does, actions, 1);
	rule->counts = is_among(actions, RTE_FLOW_ACTION_TYPE_COUNT);
	rule->ages = is_among(actions, RTE_FLOW_ACTION_TYPE_AGE);
	*position = found;
	return 0;
}

int fake_every(uint32_t *count, uint32_t each)
{
	(*count)++;
	return each != 0 && *count % each == 0;
}

static struct rte_flow *fake_create(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item items[],
				    const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct rte_flow *flow = NULL;
	uint32_t position;

	if (fake_refuses_items(fake, items, error) == 0 && fake_refuses_actions(fake, actions, error) == 0) {
		if (attr->group != 0 && fake_every(&fake->creates, fake->options.refuse_create_every) &&
			      fake->creates > fake->options.healthy) {
			fake_refuse(fake, error, EIO, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, "not this one");
		} else if (fake_add(fake, attr, items, actions, LIVE, &position, error) == 0) {
			fake->state.created++;
			flow = fake_handle(fake, position);
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return flow;
}

static int fake_destroy(uint16_t port, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct fake *fake = fake_locked(port);
	struct rule *rule = fake_rule_of(fake, flow, LIVE);
	int code = 0;

	if (rule == NULL)
		code = fake_refuse(fake, error, EINVAL, RTE_FLOW_ERROR_TYPE_HANDLE, "no such rule");
	else if (fake_every(&fake->destroys, fake->options.refuse_destroy_every) &&
		 fake->destroys > fake->options.healthy)
		code = fake_refuse(fake, error, EBUSY, RTE_FLOW_ERROR_TYPE_HANDLE, "not now");
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
	struct fake *fake = fake_locked(port);
	struct rule *rule = fake_rule_of(fake, flow, LIVE);
	int code = -EINVAL;

	if (rule != NULL && rule->packets < fake->options.ticks) {
		rule->packets++;
		rule->bytes += 100;
	}
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
	struct fake *fake = fake_locked(port);

	for (uint32_t at = 0; at < fake->top; at++)
		fake->rules[at].life = FREE;
	pthread_mutex_unlock(&fake->lock);
	return 0;
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

static uint8_t stands_in[HAIRPIN_FAKE_PORTS];

int hairpin_fake_flow_answers(uint16_t port)
{
	return port >= HAIRPIN_FAKE_PORT || (port < HAIRPIN_FAKE_PORTS && stands_in[port]);
}

uint16_t hairpin_fake_flow_hairpins(uint16_t port)
{
	struct fake *fake = fake_locked(port);
	uint16_t queues = fake->options.hairpin_queues;

	pthread_mutex_unlock(&fake->lock);
	return queues;
}

int hairpin_fake_flow_stand_in(uint16_t port, const struct hairpin_fake_flow_options *options)
{
	if (port >= HAIRPIN_FAKE_PORTS)
		return EINVAL;
	hairpin_fake_flow_reset(port, options);
	stands_in[port] = 1;
	return 0;
}

void hairpin_fake_flow_reset(uint16_t port, const struct hairpin_fake_flow_options *options)
{
	struct fake *fake = fake_locked(port);
	size_t from = offsetof(struct fake, options);

	memset((char *)fake + from, 0, sizeof(*fake) - from);
	fake->options = *options;
	fake->random = options->seed;
	pthread_mutex_unlock(&fake->lock);
}

void hairpin_fake_flow_change(uint16_t port, const struct hairpin_fake_flow_options *options)
{
	struct fake *fake = fake_locked(port);

	fake->options = *options;
	pthread_mutex_unlock(&fake->lock);
}

void hairpin_fake_flow_state(uint16_t port, struct hairpin_fake_flow_state *state)
{
	struct fake *fake = fake_locked(port);

	*state = fake->state;
	state->live = 0;
	for (uint32_t at = 0; at < fake->top; at++)
		state->live += fake->rules[at].life != FREE;
	pthread_mutex_unlock(&fake->lock);
}

int hairpin_fake_flow_hit(uint16_t port, const struct hairpin_flow_rule *description, uint64_t packets, uint64_t bytes)
{
	struct fake *fake = fake_locked(port);
	struct hairpin_flow_arrays arrays;
	struct words matches = {0}, does = {0};
	int found = 0;

	if (hairpin_flow_build(description, &arrays) == 0) {
		fake_write_bytes(&matches, &arrays.attr.group, sizeof(arrays.attr.group));
		fake_write_items(&matches, arrays.items, 1);
		fake_write_actions(&does, arrays.actions, 1);
		for (uint32_t at = 0; at < fake->top && found == 0; at++) {
			struct rule *rule = &fake->rules[at];
			if (rule->life != LIVE || !fake_same(&rule->matches, &matches))
				continue;
			rule->packets += packets;
			rule->bytes += bytes;
			found = fake_same(&rule->does, &does) ? 2 : 1;
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return found;
}
