//! Every field of the configuration file, once: its name, form, default and meaning.
//!
//! The reader takes defaults, ranges and known names from here, `hairpin config` and `docs/reference/configuration.md` are
//! printed from here, so none of them can disagree.

mod access_log;
mod acme;
mod api;
mod basic;
mod cors;
mod dpdk;
mod forward_auth;
mod http;
mod instance;
mod monitor;
mod outlier;
mod resolver;
mod route;
mod service;
mod tracing;

pub use access_log::{ACCESS_LOG, SERVICE_ACCESS_LOG};
pub use acme::ACME;
pub use api::API;
pub use basic::{BASIC, ROUTE_BASIC};
pub use cors::{CORS, ROUTE_CORS};
pub use dpdk::{DPDK, DPDK_PORT};
pub use forward_auth::{FORWARD_AUTH, ROUTE_FORWARD_AUTH};
pub use http::{
    BACKEND_TLS, FORWARDED, HTTP, HTTP_LIMITS, HTTP_REQUEST_EDITS, HTTP_RESPONSE_EDITS, HTTPS, STICKY, TLS,
};
pub use instance::{CONTROL, LIMITS, LINUX, LOG, METRICS, OFFLOAD, POOL, TOP};
pub use monitor::MONITOR;
pub use outlier::{OUTLIER, QUEUE};
pub use resolver::RESOLVER;
pub use route::{
    ACCESS, EDITS, GROUP, GROUP_BACKEND, GROUP_BACKEND_TLS, GROUP_HEALTH, GROUP_OUTLIER, GROUP_QUEUE, LIMIT, MIRROR,
    REDIRECT, REPLY, RESPONSE_EDITS, ROUTE,
};
pub use service::{BACKEND, HEALTH, SERVICE, TIMEOUTS};
pub use tracing::TRACING;

/// The form of a field's value.
#[derive(Clone, Copy, Debug)]
pub enum ValueForm {
    /// Text.
    Text,
    /// A short name of letters, digits, `-` and `_`.
    Name {
        /// Characters at most.
        length_max: usize,
    },
    /// One of some words, each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    /// A duration with its unit, bounds in milliseconds.
    Duration {
        /// The shortest, milliseconds.
        min_ms: u64,
        /// The longest, milliseconds.
        max_ms: u64,
    },
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A share: a number from 0 to 1.
    Share,
    /// A whole number or `"auto"`.
    IntegerOrAuto {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A list of interface names.
    Interfaces,
    /// A list of IP addresses.
    Addresses,
    /// A port range `"first-last"`.
    Ports,
    /// `"address:port/protocol"`.
    Listen,
    /// `"address:port"`.
    Endpoint,
    /// `"address:port"` or `"off"`.
    EndpointOrOff,
    /// HTTP statuses, `"200-299,304"`.
    Statuses,
    /// A list of `"address:port"`.
    Endpoints,
    /// A text or a list of texts.
    Texts,
    /// A list of networks `"address/prefix"`, or one of them.
    Networks,
    /// A table with keys of one's own, described in words.
    Map,
    /// A table or list of tables, described by a section of its own.
    Tables,
}

/// The value of a field that the file leaves out.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// It must be given.
    Required,
    /// This value, as in the file but without quotes.
    Value(&'static str),
    /// Taken from elsewhere, in words.
    From(&'static str),
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceField {
    /// Its name.
    pub name: &'static str,
    /// Its form.
    pub kind: ValueForm,
    /// Its default.
    pub fallback: Fallback,
    /// The field's effect, one paragraph.
    pub doc: &'static str,
    /// An example of its value.
    pub example: &'static str,
}

/// One table of the file.
#[derive(Debug)]
pub struct ReferenceSection {
    /// Its header as written, brackets included; empty for the top level.
    pub header: &'static str,
    /// The subject of the table.
    pub doc: &'static str,
    /// Its fields, in the order they are documented in.
    pub fields: &'static [ReferenceField],
}

impl ReferenceSection {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static ReferenceField> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// How messages name the section.
    pub fn place(&self) -> &'static str {
        if self.header.is_empty() { "the top level" } else { self.header }
    }
}

const fn field(
    name: &'static str,
    kind: ValueForm,
    fallback: Fallback,
    example: &'static str,
    doc: &'static str,
) -> ReferenceField {
    ReferenceField { name, kind, fallback, doc, example }
}

const DAY_MS: u64 = 86_400_000;

/// Sections of every service and of the instance, in the order they are documented in.
pub const COMMON: [&ReferenceSection; 17] = [
    &TOP,
    &LIMITS,
    &OFFLOAD,
    &POOL,
    &LINUX,
    &CONTROL,
    &API,
    &LOG,
    &ACCESS_LOG,
    &METRICS,
    &TIMEOUTS,
    &SERVICE,
    &SERVICE_ACCESS_LOG,
    &HEALTH,
    &OUTLIER,
    &BACKEND,
    &RESOLVER,
];

/// Sections of HTTP and TLS services only, likewise.
pub const LAYER7: [&ReferenceSection; 21] = [
    &GROUP,
    &ROUTE,
    &REDIRECT,
    &REPLY,
    &MIRROR,
    &EDITS,
    &CORS,
    &ACCESS,
    &LIMIT,
    &HTTP,
    &FORWARDED,
    &STICKY,
    &HTTP_LIMITS,
    &HTTPS,
    &ACME,
    &TRACING,
    &QUEUE,
    &BASIC,
    &FORWARD_AUTH,
    &BACKEND_TLS,
    &TLS,
];

/// Sections of what observes packets and balances none, likewise.
pub const OBSERVERS: [&ReferenceSection; 1] = [&MONITOR];

/// Sections of the dpdk plane, likewise.
pub const PORTS: [&ReferenceSection; 2] = [&DPDK, &DPDK_PORT];

/// All sections, in the order they are documented in.
pub const SECTIONS: [&ReferenceSection; COMMON.len() + OBSERVERS.len() + PORTS.len() + LAYER7.len()] = {
    let parts: [&[&ReferenceSection]; 4] = [&COMMON, &OBSERVERS, &PORTS, &LAYER7];
    let mut sections = [&TOP; COMMON.len() + OBSERVERS.len() + PORTS.len() + LAYER7.len()];
    let (mut part, mut from, mut to) = (0, 0, 0);
    while part < parts.len() {
        while from < parts[part].len() {
            sections[to] = parts[part][from];
            (from, to) = (from + 1, to + 1);
        }
        (part, from) = (part + 1, 0);
    }
    sections
};
