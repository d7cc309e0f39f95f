//! The other side of the tests of TAP frames: namespaces, packet sockets that see super-packets, packets to send.

use hairpin_core::frame::{Batch, FrameIo};
use hairpin_linux::device::Interface;
use hairpin_linux::tap::{TapFrame, TapIo};
use std::mem::size_of;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `test` on a thread with a network namespace of its own, which is gone when it returns.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(move || {
        // SAFETY: changes this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            eprintln!("skipped: needs root ({})", std::io::Error::last_os_error());
            return;
        }
        command("ip", &["link", "set", "lo", "up"]);
        test();
    });
    if let Err(panic) = outcome.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command in this thread's namespace and returns what it says.
pub(crate) fn command(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().unwrap_or_else(|e| panic!("{name}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Receives until there are `count` frames.
pub(crate) fn received(io: &mut TapIo, count: usize) -> Batch<TapFrame> {
    let mut batch = Batch::new();
    let start = Instant::now();
    while batch.len() < count {
        io.receive(&mut batch);
        assert!(start.elapsed() < Duration::from_secs(10), "{} of {count} frames: {:?}", batch.len(), io.counters());
    }
    assert_eq!(batch.len(), count);
    batch
}

/// Whether a worker sleeping on the descriptor would be woken at once.
pub(crate) fn readable(io: &TapIo) -> bool {
    let mut poll = libc::pollfd { fd: io.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// `struct virtio_net_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) headers: u16,
    pub(crate) gso_size: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

/// A packet socket on an interface, with virtio headers.
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn open(name: &str) -> Link {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0) };
        assert!(fd >= 0);
        // SAFETY: a fresh descriptor that nothing else owns.
        let link = Link(unsafe { OwnedFd::from_raw_fd(fd) });
        link.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
        link.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
        // Frames that this host sends on the interface are not seen, only incoming ones.
        link.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        // SAFETY: plain integers and bytes.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = Interface::by_name(name).unwrap().index as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: pointer and size describe `address`.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        link
    }

    /// A wire without offloads; what comes in from `device` goes out there. The other end.
    pub(crate) fn wire_behind(device: &str) -> Link {
        command("ip", &["link", "add", "near", "type", "veth", "peer", "name", "far"]);
        for end in ["near", "far"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").ok();
            command("ip", &["link", "set", end, "mtu", "1500", "up"]);
        }
        command("ethtool", &["-K", "near", "tx", "off", "sg", "off", "tso", "off", "gso", "off"]);
        command("tc", &["qdisc", "add", "dev", device, "clsact"]);
        let redirect = "protocol all u32 match u32 0 0 action mirred egress redirect dev near";
        let mut arguments = vec!["filter", "add", "dev", device, "ingress"];
        arguments.extend(redirect.split(' '));
        command("tc", &arguments);
        Link::open("far")
    }

    fn option(&self, level: i32, option: i32, value: i32) {
        // SAFETY: pointer and size describe `value`.
        let result = unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
        assert_eq!(result, 0, "option {option}: {}", std::io::Error::last_os_error());
    }

    pub(crate) fn send(&self, header: &Vnet, frame: &[u8]) {
        for _ in 0..1000 {
            if self.try_send(header, frame) {
                return;
            }
            // The backlog of a CPU is shared by all namespaces: another test's packets may fill it.
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no room for a frame for a second");
    }

    pub(crate) fn try_send(&self, header: &Vnet, frame: &[u8]) -> bool {
        let parts = [
            libc::iovec { iov_base: (&raw const *header).cast_mut().cast(), iov_len: size_of::<Vnet>() },
            libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() },
        ];
        // SAFETY: the parts describe memory that lives through the call and is only read.
        unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), 2) >= 0 }
    }

    /// The next packet that came in, if there is one within a moment.
    pub(crate) fn receive(&self) -> Option<(Vnet, Vec<u8>)> {
        let mut header = Vnet::default();
        let mut frame = vec![0; 70_000];
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        if unsafe { libc::poll(&mut poll, 1, 500) } < 1 {
            return None;
        }
        let parts = [
            libc::iovec { iov_base: (&raw mut header).cast(), iov_len: size_of::<Vnet>() },
            libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
        ];
        // SAFETY: the parts describe memory that lives through the call and nothing else uses.
        let length = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        frame.truncate(usize::try_from(length).ok()?.checked_sub(size_of::<Vnet>())?);
        Some((header, frame))
    }
}

