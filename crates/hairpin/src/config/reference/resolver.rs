//! The section about backends by name.

use super::Fallback::{From, Value};
use super::{DAY_MS, ReferenceSection, ValueForm, field};

/// `[resolver]`
pub const RESOLVER: ReferenceSection = ReferenceSection {
    header: "[resolver]",
    doc: "How the names of backends are looked up (docs/guide/names.md). Changes are in force after a reload. Without names it means \
          nothing.",
    fields: &[
        field(
            "servers",
            ValueForm::Texts,
            From("those of /etc/resolv.conf, with its search list and /etc/hosts"),
            "[\"10.0.0.53\", \"10.0.0.54:5353\"]",
            "DNS servers, 8 at most, asked one after the other by UDP, and by TCP where an answer is too long for that. Without a port \
             it is 53.",
        ),
        field(
            "ttl_min",
            ValueForm::Duration { min_ms: 1000, max_ms: DAY_MS },
            Value("5s"),
            "\"1s\"",
            "A name is asked for again when its records' time to live is over, but not earlier than this.",
        ),
        field(
            "ttl_max",
            ValueForm::Duration { min_ms: 1000, max_ms: DAY_MS },
            Value("5m"),
            "\"1m\"",
            "A name is asked for again after this at the latest.",
        ),
        field(
            "timeout",
            ValueForm::Duration { min_ms: 100, max_ms: 10_000 },
            Value("2s"),
            "\"1s\"",
            "The time for one request to a server.",
        ),
        field(
            "retries",
            ValueForm::Integer { min: 0, max: 5 },
            Value("1"),
            "2",
            "How often all servers are asked again after none has answered. Then the look-up has failed: the last answer is kept, and \
             the name is asked for again after a pause that doubles from `ttl_min` to `ttl_max`.",
        ),
        field(
            "addresses_max",
            ValueForm::Integer { min: 1, max: 1024 },
            Value("64"),
            "16",
            "Addresses of a name that are used. Those beyond are left out and counted.",
        ),
        field(
            "hold",
            ValueForm::Duration { min_ms: 0, max_ms: DAY_MS },
            Value("30s"),
            "\"5m\"",
            "How long answers must say that a name does not exist, or has no addresses, until its backends are removed.",
        ),
        field(
            "keep",
            ValueForm::Duration { min_ms: 0, max_ms: 30 * DAY_MS },
            Value("1day"),
            "\"7days\"",
            "How old an answer of an earlier process may be that a start begins with. While a process runs, the last answer holds \
             however long servers fail.",
        ),
        field(
            "state",
            ValueForm::Text,
            Value("/var/lib/hairpin/names"),
            "\"/srv/hairpin/names\"",
            "The directory of the files with the last answers, one for each instance, an absolute path.",
        ),
    ],
};
