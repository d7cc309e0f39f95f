//! A service's layer-7 configuration, as the data plane sees it: immutable, validated before it gets here.

use super::edit::FieldValue;
use super::head::Bounds;
use super::route::{Access, Conditions};
use super::trace::{RequestId, Tracing};
use crate::flow::Address;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::discriminant;

/// The protocol of a service.
#[derive(Clone, Debug, Default)]
pub enum Kind {
    /// Layer 4: connections are forwarded as they are.
    #[default]
    Forward,
    /// HTTP/1.1, request by request.
    Http(Box<Http>),
    /// TLS, passed through, connection by connection, by what the ClientHello asks for; or TCP, with [`Tls::is_plain`].
    Tls(Box<Tls>),
    /// HTTP/1.1 and HTTP/2 whose connections end at sockets of this host. Workers have nothing to do with them.
    Terminated(Box<Terminated>),
    /// No service of its own: backends that routes of others lead to. No client connects to it. Its endpoint is unused.
    Group,
}

impl Kind {
    /// Whether clients' connections are spliced, not forwarded.
    pub fn is_spliced(&self) -> bool {
        matches!(self, Kind::Http(_) | Kind::Tls(_))
    }

    /// Whether it is a service of layer 7, spliced or terminated: one that counts requests and clients' connections.
    pub fn is_layer7(&self) -> bool {
        self.is_spliced() || self.is_terminated()
    }

    /// Whether nothing of a client's bytes is read before its connection goes to a backend.
    pub fn is_plain(&self) -> bool {
        matches!(self, Kind::Tls(tls) if tls.is_plain)
    }

    /// Whether connections of a service of this kind can go on when it is of `other`.
    pub fn is_like(&self, other: &Kind) -> bool {
        discriminant(self) == discriminant(other) && self.is_plain() == other.is_plain()
    }

    /// Whether clients are offered TCP timestamps.
    pub fn has_timestamps(&self) -> bool {
        match self {
            Kind::Http(http) => http.timestamps,
            Kind::Tls(tls) => tls.timestamps,
            Kind::Forward | Kind::Terminated(_) | Kind::Group => false,
        }
    }

    /// Whether connections end at sockets of this host.
    pub fn is_terminated(&self) -> bool {
        matches!(self, Kind::Terminated(_))
    }

    /// The HTTP of a service that has requests, spliced or terminated.
    pub fn http(&self) -> Option<&Http> {
        match self {
            Kind::Http(http) => Some(http),
            Kind::Terminated(terminated) => Some(&terminated.http),
            Kind::Forward | Kind::Tls(_) | Kind::Group => None,
        }
    }

    /// Likewise, to be changed.
    pub fn http_mut(&mut self) -> Option<&mut Http> {
        match self {
            Kind::Http(http) => Some(http),
            Kind::Terminated(terminated) => Some(&mut terminated.http),
            Kind::Forward | Kind::Tls(_) | Kind::Group => None,
        }
    }

    /// Whether no client connects to it: routes of others lead to its backends.
    pub fn is_group(&self) -> bool {
        matches!(self, Kind::Group)
    }

    /// Every place where it names a group, to be named anew.
    pub fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let (http, tls): (&mut [Route], &mut [TlsRoute]) = match self {
            Kind::Http(http) => (&mut http.routes, &mut []),
            Kind::Terminated(terminated) => (&mut terminated.http.routes, &mut []),
            Kind::Tls(tls) => (&mut [], &mut tls.routes),
            Kind::Forward | Kind::Group => (&mut [], &mut []),
        };
        let of_http = http.iter_mut().flat_map(|route| {
            let groups = match &mut route.action {
                Action::Forward { groups, .. } => &mut groups[..],
                Action::Redirect { .. } | Action::Reply { .. } => &mut [],
            };
            let RouteTerms { mirror, asks, .. } = &mut route.terms;
            let asked = asks.as_mut().map(|asks| &mut Arc::make_mut(asks).group);
            let aside = mirror.as_mut().map(|mirror| &mut mirror.group).into_iter().chain(asked);
            groups.iter_mut().map(|(group, _)| group).chain(aside)
        });
        of_http.chain(tls.iter_mut().flat_map(|route| &mut route.groups[..]).map(|(group, _)| group))
    }
}

/// A set of statuses from 500 to 599.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerErrors(u128);

impl ServerErrors {
    fn bit(status: u16) -> u128 {
        match status {
            500..=599 => 1 << (status - 500),
            _ => 0,
        }
    }

