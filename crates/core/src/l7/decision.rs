//! The decision about a request: made once, and carried out by the splice and by the terminating path alike.
//!
//! Both have the request as an HTTP/1.1 head, read by [`head`](super::head). What came by HTTP/2 was written as one first, so
//! there is one reader, one set of rules and one kind of answer.

use super::body::Length;
use super::config::{Action, Group, Http, Route};
use super::edit;
use super::head::{BadHead, Method, Request};
use super::reply;
use super::route::{self, Decision};
use super::splice::Refused;
use crate::flow::Address;
use crate::limit::{Limited, Limiting};
use crate::record;

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// It goes to a backend of one of these groups.
    Forward {
        /// The route it takes.
        route: &'a Route,
        /// The groups, each with its share of requests.
        groups: &'a [(Group, u16)],
    },
    /// Hairpin answers it. Its connection may go on.
    Answer {
        /// 200 to 599.
        status: u16,
        /// The body, plain text.
        body: &'a [u8],
        /// The template of `Location` ([`reply::location`]).
        location: Option<&'a [u8]>,
        /// Why, if that is a refusal.
        why: Option<Refused>,
        /// The route that says so.
        route: Option<&'a Route>,
    },
    /// It is beyond a limit of its client.
    Limited(Limited),
    /// It is refused, and nothing behind it on an HTTP/1 connection is read.
    Refuse {
        /// 400 to 599.
        status: u16,
        /// Why.
        why: Refused,
    },
}

impl Verdict<'_> {
    /// The place among the service's routes of the one that the request takes; [`record::NONE`]: none.
    pub fn route(&self, http: &Http) -> u16 {
        let route = match self {
            Verdict::Forward { route, .. } => Some(*route),
            Verdict::Answer { route, .. } => *route,
            Verdict::Limited(_) | Verdict::Refuse { .. } => None,
        };
        let place = route.and_then(|route| http.routes.iter().position(|other| core::ptr::eq(other, route)));
        place.and_then(|place| u16::try_from(place).ok()).unwrap_or(record::NONE)
    }
}

/// The verdict on `request` of `client`, whose request `limiting` counts.
pub fn judge<'a>(http: &'a Http, request: &Request<'_>, client: &Address, limiting: &mut Limiting<'_>) -> Verdict<'a> {
    if let Some(body) = fixed_answer(http, request) {
        return Verdict::Answer { status: 200, body, location: None, why: None, route: None };
    }
    if let Some(limited) = limiting.request(client, request) {
        return Verdict::Limited(limited);
    }
    let route = match route::decide(http, request, client) {
        Decision::Take(route) => route,
        Decision::NotFound => return refusal(404, Refused::NoRoute),
        Decision::Deny { status: 501 } if asks_for_tunnel(request) => return refusal(501, Refused::Tunnel),
        Decision::Deny { status } => return refusal(status, Refused::Denied),
    };
    match &route.action {
        Action::Forward { groups, .. } => forward(http, request, route, groups),
        Action::Redirect { status, location } => {
            Verdict::Answer { status: *status, body: &[], location: Some(location), why: None, route: Some(route) }
        }
        Action::Reply { status, body } => {
            Verdict::Answer { status: *status, body, location: None, why: None, route: Some(route) }
        }
    }
}

/// The text that the path itself is answered with.
fn fixed_answer<'a>(http: &'a Http, request: &Request<'_>) -> Option<&'a [u8]> {
    if http.answers.is_empty() || !matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    http.answers.iter().find(|answer| *answer.path == *request.target.path).map(|answer| &*answer.body)
}

/// A refusal after which the connection may go on.
fn refusal<'a>(status: u16, why: Refused) -> Verdict<'a> {
    Verdict::Answer { status, body: &[], location: None, why: Some(why), route: None }
}

fn asks_for_tunnel(request: &Request<'_>) -> bool {
    request.upgrade || request.method == Method::Connect
}

