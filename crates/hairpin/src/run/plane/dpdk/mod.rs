//! The dpdk plane: ports that this process drives itself, a link layer around each worker's queues, and where the
//! ports have one a flow engine ([`offload`]).
//!
//! Each port has a pair of queues for each worker, as far as its device has them. Rules of the ports bring packets to their
//! worker's, where they can be had ([`steer`]). Whatever queue a packet comes on, the worker that takes it from there works
//! out whose connection it is ([`spread`]) and hands it over if it is not its own.
//! Workers without queues send through one that has some.

mod device;
mod engine;
mod offload;
mod port_access;
mod secrets;
mod spread;
mod steer;
#[cfg(test)]
mod testing;

use super::super::worker_pool::{TakenOver, WorkerMemory, WorkerParameters, WorkerPool, WorkerResources};
use super::super::{SupervisorMessage, eal, host, log, tell};
use super::{EngineWords, ForwardingTable, MARKS, NO_ENGINE, Plane, RuleQueries, limits};
use crate::config::{DpdkSettings, Pages, PortSettings, Settings};
use crate::events::EventKind;
use crate::status::{BufferStatus, PortStatus};
use ahash::RandomState;
use anyhow::{Context, Result};
use device::PortDevice;
use hairpin_core::config::{Backend, Forwarding, Service, ServiceState, Snapshot};
use hairpin_core::flow::Steering;
use hairpin_core::keys::Secret;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::link::{DirectBackend, LinkOptions, LinkPlan, LinkRoute, Neighbours, PortAddresses};
use hairpin_core::offload::Choice;
use hairpin_core::worker::Known;
use hairpin_dpdk::{Eal, EalOptions, EalPages, MbufPool, PoolOptions, Port, PortOptions, PortStatistics, Rss};
use hairpin_linux::cpu;
use offload::PortEngine;
use port_access::PortLinks;
use rustix::thread::CapabilitySet;
use secrets::Secrets;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use steer::Steer;

/// Packet buffers beyond what the ports' rings hold, twice.
const MBUFS_SPARE: u32 = 8192;
/// Packet buffers that each worker keeps at hand.
const MBUFS_CACHED: u16 = 256;
/// How long the start waits for the server of a port that is a client.
const GREETING: Duration = Duration::from_millis(500);
/// Bytes of an Ethernet header with two VLAN tags.
const ETHERNET_BYTES: u16 = 14 + 8;
/// Bytes of the smallest packet buffer: what drivers expect.
const DATA_ROOM_MIN: u16 = 2048;

/// Ports, and what their workers share.
pub(crate) struct DpdkPlane {
    /// Dropped before the ports, as is what follows: their rules are in them.
    engine: PortEngine,
    steer: Steer,
    settings: DpdkSettings,
    eal: Eal,
    pool: MbufPool,
    ports: Vec<Port>,
    /// Whether each port's link was up when it was last looked at.
    links: Arc<PortLinks>,
    /// The counters of each port at the last query.
    counted: RefCell<Vec<PortStatistics>>,
    /// Workers that have a queue of every port.
    queues: u16,
    forwarding_table: Arc<ForwardingTable>,
    neighbours: Arc<Neighbours>,
    secrets: Secrets,
}

