//! The cookie that keeps a client with its backend (RFC 6265, 4.2).

use super::super::config::Sticky;
use super::super::head::Request;

/// The value of the sticky cookie, if the client sends one that may be ours: 16 hexadecimal digits. Of several the first
/// such.
pub fn sticky_value(request: &Request<'_>, sticky: &Sticky) -> Option<u64> {
    request.fields.find(b"cookie").flat_map(|cookies| cookies.split(|&byte| byte == b';')).find_map(|cookie| {
        let (name, value) = cookie.trim_ascii().split_at_checked(sticky.cookie.len())?;
        if name != &*sticky.cookie { None } else { number(value.strip_prefix(b"=")?) }
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.len() != 16 {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| Some(number << 4 | u64::from(char::from(digit).to_digit(16)?)))
}
