//! Values of fields that are set: text with variables in it.

use super::super::config::Field;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a value's text.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Bytes of a field's name.
pub const NAME_BYTES_MAX: usize = 128;

/// A variable of the exchange in a field's value. In text it is written by its name in braces: `{client_ip}`; `{{` and
/// `}}` stand for braces. Something that is not there (a host that an HTTP/1.0 request did not name) is empty; a field
/// whose variables are all empty, and which has no other text, is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `client_ip`: the client's address, an IPv6 one without brackets.
    ClientIp,
    /// `client_port`: the client's port.
    ClientPort,
    /// `vip`: the address that the client connected to, an IPv6 one without brackets.
    Vip,
    /// `vip_port`: the port that the client connected to.
    VipPort,
    /// `scheme`: `http` or `https`.
    Scheme,
    /// `service`: the service's name.
    Service,
    /// `backend`: the chosen backend's name.
    Backend,
    /// `host`: the host asked for, without port and without a dot at its end. Only in requests and redirects.
    Host,
    /// `authority`: the host asked for, with the port if it was written. Only in requests and redirects.
    Authority,
    /// `method`: the request's method. Only in requests.
    Method,
    /// `path`: the path as it was written. Only in requests and redirects.
    Path,
    /// `query`: the query with its `?`, if there is one. Only in requests and redirects.
    Query,
    /// `client_subject`: the subject of the client's certificate, as RFC 4514 writes it. Only where TLS ends here.
    ClientSubject,
    /// `client_fingerprint`: the SHA-256 of the client's certificate, in hexadecimal digits. Only where TLS ends here.
    ClientFingerprint,
    /// `client_verify`: `SUCCESS` if the client showed a certificate, else `NONE`. Only where TLS ends here.
    ClientVerify,
}

impl Variable {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Variable); 15] = [
        ("client_ip", Variable::ClientIp),
        ("client_port", Variable::ClientPort),
        ("vip", Variable::Vip),
        ("vip_port", Variable::VipPort),
        ("scheme", Variable::Scheme),
        ("service", Variable::Service),
        ("backend", Variable::Backend),
        ("host", Variable::Host),
        ("authority", Variable::Authority),
        ("method", Variable::Method),
        ("path", Variable::Path),
        ("query", Variable::Query),
        ("client_subject", Variable::ClientSubject),
        ("client_fingerprint", Variable::ClientFingerprint),
        ("client_verify", Variable::ClientVerify),
    ];

    /// The variable called `name`.
    pub fn named(name: &[u8]) -> Option<Variable> {
        Variable::ALL.iter().find(|(own, _)| own.as_bytes() == name).map(|&(_, variable)| variable)
    }

    /// Whether it is known when a response goes back.
    pub fn is_in_responses(self) -> bool {
        use Variable::{Authority, Host, Method, Path, Query};
        !matches!(self, Host | Authority | Method | Path | Query)
    }

    /// Whether it says something of the certificate that the client showed.
    pub fn is_of_certificate(self) -> bool {
        matches!(self, Variable::ClientSubject | Variable::ClientFingerprint | Variable::ClientVerify)
    }

    /// Whether a redirect may be made of it.
    pub fn is_in_redirects(self) -> bool {
        use Variable::{Authority, Host, Path, Query, Scheme};
        matches!(self, Scheme | Host | Authority | Path | Query)
    }
}

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePiece {
    /// Text, as it is.
    Text(Box<[u8]>),
    /// A variable.
    Variable(Variable),
}

/// A field's value, taken apart when the configuration is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldValue {
    pieces: Box<[ValuePiece]>,
}

impl FieldValue {
    /// Parses text with variables: visible ASCII, space and tab, at most [`VALUE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The defect of `text`.
    pub fn parse(text: &str) -> Result<FieldValue, &'static str> {
        if text.len() > VALUE_BYTES_MAX {
            return Err("a value has at most 4096 bytes");
        }
        if !text.bytes().all(|byte| byte == b' ' || byte == b'\t' || byte.is_ascii_graphic()) {
            return Err("a value is made of visible ASCII characters, spaces and tabs");
        }
        let mut pieces: Vec<ValuePiece> = Vec::new();
        for part in parts(text.as_bytes()) {
            match (part?, pieces.last_mut()) {
                (TextPart::Text(more), Some(ValuePiece::Text(text))) => *text = [&text[..], more].concat().into(),
                (TextPart::Text(text), _) => pieces.push(ValuePiece::Text(text.into())),
                (TextPart::Variable(variable), _) => pieces.push(ValuePiece::Variable(variable)),
            }
        }
        Ok(FieldValue { pieces: pieces.into() })
    }

    /// Its parts, in order.
    pub fn pieces(&self) -> &[ValuePiece] {
        &self.pieces
    }

    /// The variables in it.
    pub fn variables(&self) -> impl Iterator<Item = Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            ValuePiece::Variable(variable) => Some(*variable),
            ValuePiece::Text(_) => None,
        })
    }
}

