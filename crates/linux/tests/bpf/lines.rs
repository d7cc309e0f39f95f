//! A line of the table of IPv4 rules that becomes another rule's: what packets, updates and listings that look at it meanwhile
//! take from it is one rule's, and a rule that moves to another line is always found.

use crate::engine::execute;
use crate::packet::{ACK, Packet, v4};
use crate::rig::{BACKEND, CLIENT, REDIRECT, Rig, VIP, in_namespace, other_cpu};
use hairpin_core::engine::{Completion, Rule, RuleId, RuleOp};
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{Bytes, FlowV4, LINE_ELSEWHERE, LINE_PROTOCOL, RuleBucket};
use hairpin_linux::cpu;
use hairpin_linux::engine::KernelEngine;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

fn key(number: u8) -> FlowKey {
    v4([10, 1, 7, number], 1000 + u16::from(number), VIP, 80, Protocol::Tcp)
}

/// To a backend's port, without hand-over.
fn rule(number: u8, port: u16, total: u32) -> Rule {
    let to = v4(CLIENT, 1, BACKEND, port, Protocol::Tcp);
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    let id = RuleId(u64::from(number));
    Rule { id, key: key(number), rewrite, at_once: true, total, ..Rule::default() }
}

fn install(engine: &mut KernelEngine, rule: Rule) {
    let done = execute(engine, [RuleOp::Install(rule)]);
    assert!(matches!(done[..], [Completion::Installed(_)]), "{done:?}");
}

fn remove(engine: &mut KernelEngine, number: u8) {
    let done = execute(engine, [RuleOp::Remove { id: RuleId(u64::from(number)), key: key(number) }]);
    assert!(matches!(done[..], [Completion::Removed(_, Some(_))]), "{done:?}");
}

fn buckets(rig: &Rig) -> Vec<RuleBucket> {
    let maps = rig.plane.maps();
    let map = maps.named("rules_v4").unwrap();
    let element = |index: u32| map.lookup(index.bytes(), MapFlags::ANY).unwrap().unwrap();
    (0..map.max_entries()).map(|index| RuleBucket::from_bytes(&element(index)).unwrap()).collect()
}

/// The number of the line that has the only rule.
fn line(rig: &Rig) -> usize {
    let lines = buckets(rig).into_iter().flat_map(|bucket| bucket.lines);
    lines.enumerate().find(|(_, line)| line.state & LINE_PROTOCOL != 0).expect("there is a rule").0
}

/// Two flows that have the same line while each is alone. Packets of the first one, without a rule, are worker 0's.
fn neighbours(rig: &Rig, engine: &mut KernelEngine) -> (u8, u8) {
    let mut at = |number| {
        install(engine, rule(number, 1, 0));
        let at = line(rig);
        remove(engine, number);
        at
    };
    let is_firsts = |number| {
        let before = rig.tickets();
        rig.ingress(&frame(rig, number));
        rig.tickets()[0] != before[0]
    };
    let first = (0..50).find(|number| is_firsts(*number)).unwrap();
    let wanted = at(first);
    (first, (first + 1..255).find(|number| at(*number) == wanted).unwrap())
}

fn frame(rig: &Rig, number: u8) -> Vec<u8> {
    Packet { flags: ACK, ..Packet::new(key(number)) }.to(rig.left.mac).frame()
}

fn rounds() -> u32 {
    std::env::var("HAIRPIN_UPDATES").ok().and_then(|n| n.parse().ok()).unwrap_or(40_000)
}

/// Repeats `act` on another processor while `change` runs, and after that ends.
fn meanwhile(act: impl Fn() + Sync, change: impl FnOnce()) {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some(other) = other_cpu() {
                cpu::pin(other).unwrap();
            }
            while !done.load(Ordering::Relaxed) {
                act();
            }
        });
        let _ends = Ends(&done);
        change();
    });
}

/// The rules of two flows of different workers have a line in turn. Packets of the one are counted in no total of the other, and no
/// packet goes to its worker.
#[test]
fn packets_are_not_taken_for_the_lines_next_rule() {
    in_namespace(|| {
        let rig = Rig::new(2, |options| options.rules_v4_max = 4);
        let (mut engine, mut other) = (rig.plane.engine(0).unwrap(), rig.plane.engine(1).unwrap());
        let (first, second) = neighbours(&rig, &mut engine);
        // One that gets a hand-over has what only the worker takes.
        let frame = frame(&rig, first);
        let given = rig.tickets()[1];
        let act = || {
            rig.heartbeat();
            assert_eq!(rig.ingress(&frame).verdict, REDIRECT);
        };
        meanwhile(act, || {
            for _ in 0..rounds() {
                install(&mut engine, rule(first, 1, 5));
                remove(&mut engine, first);
                install(&mut other, Rule { at_once: false, ..rule(second, 2, 7) });
                remove(&mut other, second);
            }
        });
        let totals = rig.plane.totals(8).unwrap();
        assert!(totals[5].packets > 0);
        assert_eq!((totals[7].packets, rig.tickets()[1]), (0, given));
    });
}

/// What packets change by compare-and-swap is never what it was for the rule before, which a packet may have read.
#[test]
fn the_word_of_a_line_tells_its_rules_apart() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 4);
        let mut engine = rig.plane.engine(0).unwrap();
        let (first, second) = neighbours(&rig, &mut engine);
        let mut words = BTreeSet::new();
        for round in 0..100 {
            let number = if round % 2 == 0 { first } else { second };
            install(&mut engine, Rule { at_once: round % 4 < 2, ..rule(number, 1, 0) });
            let head = rig.head(&key(number));
            words.insert((head.until, head.next_hop, head.flags, head.worker));
            remove(&mut engine, number);
        }
        assert_eq!(words.len(), 100);
    });
}

