//! What a client of HTTP/2 has said, read by RFC 9113 and nothing else.

use super::FieldList;
use h2::ext::Protocol;
use hairpin_core::l7::body::Length;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Uri};

/// A request.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) method: Vec<u8>,
    scheme: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    protocol: Option<Vec<u8>>,
    pub(super) fields: FieldList,
}

impl Said {
    /// Reads fields strictly (RFC 9113, 8.2 and 8.3; RFC 8441, 4).
    pub(super) fn of_fields(list: &FieldList) -> Result<Said, &'static str> {
        let (mut method, mut said) = (None, Said::default());
        for (name, value) in list {
            // The h2 crate cuts a fragment off unread.
            let is_path = name == b":path";
            let read = value.split(|&byte| is_path && byte == b'#').next().unwrap_or_default();
            if read.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
                return Err("a value has NUL, CR or LF");
            }
            let place = match &name[..] {
                b":method" => &mut method,
                b":scheme" => &mut said.scheme,
                b":authority" => &mut said.authority,
                b":path" => &mut said.path,
                b":protocol" => &mut said.protocol,
                _ => {
                    field(name, value)?;
                    said.fields.push((name.clone(), value.clone()));
                    continue;
                }
            };
            if !said.fields.is_empty() {
                return Err("a pseudo-field comes behind a field");
            }
            if place.replace(value.clone()).is_some() {
                return Err("a pseudo-field comes twice");
            }
        }
        said.method = method.ok_or("there is no method")?;
        said.check()?;
        Ok(said)
    }

    fn check(&self) -> Result<(), &'static str> {
        let is_connect = self.method == b"CONNECT";
        match (&self.protocol, &self.scheme, &self.path) {
            (Some(_), _, _) if !is_connect => Err(":protocol without CONNECT"),
            (None, None, None) if is_connect => Ok(()),
            (None, _, _) if is_connect => Err("CONNECT with a scheme or a path"),
            // What is left of a path of which the h2 crate cuts all off is `/`.
            (_, Some(_), Some(path)) if path.starts_with(b"/") || path.starts_with(b"#") => Ok(()),
            (_, Some(_), Some(path)) if path == b"*" && self.method == b"OPTIONS" => Ok(()),
            (_, Some(_), Some(_)) => Err("the path is none"),
            _ => Err("there is no scheme or no path"),
        }
    }

    pub(super) fn of_parts(parts: &Parts) -> Said {
        let of = |text: &str| text.as_bytes().to_vec();
        Said {
            method: of(parts.method.as_str()),
            scheme: parts.uri.scheme_str().map(of),
            authority: parts.uri.authority().map(|authority| of(authority.as_str())),
            path: parts.uri.path_and_query().map(|path| of(path.as_str())),
            protocol: parts.extensions.get::<Protocol>().map(|protocol| of(protocol.as_str())),
            fields: parts.headers.iter().map(|(name, value)| (of(name.as_str()), value.as_bytes().to_vec())).collect(),
        }
    }

    /// The form that the h2 crate gives it.
    pub(super) fn parts(&self) -> Option<Parts> {
        let mut uri = http::uri::Parts::default();
        if let Some(authority) = &self.authority {
            uri.authority = Some((&authority[..]).try_into().ok()?);
            uri.scheme = match &self.scheme {
                Some(scheme) => Some((&scheme[..]).try_into().ok()?),
                None => None,
            };
        }
        if let Some(path) = &self.path {
            uri.path_and_query = Some((&path[..]).try_into().ok()?);
        }
        let request = http::Request::builder().method(&self.method[..]).uri(Uri::from_parts(uri).ok()?);
        let (mut parts, ()) = request.body(()).ok()?.into_parts();
        for (name, value) in &self.fields {
            parts.headers.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        }
        match &self.protocol {
            Some(protocol) if protocol == b"websocket" => {
                parts.extensions.insert(Protocol::from_static("websocket"));
            }
            Some(_) => return None,
            None => {}
        }
        Some(parts)
    }

    pub(super) fn is_websocket(&self) -> bool {
        self.protocol.as_deref() == Some(b"websocket")
    }

    /// The target that its HTTP/1.1 form has. A fragment, which must not be there, is cut off.
    pub(super) fn target(&self) -> &[u8] {
        match (&self.path, &self.authority) {
            (Some(path), _) if path.starts_with(b"#") => b"/",
            (Some(path), _) => path.split(|&byte| byte == b'#').next().unwrap_or_default(),
            (None, Some(authority)) => authority,
            (None, None) => b"",
        }
    }

    /// The host that it is for.
    pub(super) fn host(&self) -> Option<&[u8]> {
        let field = self.fields.iter().find(|(name, _)| name == b"host").map(|(_, value)| trimmed(value));
        self.authority.as_deref().or(field)
    }

    /// Its fields but `Host`, with one cookie.
    pub(super) fn sorted(&self) -> FieldList {
        let mut cookies: Vec<&[u8]> = Vec::new();
        let mut fields = FieldList::new();
        for (name, value) in &self.fields {
            match &name[..] {
                b"host" => {}
                b"cookie" => cookies.push(value),
                b"sec-websocket-key" if self.is_websocket() => {}
                _ => fields.push((name.clone(), trimmed(value).to_vec())),
            }
        }
        if !cookies.is_empty() {
            fields.push((b"cookie".to_vec(), trimmed(&cookies.join(&b"; "[..])).to_vec()));
        }
        fields.sort();
        fields
    }

    /// The length of its body.
    pub(super) fn body(&self, is_whole: bool) -> Length {
        let length = self.fields.iter().find(|(name, _)| name == b"content-length");
        match length.map(|(_, value)| std::str::from_utf8(trimmed(value)).ok().and_then(|text| text.parse().ok())) {
            Some(Some(0)) => Length::None,
            Some(Some(length)) => Length::Bytes(length),
            Some(None) => panic!("its Content-Length is none, and it went on: {self:?}"),
            None if is_whole || self.is_websocket() || self.method == b"CONNECT" => Length::None,
            None => Length::Chunked,
        }
    }
}

/// Whether a field may be one of a request.
fn field(name: &[u8], value: &[u8]) -> Result<(), &'static str> {
    let is_bad = |byte: &u8| matches!(byte, 0..=b' ' | b'A'..=b'Z' | b':' | 0x7f..);
    match name {
        b"" => Err("a name is empty"),
        _ if name.iter().any(is_bad) => Err("a name has a byte that names do not have"),
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            Err("a field is of a connection")
        }
        b"te" if value != b"trailers" => Err("te is not trailers"),
        _ => Ok(()),
    }
}

pub(super) fn trimmed(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}
