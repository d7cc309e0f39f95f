/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which worker an end belongs to: the same function, bit for bit, as Steering in crates/core/src/flow.rs. */
#ifndef HAIRPIN_STEER_H
#define HAIRPIN_STEER_H

static __always_inline __u64 little_endian(__u64 value)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return value;
#else
	return __builtin_bswap64(value);
#endif
}

static __always_inline __u64 steer_hash(const struct control *control, const struct end *end)
{
	__u64 a, b, x;

	__builtin_memcpy(&a, end->address, 8);
	__builtin_memcpy(&b, end->address + 8, 8);
	x = control->steering_key[0] ^ little_endian(a);
	x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15ULL;
	x ^= little_endian(b) ^ control->steering_key[1];
	x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ULL;
	x ^= bpf_ntohs(end->port);
	x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ULL;
	return x ^ (x >> 32);
}

static __always_inline __u32 steer_worker(const struct control *control, __u64 hash)
{
	return ((hash >> 32) * control->workers) >> 32;
}

static __always_inline void end_from_v4(struct end *end, __be32 address, __be16 port, __u8 protocol)
{
	__builtin_memset(end->address, 0, 10);
	end->address[10] = 0xff;
	end->address[11] = 0xff;
	__builtin_memcpy(end->address + 12, &address, 4);
	end->port = port;
	end->protocol = protocol;
	end->zero = 0;
}

static __always_inline void end_from_v6(struct end *end, const __be32 *address, __be16 port, __u8 protocol)
{
	__builtin_memcpy(end->address, address, 16);
	end->port = port;
	end->protocol = protocol;
	end->zero = 0;
}
#endif
