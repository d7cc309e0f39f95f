//! Access rules of services without requests.

use super::{GOOD, good, refuses, said};
use hairpin_core::access::{AccessAction, AccessDecision, AccessList};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// [`GOOD`] with access rules.
fn with_rules(rules: &str) -> String {
    format!("{GOOD}{rules}")
}

fn list(text: &str) -> Arc<AccessList> {
    let config = good(text);
    assert_eq!(config.warnings, []);
    config.services[0].access.clone().expect("rules")
}

fn decide(list: &AccessList, client: &str) -> (Option<u8>, Option<u8>) {
    let AccessDecision { denied, counted } = list.decide(&client.parse::<IpAddr>().unwrap().into());
    (denied, counted)
}

/// A file of networks that is removed when this is dropped.
struct NetworkFile(PathBuf);

impl NetworkFile {
    fn new(name: &str, text: &str) -> NetworkFile {
        let path = std::env::temp_dir().join(format!("hairpin-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        NetworkFile(path)
    }

    fn rule(&self) -> String {
        format!("[[service.access]]\naction = \"deny\"\nclient_file = {:?}\n", self.0)
    }
}

impl Drop for NetworkFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn rules_are_by_network_in_their_order() {
    for protocol in ["tcp", "udp"] {
        let rules = "[[service.access]]\naction = \"count\"\nclient = \"10.0.0.0/8\"\n\
                     [[service.access]]\naction = \"allow\"\nclient = [\"10.1.0.0/16\", \"192.0.2.1\"]\n\
                     [[service.access]]\naction = \"deny\"\n";
        let list = list(&with_rules(rules).replace("/tcp", &format!("/{protocol}")));
        assert_eq!(list.actions(), [AccessAction::Count, AccessAction::Allow, AccessAction::Deny]);
        for (client, decision) in [
            ("10.1.0.1", (None, Some(0))),
            ("10.2.0.1", (Some(2), Some(0))),
            ("192.0.2.1", (None, None)),
            ("192.0.2.2", (Some(2), None)),
        ] {
            assert_eq!(decide(&list, client), decision, "{client}");
        }
    }
    assert!(good(GOOD).services[0].access.is_none());
}

#[test]
fn tls_services_have_them_too() {
    let text = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \"192.0.2.1:443/tls\"\n\
                backends = [\"10.0.0.1:443\"]\n[[service.access]]\naction = \"deny\"\nclient = \"198.51.100.0/24\"\n";
    assert_eq!(decide(&list(text), "198.51.100.9"), (Some(0), None));
}

#[test]
fn file_of_networks_is_read() {
    let file = NetworkFile::new("networks", "# list\n198.51.100.0/24\n2001:db8::/32 ; a comment\n");
    let list = list(&with_rules(&file.rule()));
    assert_eq!(["198.51.100.1", "198.51.101.1"].map(|client| decide(&list, client).0), [Some(0), None]);
    let config = good(&with_rules(&file.rule()));
    let [written] = &config.services[0].said.access[..] else { panic!("{:?}", config.services[0].said) };
    assert!(written.contains("(2 networks, "), "{written}");
    std::fs::write(&file.0, "198.51.100.0/24\n").unwrap();
    assert_ne!(&good(&with_rules(&file.rule())).services[0].said.access[0], written, "a comparison shows the change");
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    let one = |rule: &str| with_rules(&format!("[[service.access]]\n{rule}\n"));
    refuses(
        &one("client = \"10.0.0.0/8\""),
        "5:1: error: `action` is missing in [[service.access]]; add action = \"deny\"",
    );
    refuses(
        &one("action = \"deny\"\npath = \"/\""),
        "7:8: error: `path` is given, but the service is tcp; nothing of a request can be seen: use `client` and `client_file`",
    );
    refuses(
        &one("action = \"deny\"\nclient_file = \"blocked.txt\""),
        "7:15: error: `client_file` is \"blocked.txt\", not an absolute path; write an absolute path: start it with `/`",
    );
    let file = NetworkFile::new("bad-networks", "10.0.0.0/8\n\n10.0.0.1/8\n");
    let expected = format!(
        "7:15: error: `client_file` \"{}\": line 3 is \"10.0.0.1/8\"; an address beyond its beginning: write \"10.0.0.0/8\"",
        file.0.display()
    );
    refuses(&with_rules(&file.rule()), &expected);
    let many = "[[service.access]]\naction = \"deny\"\n".repeat(17);
    assert!(said(&with_rules(&many))[0].contains("17 entries in `access`"), "{:?}", said(&with_rules(&many)));
}

#[test]
fn more_networks_than_there_may_be_are_refused() {
    let lines = |count: u32| -> String {
        (0..count).map(|number| format!("{}\n", std::net::Ipv4Addr::from(number << 8 | 1))).collect()
    };
    let file = NetworkFile::new("too-many-networks", &lines(100_000));
    list(&with_rules(&file.rule()));
    let two = with_rules(&format!("{}[[service.access]]\naction = \"deny\"\nclient = \"10.0.0.1\"\n", file.rule()));
    assert!(said(&two)[0].contains("100001 networks in the access rules; have 100000 at most"), "{:?}", said(&two));
    let service = |port: u32| {
        format!("[[service]]\nlisten = \"192.0.2.1:{port}/tcp\"\nbackends = [\"10.0.0.1:80\"]\n{}", file.rule())
    };
    let five: String = (1..=5).map(service).collect();
    let all = said(&format!("interfaces = [\"eth0\"]\n{five}"));
    assert!(all[0].contains("500000 networks in the access rules of all services"), "{all:?}");
}

#[test]
fn http_services_have_their_own() {
    let text = |rule: &str| {
        format!(
            "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \"192.0.2.1:80/http\"\n\
             backends = [\"10.0.0.1:80\"]\n[[service.access]]\n{rule}\n"
        )
    };
    assert!(good(&text("action = \"deny\"\nclient = \"10.0.0.0/8\"")).services[0].access.is_none());
    refuses(
        &text("action = \"deny\"\nclient_file = \"/x\""),
        "8:15: error: `client_file` is given, but the service is http; that is for tcp, udp and tls services: use `client`",
    );
    let count = said(&text("action = \"count\""));
    assert!(count[0].contains("`action` is \"count\", but the service is http"), "{count:?}");
}

#[test]
fn they_need_connections_that_are_tracked() {
    let rules = with_rules("[[service.access]]\naction = \"deny\"\n");
    let text = format!("connection_table = \"stateless\"\n{rules}");
    let text = text.replace("[[service]]", "[offload]\npolicy = \"never\"\n[[service]]");
    assert!(said(&text).iter().any(|problem| problem.contains("has access rules, but")), "{:?}", said(&text));
}