impl DpdkPlane {
    /// Starts DPDK, takes memory, opens the ports.
    ///
    /// # Errors
    /// With what failed and what to do about it. Everything opened is closed again.
    pub(crate) fn make(
        all: &Settings,
        settings: &DpdkSettings,
        snapshot: &Snapshot,
        steering: Steering,
    ) -> Result<DpdkPlane> {
        let pages = match settings.pages {
            Pages::Auto => EalPages::Auto,
            Pages::Huge => EalPages::Huge,
            Pages::None => EalPages::None,
        };
        let pci = settings.ports.iter().any(|port| is_pci(&port.device));
        let options = EalOptions { memory_mib: settings.memory_mib, pages, pci };
        let eal = eal::started(options).with_context(|| match settings.pages {
            Pages::Huge => "is there a reserve of hugepages (sysctl -w vm.nr_hugepages=1024)? Or use pages = \"auto\"",
            Pages::Auto | Pages::None => "the dpdk plane needs it",
        })?;
        let pool = pool(&eal, settings, steering.workers)?;
        let opened = open_all(&eal, &settings.ports, steering.workers, &pool)?;
        let forwarding_table = Arc::new(forwarding_table(settings, opened.iter().map(|(port, _)| port), snapshot)?);
        let neighbours = Arc::new(Neighbours::new(limits::NEIGHBOURS_MAX, host::secret::<4>()?));
        let (engine, ports) = PortEngine::probe((&eal, all), opened, &pool, (&forwarding_table.plan, &neighbours))?;
        let queues = ports.iter().map(Port::queues).min().unwrap_or(1).clamp(1, steering.workers);
        let steer = Steer::probe(settings.port_rules, (steering, queues), &ports, snapshot, &engine);
        let links = Arc::new(PortLinks::of(&ports));
        let counted = RefCell::new(vec![PortStatistics::default(); ports.len()]);
        let secrets = Secrets::draw(cpu::now())?;
        Ok(DpdkPlane {
            engine,
            steer,
            settings: settings.clone(),
            eal,
            pool,
            ports,
            links,
            counted,
            queues,
            forwarding_table,
            neighbours,
            secrets,
        })
    }

    /// By what workers are told apart.
    pub(crate) fn steering(&self) -> Steering {
        self.steer.steering()
    }

    /// The counters of a port. Without a peer memif's driver says that it was nothing, and knows better when it has one.
    fn counted(&self, number: usize, port: &Port) -> PortStatistics {
        let counted = port.statistics();
        let mut known = self.counted.borrow_mut();
        if port.driver() != "net_memif" || port.is_up() {
            known[number] = counted;
        }
        known[number]
    }
}

