//! Which connection table: its names, and what a file may not say when connections are not tracked.

use super::{GOOD, good, refuses, said, warned, with};
use hairpin::config::PolicyChoice;
use hairpin_core::config::Algorithm;
use hairpin_core::table::LookupMethod;

/// A good file that tracks no connections, with more lines of its service.
fn untracked(method: &str, service: &str) -> String {
    with(&format!("connection_table = \"{method}\"\n[offload]\npolicy = \"never\"")) + service
}

#[test]
fn every_method_has_its_name() {
    assert_eq!(good(GOOD).settings.connection_table, LookupMethod::DEFAULT);
    for &method in LookupMethod::ALL {
        let file = match method.tracks_connections() {
            true => with(&format!("connection_table = \"{method}\"")),
            false => untracked(method.name(), ""),
        };
        let settings = good(&file).settings;
        assert_eq!(settings.connection_table, method);
        assert_eq!(settings.connection_table.name(), method.name());
    }
}

#[test]
fn an_unknown_one_is_told_the_nearest_and_all() {
    let said = said(&with("connection_table = \"concurent\"")).remove(0);
    let start = "t.toml:2:20: error: `connection_table` is \"concurent\"; did you mean \"concurrent\"? (one of ";
    assert!(said.starts_with(start), "{said}");
    for method in LookupMethod::ALL {
        assert!(said.contains(&format!("\"{method}\"")), "{said}");
    }
}

#[test]
fn stateless_table_refuses_tracking_features() {
    let offloads = "2:20: error: connections are offloaded, but `connection_table = \"maglev\"` tracks none; write policy \
                    = \"never\" in [offload], or choose a table that tracks connections";
    refuses(&with("connection_table = \"maglev\""), offloads);
    refuses(&with("connection_table = \"maglev\"\n[offload]\npolicy = \"always\""), offloads);
    let name = "192.0.2.1:80/tcp";
    let head = "connection_table = \"stateless\"\n[offload]\npolicy = \"never\"\n[pool]\naddresses = [\"10.0.0.9\"]";
    refuses(
        &(with(head) + "mode = \"full-nat\"\n"),
        "10:8: error: service \"192.0.2.1:80/tcp\" is full-nat, but `connection_table = \"stateless\"` tracks no \
         connections, and so no ports of the pool; use mode = \"nat\", or a table that tracks connections",
    );
    refuses(
        &untracked("stateless", "balance = \"round-robin\"\n"),
        &format!(
            "8:11: error: service \"{name}\" says how new connections are balanced, but `connection_table = \
             \"stateless\"` tracks no connections; leave `balance` out: the table's name says how packets are spread"
        ),
    );
    refuses(
        &untracked("maglev", "unknown = \"reset\"\n"),
        &format!(
            "8:11: error: service \"{name}\" says what becomes of unknown packets, but `connection_table = \"maglev\"` \
             tracks no connections; leave `unknown` out: every packet is sent on"
        ),
    );
    refuses(
        &untracked("maglev", "[service.health]\npassive = 3\n"),
        &format!(
            "9:11: error: service \"{name}\" counts clients' connections that fail, but `connection_table = \"maglev\"` \
             tracks no connections; leave `passive` out, and use `check`"
        ),
    );
}

#[test]
fn answers_must_say_which_service_they_are_of() {
    let other = |listen: &str| format!("[[service]]\nlisten = \"{listen}\"\nbackends = [\"10.0.0.1:80\"]\n");
    refuses(
        &untracked("stateless", &other("192.0.2.1:81/tcp")),
        "10:13: error: backend 10.0.0.1:80 is in services \"192.0.2.1:80/tcp\" and \"192.0.2.1:81/tcp\"; with \
         `connection_table = \"stateless\"` nothing tells which of them its answers belong to: give it a port for each",
    );
    good(&untracked("stateless", &other("192.0.2.1:81/udp")));
    good(&(GOOD.to_string() + &other("192.0.2.1:81/tcp")));
}

#[test]
fn the_method_says_how_packets_are_spread() {
    let maglev = good(&untracked("maglev", "balance = \"maglev\"\n"));
    assert_eq!(
        (maglev.settings.policy, maglev.snapshot.services[0].algorithm),
        (PolicyChoice::Never, Algorithm::Maglev)
    );
    assert_eq!(good(&untracked("maglev", "")).snapshot.services[0].algorithm, Algorithm::Maglev);
    let weights = "[[service.backend]]\naddress = \"10.0.0.2:80\"\nweight = 2\n";
    assert!(warned(&untracked("maglev", weights)).is_empty());
    assert_eq!(
        warned(&untracked("stateless", weights)),
        ["t.toml:5:1: warning: service \"192.0.2.1:80/tcp\" has weights, which `connection_table = \"stateless\"` \
          ignores; use connection_table = \"maglev\""]
    );
}
