/* What the fake device's parts share; see fake_flow.c. */
#ifndef HAIRPIN_DPDK_FAKE_FLOW_H
#define HAIRPIN_DPDK_FAKE_FLOW_H

#include <pthread.h>

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
	uint16_t port;
	struct hairpin_fake_flow_options options;
	struct hairpin_fake_flow_state state;
	uint32_t creates, destroys, loses, pulls, random, operation_count;
	uint32_t top; /* no rule was ever at or above it */
	uint32_t counters, ages; /* as many as were asked for: rules by template have no others */
	struct rule rules[RULES_MAX];
	struct operation operations[RULES_MAX];
	struct shape shapes[TABLES_MAX];
};

/* fake_flow.c: the device behind a port, locked; what its caller has done wrong. */
struct fake *fake_locked(uint16_t port);
__attribute__((format(printf, 2, 3))) void fake_violated(struct fake *fake, const char *format, ...);

/* fake_flow_words.c: what rules say, and what the device refuses to be told. */
void fake_write_bytes(struct words *words, const void *bytes, size_t length);
int fake_same(const struct words *a, const struct words *b);
void fake_write_items(struct words *words, const struct rte_flow_item *items, int values);
void fake_write_actions(struct words *words, const struct rte_flow_action *actions, int values);
int fake_refuse(struct fake *fake, struct rte_flow_error *error, int code, enum rte_flow_error_type type,
		  const char *message);
int fake_refuses_items(struct fake *fake, const struct rte_flow_item *items, struct rte_flow_error *error);
int fake_refuses_actions(struct fake *fake, const struct rte_flow_action *actions, struct rte_flow_error *error);

/* fake_flow.c: its table of rules. */
struct rte_flow *fake_handle(const struct fake *fake, uint32_t rule);
struct rule *fake_rule_of(struct fake *fake, const struct rte_flow *flow, enum life expected);
int fake_add(struct fake *fake, const struct rte_flow_attr *attr, const struct rte_flow_item *items,
	       const struct rte_flow_action *actions, enum life life, uint32_t *position, struct rte_flow_error *error);
int fake_every(uint32_t *count, uint32_t each);

/* fake_flow_async.c: rules by template. */
int fake_info_get(uint16_t port, struct rte_flow_port_info *info, struct rte_flow_queue_info *queue,
			 struct rte_flow_error *error);
int fake_configure(uint16_t port, const struct rte_flow_port_attr *attributes, uint16_t queues,
			  const struct rte_flow_queue_attr *all[], struct rte_flow_error *error);
struct rte_flow_pattern_template *fake_pattern(uint16_t port, const struct rte_flow_pattern_template_attr *attr,
						      const struct rte_flow_item items[], struct rte_flow_error *error);
struct rte_flow_actions_template *fake_actions(uint16_t port, const struct rte_flow_actions_template_attr *attr,
						      const struct rte_flow_action actions[],
						      const struct rte_flow_action masks[], struct rte_flow_error *error);
struct rte_flow_template_table *fake_table(uint16_t port, const struct rte_flow_template_table_attr *attr,
						  struct rte_flow_pattern_template *patterns[], uint8_t pattern_count,
						  struct rte_flow_actions_template *actions[], uint8_t action_count,
						  struct rte_flow_error *error);
int fake_pattern_destroy(uint16_t port, struct rte_flow_pattern_template *pattern, struct rte_flow_error *error);
int fake_actions_destroy(uint16_t port, struct rte_flow_actions_template *actions, struct rte_flow_error *error);
int fake_table_destroy(uint16_t port, struct rte_flow_template_table *table, struct rte_flow_error *error);
struct rte_flow *fake_async_create(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr,
					  struct rte_flow_template_table *opaque, const struct rte_flow_item items[],
					  uint8_t pattern, const struct rte_flow_action actions[], uint8_t action,
					  void *ticket, struct rte_flow_error *error);
int fake_async_destroy(uint16_t port, uint32_t queue, const struct rte_flow_op_attr *attr, struct rte_flow *flow,
			      void *ticket, struct rte_flow_error *error);
int fake_push(uint16_t port, uint32_t queue, struct rte_flow_error *error);
int fake_pull(uint16_t port, uint32_t queue, struct rte_flow_op_result results[], uint16_t count,
		     struct rte_flow_error *error);

#endif
