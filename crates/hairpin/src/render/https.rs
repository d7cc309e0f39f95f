//! HTTPS services, as tables.

use super::{add, aligned, number};
use crate::status::{CertificateStatus, HttpsStatus};
use comfy_table::Table;

/// Certificates that are shown: those that expire first.
const SHOWN: usize = 8;
/// Names of a certificate that are shown.
const NAMES_SHOWN: usize = 3;
const DAY_S: i64 = 86_400;

/// Handshakes, and what else happened to connections.
pub(super) fn counts(https: &HttpsStatus) -> Table {
    let mut table = aligned(&["HTTPS"], &["TOTAL", "/s"]);
    let known = [("handshakes", &https.handshakes), ("  resumed", &https.resumed)];
    let events = https.events.iter().map(|(name, count)| (name.as_str(), count));
    for (name, count) in known.into_iter().chain(events) {
        add(&mut table, &[name], &[number(count.total as f64), number(count.per_s)]);
    }
    table
}

/// Certificates, those first that expire first, at the time `now` in seconds since 1970.
pub(super) fn certificates(https: &HttpsStatus, now: f64) -> Table {
    let mut table = aligned(&["SERVICE", "CERTIFICATE FOR", "KEY"], &["EXPIRES"]);
    let mut certificates: Vec<&CertificateStatus> = https.certificates.iter().collect();
    certificates.sort_by_key(|certificate| certificate.valid_until_unix_s);
    for certificate in certificates.iter().take(SHOWN) {
        let mut names = certificate.names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        if certificate.names_total > NAMES_SHOWN as u64 {
            names.push_str(&format!(" and {} more", certificate.names_total - NAMES_SHOWN as u64));
        }
        let left = certificate.valid_until_unix_s - now as i64;
        let expires = match left {
            _ if certificate.placeholder => "placeholder".to_string(),
            ..=0 => "expired".to_string(),
            1..DAY_S => format!("in {} h", left / 3600),
            _ => format!("in {} days", left / DAY_S),
        };
        add(&mut table, &[&certificate.service, &names, &certificate.key], &[expires]);
    }
    if certificates.len() > SHOWN {
        let more = format!("and {} that expire later", certificates.len() - SHOWN);
        add(&mut table, &["", &more, ""], &[String::new()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;
    use crate::status::Count;
    use std::collections::BTreeMap;

    fn certificate(service: &str, names: &[&str], until: i64) -> CertificateStatus {
        CertificateStatus {
            service: service.into(),
            names: names.iter().map(ToString::to_string).collect(),
            names_total: names.len() as u64,
            key: "ECDSA".into(),
            valid_until_unix_s: until,
            ..CertificateStatus::default()
        }
    }

    #[test]
    fn certificates_that_expire_first_come_first() {
        let mut https = HttpsStatus::default();
        https.certificates.push(certificate("web", &["a", "b", "c", "d"], 100 * DAY_S));
        https.certificates.push(certificate("web", &["e"], 5));
        https.certificates.extend((0..8).map(|at| certificate("shop", &["f"], (at + 20) * DAY_S)));
        let lines = squeezed(&certificates(&https, 10.0).to_string());
        assert_eq!(lines[1], "web e ECDSA expired");
        assert_eq!(lines[2], "shop f ECDSA in 19 days");
        assert_eq!(lines.last().map(|line| line.trim()), Some("and 2 that expire later"));
    }

    #[test]
    fn what_happened_is_counted() {
        let count = Count { total: 7, per_s: 12.0 };
        let events = BTreeMap::from([("clear-text".to_string(), count)]);
        let https = HttpsStatus { handshakes: count, events, ..HttpsStatus::default() };
        let lines = squeezed(&counts(&https).to_string());
        assert_eq!(lines[1..], ["handshakes 7 12", "resumed 0 0", "clear-text 7 12"]);
    }
}
