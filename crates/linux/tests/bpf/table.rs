//! The table of IPv4 rules: full buckets, lines behind them, threads that change it at once; and the next hops that rules share.

use crate::engine::execute;
use crate::packet::{ACK, Packet, parsed, v4};
use crate::rig::{BACKEND, CLIENT, REDIRECT, Rig, VIP, in_namespace, other_cpu};
use hairpin_core::engine::{Completion, Refusal, Rule, RuleId, RuleOp};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{self, Bytes, LINE_ELSEWHERE, LINE_ELSEWHERE_ALL, LINE_PROTOCOL, NextHop, RuleBucket};
use hairpin_linux::cpu;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

fn key(number: u32) -> FlowKey {
    let [_, _, high, low] = number.to_be_bytes();
    v4([10, 1, high, low], 1024 + (number % 5000) as u16, VIP, 80, Protocol::Tcp)
}

/// The new source port tells whose rule a packet has met.
fn rule(number: u32) -> Rule {
    let to = v4(CLIENT, 1 + number as u16, BACKEND, 8080, Protocol::Tcp);
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    Rule { id: RuleId(u64::from(number)), key: key(number), rewrite, at_once: true, ..Rule::default() }
}

fn remove(number: u32) -> RuleOp {
    RuleOp::Remove { id: RuleId(u64::from(number)), key: key(number) }
}

/// What the maps say: lines in use, rules counted by buckets as lying elsewhere, elements of `spilled_v4`, rules counted.
fn contents(rig: &Rig) -> [u64; 4] {
    let map = |name: &str| rig.plane.maps().named(name).unwrap().max_entries();
    let maps = rig.plane.maps();
    let (mut used, mut elsewhere) = (0, 0);
    for index in 0..map("rules_v4") {
        let bytes = maps.named("rules_v4").unwrap().lookup(index.bytes(), MapFlags::ANY).unwrap().unwrap();
        for line in RuleBucket::from_bytes(&bytes).unwrap().lines {
            used += u64::from(line.state & LINE_PROTOCOL != 0);
            elsewhere += u64::from((line.state & LINE_ELSEWHERE_ALL) / LINE_ELSEWHERE);
            assert_eq!(line.state & 0x100, 0, "nothing is locked");
        }
    }
    let spilled = maps.named("spilled_v4").unwrap().keys().count() as u64;
    let count = maps.named("rules_v4_count").unwrap().lookup(0u32.bytes(), MapFlags::ANY).unwrap().unwrap();
    [used, elsewhere, spilled, u64::from(u32::from_bytes(&count).unwrap())]
}

/// The port of the rule that a packet of this flow meets; `None`: no rule, or one that waits for what the worker has, which is
/// then done with it.
fn meets(rig: &Rig, worker: u8, number: u32) -> Option<u16> {
    let frame = Packet { flags: ACK, ..Packet::new(key(number)) }.to(rig.left.mac).frame();
    let run = rig.ingress(&frame);
    // The kernel's own address may begin like a mark.
    let is_marked = run.frame[0] == 0x0a && run.frame[..6] != rig.left.mac;
    if is_marked {
        let ticket = u32::from_be_bytes([0, run.frame[3], run.frame[4], run.frame[5]]);
        rig.plane.control().publish(usize::from(worker), run.frame[2], ticket);
    }
    (run.verdict == REDIRECT && !is_marked).then(|| parsed(&run.frame).key.source.port)
}

#[test]
fn a_full_table_has_all_its_rules() {
    in_namespace(|| {
        const MOST: u32 = 4000;
        let rig = Rig::new(1, |options| options.rules_v4_max = MOST);
        let mut engine = rig.plane.engine(0).unwrap();
        for round in 0..3 {
            let numbers = || round * 7000..round * 7000 + MOST;
            for some in numbers().collect::<Vec<_>>().chunks(200) {
                let done = execute(&mut engine, some.iter().map(|number| RuleOp::Install(rule(*number))));
                assert!(done.iter().all(|answer| matches!(answer, Completion::Installed(_))), "{done:?}");
            }
            let more = execute(&mut engine, [RuleOp::Install(rule(50_000))]);
            assert!(matches!(more[..], [Completion::Rejected(_, Refusal::Full)]), "{more:?}");
            let [used, elsewhere, spilled, count] = contents(&rig);
            assert_eq!((used, count, elsewhere), (u64::from(MOST), u64::from(MOST), spilled));
            assert!((160..600).contains(&spilled), "{spilled}: 8 % by chance");
            let listed: BTreeSet<FlowKey> = rig.plane.installed().unwrap().into_iter().collect();
            assert_eq!(listed, numbers().map(key).collect());
            for number in numbers() {
                assert_eq!(meets(&rig, 0, number), Some(1 + number as u16), "{number}");
                assert_eq!(rig.head(&key(number)).packets, 1);
            }
            assert_eq!(meets(&rig, 0, 50_000), None);
            // Other ends: another line, or the same place behind all buckets; the counters run on.
            for number in numbers().step_by(3) {
                let other = Rule { id: RuleId(9), rewrite: rule(number + 1).rewrite, ..rule(number) };
                let done = execute(&mut engine, [RuleOp::Install(other)]);
                assert!(matches!(done[..], [Completion::Installed(_)]), "{number}: {done:?}");
                // Where no line was free it waits for a hand-over.
                let met = meets(&rig, 0, number).or_else(|| meets(&rig, 0, number));
                assert_eq!((met, rig.head(&key(number)).packets), (Some(2 + number as u16), 2));
            }
            for some in numbers().collect::<Vec<_>>().chunks(200) {
                let done = execute(&mut engine, some.iter().map(|number| remove(*number)));
                assert!(done.iter().all(|answer| matches!(answer, Completion::Removed(_, Some(_)))), "{done:?}");
            }
            assert_eq!(contents(&rig), [0; 4]);
        }
    });
}

