//! Reading requests: bytes in order into a buffer, heads out of it, and what becomes of them.

use crate::config::Service;
use crate::frame::{Frame, FrameIo};
use crate::l7::body::{Chunks, Length};
use crate::l7::config::{Http, Kind, Tls};
use crate::l7::date::Date;
use crate::l7::decision::{self, Verdict, pick};
use crate::l7::head::{self, Method, ParseStatus, RememberedRequest, Request, Version};
use crate::l7::reply::{self, Reply};
use crate::l7::splice::recording::Noted;
use crate::l7::splice::state::buffers::INPUT_MAX;
use crate::l7::splice::state::entry::{ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::Exchange;
use crate::l7::splice::tcp::numbers::{before, beyond, later};
use crate::l7::splice::tcp::segment::Segment;
use crate::l7::splice::{Context, End, HEAD_ROOM, Next, REMEMBERED_MAX, Refused, Splices};
use crate::l7::trace::{IdMaker, TraceContext};
use crate::l7::{choice, client_hello, edit};
use crate::limit::{LimitAction, Limited, Limiting};
use crate::record::{self, IS_KEPT, Recorder, Texts};
use crate::time::{Duration, Time};
use crate::wire::Transport;
use crate::wire::tcp::FIN;
use crate::worker::Drop;

/// How long a client has to close when we have, and to read what it was sent.
pub const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

/// What is to be done about a client connection's input.
#[allow(clippy::large_enum_variant, reason = "it is moved once, to where it is stored; nothing is allocated for it")]
enum Found {
    /// More is needed.
    Partial,
    /// It goes to a backend of the exchange's group.
    Forward { exchange: Exchange, sticky: Option<u64> },
    /// It is answered: so many bytes in the scratch buffer; `why` if that is a refusal.
    Reply { length: usize, head: usize, close: bool, status: u16, why: Option<Refused> },
    /// It cannot be read.
    Refuse { status: u16, why: Refused },
    /// It cannot be answered either, or is not to be.
    Reset,
}

impl Splices {
    /// How long a client connection may take over a head.
    pub(in crate::l7::splice) fn head_timeout<IO: FrameIo>(&self, cx: &Context<'_, IO>, service: u16) -> Duration {
        match cx.kind(service) {
            Kind::Http(http) => http.limits.head_timeout,
            Kind::Tls(tls) => tls.hello_timeout,
            Kind::Forward | Kind::Terminated(_) | Kind::Group => Duration::from_secs(1),
        }
    }

    /// A segment of a client whose bytes are ours: taken in order.
    pub(in crate::l7::splice) fn take<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if before(client_conn.peer.expected, segment.sequence) {
            cx.statistics.http.out_of_order += 1;
            client_conn.peer.misses(segment.payload_end());
            self.acknowledge(cx, End::Client(position));
            // What it acknowledges counts all the same.
            let next = self.closing(cx, position);
            return self.follow(cx, next);
        }
        let had = beyond(segment.sequence, client_conn.peer.expected);
        let payload = frame.bytes().get(at.payload..at.end).unwrap_or_default();
        let fresh = payload.get(had as usize..).unwrap_or_default();
        let taken = match client_conn.state {
            // What comes after the last response is read and thrown away, so that the client can read that.
            ClientConnState::Closing
            | ClientConnState::TimeWait
            | ClientConnState::Resetting
            | ClientConnState::PendingRemoval => fresh.len(),
            // The next request may come with the acknowledgement of a reply.
            _ => store(&mut self.buffers, client_conn, fresh),
        };
        if !fresh.is_empty() && client_conn.waiting() == taken && client_conn.state == ClientConnState::Reading {
            client_conn.deadline = cx.now + head_timeout_of(cx.snapshot, client_conn.service);
        }
        client_conn.peer.expected = client_conn.peer.expected.wrapping_add(taken as u32);
        let all = taken == fresh.len();
        if segment.has(FIN) && all && segment.payload_end() == client_conn.peer.expected && !client_conn.peer.has_closed
        {
            client_conn.peer.has_closed = true;
            client_conn.peer.expected = client_conn.peer.expected.wrapping_add(1);
            if client_conn.state == ClientConnState::Waiting {
                // The request counts back from there: FIN is none of its bytes.
                client_conn.exchange.first[0] = client_conn.exchange.first[0].wrapping_add(1);
            }
        }
        client_conn.peer.highest = later(client_conn.peer.highest, client_conn.peer.expected);
        let is_news = segment.payload > 0 || segment.has(FIN);
        // A keep-alive probe has no news, and a number before the one expected (RFC 9293, 3.8.4).
        let asks = had > 0 && segment.payload == 0;
        // Its own flag first: a request's segment is spared the look at its service.
        let is_plain = client_conn.is_tls && cx.kind(client_conn.service).is_plain();
        let is_useful = is_plain || client_conn.waiting() > 0 || client_conn.peer.has_closed;
        let state = client_conn.state;
        drop(frame);
        match state {
            ClientConnState::Reading if is_useful => self.read(cx, position),
            ClientConnState::Closing | ClientConnState::TimeWait | ClientConnState::Replying => {
                let next = self.closing(cx, position);
                self.follow(cx, next);
            }
            _ => {}
        }
        if !is_news && !asks {
            return;
        }
        // What went on to a backend is acknowledged by it; what did not, by us.
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let ours = !matches!(client_conn.state, ClientConnState::Spliced | ClientConnState::Waiting) || asks;
        if ours && (before(client_conn.peer.told, client_conn.peer.expected) || had > 0) {
            self.acknowledge(cx, End::Client(position));
        }
    }

    /// Goes on with what a stage says comes next.
    pub(in crate::l7::splice) fn follow<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, next: Next) {
        if let Next::Read(position) = next {
            self.read(cx, position);
        }
    }

    /// Uses what has been read, as far as it goes.
    pub(in crate::l7::splice) fn read<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        while let Some(client_conn) = self.client_conns.get(position) {
            if client_conn.state != ClientConnState::Reading {
                return;
            }
            let (service, deadline, has_closed) =
                (client_conn.service, client_conn.deadline, client_conn.peer.has_closed);
            let is_plain = client_conn.is_tls && cx.kind(service).is_plain();
            if client_conn.waiting() == 0 && has_closed {
                return self.close_client(cx, position);
            }
            if client_conn.waiting() == 0 && !is_plain {
                return;
            }
            let is_recorded = cx.records(service);
            let number = usize::from(service);
            let settings = cx.snapshot.services.get(number);
            let kind = settings.map_or(&Kind::Forward, |service| &service.kind);
            let recorder = cx.recorder.as_deref_mut();
            let found = match kind {
                Kind::Http(http) => {
                    let is_counted = self.decided_anew.take() == Some(position);
                    let counts = cx.statistics.services.get_mut(number).map(|service| &mut service.limits[..]);
                    let limiting = Limiting {
                        limits: settings.filter(|_| !is_counted).map_or(&[][..], |service| &service.limits[..]),
                        table: cx.limits,
                        now: cx.now,
                        counts: counts.unwrap_or_default(),
                    };
                    self.examine((limiting, recorder, is_recorded), (&cx.snapshot.services[..], http), position)
                }
                Kind::Tls(tls) => self.examine_hello((cx.now, recorder.filter(|_| is_recorded)), tls, position),
                Kind::Forward | Kind::Terminated(_) | Kind::Group => Found::Reset,
            };
            match found {
                Found::Partial if has_closed => return self.close_client(cx, position),
                Found::Partial => return self.stamp_client(position, deadline),
                Found::Forward { exchange, sticky } => {
                    cx.count_request(service);
                    // Where the request is to be read anew, this loop does so.
                    let (Next::Done | Next::Read(_)) = self.begin(cx, position, exchange, sticky);
                }
                Found::Reply { length, head, close, status, why } => {
                    cx.count_request(service);
                    if let Some(why) = why {
                        cx.statistics.http.refused[why as usize] += 1;
                    }
                    self.consume(position, head);
                    self.reply(cx, position, length, close, (status, why));
                }
                Found::Refuse { status, why } => self.refuse(cx, position, status, why),
                Found::Reset => self.abandon(cx, position),
            }
        }
    }

    /// `recorder`: where the record of a request is to begin: of all if `is_recorded`, else of those that are sampled.
    fn examine(
        &mut self,
        (mut limiting, recorder, is_recorded): (Limiting<'_>, Option<&mut Recorder>, bool),
        (services, http): (&[Service], &Http),
        position: u32,
    ) -> Found {
        let Splices { client_conns, buffers, scratch, turn, configurations, date, remembered, ids, .. } = self;
        let (paper, now) = ((&mut scratch[..], *date), limiting.now);
        let Some(input) = client_conns.get(position).and_then(|client_conn| client_conn.input.as_ref()) else {
            return Found::Partial;
        };
        let bytes = buffers.bytes(input);
        // Not moved: its fields take a kilobyte.
        let read = head::request(bytes, &http.limits.head_bounds());
        let request = match &read {
            Ok(ParseStatus::Partial) => return Found::Partial,
            Ok(ParseStatus::Complete(request)) => request,
            Err(bad) => {
                let (status, why) = decision::of_bad_head(*bad);
                return Found::Refuse { status, why };
            }
        };
        let uses = client_conns.generation(position);
        let Some(client_conn) = client_conns.get_mut(position) else { return Found::Partial };
        let mut noted = Noted::of(client_conn);
        let trace = mark(&mut noted, client_conn, (http, request), ids);
        if let Some(recorder) = recorder
            && (is_recorded || trace.is_some_and(|trace| trace.is_sampled()))
            && noted.record == 0
        {
            noted.record = begin_record(recorder, client_conn, (http, request), trace.as_ref());
        }
        // What a client has closed behind is its last request, not what stands before that.
        let ends = client_conn.peer.has_closed && !has_another(request.body, &bytes[request.bytes.len()..]);
        let close = decision::is_last(http, request, client_conn.requests) || ends;
        let verdict = decision::judge(http, request, &client_conn.key.source.address, &mut limiting);
        let route = verdict.route(http);
        let group = match &verdict {
            Verdict::Forward { groups, .. } => pick(groups, turn),
            _ => None,
        };
        if group.is_none() {
            client_conn.exchange.note(now, &noted, (request.version, route));
        }
        match verdict {
            Verdict::Forward { .. } => {}
            Verdict::Answer { status, location: Some(template), .. } => {
                return redirect(paper, request, status, template, close);
            }
            Verdict::Limited(Limited { action: LimitAction::Drop, .. }) => return Found::Reset,
            Verdict::Limited(Limited { action: LimitAction::Refuse, retry_after_s }) => {
                return limited(paper, request, retry_after_s, close);
            }
            Verdict::Answer { status, why: Some(why), .. } => return answer(paper, request, status, close, why),
            Verdict::Answer { status, body, .. } => return write_reply(paper, request, status, None, body, close),
            Verdict::Refuse { status, why } => return Found::Refuse { status, why },
        }
        let head_of = (position, uses, client_conn.requests);
        remembered[position as usize % REMEMBERED_MAX] = RememberedRequest::of(request).map(|places| (head_of, places));
        let Some(group) = group else { return Found::Refuse { status: 503, why: Refused::NoBackend } };
        let sticky = http.sticky.as_ref().and_then(|sticky| edit::sticky_value(request, sticky));
        let hash = services.get(usize::from(group)).and_then(|group| choice::hash(group, request));
        let exchange = Exchange {
            hash: hash.unwrap_or_default(),
            method: request.method,
            version: request.version,
            route,
            group,
            generation: configurations.number(),
            close_client: close,
            close_backend: !http.reuse || request.version == Version::Http10 && !request.keep_alive,
            is_idempotent: request.method.is_idempotent(),
            upgrade: request.upgrade,
            started: now,
            trace: noted.trace,
            record: noted.record,
            first: noted.first,
            ..Exchange::default()
        };
        Found::Forward { exchange, sticky }
    }

    /// The group of a connection whose bytes are not a matter of Hairpin's: by its ClientHello, or the only one of a TCP service.
    fn examine_hello(&mut self, (now, recorder): (Time, Option<&mut Recorder>), tls: &Tls, position: u32) -> Found {
        let Splices { client_conns, buffers, scratch, turn, configurations, .. } = self;
        let input = client_conns.get(position).and_then(|client_conn| client_conn.input.as_ref());
        let (name, route) = match input {
            _ if tls.is_plain => (None, tls.routes.first()),
            None => return Found::Partial,
            Some(input) => match client_hello::parse(buffers.bytes(input), scratch, usize::from(tls.hello_bytes_max)) {
                Ok(ParseStatus::Partial) => return Found::Partial,
                Ok(ParseStatus::Complete(hello)) => (hello.name, client_hello::tls_route(tls, &hello)),
                Err(_) => return Found::Reset,
            },
        };
        let Some(client_conn) = client_conns.get_mut(position) else { return Found::Partial };
        let mut noted = Noted::of(client_conn);
        if let Some(recorder) = recorder
            && noted.record == 0
        {
            let texts = Texts { host: name.unwrap_or_default(), ..Texts::default() };
            noted.record = recorder.begin(volumes(client_conn), &texts);
        }
        let group = route.and_then(|route| pick(&route.groups, turn));
        let Some(group) = group else {
            client_conn.exchange.note(now, &noted, (Version::Http11, record::NONE));
            return Found::Reset;
        };
        let exchange = Exchange {
            method: Method::Connect,
            group,
            generation: configurations.number(),
            close_client: true,
            close_backend: true,
            started: now,
            record: noted.record,
            first: noted.first,
            ..Exchange::default()
        };
        Found::Forward { exchange, sticky: None }
    }
}

