//! Records: what is known of an exchange of an HTTP service, or of another service's connection, at its end.
//!
//! A worker puts them into a ring, and a thread of the host takes them out. What a request says of itself ([`Texts`]) goes into the
//! ring when its head has been read, since its bytes are gone when the exchange ends; both carry the exchange's number, and the
//! reader puts them together. A record of which either finds no room is lost and counted, once: the worker never waits.

mod ring;

pub use ring::{Look, Message, Recorder, Records};

use crate::flow::Endpoint;
use crate::l7::head::{Request, Span, agent_and_referer_in};
use crate::l7::splice::Refused;
use crate::l7::trace::{REQUEST_ID_BYTES_MAX, TraceContext};
use crate::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of each text that a record keeps at most, in the order of [`Texts`].
pub const TEXT_BYTES_MAX: [usize; TEXTS] =
    [32 + 1 + 2048, 255, 512, 1024, REQUEST_ID_BYTES_MAX, size_of::<TraceContext>()];
const TEXTS: usize = 6;

/// What a request says of itself, as it was received. All are empty of a connection; of a TLS connection `host` is the name that
/// its client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Texts<'a> {
    /// Method and target, with a space between them.
    pub line: &'a [u8],
    /// The host that it is for, with its port.
    pub host: &'a [u8],
    /// `User-Agent`.
    pub agent: &'a [u8],
    /// `Referer`.
    pub referer: &'a [u8],
    /// The id that a trusted client has given it.
    pub id: &'a [u8],
    /// Its [`TraceContext`], as bytes; empty: it has none.
    pub trace: &'a [u8],
}

impl<'a> Texts<'a> {
    /// Those of a request.
    pub fn of(request: &Request<'a>, id: &'a [u8], trace: &'a [u8]) -> Texts<'a> {
        let [line, host] = request.line_and_host().map(|part| part.in_bytes(request.bytes).unwrap_or_default());
        let [agent, referer] = request.fields.agent_and_referer();
        Texts { line, host, agent, referer, id, trace }
    }

    /// All of them, in order.
    pub fn parts(&self) -> [&'a [u8]; TEXTS] {
        let Texts { line, host, agent, referer, id, trace } = *self;
        [line, host, agent, referer, id, trace]
    }

    /// Its trace.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::read_from_bytes(self.trace).ok()
    }

    /// The method.
    pub fn method(&self) -> &'a [u8] {
        self.line.split(|byte| *byte == b' ').next().unwrap_or_default()
    }

    /// The target: path and query; of a request to a proxy the whole URL, of `CONNECT` the authority.
    pub fn target(&self) -> &'a [u8] {
        self.line.get(self.method().len() + 1..).unwrap_or_default()
    }

    /// Those that lie at these places in `bytes`.
    fn at(places: &[Span; TEXTS], bytes: &'a [u8]) -> Option<Texts<'a>> {
        let mut parts = [&[][..]; TEXTS];
        for (part, place) in parts.iter_mut().zip(places) {
            *part = place.in_bytes(bytes)?;
        }
        Some(Texts::from(parts))
    }

    /// Those of a request whose head these bytes begin with, and whose line and host lie there.
    fn in_head([line, host]: [Span; 2], head: &'a [u8]) -> Option<Texts<'a>> {
        let [agent, referer] = agent_and_referer_in(head);
        let texts =
            Texts { line: line.in_bytes(head)?, host: host.in_bytes(head)?, agent, referer, ..Texts::default() };
        Some(texts.cut())
    }

    /// As much of each as a record keeps.
    fn cut(&self) -> Texts<'a> {
        let mut parts = self.parts();
        parts.iter_mut().zip(TEXT_BYTES_MAX).for_each(|(part, most)| *part = &part[..part.len().min(most)]);
        Texts::from(parts)
    }
}

impl<'a> From<[&'a [u8]; TEXTS]> for Texts<'a> {
    fn from([line, host, agent, referer, id, trace]: [&'a [u8]; TEXTS]) -> Texts<'a> {
        Texts { line, host, agent, referer, id, trace }
    }
}

/// How an exchange or a connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ending {
    /// It was broken off, and nothing says by which side: the process ended, its memory was torn.
    #[default]
    Aborted,
    /// As it should: the response was delivered, or both ends of the connection have closed.
    Done,
    /// Hairpin has answered by itself, with an error ([`Record::why`]) or as a route says.
    Answered,
    /// The client has reset its connection, or closed it in the middle of a response.
    Client,
    /// The backend has closed or reset its connection in the middle of a response.
    Backend,
    /// Nothing came for too long.
    Timeout,
    /// One end has reset the connection. (Layer 4.)
    Reset,
    /// Its backend was taken away, or its place in the table was another's.
    Removed,
}