/// Two workers change a table of few buckets while packets come: each packet meets its own rule or none, and in the end
/// nothing is left, or locked.
#[test]
fn threads_change_the_table_at_once() {
    in_namespace(|| {
        let rig = Rig::new(2, |options| options.rules_v4_max = 64);
        let rounds: u32 = std::env::var("HAIRPIN_UPDATES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
        let done = AtomicBool::new(false);
        let change = |worker: u8| {
            let mut engine = rig.plane.engine(worker).unwrap();
            let (mut state, mut held) = (u32::from(worker) + 1, BTreeSet::new());
            for _ in 0..rounds {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                let number = state % 30 * 2 + u32::from(worker);
                let op = if held.contains(&number) { remove(number) } else { RuleOp::Install(rule(number)) };
                match execute(&mut engine, [op])[..] {
                    [Completion::Installed(_)] => held.insert(number),
                    [Completion::Removed(_, Some(_))] => held.remove(&number),
                    ref other => panic!("{other:?}"),
                };
            }
            execute(&mut engine, held.into_iter().map(remove)).len()
        };
        let met = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut met = 0;
                while !done.load(Ordering::Relaxed) {
                    rig.heartbeat();
                    for number in 0..60 {
                        if let Some(port) = meets(&rig, (number % 2) as u8, number) {
                            met += 1;
                            assert_eq!(port, 1 + number as u16);
                        }
                    }
                }
                met
            });
            let other = scope.spawn(|| {
                if let Some(other) = other_cpu() {
                    cpu::pin(other).unwrap();
                }
                change(1)
            });
            change(0);
            let ended = other.join();
            done.store(true, Ordering::Relaxed);
            ended.unwrap();
            sender.join().unwrap()
        });
        assert!(met > 0);
        assert_eq!(contents(&rig), [0; 4]);
    });
}

#[test]
fn rules_share_next_hops_and_do_without() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut engine = rig.plane.engine(0).unwrap();
        let numbers =
            |of: std::ops::Range<u32>| of.map(|number| rig.head(&key(number)).next_hop).collect::<BTreeSet<_>>();
        let send = |of: std::ops::Range<u32>| {
            of.for_each(|number| assert_eq!(meets(&rig, 0, number), Some(1 + number as u16)))
        };
        execute(&mut engine, (0..100).map(|number| RuleOp::Install(rule(number))));
        send(0..100);
        let shared = numbers(0..100);
        assert!(shared.len() == 1 && !shared.contains(&0), "{shared:?}");

        // All numbers are others' now, and of a while ago: this one is found no more, and another one is taken.
        let ticks = (cpu::now().as_nanos() >> abi::TICK_SHIFT) as u32;
        let old = |age: u32| NextHop { used: ticks.wrapping_sub(age) | 2, ..NextHop::lasting(7, [7; 12], 700, false) };
        let fill =
            |with: NextHop| (1..abi::NEXT_HOPS_MAX as u32).for_each(|number| rig.write("next_hops", &number, &with));
        fill(old(10_000));
        execute(&mut engine, (100..200).map(|number| RuleOp::Install(rule(number))));
        send(100..200);
        let taken = numbers(100..200);
        assert!(taken.len() == 1 && !taken.contains(&0), "{taken:?}");
        let next_hop = rig.next_hop(&rig.head(&key(100))).unwrap();
        assert_eq!((next_hop.egress, next_hop.mtu), (rig.right.index, 1500));

        // All are in use: packets go by the kernel's neighbour entry, each with a lookup of its own.
        fill(old(100));
        execute(&mut engine, (200..300).map(|number| RuleOp::Install(rule(number))));
        let ((), counted) = rig.counted(|| send(200..300));
        assert_eq!(counted, [("next-hops-full", 100)].into());
        send(200..300);
        assert_eq!(numbers(200..300), [0].into());
        assert_eq!(rig.head(&key(250)).packets, 2);
    });
}

/// A line that is written while packets of its flow come: as it is between two of its words, the old rule's and the new one's.
#[test]
fn no_packet_takes_a_line_that_is_being_written() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 64);
        let mut engine = rig.plane.engine(0).unwrap();
        execute(&mut engine, [RuleOp::Install(rule(0))]);
        assert_eq!(meets(&rig, 0, 0), Some(1));
        let maps = rig.plane.maps();
        let map = maps.named("rules_v4").unwrap();
        let (index, mut bucket) = (0..map.max_entries())
            .map(|index| {
                let bytes = map.lookup(index.bytes(), MapFlags::ANY).unwrap().unwrap();
                (index, RuleBucket::from_bytes(&bytes).unwrap())
            })
            .find(|(_, bucket)| bucket.lines.iter().any(|line| line.state & LINE_PROTOCOL != 0))
            .unwrap();
        let line = bucket.lines.iter_mut().find(|line| line.state & LINE_PROTOCOL != 0).unwrap();
        line.rule.head.flags = abi::RULE_FILLING;
        map.update(index.bytes(), bucket.bytes(), MapFlags::ANY).unwrap();
        // The worker has nothing of the flow that would hold a hand-over up.
        for _ in 0..3 {
            assert_eq!(meets(&rig, 0, 0), None);
            assert_eq!(rig.head(&key(0)).flags, abi::RULE_FILLING);
        }
    });
}
