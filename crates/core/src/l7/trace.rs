//! Trace contexts (W3C Trace Context, level 1) and request ids: which ones a request has.
//!
//! A request of a traced service belongs to a trace: that of its `traceparent`, if that is believed, or one that begins here.
//! Its backend gets a `traceparent` with the span of this exchange as the parent. A request id that Hairpin makes is the
//! trace's id, so that a line of a log and a trace can be found by each other.

use super::config::Http;
use super::head::Request;
use crate::flow::Address;
use crate::keys::{Purpose, Secret};
use alloc::boxed::Box;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a request id from a client at most; a longer one is replaced.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// [`Tracing::sample`] of all traces.
pub const SAMPLE_ALL: u64 = 1 << 32;

/// Whose `traceparent` is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parents {
    /// That of the proxies in front of us ([`Forwarded::trusted`](super::config::Forwarded::trusted)).
    #[default]
    Trusted,
    /// Every client's.
    All,
    /// No other: every trace begins here.
    None,
}

/// How the requests of a service are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Whose traces go on. They are sampled where their parent says so.
    pub parents: Parents,
    /// Of 2^32 traces that begin here so many are sampled: 0 to [`SAMPLE_ALL`].
    pub sample: u64,
}

/// The field that a request's id has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// Its name, as it is written.
    pub name: Box<[u8]>,
    /// Its name in lower case.
    pub lower_name: Box<[u8]>,
}

impl RequestId {
    /// The id that a trusted client has given its request: one field of visible ASCII.
    pub fn given<'a>(&self, http: &Http, request: &Request<'a>, client: &Address) -> Option<&'a [u8]> {
        if !http.forwarded.trusts(client) {
            return None;
        }
        // The client means it for us alone.
        if request.fields.is_hop_by_hop(&self.lower_name) {
            return None;
        }
        let mut values = request.fields.find(&self.lower_name);
        let value = values.next().filter(|value| (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()))?;
        let is_one = values.next().is_none() && value.iter().all(u8::is_ascii_graphic);
        is_one.then_some(value)
    }
}

/// Makes the ids of a worker's requests. Two makers with one secret need different ranges of numbers.
#[derive(Clone, Debug)]
pub struct IdMaker {
    secret: Secret,
    last: u64,
}

/// The ids of one request, as far as they are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    trace: [u8; 16],
    span: [u8; 8],
}

impl IdMaker {
    /// One whose numbers begin behind `before`.
    pub fn new(secret: Secret, before: u64) -> IdMaker {
        IdMaker { secret, last: before }
    }

    /// The next request's number, never 0.
    pub fn next_number(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }

    /// The ids of the request with this number: always the same ones.
    pub fn ids(&self, number: u64) -> Ids {
        // None is all zero (W3C Trace Context, 3.2.2.3).
        let word = |which| self.secret.of_number(Purpose::Traces, number, which).max(1).to_be_bytes();
        let mut trace = [0; 16];
        trace[..8].copy_from_slice(&word(0));
        trace[8..].copy_from_slice(&word(1));
        Ids { trace, span: word(2) }
    }
}

/// The trace that a request belongs to, and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct TraceContext {
    /// The trace.
    pub trace: [u8; 16],
    /// The exchange's own span: the parent of what its backend does.
    pub span: [u8; 8],
    /// The span that the request comes from; zero: the trace begins here.
    pub parent: [u8; 8],
    /// [`TraceContext::TRACED`] and [`TraceContext::SAMPLED`].
    pub flags: u8,
}

/// `traceparent` of version 00: `00-`, 32 digits, `-`, 16 digits, `-`, two digits.
const PARENT_BYTES: usize = 55;

impl TraceContext {
    /// It is one of a trace, not only a request's id.
    pub const TRACED: u8 = 1;
    /// Its span is exported.
    pub const SAMPLED: u8 = 2;

