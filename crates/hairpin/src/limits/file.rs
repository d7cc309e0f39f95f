//! Bounds of a configuration.

use super::Bound::{Number, Time};
use super::{Counter, Group, limit};
use crate::config::limits;
use crate::health::limits as health;
use crate::monitor::MONITORS_MAX;
use hairpin_core::access::{NETWORKS_MAX as ACCESS_NETWORKS_MAX, NETWORKS_TOTAL_MAX, RULES_MAX};
use hairpin_core::keys::KEYS_MAX;
use hairpin_core::l7::edit::VALUE_BYTES_MAX;
use hairpin_core::l7::head::FIELDS_MAX;
use hairpin_core::l7::route::path::{AUTOMATON_BYTES_MAX, REGEX_BYTES_MAX};
use hairpin_core::limit::{AHEAD_MAX, CONCURRENT_MAX, LIMITS_MAX, PER_SECOND_MAX};
use hairpin_core::offload::tree::{DEPTH_MAX, NODES_MAX, TEXT_MAX};
use hairpin_linux::abi::WORKERS_MAX;
use hairpin_linux::monitor::NETWORKS_MAX;

const RELOADS: &[Counter] = &[Counter::of("hairpin_reloads_total", "result", "failure")];
const REFUSED: &str = "The configuration is refused.";

pub(super) const FILE: Group = Group {
    title: "Configuration",
    doc: "A configuration beyond one of these bounds is refused, with the line: by `hairpin validate`, at the start and at a \
          reload. The counter has all reloads that are refused, for whatever reason.",
    limits: &[
        limit(
            "configuration with the files that it includes",
            Number(limits::FILE_BYTES_MAX, "bytes"),
            RELOADS,
            REFUSED,
        ),
        limit("files that a configuration includes", Number(limits::FRAGMENTS_MAX as u64, "files"), RELOADS, REFUSED),
        limit("workers", Number(WORKERS_MAX as u64, "workers"), RELOADS, REFUSED),
        limit("interfaces", Number(limits::INTERFACES_MAX as u64, "interfaces"), RELOADS, REFUSED),
        limit("monitors", Number(MONITORS_MAX as u64, "monitors"), RELOADS, REFUSED),
        limit("networks of a monitor", Number(NETWORKS_MAX as u64, "networks"), RELOADS, REFUSED),
        limit(
            "services and groups, removed ones that still drain included",
            Number(limits::SERVICES_MAX as u64, "services"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "backends, removed ones that still drain included",
            Number(limits::BACKENDS_MAX as u64, "backends"),
            RELOADS,
            REFUSED,
        ),
        limit("names of backends", Number(limits::NAMES_MAX as u64, "names"), RELOADS, REFUSED),
        limit("`servers` of [resolver]", Number(limits::SERVERS_MAX as u64, "servers"), RELOADS, REFUSED),
        limit("pool addresses", Number(limits::POOL_ADDRESSES_MAX as u64, "addresses"), RELOADS, REFUSED),
        limit("routes of a service", Number(limits::ROUTES_MAX as u64, "routes"), RELOADS, REFUSED),
        limit("access rules of an HTTP service", Number(limits::ROUTES_MAX as u64, "rules"), RELOADS, REFUSED),
        limit("access rules of a TCP, UDP or TLS service", Number(RULES_MAX as u64, "rules"), RELOADS, REFUSED),
        limit(
            "networks in the access rules of a TCP, UDP or TLS service, 61 bytes each and 128 bytes in the kernel, twice that \
             during a reload",
            Number(ACCESS_NETWORKS_MAX as u64, "networks"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "networks in the access rules of all TCP, UDP and TLS services",
            Number(NETWORKS_TOTAL_MAX as u64, "networks"),
            RELOADS,
            REFUSED,
        ),
        limit("limits of clients of a service", Number(LIMITS_MAX as u64, "limits"), RELOADS, REFUSED),
        limit(
            "requests or connections that a limit admits",
            Number(PER_SECOND_MAX as u64, "a second"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "connections at a time that a limit admits",
            Number(CONCURRENT_MAX as u64, "connections"),
            RELOADS,
            REFUSED,
        ),
        limit("time in which a limit's burst comes back", Time(AHEAD_MAX), RELOADS, REFUSED),
        limit("`client_file`", Number(limits::NETWORKS_FILE_BYTES_MAX, "bytes"), RELOADS, REFUSED),
        limit("entries of a list or table in a route", Number(limits::ENTRIES_MAX as u64, "entries"), RELOADS, REFUSED),
        limit(
            "groups that a route divides requests over",
            Number(limits::SHARES_MAX as u64, "groups"),
            RELOADS,
            REFUSED,
        ),
        limit("regular expression", Number(REGEX_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("automaton of a regular expression", Number(AUTOMATON_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("body of a `reply`", Number(limits::BODY_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("value of an edited field", Number(VALUE_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit(
            "files and directories with certificates of a service",
            Number(limits::CERTIFICATES_MAX as u64, "entries"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "files with CAs of backends of a service or group",
            Number(limits::ROOTS_MAX as u64, "files"),
            RELOADS,
            REFUSED,
        ),
        limit("path of a sticky cookie", Number(limits::PATH_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("`fields_max`", Number(FIELDS_MAX as u64, "fields"), RELOADS, REFUSED),
        limit("keys in `keys_file`", Number(KEYS_MAX as u64, "keys"), RELOADS, REFUSED),
        limit("`keys_file` and `headers_file`", Number(limits::SECRET_FILE_BYTES_MAX, "bytes"), RELOADS, REFUSED),
        limit("file of `error_pages`", Number(limits::PAGE_BYTES_MAX, "bytes"), RELOADS, REFUSED),
        limit("`error_pages` of all services", Number(limits::PAGES_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("`users_file`", Number(limits::USERS_FILE_BYTES_MAX, "bytes"), RELOADS, REFUSED),
        limit("users of a `users_file`", Number(hairpin_https::limits::USERS_MAX as u64, "users"), RELOADS, REFUSED),
        limit("cost of a hash in a `users_file`", Number(hairpin_https::limits::COST_MAX as u64, ""), RELOADS, REFUSED),
        limit(
            "text that a health check sends or expects",
            Number(health::TEXT_BYTES_MAX as u64, "bytes"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "datagram that a health check sends",
            Number(health::DATAGRAM_BYTES_MAX as u64, "bytes"),
            RELOADS,
            REFUSED,
        ),
        limit(
            "ranges of statuses of a health check",
            Number(health::STATUS_RANGES_MAX as u64, "ranges"),
            RELOADS,
            REFUSED,
        ),
        limit("nodes of a decision tree (`model`)", Number(NODES_MAX as u64, "nodes"), RELOADS, REFUSED),
        limit("depth of a decision tree", Number(DEPTH_MAX as u64, "nodes"), RELOADS, REFUSED),
        limit("file of a decision tree", Number(TEXT_MAX as u64, "bytes"), RELOADS, REFUSED),
        limit("ports of the dpdk plane", Number(limits::PORTS_MAX as u64, "ports"), RELOADS, REFUSED),
        limit("addresses of a port", Number(limits::ADDRESSES_MAX as u64, "addresses"), RELOADS, REFUSED),
        limit("routes of the dpdk plane", Number(limits::PORT_ROUTES_MAX as u64, "routes"), RELOADS, REFUSED),
        limit("`device` of a port", Number(limits::DEVICE_BYTES_MAX as u64, "bytes"), RELOADS, REFUSED),
    ],
};