/// A part of a text with variables.
pub(in super::super) enum TextPart<'a> {
    Text(&'a [u8]),
    Variable(Variable),
}

/// The parts of `text`. After an error, there is nothing more.
pub(in super::super) fn parts(text: &[u8]) -> impl Iterator<Item = Result<TextPart<'_>, &'static str>> {
    let mut rest = text;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let part = part(rest);
        rest = part.as_ref().map_or(&[], |&(_, rest)| rest);
        Some(part.map(|(part, _)| part))
    })
}

/// The first part of `text`, and the rest.
fn part(text: &[u8]) -> Result<(TextPart<'_>, &[u8]), &'static str> {
    match text {
        [b'{', b'{', rest @ ..] | [b'}', b'}', rest @ ..] => Ok((TextPart::Text(&text[..1]), rest)),
        [b'{', rest @ ..] => {
            let end = rest.iter().position(|&byte| byte == b'}').ok_or(UNKNOWN)?;
            let variable = Variable::named(&rest[..end]).ok_or(UNKNOWN)?;
            Ok((TextPart::Variable(variable), &rest[end + 1..]))
        }
        [b'}', ..] => Err("a closing brace without an opening one; }} stands for a brace"),
        _ => {
            let end = text.iter().position(|byte| matches!(byte, b'{' | b'}')).unwrap_or(text.len());
            let (text, rest) = text.split_at(end);
            Ok((TextPart::Text(text), rest))
        }
    }
}

const UNKNOWN: &str = "no such variable; there are {client_ip}, {client_port}, {vip}, {vip_port}, {scheme}, {service}, \
                       {backend}, {host}, {authority}, {method}, {path}, {query}, {client_subject}, {client_fingerprint} \
                       and {client_verify}, and {{ for a brace";

/// Names of fields that frame a message or hold for one connection only: Hairpin writes them itself.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// `name` as the name of a field that edits may change.
fn name(name: &str) -> Result<&[u8], &'static str> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err("a field's name has 1 to 128 characters");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)) {
        return Err("a field's name is made of letters, digits and !#$%&'*+-.^_`|~");
    }
    if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Err("this field frames messages or belongs to one connection: Hairpin writes it itself");
    }
    Ok(name.as_bytes())
}

impl Field {
    /// A field to set or add in requests. Setting `Host` replaces the host that the client asked for; adding it is the
    /// same, for there is exactly one.
    ///
    /// # Errors
    /// The defect of the name or the value.
    pub fn parse(name: &str, value: &str) -> Result<Field, &'static str> {
        Ok(Field { name: self::name(name)?.into(), value: FieldValue::parse(value.trim_matches([' ', '\t']))? })
    }

    /// A field to set or add in responses.
    ///
    /// # Errors
    /// The defect of the name or the value.
    pub fn parse_response(name: &str, value: &str) -> Result<Field, &'static str> {
        let field = Field::parse(name, value)?;
        if !field.value.variables().all(Variable::is_in_responses) {
            return Err("{host}, {authority}, {method}, {path} and {query} are known in requests only");
        }
        Ok(field)
    }

    /// The name of a field to remove, as [`HeadEdits`](super::super::config::HeadEdits) holds it.
    ///
    /// # Errors
    /// Its defect.
    pub fn parse_removed(name: &str) -> Result<Box<[u8]>, &'static str> {
        if name.eq_ignore_ascii_case("host") {
            return Err("every request has a host; it can be set, not removed");
        }
        Ok(self::name(name)?.to_ascii_lowercase().into())
    }
}

/// The template of a redirect's `Location`, checked: a URL or a path, with `{scheme}`, `{host}`, `{authority}`,
/// `{path}` and `{query}`.
///
/// # Errors
/// The defect of `text`.
pub fn location(text: &str) -> Result<Box<[u8]>, &'static str> {
    if text.is_empty() || text.len() > VALUE_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a location is a URL of 1 to 4096 visible ASCII characters (anything else as %XX)");
    }
    if !FieldValue::parse(text)?.variables().all(Variable::is_in_redirects) {
        return Err("a location may use {scheme}, {host}, {authority}, {path} and {query}");
    }
    Ok(text.as_bytes().into())
}