impl Plane for DpdkPlane {
    fn engine(&self) -> &'static str {
        self.engine.name()
    }

    fn engine_words(&self) -> EngineWords {
        self.engine.words()
    }

    fn rules_max(&self) -> [u32; 2] {
        [self.engine.rules_max(); 2]
    }

    fn rule_reader(&self) -> Option<Arc<dyn RuleQueries>> {
        self.engine.reader()
    }

    fn totals(&self) -> Result<Vec<Volume>> {
        Ok(self.engine.totals())
    }

    fn begin_backends(&mut self, numbers: &[u16]) -> Result<()> {
        self.engine.begin_backends(numbers);
        Ok(())
    }

    fn rights(&self) -> CapabilitySet {
        // Of the drivers' virtual devices: packet sockets, interfaces' settings, XDP programs, locked memory.
        CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF | CapabilitySet::IPC_LOCK
    }

    fn configure(&mut self, _: &Snapshot) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self) -> Result<()> {
        for (number, (port, settings)) in self.ports.iter().zip(&self.settings.ports).enumerate() {
            // A server that is there answers within moments.
            let since = Instant::now();
            while port.is_client() && !port.seek() && since.elapsed() < GREETING {
                std::thread::sleep(Duration::from_millis(5));
            }
            let up = port.is_up();
            self.links.set(number, up);
            if !up {
                let asks = if port.is_client() { "; its server is asked every second" } else { "" };
                tell(EventKind::Link, &format!("warning: the link of {} is down{asks}", settings.device));
            }
            // Its driver spreads over all that it was told to have, whatever is used of it.
            if port.driver() == "net_af_packet" && port.queues() < port.queues_max() {
                log(&format!(
                    "warning: {} has {} queues, of which only the first {} can be used here: what comes into others is lost; \
                     lower qpairs",
                    settings.device,
                    port.queues_max(),
                    port.queues()
                ));
            }
            if port.mtu() < settings.mtu {
                log(&format!(
                    "warning: {} takes {} bytes of IP packet, not {}",
                    settings.device,
                    port.mtu(),
                    settings.mtu
                ));
            }
        }
        Ok(())
    }

    fn worker_pool(
        &mut self,
        parameters: &WorkerParameters,
        memory: WorkerMemory,
        messages: &Sender<SupervisorMessage>,
    ) -> Result<(WorkerPool, TakenOver)> {
        let steering = self.steering();
        let accesses = port_access::of_workers(
            &self.eal,
            (&self.ports, &self.links),
            &self.pool,
            (self.queues, steering.workers),
        )?;
        let spreads = spread::of_workers(&self.eal, &self.forwarding_table, steering)?;
        let (eal, idle) = (self.eal, self.settings.idle);
        // The engine takes everything out of its ports when it begins.
        self.steer.take_out();
        let engines = self.engine.start(eal, &self.ports, &self.settings.ports, steering.workers);
        self.steer.install(&self.ports, &self.engine);
        if steering.workers > 1 {
            log(&format!("steering: {}", self.steer.words()));
        }
        let marks = self.engine.name() == MARKS;
        // A policy has nothing to say where there is nothing to hand connections to.
        let mut parameters = parameters.clone();
        if self.engine.name() == NO_ENGINE {
            parameters.policy = Choice::Never;
        }
        let resources = accesses.into_iter().zip(spreads).zip(engines).map(|((access, spread), engine)| {
            let (forwarding_table, neighbours) = (Arc::clone(&self.forwarding_table), Arc::clone(&self.neighbours));
            WorkerResources {
                open: move || PortDevice::open(eal, access, spread, (&forwarding_table, neighbours), idle),
                engine,
                publish: |_| {},
                heartbeat: |_| {},
                marks,
            }
        });
        self.renew_cookies(parameters.snapshot.keys.first())?;
        WorkerPool::make(&parameters, memory, resources.collect(), (Known::default(), self.cookies()), messages)
    }

    fn forwarding_tables(&mut self, snapshot: &Snapshot) -> Result<Option<[Arc<ForwardingTable>; 2]>> {
        let forwarding_table = Arc::new(forwarding_table(&self.settings, self.ports.iter(), snapshot)?);
        let plan = Arc::new(self.forwarding_table.plan.with_direct(&direct_backends(snapshot)));
        let before = ForwardingTable { plan, services: self.forwarding_table.services.clone() };
        self.forwarding_table = Arc::clone(&forwarding_table);
        self.engine.set_plan(&forwarding_table.plan);
        self.steer.set_snapshot(snapshot);
        self.steer.install(&self.ports, &self.engine);
        self.neighbours.announce();
        Ok(Some([Arc::new(before), forwarding_table]))
    }

    fn open(&mut self) -> Result<()> {
        self.neighbours.announce();
        Ok(())
    }

    /// Announces our addresses on a link that has just come up, asks again for neighbours that could not answer, and logs it. Ports that
    /// are clients ask for their links.
    fn heartbeat(&self) {
        self.engine.heartbeat();
        for (number, (port, settings)) in self.ports.iter().zip(&self.settings.ports).enumerate() {
            let up = port.seek();
            if self.links.set(number, up) {
                let (level, word) = if up { ("", "up") } else { ("warning: ", "down") };
                tell(EventKind::Link, &format!("{level}the link of {} is {word}", settings.device));
                if up {
                    self.neighbours.announce();
                    self.neighbours.ask_anew(cpu::now(), number as u16);
                }
            }
        }
    }

    fn cookies(&self) -> Cookies {
        self.secrets.cookies()
    }

    fn renew_cookies(&self, shared: Option<Secret>) -> Result<()> {
        match shared {
            Some(secret) => self.secrets.share(&secret, cpu::now(), cpu::real_ahead()),
            None => self.secrets.renew(cpu::now())?,
        }
        Ok(())
    }

    fn buffers(&self) -> Option<BufferStatus> {
        Some(BufferStatus { in_use: self.pool.in_use(), max: self.pool.size(), bytes: self.pool.options().data_room })
    }

    fn ports(&self) -> Vec<PortStatus> {
        let steering = self.steer.words();
        let status = |(number, (port, settings)): (usize, (&Port, &PortSettings))| {
            let counted = self.counted(number, port);
            let (steering_rules, steering_rules_missing) = self.steer.of_port(number, port);
            PortStatus {
                device: settings.device.clone(),
                driver: port.driver().to_string(),
                mac: port.mac().map(|byte| format!("{byte:02x}")).join(":"),
                addresses: settings.addresses.iter().map(ToString::to_string).collect(),
                mtu: port.mtu(),
                up: port.is_up(),
                queues: port.queues(),
                spread: port.rss().to_string(),
                steering: steering.clone(),
                steering_rules,
                steering_rules_missing,
                rules: self.engine.of_port(number),
                received: counted.received,
                received_bytes: counted.received_bytes,
                transmitted: counted.transmitted,
                transmitted_bytes: counted.transmitted_bytes,
                missed: counted.missed,
                receive_errors: counted.receive_errors,
                transmit_errors: counted.transmit_errors,
                no_mbuf: counted.no_mbuf,
            }
        };
        self.ports.iter().zip(&self.settings.ports).enumerate().map(status).collect()
    }
}

