//! All rules in force, queried and changed from outside their engine.

use crate::packet::{Packet, v4, v6};
use crate::rig::{BACKEND, CLIENT, REDIRECT, Rig, VIP, in_namespace};
use hairpin_core::engine::{Fate, Rule};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{RULE_ACTIVE, RULE_FENCED, TotalsValue};
use hairpin_linux::programs::InstalledRule;
use libbpf_rs::MapCore;
use std::collections::BTreeSet;
use std::time::Duration;

fn key(number: u16) -> FlowKey {
    match number % 2 {
        0 => v4(CLIENT, number, VIP, 80, Protocol::Tcp),
        _ => v6("fd01::2", number, "2001:db8::10", 80, Protocol::Udp),
    }
}

fn rule(key: FlowKey) -> Rule {
    let to = match key.is_ipv4() {
        true => v4(CLIENT, key.source.port, BACKEND, 8080, key.protocol),
        false => v6("fd01::2", key.source.port, "fd02::2", 8080, key.protocol),
    };
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    Rule { key, rewrite, ..Rule::default() }
}

fn sorted(rules: Vec<InstalledRule>) -> Vec<InstalledRule> {
    let mut rules = rules;
    rules.sort_by_key(|rule| (rule.key.is_ipv4(), rule.key.source.port));
    rules
}

#[test]
fn all_rules_are_listed_once_with_what_is_known_about_them() {
    in_namespace(|| {
        let rig = Rig::new(3, |_| ());
        assert!(rig.plane.rules().unwrap().is_empty());
        // More than one batch of each family.
        let mut expected = Vec::new();
        for number in 0..20_000u16 {
            let fate = match number % 5 {
                0 => Fate::Pass,
                1 => Fate::Direct,
                _ => Fate::Forward,
            };
            let (worker, total) = ((number % 3) as u8, u32::from(number) * 3 % 30_000);
            let numbers = Rule { key: key(number), fate, total, ..Rule::default() };
            rig.put(&numbers, worker, |_| ());
            let (pass, direct, total) = (fate == Fate::Pass, fate == Fate::Direct, total as u16);
            expected.push(InstalledRule { key: key(number), pass, direct, worker, total });
        }
        assert_eq!(sorted(rig.plane.rules().unwrap()), sorted(expected));
        let mut count = 0;
        rig.plane.for_each_rule(|_| count += 1).unwrap();
        assert_eq!((count, rig.plane.installed().unwrap().len()), (20_000, 20_000));
    });
}

#[test]
fn a_full_map_is_listed_too() {
    in_namespace(|| {
        for most in [1, 2, 100] {
            let rig = Rig::new(1, |options| (options.rules_v4_max, options.rules_v6_max) = (most, most));
            let number = |n: u32| (n * 2) as u16;
            for n in 0..most {
                rig.put(&rule(key(number(n))), 0, |_| ());
            }
            let found: BTreeSet<FlowKey> = rig.plane.installed().unwrap().into_iter().collect();
            assert_eq!(found, (0..most).map(|n| key(number(n))).collect());
            rig.plane.detach().unwrap();
            for device in ["left", "right"] {
                crate::rig::command("ip", &["link", "delete", device]);
            }
        }
    });
}

#[test]
fn orphan_rules_are_removed_with_their_changes() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        // Only TCP has numbers.
        let key = |number| FlowKey { protocol: Protocol::Tcp, ..key(number) };
        for number in 0..1500 {
            let rewrite = Rewrite { sequence_delta: u32::from(number) % 2, ..Rewrite::default() };
            rig.put(&Rule { key: key(number), rewrite, ..Rule::default() }, 0, |_| ());
        }
        let elements = |map: &str| rig.plane.maps().named(map).unwrap().keys().count();
        // `put` writes numbers for all; only half the rules say so.
        assert_eq!((elements("sequence_v4"), elements("sequence_v6")), (750, 750));
        let gone: Vec<FlowKey> = (0..1000).chain(1000..1010).chain([1600, 1601]).map(key).collect();
        assert_eq!(rig.plane.remove_rules(&gone).unwrap(), 1010);
        let left: BTreeSet<FlowKey> = rig.plane.installed().unwrap().into_iter().collect();
        assert_eq!(left, (1010..1500).map(key).collect());
        assert_eq!((elements("sequence_v4"), elements("sequence_v6")), (750, 750 - 505));
        assert_eq!(rig.plane.remove_rules(&[]).unwrap(), 0);
    });
}

