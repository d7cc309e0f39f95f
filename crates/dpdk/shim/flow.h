/*
 * rte_flow rules from plain descriptions (src/flow/description.rs says the same). flow_build.c makes rte_flow's arrays,
 * flow_dump.c tells what is in them, flow.c hands them to a device. Not yet run on hardware.
 */
#ifndef HAIRPIN_DPDK_FLOW_H
#define HAIRPIN_DPDK_FLOW_H

#include <stddef.h>
#include <stdint.h>

#include <rte_flow.h>

/* What a rule matches, besides family and protocol. */
enum {
	HAIRPIN_MATCH_SOURCE = 1 << 0,
	HAIRPIN_MATCH_DESTINATION = 1 << 1,
	HAIRPIN_MATCH_SOURCE_PORT = 1 << 2,
	HAIRPIN_MATCH_DESTINATION_PORT = 1 << 3,
	/* TCP without SYN, FIN and RST. */
	HAIRPIN_MATCH_NO_CONTROL = 1 << 4,
	/* TCP with ACK. */
	HAIRPIN_MATCH_ACK = 1 << 5,
	/* TCP without options: a header of 20 bytes. */
	HAIRPIN_MATCH_NO_OPTIONS = 1 << 6,
	/* Not a fragment, the first one included. */
	HAIRPIN_MATCH_WHOLE = 1 << 7,
	/* TTL or hop limit 0 or 1. */
	HAIRPIN_MATCH_LAST_HOP = 1 << 8,
};

/* What a rule does, in the order in which it is said. */
enum {
	HAIRPIN_DO_SOURCE_MAC = 1 << 0,
	HAIRPIN_DO_DESTINATION_MAC = 1 << 1,
	HAIRPIN_DO_SOURCE = 1 << 2,
	HAIRPIN_DO_DESTINATION = 1 << 3,
	HAIRPIN_DO_SOURCE_PORT = 1 << 4,
	HAIRPIN_DO_DESTINATION_PORT = 1 << 5,
	HAIRPIN_DO_TTL = 1 << 6,
	HAIRPIN_DO_SEQUENCE = 1 << 7,
	HAIRPIN_DO_ACKNOWLEDGEMENT = 1 << 8,
	HAIRPIN_DO_AGE = 1 << 9,
	HAIRPIN_DO_COUNT = 1 << 10,
	HAIRPIN_DO_MARK = 1 << 11,
	/* Fates: exactly one of them. */
	HAIRPIN_DO_QUEUE = 1 << 12,
	HAIRPIN_DO_RSS = 1 << 13,
	HAIRPIN_DO_PORT_ID = 1 << 14,
	HAIRPIN_DO_REPRESENTED_PORT = 1 << 15,
	HAIRPIN_DO_JUMP = 1 << 16,
	HAIRPIN_DO_PORT_REPRESENTOR = 1 << 17,
};

/* How it is said. */
enum {
	/* In the domain of the embedded switch, else in that of the port's ingress. */
	HAIRPIN_HOW_TRANSFER = 1 << 0,
	/* By MODIFY_FIELD, else by SET_*, DEC_TTL, INC_* and DEC_*. */
	HAIRPIN_HOW_MODIFY = 1 << 1,
	/* Deltas of 2^31 and more are subtracted by their complement, else added. */
	HAIRPIN_HOW_SIGNED = 1 << 2,
};

#define HAIRPIN_FLOW_QUEUES_MAX 64

/* One rule. IPv4 addresses stand in the first four bytes; ports and numbers are in host order. */
struct hairpin_flow_rule {
	uint64_t context; /* what ageing calls the rule */
	uint64_t rss_types;
	uint32_t group;
	uint32_t priority;
	uint32_t match;
	uint32_t does;
	uint32_t how;
	uint32_t sequence_delta;
	uint32_t acknowledgement_delta;
	uint32_t age_seconds;
	uint32_t mark;
	uint32_t jump; /* the group */
	uint16_t queue; /* the one queue, or for RSS how many, from 0 */
	uint16_t port; /* where it leaves in the switch's domain */
	uint16_t source_port;
	uint16_t destination_port;
	uint16_t new_source_port;
	uint16_t new_destination_port;
	uint16_t source_port_bits; /* which of them are matched; 0: all */
	uint16_t destination_port_bits;
	uint8_t family; /* 4, 6; 0: any frame */
	uint8_t protocol; /* 6, 17; 0: any packet */
	uint8_t source_mac[6];
	uint8_t destination_mac[6];
	uint8_t source[16];
	uint8_t destination[16];
	uint8_t new_source[16];
	uint8_t new_destination[16];
};