impl Ending {
    /// All of them, in order.
    pub const ALL: [Ending; 8] = [
        Ending::Aborted,
        Ending::Done,
        Ending::Answered,
        Ending::Client,
        Ending::Backend,
        Ending::Timeout,
        Ending::Reset,
        Ending::Removed,
    ];

    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Aborted => "aborted",
            Ending::Done => "done",
            Ending::Answered => "answered",
            Ending::Client => "client",
            Ending::Backend => "backend",
            Ending::Timeout => "timeout",
            Ending::Reset => "reset",
            Ending::Removed => "removed",
        }
    }

    /// The one with this number.
    pub fn of(number: u8) -> Ending {
        Ending::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

/// No service, backend, route or reason: a number that none has.
pub const NONE: u16 = u16::MAX;
/// A time that was not reached.
pub const NEVER_US: u32 = u32::MAX;
/// The number of an exchange that began in another process: its texts are not known here.
pub const ADOPTED: u32 = u32::MAX;
/// The number of an exchange whose beginning found no room: its record is lost, and counted.
pub const LOST: u32 = u32::MAX - 1;
/// Whether anything is noted of exchanges. It is not in the program of `lab/instructions` that says what that costs.
pub(crate) const IS_KEPT: bool = cfg!(not(without_records));

/// Facts about a record, as bits.
pub mod flags {
    /// It is an exchange of HTTP; otherwise a connection.
    pub const EXCHANGE: u8 = 1;
    /// The client speaks TLS.
    pub const TLS: u8 = 2;
    /// The engine has carried some of it.
    pub const ENGINE: u8 = 4;
    /// The client's HTTP is 1.0.
    pub const HTTP10: u8 = 8;
    /// The client's HTTP is 2.
    pub const HTTP2: u8 = 16;
    /// Of `bytes[0]` only the lower 32 bits are known: `widen` finds the others.
    pub const LOW_IN: u8 = 32;
    /// Likewise of `bytes[1]`.
    pub const LOW_OUT: u8 = 64;
}

/// An exchange or a connection that has ended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Record {
    /// When the request's head was complete, or the connection began: nanoseconds of the worker's clock ([`Time`]).
    pub started: u64,
    /// How long it took, in nanoseconds.
    pub took: u64,
    /// Bytes from the client and to the client. Of an exchange those of request and response with their heads, of a connection
    /// those of its IP packets.
    pub bytes: [u64; 2],
    /// Packets from the client and to it, of a connection; 0 of an exchange.
    pub packets: [u64; 2],
    /// Bytes of IP packets from the client and to it that an exchange's client connection has carried so far; 0 of a connection.
    pub volumes: [u64; 2],
    /// The client's end.
    pub client: Endpoint,
    /// The service's end.
    pub vip: Endpoint,
    /// The service's number.
    pub service: u16,
    /// The number of the group its backend was chosen from; [`NONE`]: none.
    pub group: u16,
    /// The backend's number; [`NONE`]: none was chosen.
    pub backend: u16,
    /// The route, by its place in the service; [`NONE`]: none.
    pub route: u16,
    /// The status that the client got; 0: none.
    pub status: u16,
    /// The [`Ending`].
    pub ending: u8,
    /// The [`Refused`] reason of an answer of ours, or of a connection broken off; 255: none.
    pub why: u8,
    /// The number by which its texts are found; 0: it has none.
    pub number: u32,
    /// Microseconds until it had a backend's connection; [`NEVER_US`]: it never had.
    pub to_backend_us: u32,
    /// Microseconds until the response's head had come; [`NEVER_US`]: it never did.
    pub to_response_us: u32,
    /// Backends that were tried.
    pub tries: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Zero.
    pub unused: [u8; 2],
}

/// What a [`Record`] begins with: the same fields.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RecordStart {
    pub(crate) started: u64,
    pub(crate) took: u64,
    pub(crate) bytes: [u64; 2],
    pub(crate) packets: [u64; 2],
    pub(crate) volumes: [u64; 2],
}

