//! The fields that tell backends about the client: `X-Forwarded-*`, `X-Real-IP`, `Forwarded` (RFC 7239).
//!
//! A client's own text in these fields goes on only if it comes from a trusted proxy; then it is added to, or kept where it
//! says all. From others all of them are dropped, also those that Hairpin is not asked to set, and also other names that
//! begin with `X-Forwarded-`: backends believe them.

use super::super::config::Forwarded;
use super::super::head::Request;
use super::plan::{EditPlan, is_same};
use super::{Facts, Out, scheme};

const FOR: &[u8] = b"X-Forwarded-For";
const PROTO: &[u8] = b"X-Forwarded-Proto";
const HOST: &[u8] = b"X-Forwarded-Host";
const REAL_IP: &[u8] = b"X-Real-IP";
const STANDARD: &[u8] = b"Forwarded";
/// The common prefix of all the others.
const ANY: &[u8] = b"X-Forwarded-";

/// The treatment of these fields in one request.
pub(super) struct Teller<'a> {
    config: &'a Forwarded,
    is_trusted: bool,
}

impl<'a> Teller<'a> {
    pub(super) fn new(config: &'a Forwarded, facts: &Facts<'_>) -> Teller<'a> {
        Teller { config, is_trusted: config.trusts(&facts.client.address) }
    }

    /// Whether the field `name` of the client does not go on as it is.
    pub(super) fn drops(&self, name: &[u8]) -> bool {
        let starts = |with: &[u8]| name.get(..with.len()).is_some_and(|start| is_same(start, with));
        let ours = match name.first() {
            Some(b'x' | b'X') => starts(ANY) || is_same(name, REAL_IP),
            Some(b'f' | b'F') => is_same(name, STANDARD),
            _ => false,
        };
        let is_disguised = || !name.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-');
        ours && (!self.is_trusted || is_disguised() || self.sets(name))
    }

    /// Whether Hairpin writes the field.
    fn sets(&self, name: &[u8]) -> bool {
        let config = self.config;
        [
            (config.x_for, FOR),
            (config.x_proto, PROTO),
            (config.x_host, HOST),
            (config.x_real_ip, REAL_IP),
            (config.standard, STANDARD),
        ]
        .iter()
        .any(|&(on, own)| on && name.eq_ignore_ascii_case(own))
    }

    /// Writes what is to be said, and not dropped again by `plan`.
    pub(super) fn write(&self, out: &mut Out<'_>, request: &Request<'_>, facts: &Facts<'_>, plan: &EditPlan<'_>) {
        let config = self.config;
        let stays = |name: &[u8]| plan.is_empty() || !plan.drops(name);
        if config.x_for && stays(FOR) {
            self.list(out, FOR, b"x-forwarded-for", request);
            out.address(&facts.client.address);
            out.put(b"\r\n");
        }
        if config.x_proto && stays(PROTO) {
            let said = self.said(b"x-forwarded-proto", request);
            out.field(PROTO, said.unwrap_or(scheme(facts.https)));
        }
        if config.x_host
            && stays(HOST)
            && let Some(host) = self.said(b"x-forwarded-host", request).or(request.host)
        {
            out.field(HOST, host);
        }
        if config.x_real_ip && stays(REAL_IP) {
            match self.said(b"x-real-ip", request) {
                Some(said) => out.field(REAL_IP, said),
                None => {
                    out.put(REAL_IP);
                    out.put(b": ");
                    out.address(&facts.client.address);
                    out.put(b"\r\n");
                }
            }
        }
        if config.standard && stays(STANDARD) {
            self.list(out, STANDARD, b"forwarded", request);
            element(out, request, facts);
            out.put(b"\r\n");
        }
    }

    /// The field's value from a trusted proxy, if there is exactly one.
    fn said<'r>(&self, lower_name: &[u8], request: &Request<'r>) -> Option<&'r [u8]> {
        if self.is_trusted { request.fields.find(lower_name).find(|value| !value.is_empty()) } else { None }
    }

    /// The name, and what a trusted proxy says already, as a list that goes on.
    fn list(&self, out: &mut Out<'_>, name: &[u8], lower_name: &[u8], request: &Request<'_>) {
        out.put(name);
        out.put(b": ");
        if self.is_trusted {
            for value in request.fields.find(lower_name).filter(|value| !value.is_empty()) {
                out.put(value);
                out.put(b", ");
            }
        }
    }
}

/// Ourselves as an element of `Forwarded`: `for=192.0.2.1;host=example.org;proto=http` (RFC 7239, 4).
fn element(out: &mut Out<'_>, request: &Request<'_>, facts: &Facts<'_>) {
    let address = &facts.client.address;
    let (open, close): (&[u8], &[u8]) = if address.is_ipv4() { (b"", b"") } else { (b"\"[", b"]\"") };
    out.put(b"for=");
    out.put(open);
    out.address(address);
    out.put(close);
    if let Some(host) = request.host {
        // A host has no quote and no backslash; a colon and a few others need quotes.
        let plain = host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        let quote: &[u8] = if plain { b"" } else { b"\"" };
        out.put(b";host=");
        out.put(quote);
        out.put(host);
        out.put(quote);
    }
    out.put(b";proto=");
    out.put(scheme(facts.https));
}
