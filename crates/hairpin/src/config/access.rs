//! Reads the access rules of services without requests: whose connections may begin, by clients' networks.

use super::l7::{absolute, bounded, network, networks, only};
use super::reader::TomlTable;
use super::words::{AccessAction, SettingWord, Spoken};
use super::{reference, secret_file};
use hairpin_core::access::{self, AccessList, NETWORKS_MAX, RULES_MAX};
use hairpin_core::l7::config::Network;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a file of networks at most.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;
/// The fields of a rule that requests are asked for.
const OF_REQUESTS: [&str; 9] =
    ["status", "strict", "host", "path", "path_prefix", "path_regex", "method", "header", "query"];
const FORM: &str = "write one network a line, such as 192.0.2.0/24 or 2001:db8::/32; what follows # or ; is a comment";

/// The compiled rules, `None` if there is no rule, and how they are written.
pub(super) fn read(service: &TomlTable<'_>, spoken: Spoken) -> (Option<Arc<AccessList>>, Vec<String>) {
    let tables = service.tables("access", &reference::ACCESS);
    bounded(service, "access", tables.len(), RULES_MAX);
    let (mut rules, mut said) = (Vec::new(), Vec::new());
    for table in &tables {
        let (networks, written) = read_networks(table, spoken);
        said.push(written);
        if !table.has("action") {
            table.missing("action");
        }
        let action = table.choice("action").map(|action| match action {
            AccessAction::Allow => access::AccessAction::Allow,
            AccessAction::Deny => access::AccessAction::Deny,
            AccessAction::Count => access::AccessAction::Count,
        });
        rules.extend(action.map(|action| (action, networks)));
    }
    let count: usize = rules.iter().map(|(_, networks)| networks.len()).sum();
    if count > NETWORKS_MAX {
        let what = format!("{count} networks in the access rules");
        service.error(&service.span_of("access"), what, format!("have {NETWORKS_MAX} at most"));
    }
    ((!rules.is_empty()).then(|| Arc::new(AccessList::new(&rules))), said)
}

/// The networks of a rule, and how the rule is written.
fn read_networks(table: &TomlTable<'_>, spoken: Spoken) -> (Vec<Network>, String) {
    only(table, &OF_REQUESTS, spoken.word(), "nothing of a request can be seen: use `client` and `client_file`");
    let mut written = table.written();
    let mut all = networks(table, "client").into_vec();
    if !table.has("client") && !table.has("client_file") {
        all.push(Network { address: Default::default(), prefix: 0 });
    }
    if let Some(text) = table.has("client_file").then(|| table.text("client_file")).flatten()
        && let Some(path) = absolute(table, "client_file", &text)
    {
        match read_file(&path) {
            Ok((networks, fingerprint)) => {
                written += &format!(" ({} networks, {fingerprint:08x})", networks.len());
                all.extend(networks);
            }
            Err((what, remedy)) => table.error(&text.span, format!("`client_file` \"{}\": {what}", text.value), remedy),
        }
    }
    (all, written)
}

/// The networks of a file, and a number that another content would hardly have.
fn read_file(path: &Path) -> Result<(Vec<Network>, u32), (String, String)> {
    let bytes = secret_file::read_bounded(path, FILE_BYTES_MAX, FORM)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok((parse(&bytes)?, hasher.finish() as u32))
}

/// One network a line; what follows `#` or `;` is a comment.
fn parse(bytes: &[u8]) -> Result<Vec<Network>, (String, String)> {
    const SHOWN: usize = 64;
    let mut all = Vec::new();
    for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
        let text = line.split(|byte| b"#;".contains(byte)).next().unwrap_or_default().trim_ascii();
        if text.is_empty() {
            continue;
        }
        if all.len() == NETWORKS_MAX {
            let what = format!("line {number} has one network more than {NETWORKS_MAX}");
            return Err((what, format!("have {NETWORKS_MAX} at most")));
        }
        let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
        let parsed = str::from_utf8(text).map_err(|_| FORM.to_string()).and_then(network);
        all.push(parsed.map_err(|right| (format!("line {number} is \"{shown}\""), right))?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_a_network_a_line_and_comments() {
        let text = b"# office\n192.0.2.0/24\r\n\n  2001:db8::/32 ; SBL1\n10.0.0.1#one\n; end";
        let networks = parse(text).unwrap();
        let shown: Vec<_> = networks.iter().map(|n| (n.address.to_string(), n.prefix)).collect();
        let expected = [("192.0.2.0", 120), ("2001:db8::", 32), ("10.0.0.1", 128)];
        assert_eq!(shown, expected.map(|(address, prefix)| (address.to_string(), prefix)));
    }

    #[test]
    fn mistake_in_a_file_is_told_with_its_line() {
        let said = |text: &[u8]| parse(text).unwrap_err();
        let (what, right) = said(b"10.0.0.0/8\n\n10.0.0.1/8\n");
        assert_eq!(what, "line 3 is \"10.0.0.1/8\"");
        assert_eq!(right, "an address beyond its beginning: write \"10.0.0.0/8\"");
        assert_eq!(said(b"\xff").1, FORM);
        assert_eq!(said(&[b'x'; 1000]).0.len(), "line 1 is \"\"".len() + 64);
    }

    #[test]
    fn file_with_too_many_networks_is_refused_at_the_first_beyond() {
        let lines = |count: usize| "10.0.0.1\n".repeat(count).into_bytes();
        assert_eq!(parse(&lines(NETWORKS_MAX)).unwrap().len(), NETWORKS_MAX);
        assert_eq!(parse(&lines(NETWORKS_MAX + 1)).unwrap_err().0, "line 100001 has one network more than 100000");
    }
}
