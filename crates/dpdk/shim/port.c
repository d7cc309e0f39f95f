/* Ports: attached by their EAL names, configured, started; bursts. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_prefetch.h>

#include "flow.h"
#include "port.h"

/* As long as any device's. A key of one repeated 16-bit word hashes both directions of a flow alike. */
#define KEY_MAX 128
#define KEY_USUAL 40
#define KEY_HIGH 0x6d
#define KEY_LOW 0x5a

/* Beside its IP packet a frame has an Ethernet header and a VLAN tag. */
#define OVERHEAD 18

#define TRANSPORTS (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP)

/* Ports that are open, so that a device is opened once. */
static int is_open[RTE_MAX_ETHPORTS];

static int last_error(void)
{
	return rte_errno != 0 ? rte_errno : EIO;
}

/* The port of a device by its EAL name, which may be followed by arguments. */
static int find_port(const char *device, uint16_t *port)
{
	char name[RTE_DEV_NAME_MAX_LEN];
	struct rte_dev_iterator iterator;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(device, ","), device);
	if (rte_eth_dev_get_port_by_name(name, port) == 0)
		return 0;
	RTE_ETH_FOREACH_MATCHING_DEV(*port, device, &iterator) {
		rte_eth_iterator_cleanup(&iterator);
		return 0;
	}
	return -1;
}

static uint64_t rss_types(enum hairpin_rss rss, uint64_t offered)
{
	uint64_t types = TRANSPORTS & offered;

	switch (rss) {
	case HAIRPIN_RSS_NONE:
		return 0;
	case HAIRPIN_RSS_SOURCE:
		return RTE_ETH_RSS_IP & offered ? (RTE_ETH_RSS_IP & offered) | RTE_ETH_RSS_L3_SRC_ONLY : 0;
	case HAIRPIN_RSS_DESTINATION:
		return RTE_ETH_RSS_IP & offered ? (RTE_ETH_RSS_IP & offered) | RTE_ETH_RSS_L3_DST_ONLY : 0;
	default:
		return types;
	}
}

static int is_partial(enum hairpin_rss rss)
{
	return rss == HAIRPIN_RSS_SOURCE || rss == HAIRPIN_RSS_DESTINATION;
}

/* Our key, of as many bytes as the device takes; 0: it takes none. */
static uint8_t symmetric_key(const struct rte_eth_dev_info *device, uint8_t key[KEY_MAX])
{
	/* Drivers that do not say take what the first ones took. */
	uint8_t length = device->hash_key_size != 0 ? device->hash_key_size : KEY_USUAL;

	if (length > KEY_MAX || device->flow_type_rss_offloads == 0)
		return 0;
	for (unsigned int i = 0; i < length; i++)
		key[i] = i % 2 == 0 ? KEY_HIGH : KEY_LOW;
	return length;
}

static int configure(uint16_t port, const struct hairpin_port_options *options, const struct rte_eth_dev_info *device)
{
	static const uint64_t checksums = RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
	uint8_t key[KEY_MAX];
	struct rte_eth_conf conf = { 0 };
	uint8_t length;

	if ((device->tx_offload_capa & checksums) == checksums)
		conf.txmode.offloads |= checksums;
	if (options->mtu != 0)
		conf.rxmode.mtu = options->mtu;
	conf.rx_adv_conf.rss_conf.rss_hf = rss_types(options->rss, device->flow_type_rss_offloads);
	if (options->queues > 1 && conf.rx_adv_conf.rss_conf.rss_hf != 0) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		if (options->rss == HAIRPIN_RSS_SYMMETRIC && (length = symmetric_key(device, key)) > 0) {
			conf.rx_adv_conf.rss_conf.rss_key = key;
			conf.rx_adv_conf.rss_conf.rss_key_len = length;
		}
	} else {
		conf.rx_adv_conf.rss_conf.rss_hf = 0;
	}
	uint16_t queues = options->queues + options->hairpins;
	int error = rte_eth_dev_configure(port, queues, queues, &conf);
	/* Half of the address alone is the rarest of abilities, and not announced: it is tried. */
	if (error != 0 && conf.rx_adv_conf.rss_conf.rss_hf != 0 && is_partial(options->rss)) {
		conf.rx_adv_conf.rss_conf.rss_hf &= TRANSPORTS;
		error = rte_eth_dev_configure(port, queues, queues, &conf);
	}
	return error;
}

