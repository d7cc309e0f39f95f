//! The network: client, balancer, four servers and a flooder, joined by veth pairs.
//!
//! ```text
//!                                        10.0.1.0/24   server1 10.0.1.2  fd00:1::2
//!  client ---- 10.0.0.0/24 ---- balancer 10.0.2.0/24   server2 10.0.2.2  fd00:2::2
//!  10.0.0.2    fd00:0::/64         |     10.0.3.0/24   server3 10.0.3.2  fd00:3::2
//!  fd00::2                         |     10.0.4.0/24   server4 10.0.4.2  fd00:4::2
//!                   flooder 10.0.9.2     VIP 10.0.100.1, fd00:100::1 (on the balancer's loopback device)
//! ```
//!
//! Everybody's default route is the balancer, which forwards. With routers, one stands between client and balancer and
//! one between balancer and server1; their outer links can be made narrow.

use crate::command;
use crate::namespace::{Namespace, Scratch, instance_of, unique_prefix};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How many servers there are.
pub const SERVERS: usize = 4;

/// The offloads of the virtual network cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cards {
    /// Segmentation and checksums are left to the card: packets up to 64 KiB cross the links whole.
    #[default]
    Gso,
    /// Neither: packets are at most as large as the link and carry finished checksums, as on a wire.
    Wire,
    /// As `Wire`, and every card polls (veth does with GRO), as frames that XDP redirects to its other end need.
    Xdp,
}

impl Cards {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Cards::Gso => "gso",
            Cards::Wire => "wire",
            Cards::Xdp => "xdp",
        }
    }
}

/// The options of a network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyOptions {
    /// The offloads of the virtual network cards.
    pub cards: Cards,
    /// Whether a router stands between client and balancer, and one between balancer and server1.
    pub routers: bool,
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The other one.
    pub fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

/// The address of host `host` in network `network` (0: the client's, 1 to 4: the servers', 9: the flooder's).
fn address(family: Family, network: u16, host: u16) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, network as u8, host as u8).into(),
        // The network's number is written, not meant, in decimal: network 100 is fd00:100::.
        Family::V6 => {
            let digits = network / 100 * 0x100 + network / 10 % 10 * 0x10 + network % 10;
            Ipv6Addr::new(0xfd00, digits, 0, 0, 0, 0, 0, host).into()
        }
    }
}

/// The client's address.
pub fn client_address(family: Family) -> IpAddr {
    address(family, 0, 2)
}

/// The balancer's own address towards the client.
pub fn balancer_address(family: Family) -> IpAddr {
    address(family, 0, 1)
}

/// The address of a server, 1 to [`SERVERS`].
pub fn server_address(family: Family, server: usize) -> IpAddr {
    address(family, server as u16, 2)
}

/// The address clients connect to.
pub fn vip(family: Family) -> IpAddr {
    address(family, 100, 1)
}

/// The source address full NAT uses towards the servers.
pub fn pool_address(family: Family) -> IpAddr {
    address(family, 101, 1)
}

