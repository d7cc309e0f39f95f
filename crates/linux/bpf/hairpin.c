// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Hairpin's BPF programs. docs/internals/linux-plane.md says how they work together. */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* Functions that are not static are verified once, on their own, and not anew at each call. */
#include "hairpin.h"
#include "maps.h"
#include "parse.h"
#include "steer.h"
#include "lines.h"
#include "rules.h"
#include "policer.h"
#include "handover.h"
#include "rewrite.h"
#include "route.h"
#include "encapsulate.h"
#include "schedule.h"
#include "follow.h"
#include "hit.h"
#include "cookie.h"
#include "check.h"
#include "pending.h"
#include "access.h"
#include "setup.h"
#include "setup_direct.h"
#include "miss.h"
#include "ingress.h"
#include "xdp.h"
#include "worker.h"
#include "query.h"

/* The kernel knows only a few strings; the source is offered under either licence, as the first line says. */
char LICENSE[] SEC("license") = "GPL";