/// An element of `spilled_v4` that has outlived its rule, since the kernel could not take it out, points to a line that
/// is another flow's by now.
#[test]
fn an_update_leaves_the_lines_of_other_flows_alone() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 4);
        let mut engine = rig.plane.engine(0).unwrap();
        install(&mut engine, rule(1, 1, 0));
        let foreign = line(&rig) as u32;
        rig.write("spilled_v4", &FlowV4::of(&key(2)), &foreign);
        for (index, mut bucket) in buckets(&rig).into_iter().enumerate() {
            bucket.lines[0].state += LINE_ELSEWHERE;
            rig.write("rules_v4", &(index as u32), &bucket);
        }
        for port in 2..6 {
            install(&mut engine, rule(2, port, 0));
            assert_eq!(line_of(&rig, 1).map(|line| line.rule.head.destination_port), Some([0, 1]), "the other flow's");
            assert_eq!(line_of(&rig, 2).map(|line| line.rule.head.destination_port), Some([0, port as u8]));
        }
        remove(&mut engine, 2);
        assert!(line_of(&rig, 1).is_some() && line_of(&rig, 2).is_none());
    });
}

fn line_of(rig: &Rig, number: u8) -> Option<hairpin_linux::abi::RuleLine> {
    let source = key(number).source.address.ipv4_octets();
    let is_its = |line: &hairpin_linux::abi::RuleLine| line.state & LINE_PROTOCOL != 0 && line.source == source;
    buckets(rig).into_iter().flat_map(|bucket| bucket.lines).find(is_its)
}

/// A rule that gets other ends moves to another line of its bucket; packets find the old one or the new one. One whose search is
/// interrupted by moves twice goes to the worker as a packet without a rule does, which is right and seldom.
#[test]
fn a_rule_that_moves_is_found() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 4);
        let mut engine = rig.plane.engine(0).unwrap();
        install(&mut engine, rule(1, 1, 0));
        let frame = frame(&rig, 1);
        let before = rig.tickets()[0];
        let act = || {
            rig.heartbeat();
            assert_eq!(rig.ingress(&frame).verdict, REDIRECT);
        };
        let ((), counted) = rig.counted(|| {
            meanwhile(act, || (0..rounds()).for_each(|round| install(&mut engine, rule(1, 2 + round as u16 % 2, 0))))
        });
        assert!(counted.keys().all(|event| *event == "to-worker"), "a packet had another rule: {counted:?}");
        let missed = rig.tickets()[0] - before;
        assert!(missed <= rounds() / 100, "{missed} packets of {} moves: {counted:?}", rounds());
    });
}

#[test]
fn a_listing_shows_no_key_of_two_halves() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.rules_v4_max = 4);
        let mut engine = rig.plane.engine(0).unwrap();
        let (first, second) = neighbours(&rig, &mut engine);
        let right = [key(first), key(second)];
        let act = || {
            let listed = rig.plane.installed().unwrap();
            assert!(listed.len() <= 1 && listed.iter().all(|key| right.contains(key)), "{listed:?}");
        };
        meanwhile(act, || {
            for _ in 0..rounds() {
                for number in [first, second] {
                    install(&mut engine, rule(number, 1, 0));
                    remove(&mut engine, number);
                }
            }
        });
    });
}

/// A BPF atomic without BPF_FETCH is no barrier: on arm64 the kernel makes a plain STADD or the like of it. What changes a
/// line's `state` publishes what has been written before it, or must be seen before what is written after it.
#[test]
fn atomics_of_lines_are_barriers() {
    const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hairpin.bpf.o"));
    const FETCH: u32 = 1;
    const STATE: u16 = std::mem::offset_of!(hairpin_linux::abi::RuleLine, state) as u16;
    let word = |at: usize, bytes: usize| {
        OBJECT[at..at + bytes].iter().rev().fold(0usize, |word, byte| word << 8 | usize::from(*byte))
    };
    // ELF64: the table of sections, and of each its kind, flags, offset and size.
    let (table, sections) = (word(0x28, 8), word(0x3c, 2));
    let (mut barriers, mut others) = (0, Vec::new());
    for section in (0..sections).map(|number| table + 64 * number) {
        let (is_code, offset, size) = (word(section + 8, 4) & 4 != 0, word(section + 24, 8), word(section + 32, 8));
        if word(section + 4, 4) != 1 || !is_code {
            continue;
        }
        for at in (offset..offset + size).step_by(8) {
            let (code, place, kind) = (OBJECT[at], word(at + 2, 2) as u16, word(at + 4, 4) as u32);
            // BPF_STX | BPF_ATOMIC | BPF_W, BPF_DW. Counters are sums alone.
            if code != 0xc3 && code != 0xdb {
                continue;
            }
            let is_sum = kind == 0;
            match kind & FETCH != 0 {
                true => barriers += 1,
                false if !is_sum || (code == 0xc3 && place == STATE) => others.push((place, kind)),
                false => {}
            }
        }
    }
    assert!(barriers > 20, "{barriers}");
    assert_eq!(others, [], "place and kind");
}
