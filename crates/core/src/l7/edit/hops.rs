//! How many proxies a request may still pass (RFC 9110, 7.6.2).

use super::super::head::{Method, Request};

/// The lower-case name of the field.
pub(super) const NAME: &[u8] = b"max-forwards";

/// `Max-Forwards` is not one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNumber;

/// Whether `Max-Forwards` means anything to us in `request`.
pub(super) fn counts(request: &Request<'_>) -> bool {
    matches!(request.method, Method::Trace | Method::Options)
}

/// How many times `request` may be forwarded; `None`: any number. 0: its recipient answers it. Only TRACE and OPTIONS
/// count; a number that is too large for us stands for the largest.
///
/// # Errors
/// The field is not one number.
pub fn forwards_left(request: &Request<'_>) -> Result<Option<u64>, NoNumber> {
    if !counts(request) {
        return Ok(None);
    }
    let mut values = request.fields.find(NAME);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(NoNumber);
    }
    let add = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Ok(Some(value.iter().fold(0, add)))
}
