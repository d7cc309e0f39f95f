//! What splices count.

use super::Context;
use super::state::entry::ClientConn;
use crate::frame::FrameIo;
use crate::l7::body::BadChunk;
use crate::l7::threshold::Threshold;
use crate::record::IS_KEPT;
use crate::worker::{Latency, RequestTimes, ServiceStatistics, class};

/// Why a request was answered by Hairpin itself with an error, or its connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refused {
    /// Its head, or its body's framing, is not HTTP, or could be read in two ways: 400 and the like.
    Malformed,
    /// Its head, or its body, is longer than may be: 431, 414; 413.
    TooLarge,
    /// Its head did not come in time: 408.
    Slow,
    /// An access rule denied it.
    Denied,
    /// No route takes it: 404.
    NoRoute,
    /// It asks for an upgrade or tunnel that is not allowed: 501.
    Tunnel,
    /// No backend of its group takes requests: 503.
    NoBackend,
    /// No backend could be connected to: 502.
    Unreachable,
    /// No backend answered the connection attempt in time: 504.
    ConnectTimeout,
    /// The backend closed or reset the connection before it answered: 502.
    BackendClosed,
    /// The backend's response is not HTTP: 502.
    BadResponse,
    /// The backend did not answer in time: 504.
    ResponseTimeout,
    /// No buffer or no room for another connection to a backend: 503.
    NoRoom,
    /// What we owned was not acknowledged in time: the connection was reset.
    Vanished,
    /// A client took nothing of its response for too long: the connection was reset.
    SendTimeout,
    /// It is beyond a limit of its client: 429, or reset.
    Limited,
    /// All backends of its group have as many requests as they may, and no more of its kind may wait: 503.
    BackendsFull,
    /// It has waited too long for a backend to have fewer requests than it may: 503.
    QueueTimeout,
    /// It has not the credentials of a user: 401.
    Unauthorized,
    /// As many requests wait as may until their credentials are checked: 503.
    AuthenticationBusy,
    /// The server that is asked whether a request may go on gave no answer that can be used.
    AuthenticationFailed,
}

impl Refused {
    /// All of them, in order.
    pub const ALL: [Refused; 21] = [
        Refused::Malformed,
        Refused::TooLarge,
        Refused::Slow,
        Refused::Denied,
        Refused::NoRoute,
        Refused::Tunnel,
        Refused::NoBackend,
        Refused::Unreachable,
        Refused::ConnectTimeout,
        Refused::BackendClosed,
        Refused::BadResponse,
        Refused::ResponseTimeout,
        Refused::NoRoom,
        Refused::Vanished,
        Refused::SendTimeout,
        Refused::Limited,
        Refused::BackendsFull,
        Refused::QueueTimeout,
        Refused::Unauthorized,
        Refused::AuthenticationBusy,
        Refused::AuthenticationFailed,
    ];

    /// The answer to a request with such chunks, and the reason it counts under.
    pub fn of_chunks(why: BadChunk) -> (u16, Refused) {
        match why {
            BadChunk::BodyTooLong => (413, Refused::TooLarge),
            BadChunk::TrailersTooLong => (431, Refused::TooLarge),
            _ => (400, Refused::Malformed),
        }
    }

    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            Refused::Malformed => "malformed",
            Refused::TooLarge => "too-large",
            Refused::Slow => "slow",
            Refused::Denied => "denied",
            Refused::NoRoute => "no-route",
            Refused::Tunnel => "tunnel",
            Refused::NoBackend => "no-backend",
            Refused::Unreachable => "unreachable",
            Refused::ConnectTimeout => "connect-timeout",
            Refused::BackendClosed => "backend-closed",
            Refused::BadResponse => "bad-response",
            Refused::ResponseTimeout => "response-timeout",
            Refused::NoRoom => "no-room",
            Refused::Vanished => "vanished",
            Refused::SendTimeout => "send-timeout",
            Refused::Limited => "limited",
            Refused::BackendsFull => "backends-full",
            Refused::QueueTimeout => "queue-timeout",
            Refused::Unauthorized => "unauthorized",
            Refused::AuthenticationBusy => "authentication-busy",
            Refused::AuthenticationFailed => "authentication-failed",
        }
    }
}

