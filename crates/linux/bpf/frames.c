// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Frames for measurements, by live frames of BPF_PROG_TEST_RUN: `frames` makes UDP packets over IPv4 of one flow after the
 * other and sends them by a device, `sink` counts and drops what arrives at the end. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* Flows follow each other in steps of this prime, so that what lies side by side in memory is not used in turn. */
#define STEP 1000003

struct plan {
	__u32 ifindex; /* of the device that the frames leave by */
	__u32 flows;   /* 1 to 2^24 */
	__u32 next;    /* the flow of the next frame */
	__u32 first;   /* the first flow's source address, in the machine's order */
	__u8 headers[ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr)]; /* source address, port and header checksum 0 */
	__u8 zero[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct plan);
	__uint(max_entries, 1);
} plan SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} arrived SEC(".maps");

SEC("xdp")
int frames(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u32 zero = 0, flow, sum = 0;
	struct plan *made = bpf_map_lookup_elem(&plan, &zero);
	__u16 *word = (void *)ip;

	if (!made || (void *)(udp + 1) > end)
		return XDP_ABORTED;
	flow = made->next + STEP % made->flows;
	if (flow >= made->flows)
		flow -= made->flows;
	made->next = flow;
	__builtin_memcpy(data, made->headers, sizeof(made->headers));
	ip->saddr = bpf_htonl(made->first + flow);
	udp->source = bpf_htons(1024 + flow % 60000);
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	return bpf_redirect(made->ifindex, 0);
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&arrived, &zero);

	if (count)
		*count += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
