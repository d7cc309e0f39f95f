//! An end host: smoltcp's TCP, and roles that speak over it.

use crate::clock::{HostClock, SegmentAge};
use crate::segments::{acknowledgement, sequence, transport};
use fastrand::Rng;
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::frame::VecFrame;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, ACKNOWLEDGEMENT, FIN, RST, SEQUENCE, SYN};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::AnySocket;
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Offset of the window in a TCP header.
const WINDOW: usize = 14;
/// Rounds of reading and sending at one instant at most.
const ROUNDS_MAX: usize = 16;

/// The work of one end of a connection.
pub trait Role {
    /// Does what can be done now, and says when it wants to be called though nothing arrives.
    fn drive(&mut self, now: Time, socket: &mut Socket<'static>) -> Option<Time>;
    /// The socket is closed; what has arrived can still be read.
    fn close(&mut self, socket: &mut Socket<'static>);
    /// Whether all went as it should; asked once the socket is closed.
    fn judge(&self) -> Result<(), String>;
}

/// How a host's sockets are set up.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Bytes of receive buffer; above 65,535 a window scale is negotiated.
    pub receive: usize,
    /// Bytes of send buffer.
    pub send: usize,
    /// How long acknowledgements wait for company.
    pub acknowledgement_delay: Option<Duration>,
    /// Whether small segments wait (RFC 896).
    pub nagle: bool,
    /// Whether congestion is controlled (Reno).
    pub reno: bool,
    /// Silence after which the other end is asked whether it is there. smoltcp needs it: a window that closes while
    /// segments are in flight stops its timers, and only an answer to such a question tells it that it is open again.
    pub keep_alive: Option<Duration>,
    /// Whether TCP timestamps are sent.
    pub timestamps: bool,
    /// Silence of the other end after which it is given up.
    pub timeout: Option<Duration>,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions {
            receive: 65_535,
            send: 65_535,
            acknowledgement_delay: Some(Duration::from_millis(10)),
            nagle: false,
            reno: false,
            keep_alive: Some(Duration::from_secs(10)),
            timestamps: true,
            timeout: None,
        }
    }
}

impl SocketOptions {
    /// Drawn from a seed's generator.
    pub fn draw(random: &mut Rng) -> SocketOptions {
        let sizes = [2_000, 4_096, 16_384, 65_535, 100_000, 200_000];
        let (receive, send) = (sizes[random.usize(..sizes.len())], sizes[random.usize(..sizes.len())]);
        let acknowledgement_delay = random.bool().then(|| Duration::from_millis(random.u64(1..50)));
        let (nagle, reno, keep_alive) = (random.bool(), random.bool(), random.u64(2..20));
        // As much of a draw as another one: it would change what all older seeds mean.
        let timestamps = keep_alive % 2 == 0;
        let keep_alive = Some(Duration::from_secs(keep_alive));
        SocketOptions { receive, send, acknowledgement_delay, nagle, reno, keep_alive, timestamps, timeout: None }
    }

    fn socket(&self) -> Socket<'static> {
        let mut socket = Socket::new(SocketBuffer::new(vec![0; self.receive]), SocketBuffer::new(vec![0; self.send]));
        socket.set_ack_delay(self.acknowledgement_delay.map(duration));
        socket.set_nagle_enabled(self.nagle);
        socket.set_keep_alive(self.keep_alive.map(duration));
        socket.set_timeout(self.timeout.map(duration));
        if self.timestamps {
            HostClock::wind(&mut socket);
        }
        socket.set_congestion_control(if self.reno { CongestionControl::Reno } else { CongestionControl::None });
        socket
    }
}

fn duration(duration: Duration) -> smoltcp::time::Duration {
    smoltcp::time::Duration::from_micros(duration.as_micros() as u64)
}

/// A connection to be made.
struct ConnectionPlan {
    at: Time,
    to: Endpoint,
    port: u16,
    role: Box<dyn Role>,
}

struct HostListener {
    port: u16,
    sockets: Vec<SocketHandle>,
    accept: Box<dyn FnMut() -> Box<dyn Role>>,
}

struct HostEnd {
    handle: SocketHandle,
    role: Box<dyn Role>,
    /// When the role wants to be called.
    due: Option<Time>,
}

