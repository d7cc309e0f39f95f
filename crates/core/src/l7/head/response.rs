//! Heads of responses.

use super::fields::Fields;
use super::framing::{FramingFacts, HeadSection, section};
use super::{BadHead, Bounds, Method, ParseStatus, Version, incomplete, octets, window};
use crate::l7::body::Length;

/// The head of a response.
#[derive(Clone, Debug)]
pub struct Response<'a> {
    /// All of it, with its last CRLF CRLF.
    pub bytes: &'a [u8],
    /// The status, 100 to 999. Those from 600 on have no meaning (RFC 9110, 15), but some have them.
    pub status: u16,
    /// The version of HTTP.
    pub version: Version,
    /// The reason phrase, maybe empty.
    pub reason: &'a [u8],
    /// The fields.
    pub fields: Fields<'a>,
    /// The body behind the head. Behind [`Length::Tunnel`] there is no more HTTP.
    pub body: Length,
    /// How a client learns the body's length.
    pub framing: FramingFields,
    /// Whether the backend keeps the connection (RFC 9112, 9.3). Never with [`Length::UntilClose`] and
    /// [`Length::Tunnel`].
    pub keep_alive: bool,
}

/// The framing fields of a response (`Content-Length`, `Transfer-Encoding`) that are forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramingFields {
    /// They go on as they are.
    AsSaid,
    /// `Content-Length` with this many bytes.
    Length(u64),
    /// None of them.
    Without,
}

/// Reads the head of a response at the start of `bytes`, to a request with method `asked`. Whether a 101 was asked for,
/// who calls must know.
pub fn response<'a>(bytes: &'a [u8], bounds: &Bounds, asked: Method) -> Result<ParseStatus<Response<'a>>, BadHead> {
    let (bytes, full) = window(bytes, bounds);
    let mut fields = Fields::new(bytes);
    let Some((StatusLine { version, status, reason }, HeadSection { said, end })) = read(&mut fields, bytes, bounds)?
    else {
        return incomplete(full);
    };
    let (body, framing, is_sure) = body(&said, version, status, asked)?;
    let keep_alive = said.is_kept(version) && is_sure && !matches!(body, Length::UntilClose | Length::Tunnel);
    Ok(ParseStatus::Complete(Response {
        bytes: &bytes[..end],
        status,
        version,
        reason,
        fields,
        body,
        framing,
        keep_alive,
    }))
}

/// The parts of a status line.
struct StatusLine<'a> {
    version: Version,
    status: u16,
    reason: &'a [u8],
}

/// The status line and the fields. `None`: there are not all of them yet.
fn read<'a>(
    fields: &mut Fields<'a>,
    bytes: &'a [u8],
    bounds: &Bounds,
) -> Result<Option<(StatusLine<'a>, HeadSection<'a>)>, BadHead> {
    let Some((line, at)) = read_line(bytes)? else { return Ok(None) };
    Ok(section(fields, bytes, at, bounds.fields_max, false)?.map(|section| (line, section)))
}

/// The status line, and where the next starts. A missing space before a missing reason is accepted: it is common, and
/// cannot be misread.
fn read_line(bytes: &[u8]) -> Result<Option<(StatusLine<'_>, usize)>, BadHead> {
    const START: &[u8] = b"HTTP/";
    let known = bytes.len().min(START.len());
    if bytes[..known] != START[..known] {
        return Err(BadHead::StatusLine);
    }
    let Some((start, rest)) = bytes.split_at_checked(12) else { return Ok(None) };
    let version = Version::named(&start[..8], BadHead::StatusLine)?;
    let status = match start[8..] {
        [b' ', hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            u16::from(hundreds - b'0') * 100 + u16::from(tens - b'0') * 10 + u16::from(ones - b'0')
        }
        _ => return Err(BadHead::StatusLine),
    };
    let reason = match rest {
        [] => return Ok(None),
        [b' ', rest @ ..] => rest,
        [b'\r' | b'\n', ..] => rest,
        _ => return Err(BadHead::StatusLine),
    };
    let length = octets::value(reason);
    match reason.get(length..) {
        Some([b'\r', b'\n', ..]) => {}
        Some([] | [b'\r']) | None => return Ok(None),
        Some([b'\r' | b'\n', ..]) => return Err(BadHead::LineEnd),
        Some(_) => return Err(BadHead::StatusLine),
    }
    let next = bytes.len() - reason.len() + length + 2;
    Ok(Some((StatusLine { version, status, reason: &reason[..length] }, next)))
}

/// How long the body is (RFC 9112, 6.3), what goes on of the fields that say so, and whether it is sure that the next
/// response begins behind it: where the backend contradicts itself it may send more, which must not be taken for one.
fn body(
    said: &FramingFacts<'_>,
    version: Version,
    status: u16,
    asked: Method,
) -> Result<(Length, FramingFields, bool), BadHead> {
    let identity = said.is_identity();
    let chunked = !identity && said.is_chunked(version)?;
    // Fields that such a response must not have (RFC 9112, 6.1; RFC 9110, 8.6), and that a client might believe. A length
    // of 0 is common, and does no harm.
    let has_body = chunked || said.length.is_some_and(|length| length > 0);
    if (100..200).contains(&status) && has_body {
        return Err(if chunked { BadHead::TransferEncoding } else { BadHead::ContentLength });
    }
    let length = match (status, asked) {
        (101, _) => Length::Tunnel,
        (200..300, Method::Connect) => Length::Tunnel,
        (100..200 | 204 | 304, _) | (_, Method::Head) => Length::None,
        _ if chunked => Length::Chunked,
        _ => match said.length {
            Some(0) => Length::None,
            Some(length) => Length::Bytes(length),
            None => Length::UntilClose,
        },
    };
    let framing = match said.length {
        _ if status == 204 && has_body => FramingFields::Without,
        Some(length) if identity || said.is_roundabout => FramingFields::Length(length),
        None if identity => FramingFields::Without,
        _ => FramingFields::AsSaid,
    };
    Ok((length, framing, !identity && framing != FramingFields::Without))
}
