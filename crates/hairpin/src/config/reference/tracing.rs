//! The section about tracing.

use super::Fallback::{From, Required, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[tracing]`
pub const TRACING: ReferenceSection = ReferenceSection {
    header: "[tracing]",
    doc: "Spans of exchanges of HTTP and HTTPS services, sent to a collector by OTLP over HTTP (docs/guide/tracing.md). Without this \
          section there are none. Changes are in force after a reload, which reads `headers_file` again.",
    fields: &[
        field(
            "endpoint",
            ValueForm::Text,
            Required,
            "\"http://127.0.0.1:4318\"",
            "The URL that spans are posted to, as protobuf: http or https, without user, query and fragment. Without a path it \
             is /v1/traces.",
        ),
        field(
            "endpoint_roots",
            ValueForm::Text,
            Value("system"),
            "\"/etc/hairpin/tls/ca.pem\"",
            "The CAs that sign the certificate of an https endpoint: `\"system\"`, or a file in PEM, an absolute path.",
        ),
        field(
            "headers_file",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/otlp-headers\"",
            "A file with headers of these requests, such as a token of the collector, an absolute path: `Name: value`, one a \
             line, 16 at most; lines that begin with `#` are comments. Nothing shows their values. It must belong to root or to \
             the user that Hairpin runs as, with no rights for others (mode 0600 or 0400).",
        ),
        field(
            "timeout",
            ValueForm::Duration { min_ms: 100, max_ms: 60_000 },
            Value("10s"),
            "\"5s\"",
            "The time for one request, from the look-up of the collector's name until its answer is complete.",
        ),
        field(
            "service_name",
            ValueForm::Text,
            Value("hairpin"),
            "\"edge\"",
            "`service.name` of the spans' resource, 1 to 255 bytes.",
        ),
        field(
            "sample",
            ValueForm::Share,
            Value("1.0"),
            "0.01",
            "The share of the traces that begin here whose spans are exported. What a parent says comes first (`parents`).",
        ),
        field(
            "parents",
            ValueForm::Choice(&[
                ("trusted", "that of clients which `trusted` of [service.http.forwarded] names"),
                ("all", "that of all clients, who then decide what is sampled"),
                ("none", "that of no client: every trace begins here"),
            ]),
            Value("trusted"),
            "\"all\"",
            "Whose `traceparent` is believed: its trace goes on, sampled if it says so.",
        ),
        field(
            "queue",
            ValueForm::Integer { min: 16, max: 1_000_000 },
            Value("2048"),
            "16384",
            "Spans that may wait for their export. One takes about 4 KB, and 13 KB at most. What finds no room is lost and counted.",
        ),
    ],
};
