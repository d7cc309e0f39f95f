//! The certificate that a client showed, in the words that backends read: subject and fingerprint, made once per connection.
//!
//! TLS has verified the chain before. The subject may still be the client's own choice, so nothing of it reaches a field
//! but visible ASCII and spaces, and no more than [`SUBJECT_BYTES_MAX`] bytes.

use hairpin_core::l7::edit;
use rustls::pki_types::CertificateDer;
use std::fmt::Write;
use x509_parser::asn1_rs::{Any, Tag, ToDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Bytes of a subject at most, as it is written. A longer one is left out as a whole: a part could be another's name.
pub const SUBJECT_BYTES_MAX: usize = 1024;

/// Attribute types by their names (RFC 4514, 3; others as OpenSSL and nginx write them).
const NAMES: [(&str, &str); 24] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

/// A client's certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// Empty if the subject is, or is too long, or cannot be read.
    subject: String,
    /// Whether the subject is too long to be passed on.
    pub(crate) is_too_long: bool,
    fingerprint: String,
}

impl ClientCertificate {
    /// Of the first certificate of the chain that a client has shown; `None`: it has shown none.
    pub(crate) fn of(chain: Option<&[CertificateDer<'_>]>) -> Option<ClientCertificate> {
        let leaf = chain?.first()?;
        let subject = X509Certificate::from_der(leaf).ok().and_then(|(_, parsed)| written(parsed.subject()));
        let subject = subject.unwrap_or_default();
        let is_too_long = subject.len() > SUBJECT_BYTES_MAX;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, leaf);
        let fingerprint = digest.as_ref().iter().fold(String::new(), |text, byte| hexadecimal(text, *byte, false));
        Some(ClientCertificate { subject: if is_too_long { String::new() } else { subject }, is_too_long, fingerprint })
    }

    /// As heads of requests say it.
    pub(crate) fn facts(&self) -> edit::ClientCertificate<'_> {
        edit::ClientCertificate { subject: self.subject.as_bytes(), fingerprint: self.fingerprint.as_bytes() }
    }
}

/// Names of a certificate that a log gets.
const LOGGED_NAMES_MAX: usize = 4;
/// Bytes of a certificate's SHA-256 that a log gets.
const LOGGED_DIGEST_BYTES: usize = 8;

/// A client for a log, by the chain that it has shown and TLS has verified: subject, names, and the beginning of the SHA-256
/// of its first certificate, in visible ASCII and spaces. `None`: it has shown none.
pub fn shown_certificate(chain: &[CertificateDer<'_>]) -> Option<String> {
    let ClientCertificate { subject, fingerprint, .. } = ClientCertificate::of(Some(chain))?;
    let mut text = format!("certificate \"{subject}\"");
    let parsed = X509Certificate::from_der(chain.first()?).ok().map(|(_, parsed)| parsed);
    let names = parsed.as_ref().and_then(|parsed| parsed.subject_alternative_name().ok().flatten());
    for name in names.iter().flat_map(|names| &names.value.general_names).take(LOGGED_NAMES_MAX) {
        let (kind, name) = match name {
            GeneralName::DNSName(name) => ("DNS", *name),
            GeneralName::RFC822Name(name) => ("email", *name),
            GeneralName::URI(name) => ("URI", *name),
            _ => continue,
        };
        let name: String = name.chars().take(SUBJECT_BYTES_MAX).collect();
        text = escaped(text + ", " + kind + ":", &name);
    }
    Some(text + ", SHA-256 " + &fingerprint[..2 * LOGGED_DIGEST_BYTES])
}

/// A name as RFC 4514 writes it, the last of its parts first. `None`: it has a part that cannot be written.
fn written(name: &X509Name<'_>) -> Option<String> {
    let parts: Vec<Vec<&AttributeTypeAndValue<'_>>> = name.iter_rdn().map(|part| part.iter().collect()).collect();
    let mut text = String::new();
    for part in parts.iter().rev() {
        for (at, attribute) in part.iter().rev().enumerate() {
            let separator = if at > 0 { "+" } else { "," };
            text.push_str(if text.is_empty() { "" } else { separator });
            text = attribute_text(text, attribute)?;
            // Later parts cannot make the subject shorter.
            if text.len() > SUBJECT_BYTES_MAX {
                return Some(text);
            }
        }
    }
    Some(text)
}

/// Adds `type=value`. A value of an unknown type, or of one that is no text, is its DER in hexadecimal digits (RFC 4514, 2.4).
fn attribute_text(mut text: String, attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let id = attribute.attr_type().to_id_string();
    let name = NAMES.iter().find(|(known, _)| *known == id).map(|(_, name)| *name);
    text.push_str(name.unwrap_or(&id));
    text.push('=');
    match name.and_then(|_| characters(attribute.attr_value())) {
        Some(value) => Some(escaped(text, &value)),
        None => {
            text.push('#');
            let der = attribute.attr_value().to_der_vec().ok()?;
            Some(der.iter().fold(text, |text, byte| hexadecimal(text, *byte, true)))
        }
    }
}

/// The characters of a value in UTF-8; `None`: it is no text.
fn characters(value: &Any<'_>) -> Option<String> {
    let bytes = value.as_bytes();
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString | Tag::VisibleString => {
            String::from_utf8(bytes.to_vec()).ok()
        }
        // Latin 1 in practice, as others read it, too.
        Tag::T61String => Some(bytes.iter().map(|&byte| char::from(byte)).collect()),
        Tag::BmpString => {
            let units: Vec<u16> =
                bytes.chunks(2).map(|two| two.iter().fold(0, |all, &byte| all << 8 | u16::from(byte))).collect();
            String::from_utf16(&units).ok().filter(|_| bytes.len().is_multiple_of(2))
        }
        Tag::UniversalString => {
            let code = |four: &[u8]| char::from_u32(four.iter().fold(0, |all, &byte| all << 8 | u32::from(byte)));
            bytes.chunks(4).map(code).collect::<Option<String>>().filter(|_| bytes.len().is_multiple_of(4))
        }
        _ => None,
    }
}