#[test]
fn rules_passed_on_keep_what_they_have_counted() {
    in_namespace(|| {
        let rig = Rig::new(2, |_| ());
        let send = |number: u16, flags: u8| {
            let packet = Packet { flags, ..Packet::new(key(number)) };
            let run = rig.ingress(&packet.to(rig.left.mac).frame());
            assert_eq!(run.verdict, REDIRECT);
            run.frame
        };
        for number in [2, 4] {
            rig.put(&rule(key(number)), 0, |_| ());
        }
        for _ in 0..3 {
            send(2, crate::packet::ACK);
        }
        let before = rig.head(&key(2));
        assert_eq!((before.packets, before.worker, before.flags), (3, 0, RULE_ACTIVE));
        let all = [(key(2), 1), (key(4), 0), (key(6), 1)];
        assert_eq!(rig.plane.assign_rules(&all).unwrap(), 2);
        let after = rig.head(&key(2));
        assert_eq!((after.worker, rig.head(&key(4)).worker), (1, 0));
        assert_eq!((after.packets, after.bytes, after.last_seen), (before.packets, before.bytes, before.last_seen));
        assert_eq!((after.flags, after.next_hop, after.until), (before.flags, before.next_hop, before.until));
        let given = rig.tickets();
        send(2, crate::packet::FIN);
        let now = rig.tickets();
        assert_eq!((now[0] - given[0], now[1] - given[1]), (0, 1), "its packets go to the new one");
        assert!(rig.plane.assign_rules(&[(key(2), 64)]).is_err());
        assert_eq!(rig.head(&key(2)).worker, 1);
    });
}

/// Tickets are counted by worker: what a rule waits for with one says nothing about another.
#[test]
fn a_hand_over_starts_again_with_the_new_worker() {
    in_namespace(|| {
        let rig = Rig::new(2, |options| options.handover_bound = Duration::from_secs(3600));
        let ticket = |number: u16| -> Option<(u8, u32)> {
            let run = rig.ingress(&Packet::new(key(number)).to(rig.left.mac).frame());
            let [0x0a, 0, cpu, a, b, c, ..] = run.frame[..] else { return None };
            Some((cpu, u32::from_be_bytes([0, a, b, c])))
        };
        // Both workers have packets on their way.
        let mut of_worker = [0u32; 2];
        for number in (0..100).map(|n| n * 2) {
            ticket(number);
        }
        for (worker, last) in of_worker.iter_mut().enumerate() {
            *last = rig.tickets()[worker];
            assert!(*last > 1);
        }
        rig.put(&rule(key(1000)), 0, |_| ());
        let (cpu, fence) = ticket(1000).expect("worker 0 has packets on their way");
        assert_eq!((rig.head(&key(1000)).flags, fence), (RULE_FENCED, of_worker[0] + 1));
        rig.plane.assign_rules(&[(key(1000), 1)]).unwrap();
        assert_eq!(rig.head(&key(1000)).flags, 0);
        rig.plane.control().publish(0, cpu, fence);
        let (_, next) = ticket(1000).expect("worker 1 has, too");
        assert_eq!(next, of_worker[1] + 1);
        rig.plane.control().publish(1, cpu, next);
        assert_eq!(ticket(1000), None);
        assert_eq!(rig.head(&key(1000)).flags, RULE_ACTIVE);
    });
}

#[test]
fn totals_are_read_together_and_cleared_one_by_one() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        assert_eq!(rig.plane.totals(0).unwrap(), []);
        for (number, total) in [(2, 7), (4, 9), (6, 32_767)] {
            rig.put(&Rule { total, ..rule(key(number)) }, 0, |_| ());
            for _ in 0..total % 5 {
                rig.ingress(&Packet::new(key(number)).to(rig.left.mac).frame());
            }
        }
        let packets = |count| -> Vec<(usize, u64)> {
            let totals = rig.plane.totals(count).unwrap();
            assert_eq!(totals.len(), count as usize);
            totals.iter().enumerate().filter(|(_, t)| t.packets != 0).map(|(at, t)| (at, t.packets)).collect()
        };
        assert_eq!(packets(8), [(7, 2)]);
        assert_eq!(packets(32_768), [(7, 2), (9, 4), (32_767, 2)]);
        assert!(rig.plane.totals(32_769).is_err());
        rig.plane.clear_totals(&[7, 32_767]).unwrap();
        assert_eq!(packets(32_768), [(9, 4)]);
        assert_eq!(rig.plane.totals(8).unwrap()[7], TotalsValue::default());
        assert!(rig.plane.clear_totals(&[32_768]).is_err());
    });
}