/// A TCP or UDP packet without options; its checksum is partial.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl Packet {
    pub(crate) fn tcp4(payload: usize) -> Packet {
        Packet::ipv4(TCP, payload)
    }

    pub(crate) fn udp4(payload: usize) -> Packet {
        Packet::ipv4(UDP, payload)
    }

    pub(crate) fn tcp6(payload: usize) -> Packet {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
        bytes.extend(((payload + 20) as u16).to_be_bytes());
        bytes.extend([TCP, 64]);
        bytes.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend("2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        Packet { bytes }.with_transport(payload)
    }

    fn ipv4(protocol: u8, payload: usize) -> Packet {
        let transport = if protocol == TCP { 20 } else { 8 };
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        bytes.extend(((20 + transport + payload) as u16).to_be_bytes());
        bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !folded(&bytes[14..]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        Packet { bytes }.with_transport(payload)
    }

    fn with_transport(mut self, payload: usize) -> Packet {
        let start = self.start();
        self.bytes.extend([0x30, 0x39, 0, 80]);
        if self.protocol() == TCP {
            self.bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        } else {
            self.bytes.extend(((8 + payload) as u16).to_be_bytes());
            self.bytes.extend([0, 0]);
        }
        self.bytes.extend((0..payload).map(|i| (i * 7 + i / 256) as u8));
        let sum = self.pseudo_header();
        let at = start + self.checksum_offset();
        self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        self
    }

    pub(crate) fn parse(frame: &[u8]) -> Packet {
        Packet { bytes: frame.to_vec() }
    }

    pub(crate) fn destined(&self, destination: [u8; 6]) -> Packet {
        let mut packet = self.clone();
        packet.bytes[..6].copy_from_slice(&destination);
        packet
    }

    /// With an 802.1Q tag in band.
    pub(crate) fn tagged(mut self, vlan: u8) -> Packet {
        self.bytes.splice(12..12, [0x81, 0, 0, vlan]);
        self
    }

    pub(crate) fn untagged(&self) -> Packet {
        let mut packet = self.clone();
        if packet.network() == 18 {
            packet.bytes.drain(12..16);
        }
        packet
    }

    fn network(&self) -> usize {
        if self.bytes[12..14] == [0x81, 0] { 18 } else { 14 }
    }

    fn is_ipv4(&self) -> bool {
        self.bytes[self.network()] >> 4 == 4
    }

    fn protocol(&self) -> u8 {
        self.bytes[self.network() + if self.is_ipv4() { 9 } else { 6 }]
    }

    fn start(&self) -> usize {
        self.network() + if self.is_ipv4() { 20 } else { 40 }
    }

    fn checksum_offset(&self) -> usize {
        if self.protocol() == TCP { 16 } else { 6 }
    }

    fn addresses(&self) -> &[u8] {
        let n = self.network();
        if self.is_ipv4() { &self.bytes[n + 12..n + 20] } else { &self.bytes[n + 8..n + 40] }
    }

    /// Bytes from the transport header on, without Ethernet padding.
    fn transport(&self) -> &[u8] {
        let n = self.network();
        let word = |at: usize| usize::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]));
        let end = if self.is_ipv4() { n + word(n + 2) } else { n + 40 + word(n + 4) };
        &self.bytes[self.start()..end]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.transport()[if self.protocol() == TCP { 20 } else { 8 }..]
    }

    fn pseudo_header(&self) -> u16 {
        let length = self.transport().len() as u16;
        folded(&[self.addresses(), &[0, self.protocol()], &length.to_be_bytes()].concat())
    }

    pub(crate) fn checksum_is_right(&self) -> bool {
        folded(&[&self.pseudo_header().to_be_bytes(), self.transport()].concat()) == 0xffff
    }

    /// Whether this kernel takes it from a packet socket in several segments: datagrams from Linux 6.2 on.
    pub(crate) fn may_be_super(&self) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        self.protocol() == TCP || version >= (6, 2)
    }

    /// The device header of this packet in segments of `segment` bytes; 0: one packet.
    pub(crate) fn vnet(&self, segment: u16) -> Vnet {
        let gso_type = match (segment, self.protocol(), self.is_ipv4()) {
            (0, ..) => 0,
            (_, TCP, true) => 1,
            (_, TCP, false) => 4,
            _ => 5,
        };
        let headers = self.start() + if self.protocol() == TCP { 20 } else { 8 };
        Vnet {
            flags: 1,
            gso_type,
            headers: if segment == 0 { 0 } else { headers as u16 },
            gso_size: segment,
            checksum_start: self.start() as u16,
            checksum_offset: self.checksum_offset() as u16,
        }
    }

    /// Changes the destination of this packet, standing in `frame`, and its (partial) checksums accordingly.
    pub(crate) fn translate(&self, frame: &mut [u8]) {
        let mut packet = Packet::parse(frame);
        let network = packet.network();
        let last = if packet.is_ipv4() { network + 19 } else { network + 39 };
        packet.bytes[last] = 77;
        let at = packet.start() + packet.checksum_offset();
        let sum = packet.pseudo_header();
        packet.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        if packet.is_ipv4() {
            packet.bytes[network + 10..network + 12].fill(0);
            let sum = !folded(&packet.bytes[network..network + 20]);
            packet.bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
        }
        frame.copy_from_slice(&packet.bytes);
    }
}

/// Internet checksum, not complemented (RFC 1071).
fn folded(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |&b| u32::from(b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