#define HAIRPIN_FLOW_ITEMS 4
#define HAIRPIN_FLOW_ACTIONS 16
#define HAIRPIN_FLOW_MODIFICATIONS 9

/* rte_flow's arrays of one rule, with all that they point to: not to be copied. */
struct hairpin_flow_arrays {
	struct rte_flow_attr attr;
	struct rte_flow_item items[HAIRPIN_FLOW_ITEMS];
	struct rte_flow_action actions[HAIRPIN_FLOW_ACTIONS];
	/* What of each action is the same for all rules of a template. */
	struct rte_flow_action masks[HAIRPIN_FLOW_ACTIONS];
	unsigned int item_count, action_count, modification_count;
	struct rte_flow_item_ipv4 ipv4_spec, ipv4_mask;
	struct rte_flow_item_ipv6 ipv6_spec, ipv6_mask;
	struct rte_flow_item_tcp tcp_spec, tcp_mask;
	struct rte_flow_item_udp udp_spec, udp_mask;
	struct rte_flow_action_set_mac source_mac, destination_mac;
	struct rte_flow_action_set_ipv4 source_ipv4, destination_ipv4;
	struct rte_flow_action_set_ipv6 source_ipv6, destination_ipv6;
	struct rte_flow_action_set_tp source_port, destination_port;
	rte_be32_t sequence, acknowledgement;
	struct rte_flow_action_modify_field modifications[HAIRPIN_FLOW_MODIFICATIONS];
	struct rte_flow_action_modify_field modification_masks[HAIRPIN_FLOW_MODIFICATIONS];
	struct rte_flow_action_age age;
	struct rte_flow_action_count count;
	struct rte_flow_action_mark mark;
	struct rte_flow_action_queue queue;
	struct rte_flow_action_rss rss;
	uint16_t rss_queues[HAIRPIN_FLOW_QUEUES_MAX];
	struct rte_flow_action_port_id port_id;
	struct rte_flow_action_ethdev represented, representor;
	struct rte_flow_action_jump jump, jump_mask;
};

/* Why something was refused; `code` is a positive errno. */
struct hairpin_flow_error {
	int code;
	int type; /* enum rte_flow_error_type */
	char message[128];
};

struct hairpin_flow_count {
	uint64_t packets;
	uint64_t bytes;
	uint32_t idle_seconds; /* since the last hit */
	uint8_t counted; /* packets and bytes are right */
	uint8_t aged; /* idle_seconds is right */
};

struct hairpin_flow_hairpin {
	uint16_t queues; /* at most; 0: none */
	uint16_t rx_per_tx, tx_per_rx;
	uint16_t descriptors;
};

struct hairpin_flow_result {
	uint64_t ticket;
	uint8_t succeeded;
};

/* A template table, with its two templates. */
struct hairpin_flow_table {
	struct rte_flow_pattern_template *pattern;
	struct rte_flow_actions_template *actions;
	struct rte_flow_template_table *table;
};

