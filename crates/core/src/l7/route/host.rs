//! Hosts that requests ask for.

use alloc::boxed::Box;

/// The longest name that DNS allows (RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// A host or hosts that a request may ask for; compared in any case, without port and without a dot at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This one; lower case.
    Exact(Box<[u8]>),
    /// Everything that ends so, `.` first, with something before it; lower case.
    Suffix(Box<[u8]>),
}

impl HostPattern {
    /// Parses `example.org`, `*.example.org` (all below it, at any depth, not itself), `192.0.2.1` or `[2001:db8::1]`.
    ///
    /// # Errors
    /// The defect of `text`.
    pub fn parse(text: &str) -> Result<HostPattern, &'static str> {
        let (name, suffix) = match text.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => (&rest[1..], true),
            Some(_) => return Err("a wildcard stands alone before a dot: *.example.org"),
            None => (text, false),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err("a host has 1 to 255 characters");
        }
        if let Some(literal) = name.strip_prefix('[') {
            let address = literal.strip_suffix(']').and_then(|inner| inner.parse::<core::net::Ipv6Addr>().ok());
            return match address {
                Some(_) if !suffix => Ok(HostPattern::Exact(name.to_ascii_lowercase().into_bytes().into())),
                _ => Err("an IPv6 address in brackets: [2001:db8::1]"),
            };
        }
        if name.contains(':') {
            return Err("a host without a port (an IPv6 address in brackets)");
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
            return Err("a host is made of letters, digits, '-', '_' and '.' (other scripts as xn--...)");
        }
        if name.split('.').any(str::is_empty) {
            return Err("a host has something between its dots");
        }
        let name = name.to_ascii_lowercase();
        Ok(if suffix {
            HostPattern::Suffix(alloc::format!(".{name}").into_bytes().into())
        } else {
            HostPattern::Exact(name.into_bytes().into())
        })
    }

    /// Whether `name`, as [`name`] gives it, is meant.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            HostPattern::Exact(exact) => name.eq_ignore_ascii_case(exact),
            HostPattern::Suffix(suffix) => {
                name.len() > suffix.len() && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
            }
        }
    }
}

/// The name in `host[:port]`: without the port, and without a dot at its end. An IPv6 address keeps its brackets.
pub fn name(authority: &[u8]) -> &[u8] {
    let end = if authority.first() == Some(&b'[') {
        authority.iter().position(|&byte| byte == b']').map_or(authority.len(), |bracket| bracket + 1)
    } else {
        authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len())
    };
    let name = &authority[..end];
    name.strip_suffix(b".").unwrap_or(name)
}
