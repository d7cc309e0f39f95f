//! The way of IPFIX to its collector. One that does not take messages loses them; they are counted, and nothing waits.

use super::flows::FlowRecord;
use super::ipfix::Encoder;
use super::settings::{CollectorEnd, MonitorSettings};
use crate::events::EventKind;
use crate::run::tell;
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// How often templates are sent over UDP, for collectors that begin late.
pub(crate) const TEMPLATES_EVERY: Duration = Duration::from_secs(60);
/// How long a collector that has failed is left alone.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a collector may take over TCP.
const TCP_PATIENCE: Duration = Duration::from_millis(500);
/// How often a failure is told at most.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// So many datagrams follow each other without a pause: a collector's queue takes a few hundred.
const BURST: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// What has become of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) exported: u64,
    pub(super) lost: u64,
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

/// The collector of a monitor.
pub(super) struct Exporter {
    monitor: String,
    end: CollectorEnd,
    encoder: Encoder,
    socket: Option<Socket>,
    /// Not to be opened before.
    closed_until: Option<Instant>,
    told: Option<Instant>,
    templates_sent: Option<Instant>,
    /// Datagrams since the last pause.
    burst: usize,
}

impl Exporter {
    /// The exporter that a monitor with these settings has; `None`: it has no collector.
    pub(super) fn of(settings: &MonitorSettings) -> Option<Exporter> {
        Some(Exporter {
            monitor: settings.name.clone(),
            end: settings.collector?,
            encoder: Encoder::new(settings),
            socket: None,
            closed_until: None,
            told: None,
            templates_sent: None,
            burst: 0,
        })
    }

    /// Sends records. `epoch`: when the kernel's clock began; both times in nanoseconds since 1970.
    pub(super) fn send(&mut self, records: &[FlowRecord], epoch: u64, now: u64) -> Sent {
        if self.closed_until.is_some_and(|until| Instant::now() < until) {
            return Sent { exported: 0, lost: count(records) };
        }
        if let Err(error) = self.open() {
            self.failed(&error);
            return Sent { exported: 0, lost: count(records) };
        }
        if self.templates_sent.is_none_or(|sent| sent.elapsed() >= TEMPLATES_EVERY) {
            self.encoder.repeat_templates(false);
            self.templates_sent = Some(Instant::now());
        }
        records.iter().for_each(|record| self.encoder.add(record, epoch, now));
        let mut sent = Sent::default();
        for message in self.encoder.take(now) {
            match self.write(&message.bytes) {
                Ok(()) => sent.exported += message.records,
                Err(error) => {
                    sent.lost += message.records;
                    self.failed(&error);
                }
            }
        }
        sent
    }

    fn open(&mut self) -> io::Result<()> {
        if self.socket.is_some() {
            return Ok(());
        }
        self.socket = Some(match self.end {
            CollectorEnd::Udp(address) => {
                let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Socket::Udp(socket)
            }
            CollectorEnd::Tcp(address) => {
                let stream = TcpStream::connect_timeout(&address, TCP_PATIENCE)?;
                stream.set_write_timeout(Some(TCP_PATIENCE))?;
                self.encoder.repeat_templates(true);
                Socket::Tcp(stream)
            }
        });
        self.templates_sent = None;
        Ok(())
    }

    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match &mut self.socket {
            // It has failed with a message before this one.
            None => Err(ErrorKind::NotConnected.into()),
            Some(Socket::Tcp(stream)) => stream.write_all(message),
            Some(Socket::Udp(socket)) => {
                self.burst += 1;
                if self.burst.is_multiple_of(BURST) {
                    std::thread::sleep(PAUSE);
                }
                match socket.send(message) {
                    // Of an earlier datagram: there was no collector then.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => socket.send(message).map(|_| ()),
                    sent => sent.map(|_| ()),
                }
            }
        }
    }

    fn failed(&mut self, error: &io::Error) {
        (self.socket, self.closed_until) = (None, Some(Instant::now() + RETRY_AFTER));
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let Exporter { monitor, end, .. } = self;
        tell(EventKind::Limit, &format!("warning: monitor \"{monitor}\" loses records: {end} takes none: {error}"));
    }
}

/// How many records of IPFIX they become.
fn count(records: &[FlowRecord]) -> u64 {
    let halves = |record: &FlowRecord| [record.count.inward.packets, record.count.outward.packets];
    records.iter().flat_map(halves).filter(|packets| *packets > 0).count() as u64
}
