//! Ports and their queues.
//!
//! Any device that DPDK has a driver for. What is to be known of the virtual ones (22.11):
//! - `net_af_packet0,iface=IF,qpairs=N`: an interface of the kernel's. The kernel must not leave checksums or
//!   segmentation to it: at the other end of a veth, `ethtool -K IF tx off`. A full transmit ring makes the sender wait for
//!   the kernel. Frames longer than `framesz` (2048 with a header of its own) are dropped without a word.
//! - `net_af_xdp0,iface=IF,start_queue=N`: the same with less copying. On being closed it keeps the mbufs of its fill
//!   queue, as many as twice the receive descriptors: a process should open such a port once.
//! - `net_memif0,role=server|client,socket=PATH`: shared memory with another process, or with another port of this one.
//!   The server cannot send until the client has looked for frames once. It is up ([`Port::is_up`]) when both are there;
//!   a client has to ask for that, again and again ([`Port::seek`]).
//! - `net_tap0,iface=IF,mac=MAC`: an interface that is made; the Ethernet address is that of the kernel's end.
//! - `net_pcap0,rx_pcap=FILE` or `tx_pcap=FILE`; `net_null0,size=60`: a file; nothing that is there as fast as it is asked
//!   for.
//! - [`Port::pair`]: two ports of this process that are each other's wire.
//!
//! Sending is never refused for want of a link: what a driver does while there is none differs, and shows in
//! [`Port::statistics`].

use crate::eal::Eal;
use crate::error::Error;
use crate::ffi::port::{self, RawInfo, RawOptions, RawRing, RawStatistics};
use crate::mbuf::Chains;
use crate::pool::MbufPool;
use crate::port_client::PortClient;
use crate::queue::PortQueue;
use crate::rss::{PortSpread, Rss, SpreadAbilities};
use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How a port is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// The device by its EAL name, with arguments: `0000:03:00.0`, `net_af_packet0,iface=veth1`,
    /// `net_memif0,role=server,socket=/run/m.sock`, `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`.
    pub device: String,
    /// Pairs of a receive and a transmit queue: one for each worker.
    pub queues: u16,
    /// Frames that a receive queue holds until they are fetched; the device may round.
    pub rx_descriptors: u16,
    /// Frames that a transmit queue holds until they are sent; the device may round.
    pub tx_descriptors: u16,
    /// Bytes of IP packet that the port takes; 0: the device's own. A device that has no say in it keeps its own:
    /// [`Port::mtu`] says what holds.
    pub mtu: u16,
    /// Whether frames to others' Ethernet addresses are received too.
    pub promiscuous: bool,
    /// How flows are spread over queues.
    pub rss: Rss,
}

impl Default for PortOptions {
    fn default() -> PortOptions {
        PortOptions {
            device: String::new(),
            queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: 0,
            promiscuous: false,
            rss: Rss::None,
        }
    }
}

/// The counters of a port since it was opened, as its driver does: not every driver knows everything, and what it does
/// not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Frames.
    pub received: u64,
    /// Frames.
    pub transmitted: u64,
    /// Bytes of the frames received.
    pub received_bytes: u64,
    /// Bytes of the frames sent.
    pub transmitted_bytes: u64,
    /// Frames that found the receive queues full.
    pub missed: u64,
    /// Frames that came damaged.
    pub receive_errors: u64,
    /// Frames that the driver took and could not send.
    pub transmit_errors: u64,
    /// Frames that came when the pool was empty.
    pub no_mbuf: u64,
}

/// A queue's counters of frames that came in several segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chained {
    /// Put together in the first's buffer.
    pub joined: u64,
    /// Too long for it, and dropped.
    pub dropped: u64,
}

/// A port, open and started. It is closed, and its device taken away, once it and its queues are gone.
#[derive(Debug)]
pub struct Port(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: u16,
    info: Information,
    /// Which queues are given out.
    pub(crate) taken: Vec<AtomicBool>,
    /// For a port that is the client of a server.
    pub(crate) client: Option<PortClient>,
    /// The pool whose mbufs the receive queues hold.
    pub(crate) pool: MbufPool,
    /// For a port made of rings: freed when both ends are closed.
    _wire: Option<Arc<RingWire>>,
}

/// The properties that do not change while a port is open.
#[derive(Debug)]
struct Information {
    name: String,
    driver: String,
    raw: RawInfo,
    spread: PortSpread,
    hairpins: u16,
}

impl Port {
    /// Attaches a device, if EAL has not found it already, configures and starts it. A client ([`Port::is_client`]) is
    /// started in the background: it is up once its server has let it in, and may have to be told to ask again until then
    /// ([`Port::seek`]).
    ///
    /// # Errors
    /// [`Error::Device`] with what failed, and what the driver said.
    pub fn open(eal: &Eal, options: &PortOptions, pool: &MbufPool) -> Result<Port, Error> {
        Port::open_with_hairpins(eal, options, pool, 0)
    }