/// `address:port`, with brackets where the family needs them.
pub fn end(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// The network. Everything in it disappears when it is dropped.
#[derive(Debug)]
pub struct Topology {
    /// The client. (Fields are dropped in order: the files go last.)
    pub client: Namespace,
    /// The machine under test.
    pub balancer: Namespace,
    /// The servers; the first is server1.
    pub servers: Vec<Namespace>,
    /// Sends unsolicited frames; on the balancer's interface `flood0`.
    pub flooder: Namespace,
    /// The router at the client and the router at server1, if they were asked for.
    pub routers: Option<(Namespace, Namespace)>,
    /// Configurations, logs and pages of this network.
    pub scratch: Scratch,
    /// Its name, a prefix of all its namespaces.
    pub name: String,
    /// The offloads of its cards.
    pub cards: Cards,
}

impl Topology {
    /// Makes the network. Fails if not root.
    pub fn create(options: TopologyOptions) -> Result<Topology> {
        if !nix::unistd::geteuid().is_root() {
            bail!("network namespaces need root: run it with sudo");
        }
        let name = unique_prefix();
        let namespace = |role: &str| Namespace::create(&format!("{name}-{role}"));
        let topology = Topology {
            client: namespace("client")?,
            balancer: namespace("balancer")?,
            servers: (1..=SERVERS).map(|i| namespace(&format!("server{i}"))).collect::<Result<_>>()?,
            flooder: namespace("flooder")?,
            routers: if options.routers { Some((namespace("router1")?, namespace("router2")?)) } else { None },
            scratch: Scratch::create(&name)?,
            name,
            cards: options.cards,
        };
        for namespace in topology.namespaces() {
            namespace.script(SYSCTLS)?;
        }
        topology.links()?;
        if options.cards != Cards::Gso {
            let gro = if options.cards == Cards::Xdp { "on" } else { "off" };
            for namespace in topology.namespaces() {
                for interface in namespace.interfaces()?.iter().filter(|interface| *interface != "lo") {
                    let mut ethtool = namespace.command("ethtool");
                    ethtool.args(["-K", interface, "tso", "off", "gso", "off", "gro", gro, "tx", "off", "sg", "off"]);
                    command::output(&mut ethtool)?;
                }
            }
        }
        Ok(topology)
    }

    /// A name for a Hairpin in it.
    pub fn instance(&self) -> String {
        instance_of(&self.name)
    }

    /// All of its namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let routers = self.routers.iter().flat_map(|(client, server)| [client, server]);
        [&self.client, &self.balancer, &self.flooder].into_iter().chain(&self.servers).chain(routers)
    }

    /// The balancer's interfaces that carry traffic, without the flooder's.
    pub fn balancer_interfaces(&self) -> Vec<String> {
        std::iter::once("client0".to_owned()).chain((1..=SERVERS).map(|i| format!("server{i}"))).collect()
    }

    /// Sets the MTU of an interface and forgets path MTUs learnt everywhere.
    pub fn set_mtu(&self, namespace: &Namespace, interface: &str, mtu: u16) -> Result<()> {
        namespace.script(&format!("ip link set dev {interface} mtu {mtu}\n"))?;
        self.forget_path_mtus()
    }

    /// Takes the balancer's interfaces away from its kernel, which keeps receiving what a packet socket receives: no
    /// addresses, no IPv6, no forwarding. For a Hairpin that drives them itself.
    pub fn release_interfaces(&self) -> Result<()> {
        self.balancer.script(
            "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0 net.ipv6.conf.all.disable_ipv6=1\n\
             for interface in $(ls /proc/sys/net/ipv4/conf); do\n\
             case $interface in all|default) ;; *) ip address flush dev $interface ;; esac\ndone\n",
        )?;
        Ok(())
    }

    /// The balancer's interfaces that carry traffic, each with the addresses it has there.
    pub fn balancer_ports(&self) -> Vec<(String, [String; 2])> {
        let addresses = |network: u16| {
            let [v4, v6] = address_pair(network, 1);
            [format!("{v4}/24"), format!("{v6}/64")]
        };
        (0..).zip(self.balancer_interfaces()).map(|(network, name)| (name, addresses(network))).collect()
    }

    /// Makes every host forget the path MTUs it has learnt.
    pub fn forget_path_mtus(&self) -> Result<()> {
        for namespace in self.namespaces() {
            namespace.script("ip route flush cache\nip -6 route flush cache\n")?;
        }
        Ok(())
    }

    fn links(&self) -> Result<()> {
        for namespace in std::iter::once(&self.balancer).chain(self.routers.iter().flat_map(|(a, b)| [a, b])) {
            namespace.script("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n")?;
        }
        let vips: String = [Family::V4, Family::V6]
            .map(|family| format!("ip address add {}/{} dev lo\n", vip(family), bits(family)))
            .concat();
        self.balancer.script(&vips)?;
        self.link(9, side(&self.balancer, "flood0"), side(&self.flooder, "eth0"))?;
        for (i, server) in (1..).zip(&self.servers) {
            let interface = format!("server{i}");
            match &self.routers {
                Some((_, router)) if i == 1 => {
                    self.link(31, side(router, "outer"), side(&self.balancer, &interface))?;
                    self.link(1, side(router, "inner"), side(server, "eth0"))?;
                    self.behind(1, address_pair(31, 1))?;
                }
                _ => self.link(i, side(&self.balancer, &interface), side(server, "eth0"))?,
            }
        }
        match &self.routers {
            Some((router, _)) => {
                self.link(30, side(router, "outer"), side(&self.balancer, "client0"))?;
                self.link(0, side(router, "inner"), side(&self.client, "eth0"))?;
                self.behind(0, address_pair(30, 1))
            }
            None => self.link(0, side(&self.balancer, "client0"), side(&self.client, "eth0")),
        }
    }

    /// Joins two namespaces by a veth pair: network `network`, `gateway` host 1, `host` host 2 with its default route
    /// (the balancer, which has none, is `host` towards a router, and the router then has its default route there).
    fn link(&self, network: u16, gateway: TopologySide<'_>, host: TopologySide<'_>) -> Result<()> {
        gateway.namespace.script(&format!(
            "ip link add {} type veth peer name {} netns {}\n",
            gateway.interface,
            host.interface,
            host.namespace.name()
        ))?;
        let towards_balancer = host.namespace.name() == self.balancer.name();
        for (side, number) in [(&gateway, 1), (&host, 2)] {
            let mut lines = String::new();
            for family in [Family::V4, Family::V6] {
                let bits = if family == Family::V4 { 24 } else { 64 };
                let own = address(family, network, number);
                writeln!(lines, "ip address add {own}/{bits} dev {}", side.interface)?;
            }
            writeln!(lines, "ip link set dev {} up", side.interface)?;
            for family in [Family::V4, Family::V6] {
                if (number == 2) != towards_balancer {
                    let other = address(family, network, 3 - number);
                    let option = if family == Family::V4 { "-4" } else { "-6" };
                    writeln!(lines, "ip {option} route add default via {other}")?;
                }
            }
            side.namespace.script(&lines)?;
        }
        Ok(())
    }

    /// Tells the balancer that `network` is behind a router.
    fn behind(&self, network: u16, router: [IpAddr; 2]) -> Result<()> {
        let [v4, v6] = router;
        let (net4, net6) = (address(Family::V4, network, 0), address(Family::V6, network, 0));
        self.balancer.script(&format!("ip route add {net4}/24 via {v4}\nip -6 route add {net6}/64 via {v6}\n"))?;
        Ok(())
    }
}

