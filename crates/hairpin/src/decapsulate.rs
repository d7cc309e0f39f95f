//! `hairpin decapsulate`: takes the outer headers off what a balancer sends to this backend, where the kernel has no tunnels.

use crate::config::network;
use anyhow::{Context, Result, ensure};
use clap::Args;
use hairpin_core::flow::Address;
use hairpin_core::l7::config::Network;
use hairpin_linux::decapsulate::{Decapsulator, DecapsulatorOptions, FATES};
use hairpin_linux::device::Interface;
use hairpin_linux::network::addresses;
use hairpin_linux::programs::AttachMode;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::IpAddr;

/// The packets to unwrap.
#[derive(Args, Debug)]
pub(crate) struct DecapsulateArgs {
    /// The interface that wrapped packets arrive on.
    #[arg(short, long, value_name = "NAME")]
    interface: String,
    /// The destinations of the packets inside: VIPs of this host, or networks of them.
    #[arg(long, required = true, value_name = "NETWORK,...", value_delimiter = ',', value_parser = network)]
    vip: Vec<Network>,
    /// The addresses that wrapped packets go to; those of the interface, unless given.
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// The networks that wrapped packets come from; any, unless given.
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',', value_parser = network)]
    from: Vec<Network>,
    /// The UDP port of GUE packets.
    #[arg(long, value_name = "PORT", default_value_t = 6080, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

/// Unwraps until a signal ends it.
///
/// # Errors
/// There is no such interface, it has no address, or the program cannot be loaded or attached.
pub(crate) fn run(args: &DecapsulateArgs) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let interface = Interface::by_name(&args.interface)
        .with_context(|| format!("cannot use interface {}; `ip link` lists those there are", args.interface))?;
    ensure!(interface.ethernet, "interface {} has no Ethernet headers: name one that has", interface.name);
    let own = match args.address.is_empty() {
        true => own_addresses(&interface)?,
        false => args.address.clone(),
    };
    let senders = match args.from.is_empty() {
        true => vec![Network { address: Address([0; 16]), prefix: 0 }],
        false => args.from.clone(),
    };
    let host = |&address: &IpAddr| Network { address: Address::from(address), prefix: 128 };
    let options = DecapsulatorOptions {
        addresses: own.iter().map(host).collect(),
        senders,
        vips: args.vip.clone(),
        port: args.port,
    };
    let decapsulator = Decapsulator::attach(&interface, AttachMode::Auto, &options)
        .with_context(|| format!("cannot unwrap packets of interface {}", interface.name))?;
    let from = if args.from.is_empty() { "any sender".to_string() } else { list(args.from.iter().map(said)) };
    eprintln!(
        "unwraps IP in IP, and GUE to port {}, on {}: from {from} to {}, for {}",
        args.port,
        interface.name,
        list(own.iter().map(IpAddr::to_string)),
        list(args.vip.iter().map(said))
    );
    signals.forever().next();
    for (fate, count) in FATES.iter().zip(decapsulator.fates()?).filter(|(_, count)| *count > 0) {
        eprintln!("{count} packets: {fate}");
    }
    decapsulator.detach()
}

/// The addresses of the interface, but those that routers do not forward packets to.
fn own_addresses(interface: &Interface) -> Result<Vec<IpAddr>> {
    let all = addresses().context("cannot list this host's addresses")?;
    let of_it = all.into_iter().filter(|own| own.interface == interface.index).map(|own| own.address);
    let found: Vec<IpAddr> =
        of_it.filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())).collect();
    ensure!(
        !found.is_empty(),
        "interface {} has no address; name the one that wrapped packets go to with --address",
        interface.name
    );
    Ok(found)
}

/// A network as it is written.
fn said(network: &Network) -> String {
    let address = IpAddr::from(network.address);
    let bits = if address.is_ipv4() { network.prefix.saturating_sub(96) } else { network.prefix };
    format!("{address}/{bits}")
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}
