//! The HTTP service under test, and what it is to make of requests and responses: said here plainly, beside its
//! configuration, and compared with what arrives.

use super::exchange::{Exchange, HOP, NAME};
use super::message::MessageHead;
use crate::scenario::{end, service};
use fastrand::Rng;
use hairpin_core::config::{Forwarding, Service};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::l7::config::{
    Action, Edits, Field, Forwarded, HeadEdits, Http, HttpLimits, Kind, ProxyVersion, Route, Sticky,
};
use hairpin_core::l7::edit::FieldValue;
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{Access, AccessVerdict, Conditions};
use hairpin_core::time::Duration;

/// The cookie's name.
const COOKIE: &str = "stuck";

/// The body of the fixed reply.
pub const FIXED: &str = "as configured\n";

/// The drawn settings of the service.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Fields are set, added and removed.
    pub edits: bool,
    /// Backends learn the client's address (PROXY protocol).
    pub forwarded: bool,
    /// `/strip` is taken off paths.
    pub strips: bool,
    /// Idle connections to backends are kept for others.
    pub reuses: bool,
    /// Bodies of so many bytes go to the engine.
    pub offload_bytes_min: Option<u64>,
    /// Requests of a client's connection.
    pub requests_max: u32,
    /// Clients are to stay with their server, by a cookie.
    pub sticky: bool,
    /// Responses say who was chosen.
    pub timed: bool,
    /// Connections to backends begin with whose they are.
    pub proxy: Option<ProxyVersion>,
}

impl Site {
    /// Draws one.
    pub fn draw(random: &mut Rng) -> Site {
        let proxy = [None, None, Some(ProxyVersion::V1), Some(ProxyVersion::V2)][random.usize(..4)];
        Site {
            edits: random.bool(),
            forwarded: random.bool(),
            strips: random.bool(),
            reuses: random.u8(..4) > 0 && proxy.is_none(),
            offload_bytes_min: random.bool().then(|| random.u64(1..30_000)),
            requests_max: if random.u8(..6) == 0 { random.u32(1..4) } else { 0 },
            sticky: random.u8(..3) == 0,
            timed: random.u8(..3) == 0,
            proxy,
        }
    }

    /// The services: the one at `vip`, whose own backends are for `a.example`, and the group for `b.example`.
    pub fn services(&self, vip: Endpoint, own: &[Endpoint], others: &[Endpoint]) -> [Service; 2] {
        let mut first = service("site", vip, 0, own);
        let mut second = service("group", end(vip.address.is_ipv4(), 9, 9, 9), own.len() as u16, others);
        second.kind = Kind::Group;
        (first.forwarding, second.forwarding) = (Forwarding::FullNat, Forwarding::FullNat);
        first.kind = Kind::Http(Box::new(self.http()));
        [first, second]
    }

    fn http(&self) -> Http {
        let route = |host: &str, prefix: Option<&str>, action| Route {
            conditions: Conditions {
                hosts: hosts(host),
                paths: prefix.iter().filter_map(|prefix| PathPattern::prefix(prefix).ok()).collect(),
                ..Conditions::default()
            },
            action,
            edits: Edits::default(),
            terms: Default::default(),
        };
        let forward = |group, replace: Option<&str>| Action::Forward {
            groups: [(group, 1)].into(),
            replace_prefix: replace.map(|text| text.as_bytes().into()),
        };
        let moved = Action::Redirect { status: 308, location: b"https://{host}{path}{query}".as_slice().into() };
        let fixed = Action::Reply { status: 200, body: FIXED.as_bytes().into() };
        let mut routes = vec![route("*.example", Some("/moved/"), moved), route("*.example", Some("/fixed"), fixed)];
        if self.strips {
            routes.push(route("a.example", Some("/strip/"), forward(0, Some("/"))));
        }
        routes.push(route("a.example", None, forward(0, None)));
        routes.push(route("b.example", None, forward(1, None)));
        let denied =
            Conditions { paths: PathPattern::prefix("/denied/").into_iter().collect(), ..Conditions::default() };
        Http {
            answers: Default::default(),
            access: [Access { conditions: denied, verdict: AccessVerdict::Deny { status: 403 }, strict: false }].into(),
            routes: routes.into(),
            edits: if self.edits { edits() } else { Edits::default() },
            forwarded: Forwarded { x_for: self.forwarded, x_proto: self.forwarded, ..Forwarded::default() },
            sticky: self.sticky.then(|| Sticky { cookie: COOKIE.as_bytes().into(), attributes: (*b"; Path=/").into() }),
            request_id: None,
            tracing: None,
            server_timing: self.timed,
            upgrade: false,
            connect: false,
            proxy_protocol: self.proxy,
            reuse: self.reuses,
            limits: HttpLimits {
                // Longer than the pauses of a TCP that has lost several segments in a row.
                head_timeout: Duration::from_secs(200),
                idle_timeout: Duration::from_secs(200),
                body_timeout: Duration::from_secs(200),
                send_timeout: Duration::from_secs(200),
                connect_timeout: Duration::from_secs(60),
                response_timeout: Duration::from_secs(200),
                requests_max: self.requests_max,
                ..HttpLimits::default()
            },
            offload_bytes_min: self.offload_bytes_min,
            timestamps: true,
        }
    }