/// The verdict on a request that a route would forward: some may not go on.
fn forward<'a>(http: &Http, request: &Request<'_>, route: &'a Route, groups: &'a [(Group, u16)]) -> Verdict<'a> {
    if matches!(request.body, Length::Bytes(length) if length > http.limits.body_bound()) {
        return Verdict::Refuse { status: 413, why: Refused::TooLarge };
    }
    match edit::forwards_left(request) {
        Err(_) => refusal(400, Refused::Malformed),
        // It may go no further. There is no resource here to tell of, and fields are not reflected.
        Ok(Some(0)) if request.method == Method::Trace => Verdict::Answer {
            status: 501,
            body: reply::text(501).as_bytes(),
            location: None,
            why: None,
            route: Some(route),
        },
        Ok(Some(0)) => Verdict::Answer { status: 200, body: &[], location: None, why: None, route: Some(route) },
        Ok(_) => Verdict::Forward { route, groups },
    }
}

/// The answer to a request whose head is refused, and the reason it counts under.
pub fn of_bad_head(bad: BadHead) -> (u16, Refused) {
    let status = bad.status();
    (status, if matches!(status, 414 | 431) { Refused::TooLarge } else { Refused::Malformed })
}

/// One of the groups, by their shares. `turn` goes from call to call; any number begins.
pub fn pick(groups: &[(Group, u16)], turn: &mut u32) -> Option<Group> {
    if let [(group, _)] = groups {
        return Some(*group);
    }
    let total: u32 = groups.iter().map(|(_, share)| u32::from(*share)).sum();
    *turn = turn.wrapping_add(0x9E37_79B9);
    let mut at = ((u64::from(*turn) * u64::from(total)) >> 32) as u32;
    for (group, share) in groups {
        match at.checked_sub(u32::from(*share)) {
            None => return Some(*group),
            Some(rest) => at = rest,
        }
    }
    None
}

/// Whether a request is the last one of its HTTP/1 client connection, which had `requests` before it.
pub fn is_last(http: &Http, request: &Request<'_>, requests: u32) -> bool {
    let max = http.limits.requests_max;
    !request.keep_alive || max > 0 && requests + 1 >= max
}

#[cfg(test)]
mod tests {
    use super::super::config::PathAnswer;
    use super::super::head::{self, Bounds, ParseStatus};
    use super::super::route::{Access, AccessVerdict, Conditions};
    use super::*;
    use alloc::format;
    use core::net::IpAddr;

    #[test]
    fn fixed_answer_stands_before_access_rules_and_routes() {
        let deny =
            Access { verdict: AccessVerdict::Deny { status: 403 }, conditions: Conditions::default(), strict: false };
        let answer = PathAnswer { path: b"/.well-known/x".as_slice().into(), body: b"here".as_slice().into() };
        let http = Http { answers: [answer].into(), access: [deny].into(), ..Http::default() };
        let client: Address = "192.0.2.1".parse::<IpAddr>().unwrap().into();
        let bounds = Bounds { bytes_max: 1024, fields_max: 10, target_bytes_max: 512 };
        let judged = |line: &str| {
            let head = format!("{line} HTTP/1.1\r\nHost: a.example\r\n\r\n");
            let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &bounds) else { panic!("{head}") };
            match judge(&http, &request, &client, &mut Limiting::none()) {
                Verdict::Answer { status, body, .. } => (status, body.to_vec()),
                verdict => panic!("{verdict:?}"),
            }
        };
        let here = (200, b"here".to_vec());
        assert_eq!([judged("GET /.well-known/x"), judged("HEAD /.well-known/x?a=b")], [here.clone(), here]);
        for line in ["POST /.well-known/x", "GET /.well-known/y", "GET /.well-known/x/", "GET /.well-known/X"] {
            assert_eq!(judged(line).0, 403, "{line}");
        }
    }
}
