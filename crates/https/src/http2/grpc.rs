//! The needs of gRPC clients beside HTTP/2: their deadlines, and Hairpin's own errors as statuses of gRPC (the gRPC protocol
//! over HTTP/2).

use http::header::{self, HeaderMap, HeaderValue};
use std::time::Duration;

/// `DEADLINE_EXCEEDED`.
pub(super) const DEADLINE_EXCEEDED: u8 = 4;

/// Whether a request is a call of gRPC.
pub(super) fn is_call(fields: &HeaderMap) -> bool {
    let kind = fields.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some(rest) = kind.strip_prefix(b"application/grpc") else { return false };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

/// How long a call may take (`grpc-timeout`): 1 to 8 digits and a unit. `None`: as long as it wants, or this is not how
/// deadlines are written.
pub(super) fn timeout(fields: &HeaderMap) -> Option<Duration> {
    let text = fields.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The response to a call that fails, which has no body: the status is in its head (`Trailers-Only`).
pub(super) fn failure(status: u8, message: &str) -> http::Response<()> {
    let mut response = http::Response::new(());
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    fields.insert("grpc-status", HeaderValue::from(u16::from(status)));
    if let Ok(message) = HeaderValue::from_str(message) {
        fields.insert("grpc-message", message);
    }
    response
}

/// The status of gRPC for one of HTTP ("HTTP to gRPC Status Code Mapping" of the gRPC project).
pub(super) fn status_of(http: u16) -> u8 {
    match http {
        // INTERNAL
        400 => 13,
        // UNAUTHENTICATED
        401 => 16,
        // PERMISSION_DENIED
        403 => 7,
        // UNIMPLEMENTED
        404 => 12,
        // UNAVAILABLE
        429 | 502..=504 => 14,
        // UNKNOWN
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn calls_are_told_by_their_content_type() {
        for (kind, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;x=y", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_call(&fields("content-type", kind)), is, "{kind}");
        }
    }

    #[test]
    fn deadlines_have_digits_and_a_unit() {
        for (text, expected) in [
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("7n", Some(Duration::from_nanos(7))),
            ("2M", Some(Duration::from_secs(120))),
            ("S", None),
            ("", None),
            ("123456789S", None),
            ("-1S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(timeout(&fields("grpc-timeout", text)), expected, "{text}");
        }
    }
}