/// Adds a value with what must be escaped (RFC 4514, 2.4), and what a field must not have: control characters, and bytes beyond
/// ASCII.
fn escaped(mut text: String, value: &str) -> String {
    let last = value.len().wrapping_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b'#' if at == 0 => text.push_str("\\#"),
            b' ' if at == 0 || at == last => text.push_str("\\ "),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                text.push('\\');
                text = hexadecimal(text, byte, true);
            }
        }
    }
    text
}

fn hexadecimal(mut text: String, byte: u8, upper: bool) -> String {
    // Writing to a string does not fail.
    let _ = if upper { write!(text, "{byte:02X}") } else { write!(text, "{byte:02x}") };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::string::BmpString;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    /// The certificate of this subject, as backends are told of it.
    fn shown(attributes: &[(DnType, DnValue)]) -> ClientCertificate {
        let mut params = CertificateParams::new(["client.test".to_string()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        attributes.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), value.clone()));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        ClientCertificate::of(Some(&[certificate.der().clone()])).unwrap()
    }

    fn subject(attributes: &[(DnType, DnValue)]) -> String {
        shown(attributes).subject
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_string())
    }

    #[test]
    fn subject_is_written_last_part_first() {
        let attributes = [
            (DnType::CountryName, utf8("SE")),
            (DnType::OrganizationName, utf8("Shop")),
            (DnType::CommonName, utf8("till 7")),
            (DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), utf8("a@shop.test")),
        ];
        assert_eq!(subject(&attributes), "emailAddress=a@shop.test,CN=till 7,O=Shop,C=SE");
        assert_eq!(subject(&[]), "");
    }

    #[test]
    fn characters_that_mean_something_are_escaped() {
        for (value, expected) in [
            ("a,O=Admin", "CN=a\\,O=Admin"),
            ("a+b;c<d>\"\\", "CN=a\\+b\\;c\\<d\\>\\\"\\\\"),
            ("# a ", "CN=\\# a\\ "),
            (" ", "CN=\\ "),
            ("a\r\nX-Admin: 1\0\x7f", "CN=a\\0D\\0AX-Admin: 1\\00\\7F"),
            ("Bj\u{f6}rn \u{20ac}", "CN=Bj\\C3\\B6rn \\E2\\82\\AC"),
        ] {
            assert_eq!(subject(&[(DnType::CommonName, utf8(value))]), expected);
        }
    }

    #[test]
    fn other_encodings_of_text_read_the_same() {
        let wide = DnValue::BmpString(BmpString::try_from("Bj\u{f6}rn").unwrap());
        assert_eq!(subject(&[(DnType::CommonName, wide)]), "CN=Bj\\C3\\B6rn");
        let teletex = DnValue::TeletexString("plain".try_into().unwrap());
        assert_eq!(subject(&[(DnType::CommonName, teletex)]), "CN=plain");
    }

    #[test]
    fn unknown_types_are_written_as_der() {
        let custom = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(subject(&[(custom, utf8("foo"))]), "1.2.3.4=#0C03666F6F");
    }

    #[test]
    fn a_log_gets_subject_and_names() {
        let mut params = CertificateParams::new(["deploy.test".to_string()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "a\n\"b\"");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let shown = shown_certificate(&[certificate.der().clone()]).unwrap();
        assert!(shown.starts_with("certificate \"CN=a\\0A\\\"b\\\"\", DNS:deploy.test, SHA-256 "), "{shown}");
        assert_eq!(shown.rsplit(' ').next().map(str::len), Some(16), "{shown}");
        assert_eq!(shown_certificate(&[]), None);
    }

    #[test]
    fn long_subject_is_left_out_as_a_whole() {
        let longest = shown(&[(DnType::CommonName, utf8(&"a".repeat(SUBJECT_BYTES_MAX - 3)))]);
        assert_eq!((longest.subject.len(), longest.is_too_long), (SUBJECT_BYTES_MAX, false));
        let longer = shown(&[(DnType::CommonName, utf8(&"\u{1}".repeat(400)))]);
        assert_eq!((longer.subject.as_str(), longer.is_too_long, longer.fingerprint.len()), ("", true, 64));
    }

    #[test]
    fn what_is_no_certificate_has_a_fingerprint_only() {
        let shown = ClientCertificate::of(Some(&[CertificateDer::from(&b"abc"[..])])).unwrap();
        assert_eq!(shown.subject, "");
        // FIPS 180-2, B.1.
        assert_eq!(shown.fingerprint, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(ClientCertificate::of(None), None);
        assert_eq!(ClientCertificate::of(Some(&[])), None);
    }
}