    /// [`Port::open`] with so many hairpin queues behind the others: what a rule puts into one leaves by the port
    /// again, without having been in memory of ours. Not yet run on hardware.
    ///
    /// # Errors
    /// [`Error::Device`], also where the device has no such queues.
    pub fn open_with_hairpins(eal: &Eal, options: &PortOptions, pool: &MbufPool, hairpins: u16) -> Result<Port, Error> {
        let device =
            CString::new(options.device.as_str()).map_err(|_| refused(&options.device, "a name without NUL"))?;
        let client = PortClient::of(&options.device);
        let raw = RawOptions { hairpins, waits: u8::from(client.is_some()), ..raw_options(options) };
        let mut id = 0;
        let mut what = std::ptr::null();
        let (code, log) = eal.listen(|| {
            // SAFETY: a C string; the pool is there; the rest is written before it is read.
            unsafe { port::hairpin_port_open(device.as_ptr(), &raw const raw, pool.raw(), &raw mut id, &raw mut what) }
        });
        if code != 0 {
            return Err(failure(&options.device, what, code, log));
        }
        let port = Port::opened((id, hairpins), options.rss, pool, (client, None))?;
        port.seek();
        Ok(port)
    }

    /// Two ports that are each other's wire: what one sends the other receives, queue by queue, over rings in which
    /// `tx_descriptors` frames fit. `device` is what the two are called, with a 0 and a 1 behind it. Of the other
    /// options the number of queues counts.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn pair(eal: &Eal, options: &PortOptions, pool: &MbufPool) -> Result<(Port, Port), Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = [0, 1].map(|end| CString::new(format!("wire{number}-{end}")).unwrap_or_default());
        let pointers = [names[0].as_ptr(), names[1].as_ptr()];
        let mut rings = vec![std::ptr::null_mut(); 2 * usize::from(options.queues)];
        let raw = raw_options(options);
        let (mut ids, mut what) = ([0; 2], std::ptr::null());
        let size = u32::from(options.tx_descriptors.max(1));
        let (code, log) = eal.listen(|| {
            // SAFETY: two C strings, room for two rings a queue; the rest is written before it is read.
            unsafe {
                port::hairpin_port_pair(
                    &raw const pointers,
                    options.queues,
                    size,
                    &raw const raw,
                    pool.raw(),
                    &raw mut ids,
                    rings.as_mut_ptr(),
                    &raw mut what,
                )
            }
        });
        if code != 0 {
            return Err(failure("a pair of ports", what, code, log));
        }
        let wire = Arc::new(RingWire(rings.into_iter().filter_map(NonNull::new).collect()));
        let first = Port::opened((ids[0], 0), options.rss, pool, (None, Some(Arc::clone(&wire))));
        let second = Port::opened((ids[1], 0), options.rss, pool, (None, Some(wire)));
        Ok((first?, second?))
    }

    fn opened(
        (id, hairpins): (u16, u16),
        wanted: Rss,
        pool: &MbufPool,
        (client, wire): (Option<PortClient>, Option<Arc<RingWire>>),
    ) -> Result<Port, Error> {
        let mut raw = RawInfo::EMPTY;
        // SAFETY: writes what it was given.
        let code = unsafe { port::hairpin_port_info(id, &raw mut raw) };
        // No thread receives from those.
        raw.queues = raw.queues.saturating_sub(hairpins);
        let text = |bytes: &[u8]| CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned();
        let spread = PortSpread::of(wanted, &raw);
        let info = Information { name: text(&raw.name), driver: text(&raw.driver), raw, spread, hairpins };
        // A client has none before it is started.
        let taken = (0..raw.queues).map(|_| AtomicBool::new(client.is_some())).collect();
        // From here on dropping closes it.
        let port = Port(Arc::new(Inner { id, info, taken, client, pool: pool.clone(), _wire: wire }));
        Error::of(code, "asking a port what it is")?;
        Ok(port)
    }

    /// DPDK's number of it.
    pub fn id(&self) -> u16 {
        self.0.id
    }

    /// The device's EAL name, without arguments.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Its driver's name, such as `net_af_packet`.
    pub fn driver(&self) -> &str {
        &self.0.info.driver
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.0.info.raw.mac
    }

    /// Bytes of IP packet that it takes, as it was when it was opened: the device's, or that of the kernel's interface
    /// beneath it if that has less.
    pub fn mtu(&self) -> u16 {
        self.0.info.raw.mtu
    }

    /// Pairs of queues.
    pub fn queues(&self) -> u16 {
        self.0.info.raw.queues
    }

    /// Hairpin queues, which are numbered from [`Port::queues`] on.
    pub fn hairpins(&self) -> u16 {
        self.0.info.hairpins
    }

    /// Pairs of queues that the device could have.
    pub fn queues_max(&self) -> u16 {
        self.0.info.raw.max_queues
    }

    /// Frames that a receive queue and a transmit queue hold; 0: the driver does not say.
    pub fn descriptors(&self) -> (u16, u16) {
        (self.0.info.raw.rx_descriptors, self.0.info.raw.tx_descriptors)
    }

    /// The NUMA node it is nearest to; `None` where there is no such thing.
    pub fn numa_node(&self) -> Option<u32> {
        u32::try_from(self.0.info.raw.numa_node).ok()
    }

    /// Whether the device fills in TCP and UDP checksums on sending.
    pub fn fills_checksums(&self) -> bool {
        self.0.info.raw.checksums != 0
    }

    /// How it spreads flows over its queues, as far as the driver says.
    pub fn rss(&self) -> PortSpread {
        self.0.info.spread
    }

    /// How it could, as far as the driver says.
    pub fn rss_abilities(&self) -> SpreadAbilities {
        SpreadAbilities::of(&self.0.info.raw)
    }

    /// Whether the link is up now.
    pub fn is_up(&self) -> bool {
        // SAFETY: the port is open.
        !self.0.client.as_ref().is_some_and(PortClient::is_busy) && unsafe { port::hairpin_port_is_up(self.0.id) != 0 }
    }

    /// The driver's counters.
    pub fn statistics(&self) -> PortStatistics {
        let mut raw = RawStatistics::default();
        // SAFETY: the port is open; what cannot be read stays 0.
        unsafe { port::hairpin_port_statistics(self.0.id, &raw mut raw) };
        PortStatistics {
            received: raw.received,
            transmitted: raw.transmitted,
            received_bytes: raw.received_bytes,
            transmitted_bytes: raw.transmitted_bytes,
            missed: raw.missed,
            receive_errors: raw.receive_errors,
            transmit_errors: raw.transmit_errors,
            no_mbuf: raw.no_mbuf,
        }
    }

    /// A pair of queues, 0 to [`Port::queues`] less one. Each is given once; dropping it gives it back. A client that is
    /// not up may have none.
    pub fn queue(&self, index: u16) -> Option<PortQueue> {
        Inner::queue(&self.0, index)
    }
}

