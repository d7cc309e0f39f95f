use super::*;
use proptest::prelude::*;
use std::net::IpAddr;
use std::vec;

fn network(text: &str) -> Network {
    let (address, prefix) = text.split_once('/').unwrap();
    let address: IpAddr = address.parse().unwrap();
    let prefix: u8 = prefix.parse().unwrap();
    Network { address: address.into(), prefix: if address.is_ipv4() { 96 + prefix } else { prefix } }
}

fn rule(action: AccessAction, networks: &[&str]) -> (AccessAction, Vec<Network>) {
    (action, networks.iter().map(|text| network(text)).collect())
}

fn decide(list: &AccessList, text: &str) -> (Option<u8>, Option<u8>) {
    let AccessDecision { denied, counted } = list.decide(&text.parse::<IpAddr>().unwrap().into());
    (denied, counted)
}

/// The rules one by one, as the module's documentation has it.
fn slowly(rules: &[(AccessAction, Vec<Network>)], client: &Address) -> AccessDecision {
    let mut decision = AccessDecision::default();
    for (number, (action, networks)) in (0..).zip(rules) {
        if !networks.iter().any(|network| network.contains(client)) {
            continue;
        }
        match action {
            AccessAction::Allow => return decision,
            AccessAction::Deny => return AccessDecision { denied: Some(number), ..decision },
            AccessAction::Count => decision.counted = decision.counted.or(Some(number)),
        }
    }
    decision
}

/// The longest of the prefixes that has the address.
fn by_prefix(list: &AccessList, client: &Address) -> AccessDecision {
    let within = list.prefixes().iter().filter(|(network, _)| network.contains(client));
    within.max_by_key(|(network, _)| network.prefix).map(|(_, decision)| *decision).unwrap_or_default()
}

#[test]
fn the_first_rule_with_the_client_decides() {
    use AccessAction::{Allow, Deny};
    let list = AccessList::new(&[
        rule(Allow, &["10.1.2.0/24", "2001:db8::/48"]),
        rule(Deny, &["10.1.0.0/16", "2001:db8::/32"]),
        rule(Allow, &["10.0.0.0/8"]),
        rule(Deny, &["0.0.0.0/0"]),
    ]);
    for (client, denied) in [
        ("10.1.2.3", None),
        ("10.1.3.3", Some(1)),
        ("10.2.0.1", None),
        ("192.0.2.1", Some(3)),
        ("255.255.255.255", Some(3)),
        ("2001:db8::1", None),
        ("2001:db8:1::1", Some(1)),
        ("2001:db9::1", None),
    ] {
        assert_eq!(decide(&list, client), (denied, None), "{client}");
    }
    assert_eq!(list.actions(), [Allow, Deny, Allow, Deny]);
}

#[test]
fn order_of_rules_beats_length_of_prefixes() {
    use AccessAction::{Allow, Deny};
    let list = AccessList::new(&[rule(Deny, &["10.0.0.0/8"]), rule(Allow, &["10.1.0.0/16"])]);
    assert_eq!(decide(&list, "10.1.0.1"), (Some(0), None));
    assert_eq!(list.prefixes().len(), 1, "the second one changes nothing");
}

#[test]
fn a_rule_that_counts_lets_the_others_decide() {
    use AccessAction::{Allow, Count, Deny};
    let list = AccessList::new(&[
        rule(Allow, &["10.9.0.0/16"]),
        rule(Count, &["10.0.0.0/8"]),
        rule(Deny, &["10.1.0.0/16"]),
        rule(Count, &["10.0.0.0/8", "192.0.2.0/24"]),
    ]);
    assert_eq!(decide(&list, "10.9.0.1"), (None, None));
    assert_eq!(decide(&list, "10.2.0.1"), (None, Some(1)));
    assert_eq!(decide(&list, "10.1.0.1"), (Some(2), Some(1)));
    assert_eq!(decide(&list, "192.0.2.1"), (None, Some(3)));
}

#[test]
fn a_network_of_all_addresses_has_both_families() {
    let list = AccessList::new(&[rule(AccessAction::Deny, &["::/0"])]);
    for client in ["::", "192.0.2.1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] {
        assert_eq!(decide(&list, client), (Some(0), None), "{client}");
    }
    assert_eq!(decide(&AccessList::new(&[]), "::1"), (None, None));
}

#[test]
fn as_many_networks_as_there_may_be_are_found() {
    let networks = (0..NETWORKS_MAX as u32).map(|number| {
        let address = Address::from_ipv4((number * 512).to_be_bytes());
        Network { address, prefix: 96 + 24 }
    });
    let list = AccessList::new(&[(AccessAction::Deny, networks.collect())]);
    assert_eq!(list.prefixes().len(), NETWORKS_MAX);
    for number in 0..NETWORKS_MAX as u32 {
        let client = |beyond: u32| Address::from_ipv4((number * 512 + beyond).to_be_bytes());
        assert_eq!(list.decide(&client(255)).denied, Some(0));
        assert_eq!(list.decide(&client(256)).denied, None);
    }
}

/// Networks that often contain each other, at both ends of the address space, too.
fn networks() -> impl Strategy<Value = Vec<Network>> {
    let one = (prop_oneof![Just(0u128), Just(u128::MAX), 0u128..4, (0u128..4).prop_map(|top| top << 126)], 0u8..=128);
    let masked = one.prop_map(|(address, prefix)| {
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        Network { address: Address((address & mask).to_be_bytes()), prefix }
    });
    proptest::collection::vec(masked, 0..6)
}

fn action() -> impl Strategy<Value = AccessAction> {
    prop_oneof![Just(AccessAction::Allow), Just(AccessAction::Deny), Just(AccessAction::Count)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn ranges_and_prefixes_say_what_the_rules_say(
        rules in proptest::collection::vec((action(), networks()), 0..5),
        beside in any::<[u8; 16]>(),
    ) {
        let list = AccessList::new(&rules);
        let mut clients = vec![0, u128::MAX, u128::from_be_bytes(beside)];
        for (_, networks) in &rules {
            for network in networks {
                let (first, last) = ends(network);
                clients.extend([first, first.wrapping_sub(1), last, last.wrapping_add(1)]);
            }
        }
        for client in clients.into_iter().map(|client| Address(client.to_be_bytes())) {
            let expected = slowly(&rules, &client);
            prop_assert_eq!(list.decide(&client), expected);
            prop_assert_eq!(by_prefix(&list, &client), expected);
        }
    }
}
