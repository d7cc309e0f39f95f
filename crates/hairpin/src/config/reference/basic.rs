//! The section about who may ask.

use super::Fallback::{From, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[service.basic]`
pub const BASIC: ReferenceSection = ReferenceSection {
    header: "[service.basic]",
    doc: "https: requests that go to backends need the name and the password of a user (RFC 7617); others are answered with 401. \
          Access rules and limits come first. A route with `[service.route.basic]` has that instead; `redirect` and `reply` of routes \
          need no password.",
    fields: &[
        field(
            "enabled",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether there must be a password. `false` is for a route of a service whose others need one.",
        ),
        field(
            "users_file",
            ValueForm::Text,
            From("none, which is refused"),
            "\"/etc/hairpin/users\"",
            "The users, 10000 at most: a file as `htpasswd -B` writes it, an absolute path, that only root and this process's user can \
             read. Hashes are of bcrypt (`$2y$`, `$2b$`) with a cost from 4 to 12; a file with another one is refused. It is read at \
             the start and when the configuration is reloaded.",
        ),
        field(
            "realm",
            ValueForm::Text,
            From("the service's name"),
            "\"staff\"",
            "What browsers show to the person whom they ask.",
        ),
        field(
            "forward",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether backends get the client's `Authorization` field. Without it the field is removed.",
        ),
    ],
};

/// `[service.route.basic]`
pub const ROUTE_BASIC: ReferenceSection =
    ReferenceSection { header: "[service.route.basic]", doc: BASIC.doc, fields: BASIC.fields };
