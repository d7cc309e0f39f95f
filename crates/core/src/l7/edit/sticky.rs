//! The cookie that keeps a client with its backend (RFC 6265, 4.2).

use super::super::config::Sticky;
use super::super::head::Request;

/// The value of the sticky cookie, if the client sends one that may be ours: 16 hexadecimal digits. Of several the
/// first such.
pub fn sticky_value(request: &Request<'_>, sticky: &Sticky) -> Option<u64> {
    cookies(request, &sticky.cookie).find_map(number)
}

/// The values of the cookies of this name that the client sends, in order.
pub fn cookies<'a>(request: &'a Request<'_>, cookie: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let all = request.fields.find(b"cookie").flat_map(|cookies| cookies.split(|&byte| byte == b';'));
    all.filter_map(move |one| {
        let (name, value) = one.trim_ascii().split_at_checked(cookie.len())?;
        if name != cookie { None } else { value.strip_prefix(b"=") }
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.len() != 16 {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| Some(number << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

impl Sticky {
    /// A cookie of this name with these attributes, such as `Path=/; HttpOnly; SameSite=Lax`; none if empty.
    ///
    /// # Errors
    /// The defect of the name or the attributes.
    pub fn parse(cookie: &str, attributes: &str) -> Result<Sticky, &'static str> {
        let is_token = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
        if cookie.is_empty() || cookie.len() > 64 || !is_token(cookie) {
            return Err("a cookie's name is made of 1 to 64 letters, digits and !#$%&'*+-.^_`|~");
        }
        let attributes = attributes.trim_matches([' ', ';']);
        if attributes.len() > 256 || !attributes.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err("a cookie's attributes are at most 256 visible ASCII characters: Path=/; HttpOnly");
        }
        let attributes =
            if attributes.is_empty() { alloc::string::String::new() } else { alloc::format!("; {attributes}") };
        Ok(Sticky { cookie: cookie.as_bytes().into(), attributes: attributes.into_bytes().into() })
    }
}