/// Numbers of all HTTP and TLS services of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpStatistics {
    /// Clients' connections now.
    pub client_conns_now: u64,
    /// The most there have been at a time.
    pub client_conns_peak: u64,
    /// Clients' connections there can be.
    pub client_conns_max: u64,
    /// Connections to backends now, idle ones among them.
    pub backend_conns_now: u64,
    /// Idle ones.
    pub idle_now: u64,
    /// SYNs answered with a cookie by the worker. (Those that the engine has answered, it counts.)
    pub cookies_sent: u64,
    /// First data with a wrong or expired cookie, dropped.
    pub cookies_invalid: u64,
    /// First data of a connection that has ended, come again, and answered with RST.
    pub cookies_used: u64,
    /// Connections that have ended and were forgotten while their cookies were still good, to make room for others.
    pub ended_overwritten: u64,
    /// Requests whose head was complete and in order; of a TLS service, ClientHellos.
    pub requests: u64,
    /// Responses of backends, by class: 1xx to 5xx.
    pub responses: [u64; 5],
    /// Responses of our own: redirects, fixed ones, refusals.
    pub replies: u64,
    /// Requests that were sent on a connection that was there already.
    pub reused: u64,
    /// Requests for which another backend was tried.
    pub retries: u64,
    /// Backends that agreed to less than was offered, and were skipped for another.
    pub skipped: u64,
    /// Connections to backends that were closed rather than kept for others, because the backend had to send something again.
    pub retired: u64,
    /// Connections that backends have taken up without the timestamps that they were offered.
    pub timestamps_declined: u64,
    /// Senders that were told, after a start, that they need not wait for a timer that has grown.
    pub reminded: u64,
    /// Messages handed to the engine.
    pub offloaded: u64,
    /// From how many bytes on that is done, where the configuration does not say.
    pub threshold: Threshold,
    /// What we owned and sent again.
    pub retransmitted: u64,
    /// Segments dropped because they came out of order where order is needed.
    pub out_of_order: u64,
    /// Segments of chunked requests dropped because there was no room to remember what they say.
    pub unrecorded: u64,
    /// Bare acknowledgements that did not go on because the next of the burst says more.
    pub superseded: u64,
    /// Buffers in use.
    pub buffers_now: u64,
    /// Buffers there are, of all sizes.
    pub buffers_max: u64,
    /// How often there was no buffer.
    pub buffers_exhausted: u64,
    /// Refusals, by [`Refused`].
    pub refused: [u64; Refused::ALL.len()],
}

impl HttpStatistics {
    /// Adds what another part of the process has counted whose connections end at sockets: it has no buffers, cookies, segments
    /// or messages in the engine.
    pub fn add_terminated(&mut self, other: &HttpStatistics) {
        self.client_conns_now += other.client_conns_now;
        self.client_conns_peak += other.client_conns_peak;
        self.backend_conns_now += other.backend_conns_now;
        self.idle_now += other.idle_now;
        self.requests += other.requests;
        self.replies += other.replies;
        self.reused += other.reused;
        self.retries += other.retries;
        self.responses.iter_mut().zip(other.responses).for_each(|(into, from)| *into += from);
        self.refused.iter_mut().zip(other.refused).for_each(|(into, from)| *into += from);
    }
}

impl<IO: FrameIo> Context<'_, IO> {
    /// Counts a request to a service.
    pub(super) fn count_request(&mut self, service: u16) {
        self.statistics.http.requests += 1;
        if let Some(service) = self.statistics.services.get_mut(usize::from(service)) {
            service.requests += 1;
        }
    }

    /// The request of a client of an HTTP service has come so far now: how long that took, in microseconds.
    #[inline(always)]
    pub(super) fn timed(&mut self, client_conn: &ClientConn, time: impl Fn(&mut RequestTimes) -> &mut Latency) -> u32 {
        let nanos = self.now.nanos_since(client_conn.exchange.started);
        if IS_KEPT {
            self.count_exchange(client_conn, move |statistics| time(&mut statistics.times).add_nanos(nanos));
        }
        u32::try_from(nanos / 1000).unwrap_or(u32::MAX)
    }

    /// A client of an HTTP service has all of its response: so many bytes of request and response.
    #[inline(always)]
    pub(super) fn delivered(&mut self, client_conn: &ClientConn, [request, response]: [u64; 2]) {
        let nanos = self.now.nanos_since(client_conn.exchange.started);
        self.count_exchange(client_conn, move |statistics| {
            statistics.times.in_all.add_nanos(nanos);
            statistics.sizes[0].add(request);
            statistics.sizes[1].add(response);
        });
    }

    /// Counts something of an exchange for its service, and for the group that its backend was chosen from.
    #[inline(always)]
    fn count_exchange(&mut self, client_conn: &ClientConn, count: impl Fn(&mut ServiceStatistics)) {
        let (service, group) = (client_conn.service, client_conn.exchange.group);
        if let Some(service) = self.statistics.services.get_mut(usize::from(service)) {
            count(service);
        }
        if group != service
            && let Some(group) = self.group_statistics(group)
        {
            count(group);
        }
    }

    /// Those of a group, unless it is another service, whose own backends this one's routes lead to.
    #[inline(never)]
    fn group_statistics(&mut self, group: u16) -> Option<&mut ServiceStatistics> {
        let group = usize::from(group);
        let is_group = self.snapshot.services.get(group).is_some_and(|group| group.kind.is_group());
        self.statistics.services.get_mut(group).filter(|_| is_group)
    }

    /// A client gets a response of ours with this status.
    pub(super) fn count_reply(&mut self, service: u16, status: u16) {
        self.statistics.http.replies += 1;
        if let Some(service) = self.statistics.services.get_mut(usize::from(service)) {
            service.replies[class(status)] += 1;
        }
    }
}