/* Some drivers take the key with the configuration, some only afterwards, some never: what holds is asked for later. */
static void update_key(uint16_t port, const struct rte_eth_dev_info *device)
{
	uint8_t key[KEY_MAX];
	struct rte_eth_rss_conf conf = { .rss_key = NULL };
	uint8_t length = symmetric_key(device, key);

	if (length == 0 || rte_eth_dev_rss_hash_conf_get(port, &conf) != 0)
		return;
	conf.rss_key = key;
	conf.rss_key_len = length;
	rte_eth_dev_rss_hash_update(port, &conf);
}

/* Configures and starts a port that was found. Returns 0 or a positive errno, and in `what` what failed. */
static int start(uint16_t port, const struct hairpin_port_options *options, struct rte_mempool *pool, const char **what)
{
	struct rte_eth_dev_info device;
	uint16_t rx = options->rx_descriptors, tx = options->tx_descriptors;
	int error;

	*what = "asking what the device can do";
	if ((error = rte_eth_dev_info_get(port, &device)) != 0)
		return -error;
	*what = "taking that many queues";
	if (options->queues == 0 || options->queues > device.max_rx_queues || options->queues > device.max_tx_queues)
		return EINVAL;
	*what = "the MTU asked for needs mbufs with more room";
	if (options->mtu + OVERHEAD > rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM)
		return EINVAL;
	*what = "configuring it";
	if ((error = configure(port, options, &device)) != 0)
		return -error;
	*what = "setting the number of descriptors";
	if ((error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx)) != 0)
		return -error;
	int socket = rte_eth_dev_socket_id(port);
	for (uint16_t queue = 0; queue < options->queues; queue++) {
		*what = "setting up a receive queue";
		if ((error = rte_eth_rx_queue_setup(port, queue, rx, (unsigned int)socket, NULL, pool)) != 0)
			return -error;
		*what = "setting up a transmit queue";
		if ((error = rte_eth_tx_queue_setup(port, queue, tx, (unsigned int)socket, NULL)) != 0)
			return -error;
	}
	*what = "tying a receive queue to a transmit queue (hairpin)";
	for (uint16_t queue = options->queues; queue < options->queues + options->hairpins; queue++)
		if ((error = hairpin_flow_hairpin_queue(port, queue, rx)) != 0)
			return error;
	/* Virtual devices have no MTU of their own to set, or refuse: what holds is asked for afterwards. */
	if (options->mtu != 0)
		rte_eth_dev_set_mtu(port, options->mtu);
	*what = "starting it";
	if (!options->waits && (error = rte_eth_dev_start(port)) != 0)
		return -error;
	if (options->queues > 1 && options->rss == HAIRPIN_RSS_SYMMETRIC)
		update_key(port, &device);
	if (options->promiscuous)
		rte_eth_promiscuous_enable(port);
	return 0;
}

/* Stops and closes a port, and takes its device away unless that has other ports. */
void hairpin_port_close(uint16_t port)
{
	struct rte_eth_dev_info device;
	int known = rte_eth_dev_info_get(port, &device) == 0 && device.device != NULL;
	uint16_t other;

	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	__atomic_store_n(&is_open[port], 0, __ATOMIC_RELEASE);
	if (!known)
		return;
	RTE_ETH_FOREACH_DEV_OF(other, device.device)
		return;
	rte_dev_remove(device.device);
}

static void pass(void *passed)
{
	__atomic_store_n((int *)passed, 1, __ATOMIC_RELEASE);
}

/*
 * Waits until drivers are done with the events they were at (a peer of memif's that has gone): these are handled on EAL's own
 * thread one after the other, and so are alarms. 0 or a positive errno; ETIMEDOUT: not within so many microseconds.
 */