    /// That of a request of a client at this address. `ids`: those that are made for it.
    pub fn of(http: &Http, request: &Request<'_>, client: &Address, ids: &Ids) -> TraceContext {
        let Ids { trace, span } = *ids;
        let own = TraceContext { trace, span, parent: [0; 8], flags: 0 };
        let Some(tracing) = &http.tracing else { return own };
        if tracing.believes(http, client)
            && let Some((trace, parent, is_sampled)) = parent_of(request)
        {
            let flags = TraceContext::TRACED | if is_sampled { TraceContext::SAMPLED } else { 0 };
            return TraceContext { trace, span, parent, flags };
        }
        // A client cannot know these digits before, so it cannot choose to be sampled.
        let draw = u32::from_be_bytes([trace[12], trace[13], trace[14], trace[15]]);
        let is_sampled = u64::from(draw) < tracing.sample;
        TraceContext { flags: TraceContext::TRACED | if is_sampled { TraceContext::SAMPLED } else { 0 }, ..own }
    }

    /// As a record keeps it ([`Texts::trace`](crate::record::Texts::trace)).
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Whether the request belongs to a trace.
    pub fn is_traced(&self) -> bool {
        self.flags & TraceContext::TRACED != 0
    }

    /// Whether its span is exported.
    pub fn is_sampled(&self) -> bool {
        self.flags & TraceContext::SAMPLED != 0
    }

    /// Whether the trace has begun elsewhere.
    pub fn has_parent(&self) -> bool {
        self.parent != [0; 8]
    }
}

impl Tracing {
    fn believes(&self, http: &Http, client: &Address) -> bool {
        match self.parents {
            Parents::Trusted => http.forwarded.trusts(client),
            Parents::All => true,
            Parents::None => false,
        }
    }
}

/// Trace, parent and whether it is sampled, as the request's `traceparent` says, if there is exactly one that can be read.
fn parent_of(request: &Request<'_>) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut values = request.fields.find(b"traceparent");
    let value = values.next().filter(|_| values.next().is_none())?;
    let [version] = octets(value.get(..2)?)?;
    // A later version may say more, behind another dash (3.2.4).
    let has_end = match version {
        0 => value.len() == PARENT_BYTES,
        0xff => false,
        _ => value.len() == PARENT_BYTES || value.get(PARENT_BYTES) == Some(&b'-'),
    };
    let has_dashes = [2, 35, 52].iter().all(|at| value.get(*at) == Some(&b'-'));
    if !has_end || !has_dashes {
        return None;
    }
    let trace: [u8; 16] = octets(value.get(3..35)?)?;
    let parent: [u8; 8] = octets(value.get(36..52)?)?;
    let [flags] = octets(value.get(53..PARENT_BYTES)?)?;
    (trace != [0; 16] && parent != [0; 8]).then_some((trace, parent, flags & 1 != 0))
}