/// What it ends with.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RecordRest {
    pub(crate) client: Endpoint,
    pub(crate) vip: Endpoint,
    pub(crate) service: u16,
    pub(crate) group: u16,
    pub(crate) backend: u16,
    pub(crate) route: u16,
    pub(crate) status: u16,
    pub(crate) ending: u8,
    pub(crate) why: u8,
    pub(crate) number: u32,
    pub(crate) to_backend_us: u32,
    pub(crate) to_response_us: u32,
    pub(crate) tries: u8,
    pub(crate) flags: u8,
    pub(crate) unused: [u8; 2],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Record>() == size_of::<RecordStart>() + size_of::<RecordRest>());
    assert!(offset_of!(Record, client) == size_of::<RecordStart>());
    assert!(offset_of!(Record, number) == size_of::<RecordStart>() + offset_of!(RecordRest, number));
};

impl Record {
    /// One that begins, with nothing known of its way.
    pub fn new(started: Time, client: Endpoint, vip: Endpoint, service: u16) -> Record {
        Record {
            started: started.as_nanos(),
            took: 0,
            bytes: [0; 2],
            packets: [0; 2],
            volumes: [0; 2],
            client,
            vip,
            service,
            group: NONE,
            backend: NONE,
            route: NONE,
            status: 0,
            ending: Ending::Done as u8,
            why: u8::MAX,
            number: 0,
            to_backend_us: NEVER_US,
            to_response_us: NEVER_US,
            tries: 0,
            flags: 0,
            unused: [0; 2],
        }
    }

    /// Completes the bytes of an exchange of which sequence numbers say the lower 32 bits alone: what its client's connection
    /// has carried since `before`, when it began, is a little more than them.
    pub fn widen(&mut self, before: [u64; 2]) {
        let is_low = [flags::LOW_IN, flags::LOW_OUT].map(|flag| self.has(flag));
        let sides = self.bytes.iter_mut().zip(self.volumes).zip(before).zip(is_low);
        for (((bytes, volume), before), _) in sides.filter(|(_, is_low)| *is_low) {
            let about = volume.saturating_sub(before);
            // Headers are less than half of 4 GiB as long as bodies are less than 60 GiB with 40 of each 1,500 bytes.
            let beyond = about.saturating_sub(*bytes) + (1 << 31);
            *bytes += beyond >> 32 << 32;
        }
    }

    /// Whether it has this flag.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Why Hairpin has answered with an error, or has broken the connection off.
    pub fn why(&self) -> Option<Refused> {
        Refused::ALL.get(usize::from(self.why)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    pub(super) fn record(number: u32) -> Record {
        let end = |port| Endpoint::new(IpAddr::from([10, 0, 0, 1]), port);
        Record { number, ..Record::new(Time::from_nanos(5), end(1000), end(80), 3) }
    }

    #[test]
    fn method_and_target_are_parts_of_the_line() {
        let texts = |line| Texts { line, ..Texts::default() };
        assert_eq!((texts(b"GET /a b").method(), texts(b"GET /a b").target()), (&b"GET"[..], &b"/a b"[..]));
        assert_eq!((texts(b"").method(), texts(b"").target()), (&b""[..], &b""[..]));
        assert_eq!((texts(b"GET").method(), texts(b"GET").target()), (&b"GET"[..], &b""[..]));
    }

    #[test]
    fn sizes_beyond_4_gib_are_those_that_volumes_make_likely() {
        // Bytes, and the volume that carries them.
        let cases = [
            (0, 0),
            (100, 0),
            (100, 140),
            (0xffff_ffff, 0x1_0700_0000),
            (5 << 32 | 7, (5 << 32) + (140 << 20)),
            // Counters that are not all in yet.
            (1 << 32, (1 << 32) - (1 << 30)),
        ];
        for (bytes, volume) in cases {
            let low = Record { flags: flags::LOW_IN, ..record(1) };
            let mut ended = Record { bytes: [bytes & 0xffff_ffff, 1], volumes: [volume + 50, 9 << 32], ..low };
            ended.widen([50, 10]);
            assert_eq!(ended.bytes, [bytes, 1], "{bytes:#x} {volume:#x}");
        }
    }
}