impl Inner {
    /// Whether it is one of two ends of shared memory (memif).
    pub(crate) fn has_peer(&self) -> bool {
        self.info.driver == "net_memif"
    }

    /// Whether no thread is to use its queues now. A client calls them back. A server's must not be read while
    /// its client is let in: DPDK 22.11's driver takes a ring's address before it asks whether there is a connection,
    /// and the memory may come in between (SIGSEGV in the second queue of testpmd, on a busy machine). Its link is up
    /// once all of that is done.
    pub(crate) fn is_away(&self) -> bool {
        match &self.client {
            Some(client) => client.recalls(),
            // SAFETY: the port is open.
            None => self.has_peer() && unsafe { port::hairpin_port_is_up(self.id) == 0 },
        }
    }

    /// As [`Port::queue`].
    pub(crate) fn queue(this: &Arc<Inner>, index: u16) -> Option<PortQueue> {
        let taken = this.taken.get(usize::from(index))?;
        if taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let checksums = this.info.raw.checksums != 0;
        Some(PortQueue { port: Arc::clone(this), id: this.id, index, checksums, chains: Chains::default() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the port is open, and no thread has a queue of it any more.
        unsafe { port::hairpin_port_close(self.id) }
    }
}

/// The rings of a pair of ports.
#[derive(Debug)]
struct RingWire(Vec<NonNull<RawRing>>);

// SAFETY: rings have no thread; only the drop below uses them, when the ports are closed.
unsafe impl Send for RingWire {}
// SAFETY: as above.
unsafe impl Sync for RingWire {}

impl Drop for RingWire {
    fn drop(&mut self) {
        for ring in &self.0 {
            // SAFETY: both ports are closed, and nothing else uses the rings.
            unsafe { port::hairpin_port_wire_free(ring.as_ptr()) }
        }
    }
}

fn raw_options(options: &PortOptions) -> RawOptions {
    RawOptions {
        queues: options.queues,
        rx_descriptors: options.rx_descriptors,
        tx_descriptors: options.tx_descriptors,
        mtu: options.mtu,
        promiscuous: u8::from(options.promiscuous),
        rss: options.rss as u8,
        hairpins: 0,
        waits: 0,
    }
}

fn refused(device: &str, what: &str) -> Error {
    Error::Device { device: device.into(), what: what.into(), code: libc::EINVAL, log: String::new() }
}

/// The error of the shim, which says in `what` at which step.
fn failure(device: &str, what: *const c_char, code: i32, log: String) -> Error {
    let what = match what.is_null() {
        true => "opening it".into(),
        // SAFETY: the shim names steps by constants.
        false => unsafe { CStr::from_ptr(what) }.to_string_lossy().into_owned(),
    };
    Error::Device { device: device.into(), what, code, log }
}