int hairpin_events_pass(uint32_t patience)
{
	const uint32_t step = 200;
	int passed = 0;
	int error = rte_eal_alarm_set(1, pass, &passed);

	if (error != 0)
		return -error;
	for (uint32_t waited = 0; !__atomic_load_n(&passed, __ATOMIC_ACQUIRE); waited += step) {
		if (waited >= patience) {
			/* Whether it has just run or never will: no thread has the address any more. */
			rte_eal_alarm_cancel(pass, &passed);
			return __atomic_load_n(&passed, __ATOMIC_ACQUIRE) ? 0 : ETIMEDOUT;
		}
		usleep(step);
	}
	return 0;
}

/* Starts a port, stopped before if it was not. 0 or a positive errno. */
int hairpin_port_restart(uint16_t port)
{
	int error = rte_eth_dev_stop(port);

	return -(error != 0 ? error : rte_eth_dev_start(port));
}

int hairpin_port_open(const char *device, const struct hairpin_port_options *options, struct rte_mempool *pool,
		      uint16_t *port, const char **what)
{
	*what = "finding the device";
	/* Found already: PCI devices are when EAL starts. */
	if (find_port(device, port) != 0) {
		int error = rte_dev_probe(device);
		if (error != 0)
			return error < 0 ? -error : error;
		if (find_port(device, port) != 0)
			return ENODEV;
	}
	*what = "it is open already";
	if (__atomic_exchange_n(&is_open[*port], 1, __ATOMIC_ACQUIRE))
		return EBUSY;
	int error = start(*port, options, pool, what);
	if (error != 0)
		hairpin_port_close(*port);
	return error;
}

/* Two ports that are each other's wire. `rings`: queues from the first to the second, then the other way. */
int hairpin_port_pair(const char *const names[2], uint16_t queues, uint32_t size,
		      const struct hairpin_port_options *options, struct rte_mempool *pool, uint16_t ports[2],
		      struct rte_ring **rings, const char **what)
{
	int error = 0, opened = 0;
	unsigned int made = 0;

	*what = "making the rings between the two";
	rte_errno = 0;
	for (; made < 2u * queues; made++) {
		char name[RTE_RING_NAMESIZE];
		snprintf(name, sizeof(name), "%s-%u", names[made / queues], made % queues);
		rings[made] = rte_ring_create(name, size, SOCKET_ID_ANY, RING_F_EXACT_SZ | RING_F_SP_ENQ | RING_F_SC_DEQ);
		if (rings[made] == NULL) {
			error = last_error();
			goto failed;
		}
	}
	for (; opened < 2; opened++) {
		struct rte_ring **out = rings + opened * queues, **in = rings + (1 - opened) * queues;
		*what = "making a port of rings";
		int port = rte_eth_from_rings(names[opened], in, queues, out, queues, 0);
		if (port < 0) {
			error = last_error();
			goto failed;
		}
		ports[opened] = (uint16_t)port;
		__atomic_store_n(&is_open[port], 1, __ATOMIC_RELEASE);
		if ((error = start(ports[opened], options, pool, what)) != 0) {
			opened++;
			goto failed;
		}
	}
	return 0;
failed:
	while (opened > 0)
		hairpin_port_close(ports[--opened]);
	while (made > 0)
		rte_ring_free(rings[--made]);
	return error;
}

/* Both ports are closed: what is still under way between them goes back to its pool. */
void hairpin_port_wire_free(struct rte_ring *ring)
{
	void *raw;

	while (rte_ring_dequeue(ring, &raw) == 0)
		rte_pktmbuf_free(raw);
	rte_ring_free(ring);
}

