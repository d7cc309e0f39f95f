//! Heads of responses that go to clients.

use super::super::body::Length;
use super::super::config::{HeadEdits, Http, Route};
use super::super::head::{FramingFields, Response, Version};
use super::plan::EditPlan;
use super::{Facts, Meaning, NoRoom, Out};

/// The value of `Connection` to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionField {
    /// Nothing needs to be said; `keep-alive` may be.
    Any,
    /// `keep-alive`: an HTTP/1.0 client would not know.
    Kept,
    /// `close`.
    Close,
    /// `close`, or nothing: the body has no other end.
    Ends,
    /// `upgrade`.
    Upgrade,
}

impl ConnectionField {
    fn to(response: &Response<'_>, asked: Version, facts: &Facts<'_>) -> ConnectionField {
        match (response.status, response.body) {
            (101, _) => ConnectionField::Upgrade,
            (..200, _) | (_, Length::Tunnel) => ConnectionField::Any,
            (_, Length::UntilClose) => ConnectionField::Ends,
            _ if facts.close_client => ConnectionField::Close,
            _ if asked == Version::Http10 => ConnectionField::Kept,
            _ => ConnectionField::Any,
        }
    }

    /// Whether `said`, the value of the only `Connection` field, if there is one, can stay.
    fn is_said_by(self, said: Option<&[u8]>) -> bool {
        let is = |option: &[u8]| said.is_some_and(|said| said.eq_ignore_ascii_case(option));
        match self {
            ConnectionField::Any => said.is_none() || is(b"keep-alive"),
            ConnectionField::Kept => is(b"keep-alive"),
            ConnectionField::Close => is(b"close"),
            ConnectionField::Ends => said.is_none() || is(b"close"),
            ConnectionField::Upgrade => is(b"upgrade"),
        }
    }

    fn line(self) -> &'static [u8] {
        match self {
            ConnectionField::Any => b"",
            ConnectionField::Kept => b"Connection: keep-alive\r\n",
            ConnectionField::Close | ConnectionField::Ends => b"Connection: close\r\n",
            ConnectionField::Upgrade => b"Connection: upgrade\r\n",
        }
    }
}

/// Whether a client that asked with HTTP version `asked` can read the response at all. Chunks are unknown to HTTP/1.0;
/// a backend is asked by the client's version, so that only one that is wrong sends them: 502.
pub fn can_go_to(response: &Response<'_>, asked: Version) -> bool {
    !(asked == Version::Http10 && response.body == Length::Chunked)
}

/// Writes the head of `response` that goes to the client that asked with HTTP version `asked`, and says how long it is;
/// `None`: it goes on as it is. Whether it [can](can_go_to), is not asked here. Interim responses (1xx but 101) are not
/// edited; for them nothing but fields of one hop is ever dropped.
///
/// # Errors
/// It does not fit in `out`.
pub fn response_head(
    out: &mut [u8],
    response: &Response<'_>,
    asked: Version,
    http: &Http,
    route: &Route,
    facts: &Facts<'_>,
) -> Result<Option<usize>, NoRoom> {
    let is_last = response.status >= 200 || response.status == 101;
    let sticky = http.sticky.as_ref().zip(facts.sticky).filter(|_| is_last);
    let timed = http.server_timing && is_last;
    let none = HeadEdits::default();
    let plan =
        if is_last { EditPlan::new(&http.edits.response, &route.edits.response) } else { EditPlan::new(&none, &none) };
    let connection = ConnectionField::to(response, asked, facts);
    let unedited = sticky.is_none() && !timed && plan.is_empty() && response.version == Version::Http11;
    if unedited && stays(response, connection) {
        return Ok(None);
    }

    let mut out = Out::new(out);
    out.put(b"HTTP/1.1 ");
    out.number(response.status.into());
    out.put(b" ");
    out.put(response.reason);
    out.put(b"\r\n");
    for (name, value) in response.fields.iter() {
        if goes_on(response, name) && (plan.is_empty() || !plan.drops(name)) {
            out.field(name, value);
        }
    }
    if let FramingFields::Length(length) = response.framing {
        out.put(b"Content-Length: ");
        out.number(length);
        out.put(b"\r\n");
    }
    out.put(connection.line());
    if let Some((sticky, value)) = sticky {
        out.put(b"Set-Cookie: ");
        out.put(&sticky.cookie);
        out.put(b"=");
        out.hexadecimal(value);
        out.put(&sticky.attributes);
        out.put(b"\r\n");
    }
    if timed {
        out.put(b"Server-Timing: hairpin;desc=\"");
        out.name(facts.backend);
        out.put(b"\";dur=");
        milliseconds(&mut out, facts.chosen_in_us);
        out.put(b"\r\n");
    }
    plan.write(&mut out, &Meaning { facts, request: None });
    out.put(b"\r\n");
    out.end().map(Some)
}

/// Whether all of the response's fields go on, and say what is to be said of the connection.
fn stays(response: &Response<'_>, connection: ConnectionField) -> bool {
    if response.framing != FramingFields::AsSaid {
        return false;
    }
    let mut said = None;
    for (name, value) in response.fields.iter() {
        if name.len() == 10 && name.eq_ignore_ascii_case(b"connection") {
            if said.replace(value).is_some() {
                return false;
            }
        } else if !goes_on(response, name) {
            return false;
        }
    }
    connection.is_said_by(said)
}

/// Whether the field `name` of the backend is for the client as it is, edits aside.
fn goes_on(response: &Response<'_>, name: &[u8]) -> bool {
    match name.len() {
        7 if name.eq_ignore_ascii_case(b"upgrade") => response.status == 101,
        14 if name.eq_ignore_ascii_case(b"content-length") => response.framing == FramingFields::AsSaid,
        17 if name.eq_ignore_ascii_case(b"transfer-encoding") => response.framing == FramingFields::AsSaid,
        _ => !response.fields.is_hop_by_hop(name),
    }
}

/// Microseconds as milliseconds with three decimals, as `Server-Timing` has them.
fn milliseconds(out: &mut Out<'_>, us: u32) {
    out.number((us / 1000).into());
    let rest = us % 1000;
    out.put(&[b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8]);
}
