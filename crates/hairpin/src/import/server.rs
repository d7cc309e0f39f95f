//! What `server` blocks of `http` and `stream` have in common: where they listen, the levels that a directive may stand on, times and sizes.

use super::Context;
use super::parse::Directive;
use std::net::{IpAddr, SocketAddr};

/// A `listen`.
#[derive(Clone, Debug)]
pub(super) struct Listen {
    pub(super) at: SocketAddr,
    pub(super) is_ssl: bool,
    pub(super) is_udp: bool,
    pub(super) is_default: bool,
    pub(super) is_proxied: bool,
}

/// Where a server listens. `port`: if it does not say; `None`: it must.
pub(super) fn listens(context: &mut Context, server: &Directive, port: Option<u16>) -> Vec<Listen> {
    let is_on = |name: &str| server.inside().iter().any(|inside| inside.name == name && inside.first() == "on");
    let all: Vec<&Directive> = server.inside().iter().filter(|inside| inside.name == "listen").collect();
    let mut listens = Vec::new();
    for directive in &all {
        if let Some(at) = address(context, directive, port) {
            let has = |word: &str| directive.args.iter().any(|arg| arg == word);
            if has("quic") {
                context.notes.add(directive, "Hairpin speaks no HTTP/3");
                continue;
            }
            listens.push(Listen {
                at,
                is_ssl: has("ssl") || is_on("ssl"),
                is_udp: has("udp"),
                is_default: has("default_server") || has("default"),
                is_proxied: has("proxy_protocol"),
            });
        }
    }
    if all.is_empty()
        && let Some(port) = port
        && let Some(vip) = context.vip(false)
    {
        let at = SocketAddr::new(vip, port);
        listens.push(Listen { at, is_ssl: is_on("ssl"), is_udp: false, is_default: false, is_proxied: false });
    }
    listens
}

fn address(context: &mut Context, directive: &Directive, port: Option<u16>) -> Option<SocketAddr> {
    let text = directive.first();
    if text.starts_with("unix:") {
        context.notes.add(directive, "Hairpin serves clients over the network alone");
        return None;
    }
    let (host, named) = match text.parse::<u16>() {
        Ok(port) => ("*", Some(port)),
        Err(_) => match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port.parse().ok()),
            _ => (text, port),
        },
    };
    let Some(port) = named.filter(|port| *port != 0) else {
        context.notes.add(directive, "it names no port, or a range of them: write a service for each");
        return None;
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = match bare.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => context.vip(address.is_ipv6()),
        Ok(address) if address.is_loopback() => {
            context.notes.add(directive, "clients elsewhere do not reach it: it is left out");
            return None;
        }
        Ok(address) => Some(address),
        Err(_) if host == "*" => context.vip(false),
        Err(_) => {
            context.notes.add(directive, "Hairpin listens on addresses, not on names: the one of --vip is taken");
            context.vip(false)
        }
    };
    if address.is_none() {
        context.notes.add(directive, "a service has one address: name that of IPv6 by --vip");
    }
    Some(SocketAddr::new(address?, port))
}

/// Blocks within one another, the outermost first: a directive holds for those inside, unless they have it too.
#[derive(Clone, Debug)]
pub(super) struct Levels<'a>(pub(super) Vec<&'a [Directive]>);

impl<'a> Levels<'a> {
    /// With one more inside.
    pub(super) fn with(&self, block: &'a [Directive]) -> Levels<'a> {
        let mut levels = self.0.clone();
        levels.push(block);
        Levels(levels)
    }

    /// Those of this name, of the innermost level that has any.
    pub(super) fn all(&self, name: &str) -> Vec<&'a Directive> {
        let of = |block: &&'a [Directive]| block.iter().filter(|one| one.name == name).collect::<Vec<_>>();
        self.0.iter().rev().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The last one of this name, of the innermost level that has any.
    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }
}

/// A time of nginx's in Hairpin's form; `None`: it is 0, or has a unit that differs.
pub(super) fn duration(text: &str) -> Option<String> {
    let text = if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}s") } else { text.to_string() };
    // A month is `M` in both, but not as long.
    let is_known =
        text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'm' | b's' | b'h' | b'd' | b'w' | b' '));
    let parsed = humantime::parse_duration(&text).ok().filter(|time| is_known && !time.is_zero())?;
    Some(humantime::format_duration(parsed).to_string())
}

/// A size of nginx's in bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, factor) = match text.to_ascii_lowercase() {
        text if text.ends_with('k') => (text[..text.len() - 1].to_string(), 1 << 10),
        text if text.ends_with('m') => (text[..text.len() - 1].to_string(), 1 << 20),
        text if text.ends_with('g') => (text[..text.len() - 1].to_string(), 1 << 30),
        text => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