/// Makes the number of a request's ids, if marks are asked for; the trace that it belongs to. One that is decided anew by another
/// configuration gets them then, if they were not asked for before.
#[inline]
fn mark(
    noted: &mut Noted,
    client_conn: &ClientConn,
    (http, request): (&Http, &Request<'_>),
    ids: &mut IdMaker,
) -> Option<TraceContext> {
    if !IS_KEPT {
        return None;
    }
    if noted.trace == 0 {
        if !http.is_marked() {
            return None;
        }
        noted.trace = ids.next_number();
    }
    Some(TraceContext::of(http, request, &client_conn.key.source.address, &ids.ids(noted.trace)))
}

/// Begins the record of a request; its number.
#[inline(always)]
fn begin_record(
    recorder: &mut Recorder,
    client_conn: &ClientConn,
    (http, request): (&Http, &Request<'_>),
    trace: Option<&TraceContext>,
) -> u32 {
    let volumes = volumes(client_conn);
    if trace.is_none() {
        // An id is asked for only where there are marks.
        return recorder.begin_request(volumes, request);
    }
    let id = http.request_id.as_ref().and_then(|id| id.given(http, request, &client_conn.key.source.address));
    let texts = Texts::of(request, id.unwrap_or_default(), trace.map_or(&[], TraceContext::bytes));
    recorder.begin(volumes, &texts)
}

/// What a client connection has carried so far.
#[inline]
fn volumes(client_conn: &ClientConn) -> [u64; 2] {
    client_conn.forwarded.each_ref().map(|volume| volume.bytes)
}

fn head_timeout_of(snapshot: &crate::config::Snapshot, service: u16) -> Duration {
    match snapshot.services.get(usize::from(service)).map(|service| &service.kind) {
        Some(Kind::Http(http)) => http.limits.head_timeout,
        Some(Kind::Tls(tls)) => tls.hello_timeout,
        _ => Duration::from_secs(1),
    }
}

/// Adds bytes to a client connection's input as far as there is room; returns how many. The client sends the others again:
/// it may have been shown more room than there is here, that of the backend of its last request.
pub(in crate::l7::splice) fn store(
    buffers: &mut crate::l7::splice::Buffers,
    client_conn: &mut ClientConn,
    bytes: &[u8],
) -> usize {
    let bytes = &bytes[..bytes.len().min(INPUT_MAX.saturating_sub(client_conn.waiting()))];
    if bytes.is_empty() {
        return 0;
    }
    if client_conn.input.is_none() {
        client_conn.input = buffers.take_most(bytes.len()).into();
    }
    client_conn.input.as_mut().map_or(0, |input| buffers.append(input, bytes))
}

/// A refusal after which the connection may go on, if the request has no body that would have to be read first.
fn answer(paper: Paper<'_>, request: &Request<'_>, status: u16, close: bool, why: Refused) -> Found {
    match write_reply(paper, request, status, None, &[], close) {
        // Counted where refusals are.
        Found::Reply { close: true, .. } => Found::Refuse { status, why },
        Found::Reply { length, head, close, .. } => Found::Reply { length, head, close, status, why: Some(why) },
        found => found,
    }
}

/// Where a response of ours is written, and when.
type Paper<'a> = (&'a mut [u8], Option<Date>);

/// The refusal of a request that is beyond a limit.
fn limited((out, date): Paper<'_>, request: &Request<'_>, retry_after_s: u32, close: bool) -> Found {
    let close = close || request.body != Length::None;
    let (status, why) = (429, Refused::Limited);
    let head_only = request.method == Method::Head;
    let retry_after_s = Some(retry_after_s);
    let answer = Reply { status, date, location: None, retry_after_s, challenge: None, body: &[], head_only, close };
    match reply::write(out, &answer) {
        Ok(length) => Found::Reply { length, head: request.bytes.len(), close, status, why: Some(why) },
        Err(_) => Found::Refuse { status: 500, why: Refused::NoRoom },
    }
}

fn redirect((out, date): Paper<'_>, request: &Request<'_>, status: u16, location: &[u8], close: bool) -> Found {
    // The text is written behind the room that the response will need.
    let (head, room) = out.split_at_mut(HEAD_ROOM);
    let Ok(length) = reply::location(room, location, request, false) else {
        let (status, why) = reply::without_location(request);
        return Found::Refuse { status, why };
    };
    write_reply((head, date), request, status, Some(&room[..length]), &[], close)
}

fn write_reply(
    (out, date): Paper<'_>,
    request: &Request<'_>,
    status: u16,
    location: Option<&[u8]>,
    body: &[u8],
    close: bool,
) -> Found {
    let close = close || request.body != Length::None;
    let head_only = request.method == Method::Head;
    let answer = Reply { status, date, location, retry_after_s: None, challenge: None, body, head_only, close };
    match reply::write(out, &answer) {
        Ok(length) => Found::Reply { length, head: request.bytes.len(), close, status, why: None },
        Err(_) => Found::Refuse { status: 500, why: Refused::NoRoom },
    }
}

/// Why a frame that a client connection cannot use is dropped.
pub(in crate::l7::splice) const USELESS: Drop = Drop::Unknown;

/// Whether another request, or a part of one, follows a body in what lies behind its head.
fn has_another(body: Length, behind: &[u8]) -> bool {
    match body {
        Length::Bytes(length) => behind.len() as u64 > length,
        Length::Chunked => Chunks::default().feed(behind).is_ok_and(|length| length < behind.len()),
        Length::None => !behind.is_empty(),
        Length::UntilClose | Length::Tunnel => false,
    }
}