    /// Whether a status is in it.
    pub fn contains(&self, status: u16) -> bool {
        self.0 & ServerErrors::bit(status) != 0
    }
}

/// Others than 500 to 599 are left out.
impl FromIterator<u16> for ServerErrors {
    fn from_iter<I: IntoIterator<Item = u16>>(statuses: I) -> ServerErrors {
        ServerErrors(statuses.into_iter().fold(0, |set, status| set | ServerErrors::bit(status)))
    }
}

/// The number of a service in the snapshot that is a [`Kind::Group`], or of the service itself: its own backends.
pub type Group = u16;

/// An HTTP service. The default has no routes: all its requests are answered with 404.
#[derive(Clone, Debug, Default)]
pub struct Http {
    /// Paths that are answered before anything else is asked: neither access rules nor routes stand before them.
    pub answers: Arc<[PathAnswer]>,
    /// Asked in order, before any route; the first that matches decides. None: all clients may pass.
    pub access: Box<[Access]>,
    /// Asked in order; the first whose conditions hold is taken. None of them: 404.
    pub routes: Box<[Route]>,
    /// The changes of every request and response, before what the route changes.
    pub edits: Edits,
    /// The fields that tell backends about the client.
    pub forwarded: Forwarded,
    /// The field with a request's id, which is made here unless a trusted client gives one; `None`: none is made.
    pub request_id: Option<RequestId>,
    /// How its requests are traced; `None`: `traceparent` goes on as any other field.
    pub tracing: Option<Tracing>,
    /// Clients stay with their backend by a cookie.
    pub sticky: Option<Sticky>,
    /// Whether responses say which backend was chosen and how long that took (`Server-Timing: hairpin;desc="NAME"`).
    pub server_timing: bool,
    /// Upgrade (WebSocket) requests are tunnelled; else refused with 501.
    pub upgrade: bool,
    /// CONNECT requests are tunnelled to the route's backend; else refused with 501.
    pub connect: bool,
    /// The header that connections to backends begin with.
    pub proxy_protocol: Option<ProxyVersion>,
    /// Whether idle connections to backends are kept for other clients' requests. Not with `proxy_protocol`.
    pub reuse: bool,
    /// Bounds.
    pub limits: HttpLimits,
    /// Bodies of at least so many bytes go to the engine; `None`: what the measured costs say.
    pub offload_bytes_min: Option<u64>,
    /// Whether clients are offered TCP timestamps (RFC 7323), and backends those of such clients.
    pub timestamps: bool,
}

impl Http {
    /// Whether its requests have a [`TraceContext`](super::trace::TraceContext).
    pub fn is_marked(&self) -> bool {
        self.tracing.is_some() || self.request_id.is_some()
    }
}

/// A path, and the text that GET and HEAD of it are answered with, with status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAnswer {
    /// The path as clients must write it, byte for byte.
    pub path: Box<[u8]>,
    /// Plain text of at most 4096 bytes.
    pub body: Box<[u8]>,
}

/// An HTTP service whose connections end here.
#[derive(Clone, Debug, Default)]
pub struct Terminated {
    /// What becomes of its requests. `offload_bytes_min` and `timestamps` have no effect.
    pub http: Http,
    /// Whether its clients speak TLS.
    pub tls: bool,
    /// Whether its clients may speak HTTP/2: with TLS those that ask for it (ALPN), without TLS those that begin with its
    /// preface (RFC 9113, 3.3).
    pub http2: bool,
}

/// One route of an HTTP service.
#[derive(Clone, Debug)]
pub struct Route {
    /// When it is taken.
    pub conditions: Conditions,
    /// The action.
    pub action: Action,
    /// The changes of requests and responses that take it.
    pub edits: Edits,
    /// What holds for its requests beside the service's limits.
    pub terms: RouteTerms,
}

/// What holds for the requests of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTerms {
    /// Instead of [`HttpLimits::response_timeout`].
    pub response_timeout: Option<Duration>,
    /// Instead of [`HttpLimits::body_timeout`]; of services whose connections end here.
    pub body_timeout: Option<Duration>,
    /// Statuses for which a request that may be repeated is sent to another backend; of services whose connections end here.
    pub retry_status: ServerErrors,
    /// How often, at most.
    pub retries: u8,
    /// 0 to 9: which of the requests that wait for a backend goes first, the highest; of services whose connections end here.
    pub priority: u8,
    /// Where copies of requests without body go; of services whose connections end here.
    pub mirror: Option<Mirror>,
    /// Who is asked whether a request may go on; of services whose connections end here.
    pub asks: Option<Arc<ForwardAuth>>,
}

