//! The section about a server that is asked.

use super::Fallback::{From, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[service.forward_auth]`
pub const FORWARD_AUTH: ReferenceSection = ReferenceSection {
    header: "[service.forward_auth]",
    doc: "A server is asked of each request that goes to backends: a GET with the request's fields, and with X-Forwarded-Method and \
          X-Forwarded-Uri. A status of 200 to 299 lets the request go on; any other answer is the client's, with its fields and at \
          most 64 KiB of body; without an answer the client gets 503. Access rules, limits and `basic` come first. For services \
          whose connections end here. A route with `[service.route.forward_auth]` has that instead.",
    fields: &[
        field(
            "enabled",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether it is asked. `false` is for a route of a service whose others ask.",
        ),
        field(
            "group",
            ValueForm::Name { length_max: 64 },
            From("none, which is refused"),
            "\"auth\"",
            "The group whose backends are asked.",
        ),
        field(
            "path",
            ValueForm::Text,
            Value("/"),
            "\"/check\"",
            "What they are asked for, with a query if there is one.",
        ),
        field(
            "timeout",
            ValueForm::Duration { min_ms: 10, max_ms: 60_000 },
            Value("5s"),
            "\"1s\"",
            "How long the answer may take, with the connection.",
        ),
        field(
            "copy_headers",
            ValueForm::Texts,
            From("none"),
            "[\"X-User\"]",
            "Fields of the answer that the request goes on with, 8 KiB in all at most. The client's own of these names are removed.",
        ),
    ],
};

/// `[service.route.forward_auth]`
pub const ROUTE_FORWARD_AUTH: ReferenceSection =
    ReferenceSection { header: "[service.route.forward_auth]", doc: FORWARD_AUTH.doc, fields: FORWARD_AUTH.fields };