struct TopologySide<'a> {
    namespace: &'a Namespace,
    interface: &'a str,
}

fn side<'a>(namespace: &'a Namespace, interface: &'a str) -> TopologySide<'a> {
    TopologySide { namespace, interface }
}

fn address_pair(network: u16, host: u16) -> [IpAddr; 2] {
    [address(Family::V4, network, host), address(Family::V6, network, host)]
}

fn bits(family: Family) -> u8 {
    if family == Family::V4 { 32 } else { 128 }
}

/// No duplicate address detection (addresses work at once), no filter by reverse path (routes are not symmetric under
/// full NAT), and ports enough for a benchmark of new connections. Congestion control is Debian's, not the machine's:
/// under BBR, which a namespace takes over from it, pacing by timers costs the ends more than anything a balancer does
/// (Reno where the machine does not allow CUBIC: on links without loss they are the same).
pub const SYSCTLS: &str = "\
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_ra=0
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
sysctl -qw net.ipv4.ip_local_port_range='30000 65535' net.ipv4.tcp_tw_reuse=1 net.core.somaxconn=16384
sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null || sysctl -qw net.ipv4.tcp_congestion_control=reno
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_alike_in_both_families() {
        assert_eq!(server_address(Family::V4, 3).to_string(), "10.0.3.2");
        assert_eq!(server_address(Family::V6, 3).to_string(), "fd00:3::2");
        assert_eq!(vip(Family::V4).to_string(), "10.0.100.1");
        assert_eq!(vip(Family::V6).to_string(), "fd00:100::1");
        assert_eq!(end(pool_address(Family::V6), 80), "[fd00:101::1]:80");
        assert_eq!(client_address(Family::V6).to_string(), "fd00::2");
    }
}