/* The MTU of a network interface of the kernel's, in this thread's namespace; 0: there is no such one. */
static uint16_t interface_mtu(unsigned int index)
{
	struct ifreq request = { 0 };
	int mtu = 0;

	if (index == 0 || if_indextoname(index, request.ifr_name) == NULL)
		return 0;
	int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (descriptor < 0)
		return 0;
	if (ioctl(descriptor, SIOCGIFMTU, &request) == 0)
		mtu = request.ifr_mtu;
	close(descriptor);
	return mtu > 0 && mtu <= UINT16_MAX ? (uint16_t)mtu : 0;
}

int hairpin_port_info(uint16_t port, struct hairpin_port_info *info)
{
	struct rte_eth_dev_info device;
	struct rte_ether_addr mac;
	uint8_t key[KEY_MAX] = { 0 };
	struct rte_eth_rss_conf rss = { .rss_key = key, .rss_key_len = sizeof(key) };
	struct rte_eth_conf conf;
	char name[RTE_ETH_NAME_MAX_LEN] = "";
	int error;

	memset(info, 0, sizeof(*info));
	if ((error = rte_eth_dev_info_get(port, &device)) != 0 || (error = rte_eth_macaddr_get(port, &mac)) != 0)
		return -error;
	rte_eth_dev_get_name_by_port(port, name);
	snprintf(info->name, sizeof(info->name), "%.63s", name);
	snprintf(info->driver, sizeof(info->driver), "%.31s", device.driver_name != NULL ? device.driver_name : "");
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	rte_eth_dev_get_mtu(port, &info->mtu);
	/* Drivers that stand on an interface say what is usual, whatever that has. */
	uint16_t beneath = interface_mtu(device.if_index);
	if (beneath != 0 && beneath < info->mtu)
		info->mtu = beneath;
	info->queues = device.nb_rx_queues;
	info->max_queues = RTE_MIN(device.max_rx_queues, device.max_tx_queues);
	info->numa_node = rte_eth_dev_socket_id(port);
	info->rss_types = device.flow_type_rss_offloads;
	info->rss_key_length = device.hash_key_size;
	if (rte_eth_dev_conf_get(port, &conf) == 0) {
		info->checksums = (conf.txmode.offloads & RTE_ETH_TX_OFFLOAD_TCP_CKSUM) != 0;
		info->rss_set = conf.rxmode.mq_mode & RTE_ETH_MQ_RX_RSS_FLAG ? conf.rx_adv_conf.rss_conf.rss_hf : 0;
	}
	uint8_t ours[KEY_MAX], length = symmetric_key(&device, ours);
	info->rss_key_symmetric =
		length > 0 && rte_eth_dev_rss_hash_conf_get(port, &rss) == 0 && memcmp(key, ours, length) == 0;
	struct rte_eth_rxq_info rx;
	struct rte_eth_txq_info tx;
	info->rx_descriptors = rte_eth_rx_queue_info_get(port, 0, &rx) == 0 ? rx.nb_desc : 0;
	info->tx_descriptors = rte_eth_tx_queue_info_get(port, 0, &tx) == 0 ? tx.nb_desc : 0;
	return 0;
}

int hairpin_port_is_up(uint16_t port)
{
	struct rte_eth_link link;

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

int hairpin_port_statistics(uint16_t port, struct hairpin_port_statistics *statistics)
{
	struct rte_eth_stats stats;
	int error = rte_eth_stats_get(port, &stats);

	if (error != 0)
		return -error;
	*statistics = (struct hairpin_port_statistics){
		.received = stats.ipackets, .transmitted = stats.opackets,
		.received_bytes = stats.ibytes, .transmitted_bytes = stats.obytes,
		.missed = stats.imissed, .receive_errors = stats.ierrors,
		.transmit_errors = stats.oerrors, .no_mbuf = stats.rx_nombuf,
	};
	return 0;
}

uint32_t hairpin_queue_receive(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint32_t count)
{
	return rte_eth_rx_burst(port, queue, frames, (uint16_t)RTE_MIN(count, (uint32_t)UINT16_MAX));
}

uint32_t hairpin_queue_transmit(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint32_t count)
{
	return rte_eth_tx_burst(port, queue, frames, (uint16_t)RTE_MIN(count, (uint32_t)UINT16_MAX));
}
