//! The decision about a request whose head was read.

use super::{Client, Exchange, own};
use crate::basic::Seen;
use crate::cors::CorsFields;
use crate::forward_auth::Question;
use crate::local::Local;
use crate::mirror;
use crate::pages::Place;
use crate::recording::{self, Recording};
use crate::setup::Setup;
use hairpin_core::l7::body::Length;
use hairpin_core::l7::decision::{self, Verdict};
use hairpin_core::l7::edit::{HEAD_ROOM, NoRoom};
use hairpin_core::l7::head::{Method, Request};
use hairpin_core::l7::reply::{self, Reply};
use hairpin_core::l7::splice::Refused;
use hairpin_core::limit::{LimitAction, Limited};
use hairpin_core::record;
use std::rc::Rc;

/// The decision about a request.
pub(crate) enum Judged {
    /// The request goes to a backend.
    Forward(Box<Exchange>),
    /// The request is answered with this HTTP/1.1 response; `close`: the last one of its connection.
    Answer { status: u16, response: Vec<u8>, close: bool },
    /// The request is refused with this HTTP/1.1 response, and nothing behind it on its connection is read.
    Refuse { status: u16, why: Refused, response: Vec<u8> },
    /// The request is not answered: its connection, or its stream, is reset.
    Drop,
}

/// Decides about a request whose head was read, and records it unless it is forwarded. Its connection had `requests` before it;
/// `is_connect`: it asks for a tunnel by HTTP/2's CONNECT.
pub(crate) fn judge(
    local: &Rc<Local>,
    client: &Client,
    request: &Request<'_>,
    (requests, is_connect): (u32, bool),
) -> Judged {
    let setup = local.setup();
    let refuse = |route: u16, (status, why): (u16, Refused)| {
        let place = Place { setup: &setup, service: client.service, route };
        let response = own::refusal(local, place, status, request.method == Method::Head, None);
        recording::refusal(local, client, Some(request), route, (status, why, response.len()));
        Judged::Refuse { status, why, response }
    };
    let Some(http) = setup.http(client.service) else { return refuse(record::NONE, (503, Refused::NoBackend)) };
    let close = decision::is_last(http, request, requests) || client.control.is_draining();
    let address = &client.key.source.address;
    let verdict = local.limiting(client.service, &setup, |limiting| decision::judge(http, request, address, limiting));
    let number = verdict.route(http);
    let mut challenge = None;
    let (status, body, template, why, retry_after_s) = match verdict {
        Verdict::Refuse { status, why } => return refuse(number, (status, why)),
        Verdict::Limited(Limited { action: LimitAction::Drop, .. }) => return Judged::Drop,
        Verdict::Limited(Limited { action: LimitAction::Refuse, retry_after_s }) => {
            (429, &[][..], None, Some(Refused::Limited), Some(retry_after_s))
        }
        Verdict::Answer { status, body, location, why, .. } => (status, body, location, why, None),
        Verdict::Forward { route, groups } => 'forward: {
            if let Some(fields) = setup.cors(client.service, number).and_then(|cors| cors.preflight(request)) {
                return preflight(local, client, request, (&setup, number), (&fields, close));
            }
            let Ok(guard) = setup.guard(client.service, number) else {
                return refuse(number, (503, Refused::NoBackend));
            };
            let pending = match guard.map(|guard| (guard, guard.see(request))) {
                None | Some((_, Seen::Right)) => None,
                Some((_, Seen::Unknown(pending))) => Some(pending),
                Some((guard, Seen::None)) => {
                    challenge = Some(guard.challenge());
                    break 'forward (401, &[][..], None, Some(Refused::Unauthorized), None);
                }
            };
            let mut turn = local.turn.get();
            let group = decision::pick(groups, &mut turn);
            local.turn.set(turn);
            let Some(group) = group else { return refuse(number, (503, Refused::NoBackend)) };
            if route.terms.retries > 0 {
                local.retry_budgets.earn(client.service, http.limits.retry_percent);
            }
            let mut exchange = Exchange::new(&setup, client.clone(), http, request, (number, group), close);
            exchange.pending = pending;
            let bounds = http.limits.head_bounds();
            exchange.question = route.terms.asks.as_ref().map(|asks| Question::new(asks, request, bounds));
            exchange.trace = local.mark(client, request);
            exchange.recording = Recording::begin(local, client, Some(request), exchange.trace.as_ref());
            exchange.recording.iter().for_each(|recording| recording.note(|record| record.route = number));
            // Before it is known that it may go on, nothing of it goes anywhere.
            if exchange.pending.is_none() && exchange.question.is_none() {
                mirror::copy(local, client, (&setup, http), request, (number, exchange.trace));
            }
            return Judged::Forward(Box::new(exchange));
        }
    };
    // Success would say that the tunnel is there.
    if is_connect && matches!(status, 200..300) {
        return refuse(number, (501, Refused::Tunnel));
    }
    let close = close || request.body != Length::None;
    if let Some(why) = why {
        if close && retry_after_s.is_none() && challenge.is_none() {
            return refuse(number, (status, why));
        }
        local.counts.refused(why);
    }
    let location = match template.map(|template| location(local, client, request, template)) {
        Some(Err(_)) => return refuse(number, reply::without_location(request)),
        Some(Ok(location)) => Some(location),
        None => None,
    };
    let (location, date, head_only) = (location.as_deref(), local.date(), request.method == Method::Head);
    let reply = Reply { status, date, location, retry_after_s, challenge, body, head_only, close };
    match own::write(local, Place { setup: &setup, service: client.service, route: number }, &reply) {
        Ok(response) => {
            recording::answer(local, client, request, (number, status, why), response.len());
            Judged::Answer { status, response, close }
        }
        Err(_) => refuse(number, (500, Refused::NoRoom)),
    }
}

/// What `Location` says.
fn location(local: &Local, client: &Client, request: &Request<'_>, template: &[u8]) -> Result<Vec<u8>, NoRoom> {
    let mut heads = local.heads.borrow_mut();
    let room = &mut heads[..HEAD_ROOM];
    let length = reply::location(room, template, request, client.tls)?;
    Ok(room[..length].to_vec())
}

/// The answer to a preflight (Fetch standard, 3.2.2). One of an origin that may not has no field of CORS, by which the browser knows.
fn preflight(
    local: &Local,
    client: &Client,
    request: &Request<'_>,
    (setup, route): (&Setup, u16),
    (fields, close): (&CorsFields, bool),
) -> Judged {
    let close = close || request.body != Length::None;
    let reply = Reply {
        status: 204,
        date: local.date(),
        location: None,
        challenge: None,
        retry_after_s: None,
        body: &[],
        head_only: false,
        close,
    };
    let place = Place { setup, service: client.service, route };
    let response = fields.put_into(&own::write(local, place, &reply).unwrap_or_default());
    local.counts.change(|statistics| statistics.cors_preflights += 1);
    recording::answer(local, client, request, (route, 204, None), response.len());
    Judged::Answer { status: 204, response, close }
}