/// A server that is asked of each request of a route whether it may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The group whose backends answer.
    pub group: Group,
    /// The path that they are asked for.
    pub path: Box<[u8]>,
    /// How long the answer may take.
    pub timeout: Duration,
    /// Names, in lower case, of the answer's fields that the request goes on with.
    pub copied: Box<[Box<[u8]>]>,
}

/// Copies of a route's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The group that gets them.
    pub group: Group,
    /// Of a hundred requests so many are copied, 1 to 100.
    pub percent: u8,
    /// Copies that one runtime has on their way at most: no more are made then.
    pub concurrent: u16,
}

/// The action of a route.
#[derive(Clone, Debug)]
pub enum Action {
    /// Forward it to a backend.
    Forward {
        /// Whose backends, each group with its share of requests (1 to 65535). Never empty.
        groups: Box<[(Group, u16)]>,
        /// The route's path prefix (or its exact path) is replaced by this one, which starts with `/`; what comes
        /// behind it goes on as it was compared, but with its empty segments.
        replace_prefix: Option<Box<[u8]>>,
    },
    /// Redirect the client.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The destination: text with the variables `{scheme}`, `{host}` (without port), `{authority}` (with it), `{path}` and
        /// `{query}` (with its `?`, if there is one), checked by [`edit::location`](super::edit::location).
        location: Box<[u8]>,
    },
    /// Answer it.
    Reply {
        /// 200 to 599.
        status: u16,
        /// The body, plain text of at most 4096 bytes.
        body: Box<[u8]>,
    },
}

/// Changes to a head, in this order: removed, set, added.
#[derive(Clone, Debug, Default)]
pub struct HeadEdits {
    /// Names of fields to remove, lower case ([`Field::parse_removed`]).
    pub remove: Box<[Box<[u8]>]>,
    /// Fields that replace all of their name.
    pub set: Box<[Field]>,
    /// Fields that are added to what there is.
    pub add: Box<[Field]>,
}

impl HeadEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

/// A field of a head ([`Field::parse`], [`Field::parse_response`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, as it will be written.
    pub name: Box<[u8]>,
    /// Its value, which may use the variables of [`Variable`](super::edit::Variable).
    pub value: FieldValue,
}

/// Changes to both heads of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    /// To the request's.
    pub request: HeadEdits,
    /// To the response's.
    pub response: HeadEdits,
}

/// The fields that tell backends about the client. The client's own text in these fields is trusted, and added to, only if it
/// comes from `trusted`; else it is replaced.
#[derive(Clone, Debug, Default)]
pub struct Forwarded {
    /// `X-Forwarded-For`.
    pub x_for: bool,
    /// `X-Forwarded-Proto`.
    pub x_proto: bool,
    /// `X-Forwarded-Host`.
    pub x_host: bool,
    /// `X-Real-IP`.
    pub x_real_ip: bool,
    /// `Forwarded` (RFC 7239).
    pub standard: bool,
    /// Proxies in front of us.
    pub trusted: Box<[Network]>,
}

impl Forwarded {
    /// Whether the client at this address is a proxy in front of us.
    pub fn trusts(&self, client: &Address) -> bool {
        self.trusted.iter().any(|network| network.contains(client))
    }
}

/// A network of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its address; bits beyond the prefix are zero.
    pub address: Address,
    /// Bits of prefix, of the 128 of an [`Address`]: an IPv4 prefix of n bits is 96 + n.
    pub prefix: u8,
}

impl Network {
    /// Whether `address` is in it.
    pub fn contains(&self, address: &Address) -> bool {
        let bits = u32::from(self.prefix.min(128));
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        (u128::from_be_bytes(address.0) ^ u128::from_be_bytes(self.address.0)) & mask == 0
    }
}