/* The calls of rte_flow's that are used, so that tests can stand in for a device. */
struct hairpin_flow_calls {
	int (*validate)(uint16_t, const struct rte_flow_attr *, const struct rte_flow_item[],
			const struct rte_flow_action[], struct rte_flow_error *);
	struct rte_flow *(*create)(uint16_t, const struct rte_flow_attr *, const struct rte_flow_item[],
				   const struct rte_flow_action[], struct rte_flow_error *);
	int (*destroy)(uint16_t, struct rte_flow *, struct rte_flow_error *);
	int (*query)(uint16_t, struct rte_flow *, const struct rte_flow_action *, void *, struct rte_flow_error *);
	int (*flush)(uint16_t, struct rte_flow_error *);
	int (*info_get)(uint16_t, struct rte_flow_port_info *, struct rte_flow_queue_info *, struct rte_flow_error *);
	int (*configure)(uint16_t, const struct rte_flow_port_attr *, uint16_t, const struct rte_flow_queue_attr *[],
			 struct rte_flow_error *);
	struct rte_flow_pattern_template *(*pattern_template_create)(uint16_t,
								     const struct rte_flow_pattern_template_attr *,
								     const struct rte_flow_item[],
								     struct rte_flow_error *);
	int (*pattern_template_destroy)(uint16_t, struct rte_flow_pattern_template *, struct rte_flow_error *);
	struct rte_flow_actions_template *(*actions_template_create)(uint16_t,
								     const struct rte_flow_actions_template_attr *,
								     const struct rte_flow_action[],
								     const struct rte_flow_action[],
								     struct rte_flow_error *);
	int (*actions_template_destroy)(uint16_t, struct rte_flow_actions_template *, struct rte_flow_error *);
	struct rte_flow_template_table *(*template_table_create)(uint16_t, const struct rte_flow_template_table_attr *,
								 struct rte_flow_pattern_template *[], uint8_t,
								 struct rte_flow_actions_template *[], uint8_t,
								 struct rte_flow_error *);
	int (*template_table_destroy)(uint16_t, struct rte_flow_template_table *, struct rte_flow_error *);
	struct rte_flow *(*async_create)(uint16_t, uint32_t, const struct rte_flow_op_attr *,
					 struct rte_flow_template_table *, const struct rte_flow_item[], uint8_t,
					 const struct rte_flow_action[], uint8_t, void *, struct rte_flow_error *);
	int (*async_destroy)(uint16_t, uint32_t, const struct rte_flow_op_attr *, struct rte_flow *, void *,
			     struct rte_flow_error *);
	int (*push)(uint16_t, uint32_t, struct rte_flow_error *);
	int (*pull)(uint16_t, uint32_t, struct rte_flow_op_result[], uint16_t, struct rte_flow_error *);
};

/* flow_build.c: makes the arrays; 0, or EINVAL for a description that contradicts itself. */
int hairpin_flow_build(const struct hairpin_flow_rule *rule, struct hairpin_flow_arrays *arrays);

/* flow_dump.c: a rule's arrays as text, or as they are after rte_flow_conv(); the text's length or a negative errno. */
int hairpin_flow_dump(const struct hairpin_flow_rule *rule, int template_masks, char *text, size_t size);
int hairpin_flow_dump_converted(const struct hairpin_flow_rule *rule, char *text, size_t size);

/* flow.c. Functions that return int return 0 or a positive errno, and then fill `error` unless it is null. */
int hairpin_flow_validate(uint16_t port, const struct hairpin_flow_rule *rule, struct hairpin_flow_error *error);
int hairpin_flow_create(uint16_t port, const struct hairpin_flow_rule *rule, struct rte_flow **flow,
			struct hairpin_flow_error *error);
int hairpin_flow_destroy(uint16_t port, struct rte_flow *flow, struct hairpin_flow_error *error);
int hairpin_flow_query(uint16_t port, struct rte_flow *flow, uint32_t does, struct hairpin_flow_count *count);
int hairpin_flow_flush(uint16_t port, struct hairpin_flow_error *error);
int hairpin_flow_queue_info(uint16_t port, uint32_t *queues, uint32_t *size, struct hairpin_flow_error *error);
int hairpin_flow_configure(uint16_t port, uint32_t counters, uint32_t ages, uint16_t queues, uint32_t size,
			   struct hairpin_flow_error *error);
int hairpin_flow_table_create(uint16_t port, const struct hairpin_flow_rule *shape, uint32_t rules,
			      struct hairpin_flow_table *table, struct hairpin_flow_error *error);
