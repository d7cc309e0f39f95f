//! The section about automatic certificates.

use super::Fallback::{From, Required, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[acme]`
pub const ACME: ReferenceSection = ReferenceSection {
    header: "[acme]",
    doc: "Automatic certificates by ACME (RFC 8555), for the names that services list in `acme` of [service.https]. Without \
          such names it means nothing.",
    fields: &[
        field(
            "terms_agreed",
            ValueForm::Boolean,
            Required,
            "true",
            "Whether you agree to the CA's terms of service. It must be true: an account cannot be made otherwise.",
        ),
        field(
            "contact",
            ValueForm::Texts,
            From("none"),
            "\"admin@example.com\"",
            "Addresses that the CA may write to, 8 at most. A reload tells the CA when they change.",
        ),
        field(
            "directory",
            ValueForm::Text,
            Value(hairpin_acme::LETS_ENCRYPT),
            "\"https://acme-staging-v02.api.letsencrypt.org/directory\"",
            "The URL of the CA's directory, https. Each CA has an account and certificates of its own; after a change all names \
             are ordered from the new one.",
        ),
        field(
            "directory_roots",
            ValueForm::Text,
            Value("system"),
            "\"/etc/hairpin/tls/ca.pem\"",
            "The CAs that sign the certificate of the directory's server: `\"system\"`, or a file in PEM, an absolute path.",
        ),
        field(
            "challenge",
            ValueForm::Choice(&[
                ("auto", "http-01 where an http service listens on port 80 of the same address, else tls-alpn-01"),
                ("http-01", "the CA fetches a text from port 80, where an http service must listen"),
                ("tls-alpn-01", "the CA shakes hands with port 443, where the service itself must listen"),
            ]),
            Value("auto"),
            "\"tls-alpn-01\"",
            "How the CA is shown that a name leads here. dns-01 is not offered, and so neither are wildcards.",
        ),
        field(
            "state",
            ValueForm::Text,
            Value("/var/lib/hairpin/acme"),
            "\"/srv/hairpin/acme\"",
            "The directory of accounts, keys and certificates, an absolute path. Each instance has a directory of its own in it, \
             with mode 0700.",
        ),
        field(
            "external_account",
            ValueForm::Text,
            From("none"),
            "\"kid-1\"",
            "The identifier of the key that binds the account to one elsewhere at the CA (RFC 8555, 7.3.4), if the CA wants \
             that. Needs `external_account_key`.",
        ),
        field(
            "external_account_key",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/acme.key\"",
            "The file with that key in base64url, as the CA gives it, an absolute path. Read when the account is made.",
        ),
    ],
};