/// Stickiness by cookie: the response to a client's first request sets one that names its backend by a keyed hash.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: Box<[u8]>,
    /// Attributes that are written behind its value, each with its `; `.
    pub attributes: Box<[u8]>,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// Bounds of an HTTP service, each with what happens when it is reached.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Bytes of a head, request line included, 256 to 16,384: 431 (requests), 502 (responses).
    pub head_bytes_max: u16,
    /// Fields of a head, 1 to 128: 431, 502.
    pub fields_max: u16,
    /// Bytes of a request target: 414.
    pub target_bytes_max: u16,
    /// Bytes of a request's body, without what stands around chunks: 413. 0: any number.
    pub body_bytes_max: u64,
    /// From a request's first byte until its head is complete: 408.
    pub head_timeout: Duration,
    /// Between requests: closed.
    pub idle_timeout: Duration,
    /// Without a byte of a request's body: 408 if nothing was sent to a client, else closed.
    pub body_timeout: Duration,
    /// Without a client's taking anything of a response that waits for it: reset.
    pub send_timeout: Duration,
    /// From the SYN to a backend until it has answered: the next backend, then 504.
    pub connect_timeout: Duration,
    /// Backends tried for a request before 502 or 504.
    pub connect_tries: u8,
    /// From the request's last byte until the response's first: 504.
    pub response_timeout: Duration,
    /// How many requests of a hundred may be sent to another backend for the status of their response, 0 to 100.
    pub retry_percent: u8,
    /// Requests on one client connection; the last one's response says close. 0: any number.
    pub requests_max: u32,
    /// Idle connections kept to one backend by one worker: the oldest is closed.
    pub idle_per_backend_max: u16,
}

impl HttpLimits {
    /// How many bytes a request's body may have.
    pub fn body_bound(&self) -> u64 {
        if self.body_bytes_max == 0 { u64::MAX } else { self.body_bytes_max }
    }

    /// The bounds of a head.
    pub fn head_bounds(&self) -> Bounds {
        Bounds {
            bytes_max: usize::from(self.head_bytes_max),
            fields_max: usize::from(self.fields_max),
            target_bytes_max: usize::from(self.target_bytes_max),
        }
    }
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            head_bytes_max: 16_384,
            fields_max: 100,
            target_bytes_max: 8192,
            body_bytes_max: 0,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(3),
            connect_tries: 3,
            response_timeout: Duration::from_secs(60),
            retry_percent: 20,
            requests_max: 0,
            idle_per_backend_max: 256,
        }
    }
}

/// A TLS service, passed through.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The service is one of TCP whose backends get [`Tls::proxy_protocol`]: nothing of a connection is read. It takes the only
    /// route, which has no conditions, as soon as the handshake with the client has ended; a server may speak first.
    pub is_plain: bool,
    /// Asked in order; the first that matches is taken. None of them: the connection is reset.
    pub routes: Box<[TlsRoute]>,
    /// The header that connections to backends begin with.
    pub proxy_protocol: Option<ProxyVersion>,
    /// Bytes of a ClientHello, 512 to 16,384: reset.
    pub hello_bytes_max: u16,
    /// From the first byte until the ClientHello is complete: reset.
    pub hello_timeout: Duration,
    /// From the SYN to a backend until it has answered: the next backend, then reset.
    pub connect_timeout: Duration,
    /// Backends tried for a connection.
    pub connect_tries: u8,
    /// A connection leaves the worker after this many bytes in one direction. `None`: what the measured costs say.
    pub offload_bytes_min: Option<u64>,
    /// Whether clients are offered TCP timestamps (RFC 7323), and backends those of such clients.
    pub timestamps: bool,
}

/// One route of a TLS service.
#[derive(Clone, Debug)]
pub struct TlsRoute {
    /// Names asked for (SNI): exact, `*.suffix`; lower case. Empty: any name, also none.
    pub names: Box<[Box<[u8]>]>,
    /// Protocols offered (ALPN), one of which must be. Empty: any.
    pub protocols: Box<[Box<[u8]>]>,
    /// Whose backends, each group with its share of connections (1 to 65535). Never empty.
    pub groups: Box<[(Group, u16)]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    fn network(text: &str, prefix: u8) -> Network {
        Network { address: text.parse::<IpAddr>().unwrap().into(), prefix }
    }

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        let contains = |network: Network, text: &str| network.contains(&text.parse::<IpAddr>().unwrap().into());
        assert!(contains(network("10.1.0.0", 96 + 16), "10.1.255.255"));
        assert!(!contains(network("10.1.0.0", 96 + 16), "10.2.0.0"));
        assert!(contains(network("0.0.0.0", 96), "192.0.2.1"));
        assert!(!contains(network("0.0.0.0", 96), "2001:db8::1"));
        assert!(contains(network("::", 0), "2001:db8::1") && contains(network("::", 0), "192.0.2.1"));
        assert!(contains(network("2001:db8::1", 128), "2001:db8::1"));
        assert!(!contains(network("2001:db8::1", 128), "2001:db8::2"));
    }
}