/// An end host.
pub struct Host {
    /// Its address.
    pub address: Address,
    interface: Interface,
    device: HostWire,
    sockets: SocketSet<'static>,
    options: SocketOptions,
    listener: Option<HostListener>,
    plans: Vec<ConnectionPlan>,
    ends: Vec<HostEnd>,
    /// Packets that have arrived.
    queued: VecDeque<Vec<u8>>,
    /// The highest acknowledgement number that came from each remote end to each port, and the window with it.
    acknowledged: BTreeMap<(Endpoint, u16), (u32, [u8; 2])>,
    /// The highest sequence number that went to each remote end from each port.
    highest: BTreeMap<(Endpoint, u16), u32>,
    /// One past the number of the FIN that went to each remote end from each port.
    fins: BTreeMap<(Endpoint, u16), u32>,
    /// The acknowledgement number and window of the last bare acknowledgement that went to each remote end from each port.
    said: BTreeMap<(Endpoint, u16), (u32, [u8; 2])>,
    clock: HostClock,
    /// The errors of connections that are closed.
    pub failures: Vec<String>,
    /// Connections that have ended.
    pub ended: usize,
    /// When it wants to be woken.
    pub next: Option<Time>,
}

impl Host {
    /// A host with an address. `seed` decides on its initial sequence numbers.
    pub fn new(address: Address, mtu: usize, seed: u64, options: SocketOptions) -> Host {
        let mut device = HostWire { arrived: VecDeque::new(), sent: Vec::new(), mtu };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        // every host is a neighbour, at the other end of the wire
        interface.update_ip_addrs(|addresses| {
            // The list is empty and has room for two.
            let _ = addresses.push(IpCidr::new(ip(&address), 1));
        });
        Host {
            address,
            interface,
            device,
            sockets: SocketSet::new(Vec::new()),
            options,
            listener: None,
            plans: Vec::new(),
            ends: Vec::new(),
            queued: VecDeque::new(),
            acknowledged: BTreeMap::new(),
            highest: BTreeMap::new(),
            said: BTreeMap::new(),
            fins: BTreeMap::new(),
            clock: HostClock::new(seed),
            failures: Vec::new(),
            ended: 0,
            next: None,
        }
    }

    /// Takes connections to `port`, `backlog` of them unaccepted at most.
    pub fn listen(&mut self, port: u16, backlog: usize, accept: Box<dyn FnMut() -> Box<dyn Role>>) {
        let mut listener = HostListener { port, sockets: Vec::new(), accept };
        for _ in 0..backlog {
            listener.sockets.push(listening(&self.options, &mut self.sockets, port));
        }
        self.listener = Some(listener);
    }