/// Whether a device's name is a PCI address.
fn is_pci(device: &str) -> bool {
    device.split(',').next().is_some_and(|name| name.contains(':'))
}

/// The pool of packet buffers.
fn pool(eal: &Eal, settings: &DpdkSettings, workers: u16) -> Result<MbufPool> {
    let of_port = |port: &PortSettings| {
        let queues = u32::from(port.queues.unwrap_or(workers));
        queues * (u32::from(port.rx_descriptors) + u32::from(port.tx_descriptors))
    };
    let held: u32 = settings.ports.iter().map(of_port).sum();
    let mbufs = settings.mbufs.unwrap_or((2 * held + MBUFS_SPARE).next_power_of_two() - 1);
    let mtu = settings.ports.iter().map(|port| port.mtu).max().unwrap_or_default();
    let data_room = (mtu + ETHERNET_BYTES).next_multiple_of(64).max(DATA_ROOM_MIN);
    // Small pools: no more than two thirds of them may be kept by workers, says DPDK, and half a third is enough here.
    let cache = MBUFS_CACHED.min(u16::try_from(mbufs / 6).unwrap_or(MBUFS_CACHED));
    let options = PoolOptions { name: "frames".to_string(), mbufs, data_room, cache };
    MbufPool::create(eal, options).with_context(|| {
        format!(
            "no memory for {mbufs} packet buffers of {data_room} bytes: raise `memory` in [dpdk] ({} MiB) or the reserve \
             of hugepages, or lower `mbufs` or the ports' descriptors",
            settings.memory_mib
        )
    })
}

/// Opens the ports, all with as many queues as each of them has: a worker has one of every port or none, and what comes
/// into a queue that no worker has is lost.
fn open_all(eal: &Eal, settings: &[PortSettings], workers: u16, pool: &MbufPool) -> Result<Vec<(Port, PortOptions)>> {
    let mut queues = settings.iter().filter_map(|port| port.queues).chain([workers]).min().unwrap_or(1).max(1);
    let mut opened: Vec<Option<(Port, PortOptions)>> = settings.iter().map(|_| None).collect();
    // Clients come last: they begin to ask their servers at once, for all of their queues.
    for clients in [false, true] {
        for (place, port) in opened.iter_mut().zip(settings) {
            if options(port, queues).is_client() == clients {
                let (port, options) = place.insert(open(eal, port, queues, pool)?);
                queues = queues.min(port.queues().min(options.queues)).max(1);
            }
        }
        for (place, port) in opened.iter_mut().zip(settings) {
            if place.as_ref().is_some_and(|(_, options)| options.queues > queues) {
                *place = None;
                *place = Some(open(eal, port, queues, pool)?);
            }
        }
    }
    Ok(opened.into_iter().flatten().collect())
}