int hairpin_flow_table_destroy(uint16_t port, struct hairpin_flow_table *table, struct hairpin_flow_error *error);
int hairpin_flow_async_create(uint16_t port, uint32_t queue, const struct hairpin_flow_table *table,
			      const struct hairpin_flow_rule *rule, uint64_t ticket, struct rte_flow **flow,
			      struct hairpin_flow_error *error);
int hairpin_flow_async_destroy(uint16_t port, uint32_t queue, struct rte_flow *flow, uint64_t ticket,
			       struct hairpin_flow_error *error);
int hairpin_flow_push(uint16_t port, uint32_t queue, struct hairpin_flow_error *error);
int hairpin_flow_pull(uint16_t port, uint32_t queue, struct hairpin_flow_result *results, uint16_t count,
		      uint16_t *pulled, struct hairpin_flow_error *error);
int hairpin_flow_hairpin_capability(uint16_t port, struct hairpin_flow_hairpin *capability);
int hairpin_flow_hairpin_queue(uint16_t port, uint16_t queue, uint16_t descriptors);
size_t hairpin_flow_rule_size(void);

#ifdef HAIRPIN_FAKE_FLOW
/* fake_flow.c: ports from here on are of the fake device. */
#define HAIRPIN_FAKE_PORT 0x8000
#define HAIRPIN_FAKE_PORTS 16

/* How the fake behaves. Refusals "every so many" count from 1; 0: never. */
struct hairpin_fake_flow_options {
	uint32_t capacity; /* rules at most */
	uint32_t queue_size; /* operations under way at most, of templates */
	uint32_t delay; /* calls of pull before an answer is there */
	uint32_t seed; /* other than 0: answers come in another order */
	uint32_t refuse_create_every;
	uint32_t refuse_destroy_every;
	uint32_t lose_every; /* removals answered with an error (templates) */
	uint32_t healthy; /* so many rules come and go before the first is refused */
	uint32_t refuse_match; /* HAIRPIN_MATCH_*: refused as soon as a rule asks for one */
	uint32_t refuse_does; /* HAIRPIN_DO_* likewise */
	uint8_t refuse_late; /* at the answer, not at the call (templates) */
	uint8_t refuse_modify;
	uint8_t refuse_names;
	uint8_t refuse_ipv6;
	uint8_t no_templates;
	uint8_t ticks; /* a rule has forwarded a packet of 100 bytes more whenever it is asked, until it is so many */
	uint8_t hairpin_queues; /* so many, it says; a port that it stands in for may have none all the same */
	uint8_t refuse_others; /* the switch leads to no other port */
	uint8_t ages_by_counters; /* an ageing object takes a counter, which has to be asked for too (templates) */
};

struct hairpin_fake_flow_state {
	uint32_t live, pending, created, destroyed, refused, pushes;
	uint32_t violations; /* the caller broke the rules of rte_flow */
	uint32_t templates; /* templates and tables */
	char first_violation[96];
};

/* Forgets everything and begins anew. */
void hairpin_fake_flow_reset(uint16_t port, const struct hairpin_fake_flow_options *options);
void hairpin_fake_flow_change(uint16_t port, const struct hairpin_fake_flow_options *options);
void hairpin_fake_flow_state(uint16_t port, struct hairpin_fake_flow_state *state);
/* 0: no live rule matches what this one matches; 1: one does; 2: and does the same. Adds packets and bytes to it. */
int hairpin_fake_flow_hit(uint16_t port, const struct hairpin_flow_rule *rule, uint64_t packets, uint64_t bytes);
const struct hairpin_flow_calls *hairpin_fake_flow_calls(void);
/*
 * From now on the fake device answers for the rules of a port that is none of its own, the first HAIRPIN_FAKE_PORTS; the
 * port's packets go as before, since the fake has no way to touch them. 0, or EINVAL for another port.
 */
int hairpin_fake_flow_stand_in(uint16_t port, const struct hairpin_fake_flow_options *options);
int hairpin_fake_flow_answers(uint16_t port);
uint16_t hairpin_fake_flow_hairpins(uint16_t port);
#endif

#endif