    /// Will connect from `port` to `to` at a point in time.
    pub fn connect(&mut self, at: Time, port: u16, to: Endpoint, role: Box<dyn Role>) {
        self.plans.push(ConnectionPlan { at, to, port, role });
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Whether all connections it had to make or has accepted are over.
    pub fn is_done(&self) -> bool {
        self.plans.is_empty() && self.ends.is_empty()
    }

    /// Describes its open connections, for people.
    pub fn open(&self) -> Vec<String> {
        let state = |end: &HostEnd| {
            let socket = self.sockets.get::<Socket<'static>>(end.handle);
            let (local, remote) = (socket.local_endpoint(), socket.remote_endpoint());
            let judged = end.role.judge().err().unwrap_or_default();
            format!("{local:?} - {remote:?} is {}: {judged}", socket.state())
        };
        self.ends.iter().map(state).collect()
    }

    /// A frame has arrived.
    pub fn arrive(&mut self, frame: &VecFrame) {
        if let Some(packet) = frame.data.get(14..) {
            self.queued.push_back(packet.to_vec());
        }
    }

    /// Bare acknowledgements carry the highest sequence number sent so far (RFC 9293, 3.10.7.4). smoltcp's, while it
    /// sends again, carry a lower one, which the other end takes for old and ignores; two such ends never get on.
    fn renumbered(&mut self, mut frame: VecFrame) -> VecFrame {
        let Some(at) = transport(&frame.data) else { return frame };
        self.clock.sends(&frame.data, &at);
        let sequence = sequence(&frame.data, &at);
        let flags = at.tcp_flags & (SYN | FIN | RST);
        let end = sequence.wrapping_add((at.end - at.payload) as u32 + u32::from(flags & (SYN | FIN) != 0));
        let flow = (at.key.destination, at.key.source.port);
        let highest = self.highest.entry(flow).or_insert(end);
        if flags & FIN != 0 {
            self.fins.insert(flow, end);
        } else if flags & SYN != 0 {
            self.fins.remove(&flow);
        }
        let is_bare = flags == 0 && at.payload == at.end;
        let said = (acknowledgement(&frame.data, &at), [frame.data[at.l4 + WINDOW], frame.data[at.l4 + WINDOW + 1]]);
        let is_again = is_bare && self.said.insert(flow, said) == Some(said);
        let acknowledged = self.acknowledged.get(&flow);
        // It asks whether a window is open again, but in a number that calls for no answer; or whether the other end is there,
        // with a byte in the place of its FIN.
        let asks = is_again && acknowledged.is_some_and(|(_, window)| *window == [0, 0])
            || at.end - at.payload == 1 && flags == 0 && self.fins.get(&flow) == Some(&end);
        if let Some((number, _)) = acknowledged.filter(|_| asks) {
            let before = number.wrapping_sub(1);
            frame.data[at.l4 + SEQUENCE..at.l4 + SEQUENCE + 4].copy_from_slice(&before.to_be_bytes());
            at.fill_checksum(&mut frame.data);
            return frame;
        }
        if flags & SYN != 0 || end.wrapping_sub(*highest) < 1 << 31 {
            *highest = end;
        } else if is_bare {
            frame.data[at.l4 + SEQUENCE..at.l4 + SEQUENCE + 4].copy_from_slice(&highest.to_be_bytes());
            at.fill_checksum(&mut frame.data);
        }
        frame
    }

    /// Keeps smoltcp 0.14 from mistakes that no other TCP makes. Lost on their way are:
    /// - a third duplicate acknowledgement while nothing but the FIN is in flight: it stops the timer and sends nothing;
    /// - a SYN that comes again: it may be taken by a listening socket though another one has its connection.
    ///
    /// An old acknowledgement number, for which smoltcp throws away what comes with it, is brought up to date. And a window
    /// of nothing that comes with the acknowledgement of everything is one of little: smoltcp would probe it with nothing,
    /// at once and for ever.
    fn admit(&mut self, packet: Vec<u8>) -> Option<Vec<u8>> {
        let mut frame = framed(&packet);
        let Some(at) = transport(&frame.data) else { return Some(packet) };
        let field = at.checksum_offset();
        let right = at.transport_checksum(&frame.data).map(u16::to_be_bytes);
        if at.key.protocol != Protocol::Tcp || right.is_none_or(|right| right != frame.data[field..field + 2]) {
            return Some(packet);
        }
        match self.clock.gets(&mut frame.data, &at) {
            SegmentAge::Good => {}
            SegmentAge::Refused => return Some(frame.data[at.l3..].to_vec()),
            SegmentAge::Lost => return None,
        }
        let said = acknowledgement(&frame.data, &at);
        let flow = (at.key.source, at.key.destination.port);
        let flags = at.tcp_flags & (SYN | FIN | RST | ACK);
        let mut window = [frame.data[at.l4 + WINDOW], frame.data[at.l4 + WINDOW + 1]];
        if window == [0, 0] && flags & !FIN == ACK && self.highest.get(&flow) == Some(&said) {
            window = [0, 1];
            frame.data[at.l4 + WINDOW..at.l4 + WINDOW + 2].copy_from_slice(&window);
            at.fill_checksum(&mut frame.data);
        }
        let last = self.acknowledged.entry(flow).or_insert((said, window));
        let again = at.payload == at.end && flags == ACK && last.0 == said;
        if flags & ACK == 0 {
            self.acknowledged.remove(&flow);
        } else if flags & SYN != 0 || said.wrapping_sub(last.0) < 1 << 31 {
            *last = (said, window);
        } else if flags & !FIN == ACK {
            frame.data[at.l4 + ACKNOWLEDGEMENT..at.l4 + ACKNOWLEDGEMENT + 4].copy_from_slice(&last.0.to_be_bytes());
            frame.data[at.l4 + WINDOW..at.l4 + WINDOW + 2].copy_from_slice(&last.1);
            at.fill_checksum(&mut frame.data);
        }
        if !again && flags != SYN {
            return Some(frame.data[at.l3..].to_vec());
        }
        let misled = self.sockets.iter().filter_map(|(_, socket)| Socket::downcast(socket)).any(|socket| {
            let remote = socket
                .remote_endpoint()
                .is_some_and(|remote| remote.port == at.key.source.port && remote.addr == ip(&at.key.source.address));
            let local = socket.local_endpoint().is_some_and(|local| local.port == at.key.destination.port);
            let closing = matches!(socket.state(), State::FinWait1 | State::LastAck | State::Closing);
            remote && local && (!again || closing && socket.send_queue() == 0)
        });
        (!misled).then(|| frame.data[at.l3..].to_vec())
    }

    /// Does all there is to do now; what it sends goes to `out`.
    pub fn wake(&mut self, now: Time, out: &mut Vec<VecFrame>) {
        let at = Instant::from_micros((now.as_nanos() / 1000) as i64);
        self.clock.set(now);
        self.start(now);
        for _ in 0..ROUNDS_MAX {
            while let Some(packet) = self.queued.pop_front() {
                if let Some(packet) = self.admit(packet) {
                    self.device.arrived.push_back(packet);
                    self.interface.poll_ingress_single(at, &mut self.device, &mut self.sockets);
                }
            }
            self.interface.poll(at, &mut self.device, &mut self.sockets);
            self.accept();
            for end in &mut self.ends {
                end.due = end.role.drive(now, self.sockets.get_mut(end.handle));
            }
            let before = self.device.sent.len();
            self.interface.poll(at, &mut self.device, &mut self.sockets);
            if self.device.sent.len() == before {
                break;
            }
        }
        self.bury();
        self.failures.extend(self.clock.wrong.take());
        for packet in std::mem::take(&mut self.device.sent) {
            out.push(self.renumbered(framed(&packet)));
        }
        let soon = now + Duration::from_micros(1);
        let tcp = self.interface.poll_at(at, &self.sockets);
        let tcp = tcp.map(|at| Time::from_nanos(at.total_micros().max(0) as u64 * 1000));
        let taken = self.ports_taken();
        let plans = self.plans.iter().filter(|plan| !taken.contains(&plan.port)).map(|plan| plan.at).min();
        let roles = self.ends.iter().filter_map(|end| end.due).min();
        self.next = [tcp, plans, roles].into_iter().flatten().min().map(|next| next.max(soon));
    }

    /// Ports that its connections are from. Another connection from one of them waits for the end of the one that is there.
    fn ports_taken(&self) -> BTreeSet<u16> {
        let local = |end: &HostEnd| self.sockets.get::<Socket<'static>>(end.handle).local_endpoint();
        self.ends.iter().filter_map(local).map(|local| local.port).collect()
    }

    fn start(&mut self, now: Time) {
        let mut taken = self.ports_taken();
        let starts = |plan: &ConnectionPlan| plan.at <= now && taken.insert(plan.port);
        let (due, later): (Vec<ConnectionPlan>, Vec<ConnectionPlan>) = self.plans.drain(..).partition(starts);
        self.plans = later;
        for plan in due {
            let mut socket = self.options.socket();
            let remote = (ip(&plan.to.address), plan.to.port);
            if let Err(error) = socket.connect(self.interface.context(), remote, plan.port) {
                self.failures.push(format!("connect: {error}"));
            }
            self.ends.push(HostEnd { handle: self.sockets.add(socket), role: plan.role, due: None });
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        for index in 0..listener.sockets.len() {
            let handle = listener.sockets[index];
            match self.sockets.get::<Socket<'static>>(handle).state() {
                State::Listen | State::SynReceived => {}
                State::Closed => {
                    self.sockets.remove(handle);
                    listener.sockets[index] = listening(&self.options, &mut self.sockets, listener.port);
                }
                _ => {
                    listener.sockets[index] = listening(&self.options, &mut self.sockets, listener.port);
                    self.ends.push(HostEnd { handle, role: (listener.accept)(), due: None });
                }
            }
        }
    }

    fn bury(&mut self) {
        let (sockets, failures) = (&mut self.sockets, &mut self.failures);
        let before = self.ends.len();
        self.ends.retain_mut(|end| {
            let socket = sockets.get_mut::<Socket<'static>>(end.handle);
            let open = socket.state() != State::Closed;
            if !open {
                end.role.close(socket);
                sockets.remove(end.handle);
                failures.extend(end.role.judge().err());
            }
            open
        });
        self.ended += before - self.ends.len();
    }
}

fn listening(options: &SocketOptions, sockets: &mut SocketSet<'static>, port: u16) -> SocketHandle {
    let mut socket = options.socket();
    // It is closed, and the port is not 0: nothing that listening could fail for.
    let _ = socket.listen(port);
    sockets.add(socket)
}

fn ip(address: &Address) -> IpAddress {
    match IpAddr::from(*address) {
        IpAddr::V4(v4) => IpAddress::Ipv4(v4),
        IpAddr::V6(v6) => IpAddress::Ipv6(v6),
    }
}

fn framed(packet: &[u8]) -> VecFrame {
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    data.extend(if packet.first().is_some_and(|first| first >> 4 == 4) { [0x08, 0x00] } else { [0x86, 0xdd] });
    data.extend_from_slice(packet);
    VecFrame::new(&data)
}

/// The host's end of its wire.
struct HostWire {
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    mtu: usize,
}

/// Packets that a host sends at one time at most.
const AT_ONCE_MAX: usize = 100_000;

struct ArrivedFrame(Vec<u8>);
struct Leaving<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for ArrivedFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        // Rather than until memory is full.
        assert!(self.0.len() < AT_ONCE_MAX, "a peer goes round in circles: {packet:02x?}");
        self.0.push(packet);
        result
    }
}

impl Device for HostWire {
    type RxToken<'a> = ArrivedFrame;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(ArrivedFrame, Leaving<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((ArrivedFrame(packet), Leaving(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}
