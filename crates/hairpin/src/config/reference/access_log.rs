//! The access log's sections.

use super::Fallback::{From, Required, Value};
use super::{DAY_MS, ReferenceSection, ValueForm, field};
use crate::access_log::FORMS;

/// `[access_log]`
pub const ACCESS_LOG: ReferenceSection = ReferenceSection {
    header: "[access_log]",
    doc: "A line for each exchange of HTTP and HTTPS services, and for each connection of the others, at its end. Without this \
          section there is none. Changes are in force after a reload, but for `buffer`.",
    fields: &[
        field(
            "to",
            ValueForm::Text,
            Required,
            "\"/var/log/hairpin/access.log\"",
            "Where lines go: a file by its absolute path, opened again when it was moved away (within a second, or at once at \
             SIGUSR1); `stdout`; or a syslog server in the form of RFC 5424: `syslog` (the socket /dev/log), `syslog:/PATH`, \
             `syslog+udp:ADDRESS:PORT`, `syslog+tcp:ADDRESS:PORT`. Lines that it does not take are lost and counted; no packet \
             waits for them.",
        ),
        field("format", ValueForm::Choice(&FORMS), Value("json"), "\"combined\"", "The form of lines."),
        field(
            "fields",
            ValueForm::Texts,
            From("all of them"),
            "[\"time\", \"client\", \"target\", \"status\"]",
            "`json`: which fields, in their order. docs/guide/access-log.md has the list.",
        ),
        field(
            "template",
            ValueForm::Text,
            From("none"),
            "\"{client} {method} {target} {status} {took_us}\"",
            "`template`: the line, with fields in braces; `-` stands for one that has no value.",
        ),
        field(
            "buffer",
            ValueForm::Integer { min: 65_536, max: 1 << 30 },
            Value("1048576"),
            "4194304",
            "Bytes of the ring between each worker and the thread that writes lines; an exchange takes some 300. One that is full \
             loses records, which are counted.",
        ),
    ],
};

/// `[service.access_log]`
pub const SERVICE_ACCESS_LOG: ReferenceSection = ReferenceSection {
    header: "[service.access_log]",
    doc: "Which exchanges or connections of the service above it become lines of the access log. All that is given must hold.",
    fields: &[
        field("enabled", ValueForm::Boolean, Value("true"), "false", "Whether there are any."),
        field(
            "status",
            ValueForm::Statuses,
            From("any"),
            "\"400-599\"",
            "HTTP: only exchanges whose client got one of these statuses.",
        ),
        field(
            "slower_than",
            ValueForm::Duration { min_ms: 0, max_ms: DAY_MS },
            Value("0s"),
            "\"1s\"",
            "Only what took at least so long.",
        ),
        field(
            "routes",
            ValueForm::Texts,
            From("all of them"),
            "[\"1\", \"3\"]",
            "HTTP: only exchanges that took one of these routes, counted from 1 in the order of the file.",
        ),
        field(
            "sample",
            ValueForm::Integer { min: 1, max: 1_000_000_000 },
            Value("1"),
            "100",
            "Of those one in so many. What ended with a status of 500 or more, or was broken off, is always among them.",
        ),
    ],
};