    /// The head of a request as it is to reach a server.
    pub fn request(&self, exchange: &Exchange, client: &Address) -> MessageHead {
        let mut head = exchange.request();
        let drops = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.starts_with("x-forwarded-")
                || name.eq_ignore_ascii_case(HOP)
                || self.edits && matches!(name.as_str(), "x-remove-me" | "x-field-1")
        };
        head.fields.retain(|(name, _)| !drops(name));
        if self.forwarded {
            head.fields.push(("X-Forwarded-For".into(), client.to_string()));
            head.fields.push(("X-Forwarded-Proto".into(), "http".into()));
        }
        if self.edits {
            head.fields.push(("X-Field-1".into(), "set".into()));
            head.fields.push(("X-Added".into(), format!("by {}", exchange.method)));
        }
        if self.strips && exchange.host == "a.example" {
            head.start = head.start.replacen(" /strip/", " /", 1);
        }
        head
    }

    /// The head of a server's response as it is to reach the client.
    pub fn response(&self, exchange: &Exchange) -> MessageHead {
        let mut head = exchange.response_head();
        head.fields.retain(|(name, _)| name != HOP);
        if self.edits {
            head.fields.retain(|(name, _)| !matches!(name.as_str(), "X-Internal" | "Server"));
            head.fields.push(("Server".into(), "hairpin".into()));
            head.fields.push(("X-Content-Type-Options".into(), "nosniff".into()));
        }
        head
    }

    /// Takes out of a response what the balancer says there of itself and no peer can know; what is wrong with it.
    pub fn take_own(&self, head: &mut MessageHead) -> Result<(), String> {
        let is_cookie = |value: &str| {
            let hash = value.strip_prefix(COOKIE).and_then(|rest| rest.strip_prefix('=')?.strip_suffix("; Path=/"));
            hash.is_some_and(|hash| hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok())
        };
        let is_timing = |value: &str| {
            let rest = value.strip_prefix("hairpin;desc=\"").and_then(|rest| rest.split_once("\";dur="));
            rest.is_some_and(|(_, duration)| duration.parse::<f64>().is_ok())
        };
        let mut take = |name: &str, wanted: bool, is_right: &dyn Fn(&str) -> bool| {
            let values = head.values(name);
            if values.len() != usize::from(wanted) || !values.iter().all(|value| is_right(value)) {
                return Err(format!("{name}: {values:?}"));
            }
            head.fields.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            Ok(())
        };
        take("Set-Cookie", self.sticky, &is_cookie)?;
        take("Server-Timing", self.timed, &is_timing)
    }

    /// The body of the balancer's own answer, if it is fixed.
    pub fn own_body(&self, exchange: &Exchange) -> Option<&'static str> {
        (exchange.target == "/fixed").then_some(FIXED)
    }
}

fn hosts(text: &str) -> Box<[HostPattern]> {
    if text == "*.example" {
        // every host that exists here, so that others are not found
        return ["a.example", "b.example"].iter().filter_map(|host| HostPattern::parse(host).ok()).collect();
    }
    HostPattern::parse(text).into_iter().collect()
}

fn field(name: &str, value: &str) -> Field {
    Field { name: name.as_bytes().into(), value: FieldValue::parse(value).unwrap_or_default() }
}

fn edits() -> Edits {
    Edits {
        request: HeadEdits {
            remove: [b"x-remove-me".as_slice().into()].into(),
            set: [field("X-Field-1", "set")].into(),
            add: [field("X-Added", "by {method}")].into(),
        },
        response: HeadEdits {
            remove: [b"x-internal".as_slice().into()].into(),
            set: [field("Server", "hairpin")].into(),
            add: [field("X-Content-Type-Options", "nosniff")].into(),
        },
    }
}

/// The exchange that a head names.
pub fn name_of(head: &MessageHead) -> Option<u64> {
    let [name] = head.values(NAME)[..] else { return None };
    u64::from_str_radix(name, 16).ok()
}
