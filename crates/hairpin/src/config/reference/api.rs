//! The section about the API.

use super::Fallback::{From, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[api]`
pub const API: ReferenceSection = ReferenceSection {
    header: "[api]",
    doc: "An API that reads and changes the configuration while the instance runs, as JSON over HTTP/1.1, on a Unix socket for root \
          only beside the control socket (`<instance>.api.sock`; docs/guide/api.md), and if `listen` is given also by TLS 1.3, for \
          clients that show a certificate or a token. Without this section there is none. \
          Changes are in force after a reload; the API does not change this section.",
    fields: &[
        field(
            "state",
            ValueForm::Text,
            Value(crate::api::kept::STATE),
            "\"/var/lib/hairpin/api\"",
            "The directory with a file for each instance (`<instance>.json`) that keeps what the API changed, for the next start; on a \
             file system that outlives the machine's own restart. Absolute.",
        ),
        field(
            "listen",
            ValueForm::Text,
            From("none"),
            "\"192.0.2.2:9443\"",
            "The address and port that it is served at by TLS. Needs `certificate`, and `client_roots` or `tokens` or both: a client \
             that shows a certificate of these CAs or a token of this file may do whatever the API does.",
        ),
        field(
            "certificate",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/tls/api.pem\"",
            "The file with the certificate chain that it serves in PEM; its key in the same file, or in the one beside it that ends \
             with `.key`. Absolute. Read again when it changes.",
        ),
        field(
            "client_roots",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/tls/operators.pem\"",
            "The file with the CAs of clients' certificates in PEM: every certificate that these CAs gave out may change everything, \
             so have a CA for this alone. Absolute. Read again when it changes.",
        ),
        field(
            "tokens",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/api.tokens\"",
            "The file of clients' tokens, a line each: a name for the log, a space, and the token, 32 characters at least. Absolute; \
             it belongs to root or Hairpin's user, with mode 600 or less. Read again when it changes.",
        ),
    ],
};