fn options(settings: &PortSettings, queues: u16) -> PortOptions {
    PortOptions {
        device: settings.device.clone(),
        queues,
        rx_descriptors: settings.rx_descriptors,
        tx_descriptors: settings.tx_descriptors,
        mtu: settings.mtu,
        promiscuous: settings.promiscuous,
        rss: if queues > 1 { Rss::Device } else { Rss::None },
    }
}

/// Opens a port with so many queues, or with one.
fn open(eal: &Eal, settings: &PortSettings, wanted: u16, pool: &MbufPool) -> Result<(Port, PortOptions)> {
    let try_with = |options: PortOptions| Port::open(eal, &options, pool).map(|port| (port, options));
    match try_with(options(settings, wanted)) {
        Ok(opened) => Ok(opened),
        // How many queues a device has is known once it is open, and some know only by refusing.
        Err(error) if settings.queues.is_none() && wanted > 1 => try_with(options(settings, 1)).map_err(|_| error),
        Err(error) => Err(error),
    }
    .with_context(|| match is_pci(&settings.device) {
        true => "cannot open a port (is it bound to vfio-pci, or of a driver that shares it with the kernel?)",
        false => "cannot open a port",
    })
}

/// The backends of direct server return.
fn direct_backends(snapshot: &Snapshot) -> Vec<DirectBackend> {
    let services = snapshot.services.iter().filter(|service| service.forwarding == Forwarding::Direct);
    let pairs = services.flat_map(|service| service.backends.iter().map(move |backend| (service, backend)));
    let of = |(service, backend): (&Service, &Backend)| DirectBackend {
        number: backend.number,
        address: backend.endpoint.address.into(),
        outer: service.outer,
    };
    pairs.map(of).collect()
}

/// Addresses and routes for what is balanced.
fn forwarding_table<'a>(
    settings: &DpdkSettings,
    ports: impl Iterator<Item = &'a Port>,
    snapshot: &Snapshot,
) -> Result<ForwardingTable> {
    let there = || snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
    let listening = || there().filter(|service| !service.kind.is_group());
    let vips = listening().map(|service| IpAddr::from(service.endpoint.address));
    let pool = snapshot.pool.addresses.iter().map(|address| IpAddr::from(*address));
    let local: BTreeSet<IpAddr> = vips.chain(pool).collect();
    let backends = there().flat_map(|service| &service.backends);
    let kept: BTreeSet<IpAddr> = backends.map(|backend| IpAddr::from(backend.endpoint.address)).collect();
    let options = LinkOptions {
        ports: settings.ports.iter().zip(ports).map(addresses).collect(),
        local: local.into_iter().collect(),
        routes: settings
            .routes
            .iter()
            .map(|route| LinkRoute {
                network: route.network.address,
                prefix: route.network.prefix,
                port: route.port as u16,
                gateway: Some(route.gateway),
            })
            .collect(),
        kept: kept.into_iter().collect(),
        direct: direct_backends(snapshot),
    };
    let plan = Arc::new(LinkPlan::new(&options).context("addresses and routes do not fit together")?);
    let ends = listening().map(|service| (service.endpoint, service.protocol));
    // A sender of packets does not choose what is in there, so no sender can make it slow.
    let mut services = std::collections::HashSet::with_hasher(RandomState::with_seed(0));
    services.extend(ends);
    Ok(ForwardingTable { plan, services })
}

fn addresses((settings, port): (&PortSettings, &Port)) -> PortAddresses {
    PortAddresses {
        mac: port.mac(),
        mtu: port.mtu().min(settings.mtu),
        networks: settings.addresses.iter().map(|network| (network.address, network.prefix)).collect(),
        gateways: settings.gateways.clone(),
    }
}
