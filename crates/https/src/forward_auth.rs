//! Asks a server of the operator's whether a request may go on, as nginx's auth_request and Traefik's forwardAuth do.
//!
//! The question is a GET with the request's fields. A status of 200 to 299 lets the request go on, with the fields of the answer
//! that are to be copied; any other answer is the client's. Without a whole answer in time no request goes on.

use crate::aside::{self, Heard, Reading};
use crate::exchange::{Client, Exchange};
use crate::local::Local;
use crate::setup::Setup;
use hairpin_core::l7::config::{Action, Edits, ForwardAuth, Route, RouteTerms};
use hairpin_core::l7::head::{self, Bounds, Method, ParseStatus, Request};
use hairpin_core::l7::route::Conditions;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::timeout;

/// Bytes of an answer's body that go to a client.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Bytes of the fields that a request goes on with.
pub const COPIED_BYTES_MAX: usize = 8 << 10;

/// Fields of a request that say how it comes, or that Hairpin says itself.
const NOT_ASKED: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-method",
    "x-forwarded-uri",
    "max-forwards",
];
/// Fields of an answer that say how it comes.
const NOT_ANSWERED: [&str; 8] =
    ["connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/// The question about a request.
pub(crate) struct Question {
    auth: Arc<ForwardAuth>,
    /// The head of the request that asks.
    head: Vec<u8>,
    /// Its lines about the client's request.
    about: Vec<u8>,
    /// The client's request is HEAD: its answer has no body.
    head_only: bool,
    bounds: Bounds,
}

/// A question that is being asked, as long as this exists: its client may go.
struct Listed<'a> {
    local: &'a Local,
    key: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.local.controls.remove(self.key);
    }
}

/// What may become of a request.
pub(crate) enum Permission {
    /// It goes on, with these lines of fields.
    Granted(Vec<u8>),
    /// The client gets this HTTP/1.1 response, the last one of its connection.
    Denied { status: u16, response: Vec<u8> },
}

fn is_one(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

impl Question {
    /// The question about `request`. `bounds`: those of heads.
    pub(crate) fn new(auth: &Arc<ForwardAuth>, request: &Request<'_>, bounds: Bounds) -> Question {
        let mut head = [b"GET ", &*auth.path, b" HTTP/1.1\r\n"].concat();
        let fields = request.fields.iter().filter(|(name, _)| !is_one(&NOT_ASKED, name));
        fields.for_each(|(name, value)| line(&mut head, name, value));
        head.extend_from_slice(b"\r\n");
        // Behind the edits of heads, which take a client's own fields of such names away.
        let mut about = Vec::new();
        line(&mut about, b"X-Forwarded-Method", request.method_bytes);
        line(&mut about, b"X-Forwarded-Uri", request.target.whole);
        let head_only = request.method == Method::Head;
        let bounds = Bounds { bytes_max: bounds.bytes_max + auth.path.len(), ..bounds };
        Question { auth: Arc::clone(auth), head, about, head_only, bounds }
    }

    /// Asks. `None`: there was no whole answer in time, or it cannot be used.
    pub(crate) async fn ask(self, local: &Local, setup: &Rc<Setup>, client: &Client) -> Option<Permission> {
        let (key, control) = local.controls.add_copy(client.service);
        let _listed = Listed { local, key };
        let client = Client { control, ..client.clone() };
        let answer = timeout(self.auth.timeout, self.heard(local, setup, client)).await;
        let heard = answer.ok().flatten().filter(|heard| heard.is_whole)?;
        let read = head::response(&heard.head, &self.bounds, Method::Get);
        let Ok(ParseStatus::Complete(answer)) = &read else { return None };
        if matches!(heard.status, 200..300) {
            let mut lines = Vec::new();
            let is_copied = |name: &[u8]| self.auth.copied.iter().any(|copied| name.eq_ignore_ascii_case(copied));
            let copied = answer.fields.iter().filter(|(name, _)| is_copied(name));
            copied.for_each(|(name, value)| line(&mut lines, name, value));
            return (lines.len() <= COPIED_BYTES_MAX).then_some(Permission::Granted(lines));
        }
        let mut response = format!("HTTP/1.1 {} ", heard.status).into_bytes();
        response.extend_from_slice(answer.reason);
        response.extend_from_slice(b"\r\n");
        let fields = answer.fields.iter().filter(|(name, _)| !is_one(&NOT_ANSWERED, name));
        fields.for_each(|(name, value)| line(&mut response, name, value));
        let has_body = heard.status != 304;
        if has_body {
            line(&mut response, b"Content-Length", heard.body.len().to_string().as_bytes());
        }
        response.extend_from_slice(b"Connection: close\r\n\r\n");
        if has_body && !self.head_only {
            response.extend_from_slice(&heard.body);
        }
        Some(Permission::Denied { status: heard.status, response })
    }

    async fn heard(&self, local: &Local, setup: &Rc<Setup>, client: Client) -> Option<Heard> {
        let http = setup.http(client.service)?;
        let read = head::request(&self.head, &self.bounds);
        let Ok(ParseStatus::Complete(request)) = &read else { return None };
        let mut exchange = Exchange::new(setup, client, http, request, (0, self.auth.group), false);
        // None of the route's changes is meant for this server.
        let groups = Box::from([(self.auth.group, 1)]);
        let route = Route {
            conditions: Conditions::default(),
            action: Action::Forward { groups, replace_prefix: None },
            edits: Edits::default(),
            terms: RouteTerms { response_timeout: Some(self.auth.timeout), ..RouteTerms::default() },
        };
        exchange.set_aside(None, Some((Box::new(route), self.bounds)));
        exchange.granted.clone_from(&self.about);
        aside::ask(local, &mut exchange, &self.head, Reading { bytes_max: BODY_BYTES_MAX, keeps: true }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn question_has_the_request_s_fields_and_its_line() {
        let auth = ForwardAuth {
            group: 1,
            path: (*b"/check").into(),
            timeout: Duration::from_secs(1),
            copied: Box::default(),
        };
        let bytes =
            b"POST /a?b=c HTTP/1.1\r\nHost: shop\r\nCookie: a=b\r\nContent-Length: 5\r\nX-Forwarded-Method: GET\r\n\
                      Connection: keep-alive\r\nExpect: 100-continue\r\n\r\n";
        let bounds = Bounds { bytes_max: 1000, fields_max: 10, target_bytes_max: 100 };
        let read = head::request(bytes, &bounds);
        let Ok(ParseStatus::Complete(request)) = &read else { panic!("it is whole") };
        let question = Question::new(&Arc::new(auth), request, bounds);
        assert_eq!(
            String::from_utf8(question.head).unwrap(),
            "GET /check HTTP/1.1\r\nHost: shop\r\nCookie: a=b\r\n\r\n"
        );
        let about = String::from_utf8(question.about).unwrap();
        assert_eq!(about, "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /a?b=c\r\n");
        assert!(!question.head_only);
    }
}