/// Bytes written as two lower-case hexadecimal digits each.
fn octets<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut octets = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (octet, pair) in octets.iter_mut().zip(digits.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *octet = digit(high)? << 4 | digit(low)?;
    }
    Some(octets)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Network;
    use super::super::head::{self, Bounds, ParseStatus};
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::net::IpAddr;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    /// The context of a request with these fields, of a client that is trusted if `is_trusted`.
    fn context(tracing: Option<Tracing>, fields: &str, is_trusted: bool) -> TraceContext {
        let mut http = Http { tracing, ..Http::default() };
        http.forwarded.trusted = [Network { address: address("192.0.2.1"), prefix: 128 }].into();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let bounds = Bounds { bytes_max: 4096, fields_max: 10, target_bytes_max: 512 };
        let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &bounds) else { panic!("{head}") };
        let client = address(if is_trusted { "192.0.2.1" } else { "192.0.2.2" });
        let ids = IdMaker::new(Secret::new([1, 2]), 0).ids(7);
        TraceContext::of(&http, &request, &client, &ids)
    }

    fn traced(parents: Parents, sample: u64) -> Option<Tracing> {
        Some(Tracing { parents, sample })
    }

    #[test]
    fn believed_parents_go_on_and_others_do_not() {
        let field = format!("traceparent: {PARENT}\r\n");
        let own = IdMaker::new(Secret::new([1, 2]), 0).ids(7);
        for (parents, is_trusted, goes_on) in [
            (Parents::Trusted, true, true),
            (Parents::Trusted, false, false),
            (Parents::All, false, true),
            (Parents::None, true, false),
        ] {
            let context = context(traced(parents, 0), &field, is_trusted);
            let case = format!("{parents:?}, {is_trusted}");
            assert_eq!(context.trace[..2] == [0x0a, 0xf7], goes_on, "{case}");
            assert_eq!((context.has_parent(), context.is_sampled()), (goes_on, goes_on), "{case}");
            assert!(context.is_traced() && context.span == own.span, "{case}");
        }
        let context = context(None, &field, true);
        assert!(!context.is_traced() && context.trace == own.trace);
    }

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let long = format!("01{}-more", &PARENT[2..]);
        let good = [PARENT, &PARENT.replace("-01", "-00"), &PARENT.replace("00-0", "42-0"), &long];
        let bad = [
            "",
            "00",
            &PARENT.replace("00-0", "ff-0"),
            &PARENT.replace("0af7", "0AF7"),
            &PARENT.replace("0af7", "0ag7"),
            &PARENT[..54],
            &format!("{PARENT}-more"),
            &format!("{PARENT}0"),
            &long.replace("-more", "more"),
            &PARENT.replace('-', "_"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        ];
        let believed = |field: &str| context(traced(Parents::All, 0), field, false).has_parent();
        for value in good {
            assert!(believed(&format!("TraceParent: {value}\r\n")), "{value}");
        }
        for value in bad {
            assert!(!believed(&format!("traceparent: {value}\r\n")), "{value}");
        }
        assert!(!believed(&format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n")), "two of them");
    }

    #[test]
    fn as_many_are_sampled_as_are_to_be() {
        let maker = IdMaker::new(Secret::new([3, 4]), 0);
        let http = |sample| Http { tracing: traced(Parents::None, sample), ..Http::default() };
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let bounds = Bounds { bytes_max: 4096, fields_max: 10, target_bytes_max: 512 };
        let Ok(ParseStatus::Complete(request)) = head::request(head, &bounds) else { panic!() };
        let sampled = |sample| {
            let http = http(sample);
            let is = |number| TraceContext::of(&http, &request, &Address::default(), &maker.ids(number)).is_sampled();
            (1..=10_000).filter(|number| is(*number)).count()
        };
        assert_eq!((sampled(0), sampled(SAMPLE_ALL)), (0, 10_000));
        // Five deviations around 1,000.
        assert!((850..1150).contains(&sampled(SAMPLE_ALL / 10)), "{}", sampled(SAMPLE_ALL / 10));
    }

    #[test]
    fn numbers_and_ids_do_not_come_again() {
        let mut maker = IdMaker::new(Secret::new([1, 2]), u64::MAX - 1);
        let numbers = [maker.next_number(), maker.next_number(), maker.next_number()];
        assert_eq!(numbers, [u64::MAX, 1, 2]);
        let [one, two] = [maker.ids(1), maker.ids(2)];
        assert!(one.trace != two.trace && one.span != two.span && one == maker.ids(1));
        assert_ne!(one, IdMaker::new(Secret::new([1, 3]), 0).ids(1));
    }

    #[test]
    fn ids_of_requests_come_from_trusted_clients_only() {
        let id = RequestId { name: (*b"X-Request-Id").into(), lower_name: (*b"x-request-id").into() };
        let mut http = Http::default();
        http.forwarded.trusted = [Network { address: address("192.0.2.1"), prefix: 128 }].into();
        let given = |value: &str, client: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{value}\r\n");
            let bounds = Bounds { bytes_max: 4096, fields_max: 10, target_bytes_max: 512 };
            let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &bounds) else { panic!("{head}") };
            id.given(&http, &request, &address(client)).map(|id| String::from_utf8(id.to_vec()).unwrap())
        };
        assert_eq!(given("X-REQUEST-ID: abc-1\r\n", "192.0.2.1").as_deref(), Some("abc-1"));
        assert_eq!(given("X-Request-Id: abc-1\r\n", "192.0.2.2"), None);
        assert_eq!(given("X-Request-Id: a b\r\n", "192.0.2.1"), None);
        assert_eq!(given("X-Request-Id: a\r\nX-Request-Id: a\r\n", "192.0.2.1"), None);
        assert_eq!(given(&format!("X-Request-Id: {}\r\n", "a".repeat(129)), "192.0.2.1"), None);
        assert_eq!(given("", "192.0.2.1"), None);
        assert_eq!(given("Connection: x-request-id\r\nX-Request-Id: abc-1\r\n", "192.0.2.1"), None);
    }
}
