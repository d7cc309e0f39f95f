//! The cost of a packet on the offloaded path, measured by running the ingress program over and over
//! (`BPF_PROG_TEST_RUN`), beside the least that any program of its kind must do; and how fast rules go in.
//!
//! A repetition sees the packet as the one before has left it. So the rules form a cycle, each rewriting the packet
//! to the next one's key, in an order that has nothing to do with where they lie in memory. The packet would run out
//! of TTL after some sixty hops: the program is loaded with the constant that TTL is lowered by set to 0. It is read,
//! subtracted and summed up as ever. Every rule is ACTIVE and has its next hop, as all but one packet per second and
//! flow find it.
//!
//! The reference (`crates/linux/bpf/reference.c`) parses the same headers, looks the same rules up in a hash of the kernel's and
//! rewrites the key: no checksums, TTL, counters, next hop or redirect.
//!
//! [`measure_sequence`] compares rules of ours with each other, over TCP: those that leave sequence numbers alone, those
//! that move them, and those that have a guard beside.

mod access;
mod live;

pub use access::{AccessCost, measure_access};
pub use live::{LiveFrames, install_rules};

use crate::abi::{self, Bytes, NextHop, RULE_ACTIVE, RULE_SEQUENCE, RuleV4, SequenceChange};
use crate::programs::{LoadedPlane, ProgramOptions, checked};
use anyhow::{Context, Result, ensure};
use hairpin_core::engine::{Completion, Completions, FlowEngine, Guard, Rule, RuleId, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::time::Time;
use libbpf_rs::{MapCore, MapFlags, ObjectBuilder};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

static REFERENCE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reference.bpf.o"));

/// The measured values, one for each repetition.
#[derive(Clone, Debug, Default)]
pub struct CostSamples {
    /// Nanoseconds a packet costs in `hairpin_ingress`.
    pub ours_ns: Vec<f64>,
    /// Nanoseconds a packet costs in the reference.
    pub reference_ns: Vec<f64>,
    /// Rules installed per second.
    pub installs_per_s: Vec<f64>,
}

/// The middle one of `values`; 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Packets of one measurement: enough that starting it does not count, and every rule has its turn.
const PACKETS_MIN: usize = 2_000_000;

/// Measures with `rules` rules, 1 to 2^24, ours and the reference in turn, `repetitions` times. Needs root, and 290
/// bytes of kernel memory a rule.
pub fn measure(rules: usize, repetitions: usize) -> Result<CostSamples> {
    ensure!((1..=1 << 24).contains(&rules), "{rules} rules: 1 to 2^24 can be measured");
    on_a_plane(rules, |plane| measure_with(plane, rules, repetitions))
}

/// Nanoseconds a packet costs in `hairpin_xdp`, which sends it back, with `rules` rules (1 to 2^24), `repetitions` times.
/// As [`measure`] is done, but for the reference.
pub fn measure_xdp(rules: usize, repetitions: usize) -> Result<Vec<f64>> {
    ensure!((1..=1 << 24).contains(&rules), "{rules} rules: 1 to 2^24 can be measured");
    on_a_plane(rules, |plane| {
        let cycle = cycle(rules, Protocol::Udp, [192, 0, 2, 1]);
        activate(plane, &cycle, &loopback())?;
        // The kernel runs the program as if the packet had come by the loopback device, whose address is all zeros.
        let maps = plane.maps();
        let entry = abi::InterfaceEntry { ifindex: LOOPBACK, address: [0; 6], sends_back: 1, zero: 0 };
        maps.named("interfaces")?.update(0u32.bytes(), entry.bytes(), MapFlags::ANY)?;
        maps.named("slots")?.update(LOOPBACK.bytes(), 0u32.bytes(), MapFlags::ANY)?;
        let packets = PACKETS_MIN.div_ceil(rules) * rules;
        let key = &cycle[0].key;
        (0..repetitions).map(|_| counted(plane, packets, || run(plane.xdp_program(), key, packets, XDP_TX))).collect()
    })
}

/// The loopback device's number in every network namespace.
const LOOPBACK: u32 = 1;
/// Of linux/bpf.h.
const XDP_TX: u32 = 3;

/// The cost of rules with more and more work on sequence numbers, in nanoseconds a packet, for each repetition.
#[derive(Clone, Debug, Default)]
pub struct SequenceCost {
    /// TCP, sequence numbers unchanged.
    pub plain_ns: Vec<f64>,
    /// Sequence and acknowledgement numbers moved.
    pub moved_ns: Vec<f64>,
    /// Sequence and acknowledgement numbers moved, under a guard.
    pub guarded_ns: Vec<f64>,
}

/// Measures with `rules` rules of each kind, 1 to 2^22, the kinds in turn, `repetitions` times.
pub fn measure_sequence(rules: usize, repetitions: usize) -> Result<SequenceCost> {
    ensure!((1..=1 << 22).contains(&rules), "{rules} rules: 1 to 2^22 can be measured");
    on_a_plane(3 * rules, |plane| {
        let kinds = [(0, None), (1, None), (1, Some(GUARD))].map(|(delta, guard)| numbered(rules, delta, guard));
        for rules in &kinds {
            activate(plane, rules, &loopback())?;
        }
        let packets = PACKETS_MIN.div_ceil(rules) * rules;
        let mut cost = SequenceCost::default();
        for _ in 0..repetitions {
            let ns = [&mut cost.plain_ns, &mut cost.moved_ns, &mut cost.guarded_ns];
            for (rules, ns) in kinds.iter().zip(ns) {
                ns.push(run_ours(plane, &rules[0].key, packets)?);
            }
        }
        Ok(cost)
    })
}

/// Measures on a plane with room for so many rules, which is gone afterwards.
fn on_a_plane<T>(rules: usize, measure: impl FnOnce(&LoadedPlane) -> Result<T>) -> Result<T> {
    let options = ProgramOptions {
        instance: format!("cost-{}", std::process::id()),
        rules_v4_max: rules as u32,
        rules_v6_max: 1,
        keep_ttl: true,
        ..ProgramOptions::default()
    };
    let plane = LoadedPlane::load(&options, Steering::by_hash([1, 2], 1))?;
    let result = measure(&plane);
    plane.detach()?;
    result
}

fn measure_with(plane: &LoadedPlane, rules: usize, repetitions: usize) -> Result<CostSamples> {
    let cycle = cycle(rules, Protocol::Udp, [192, 0, 2, 1]);
    let mut cost = CostSamples::default();
    for _ in 0..repetitions {
        cost.installs_per_s.push(install(plane, &cycle)?);
    }
    activate(plane, &cycle, &loopback())?;
    let mut open = ObjectBuilder::default().open_memory(REFERENCE).context("the embedded BPF object is damaged")?;
    for mut map in open.maps_mut().filter(|map| map.name() == "rules") {
        map.set_max_entries(rules as u32).context("cannot size the reference's rules")?;
    }
    let object = open.load().context("cannot load the reference program")?;
    let reference = object.progs().find(|program| program.name() == "reference").context("no such program")?;
    let map = object.maps().find(|map| map.name() == "rules").context("the reference has no rules")?;
    for rule in &cycle {
        let (key, value) = (abi::FlowV4::of(&rule.key), RuleV4::of(rule, 0));
        map.update(key.bytes(), value.bytes(), MapFlags::ANY).context("cannot write a rule of the reference")?;
    }
    let packets = PACKETS_MIN.div_ceil(rules) * rules;
    for _ in 0..repetitions {
        cost.reference_ns.push(run(reference.as_fd(), &cycle[0].key, packets, TC_ACT_REDIRECT)?);
        cost.ours_ns.push(run_ours(plane, &cycle[0].key, packets)?);
    }
    Ok(cost)
}

/// Nanoseconds a packet that hits a rule takes.
fn run_ours(plane: &LoadedPlane, key: &FlowKey, packets: usize) -> Result<f64> {
    counted(plane, packets, || run(plane.ingress_program(), key, packets, TC_ACT_REDIRECT))
}

/// The result of `run`, which so many packets that hit a rule are part of.
fn counted(plane: &LoadedPlane, packets: usize, run: impl FnOnce() -> Result<f64>) -> Result<f64> {
    let before = plane.totals(1)?[0].packets;
    let ns = run()?;
    let counted = plane.totals(1)?[0].packets - before;
    ensure!(counted == packets as u64, "only {counted} of {packets} packets hit a rule: nothing was measured");
    Ok(ns)
}

/// Lets everything through that [`frame`] becomes under [`numbered`] rules.
const GUARD: Guard = Guard {
    sequence: SEQUENCE - (1 << 24),
    sequence_length: 1 << 26,
    acknowledgement: ACKNOWLEDGEMENT - (1 << 24),
    acknowledgement_length: 1 << 26,
};

/// A cycle of TCP rules, each of which adds `delta` to sequence numbers; the last one moves them back.
fn numbered(count: usize, delta: u32, guard: Option<Guard>) -> Vec<Rule> {
    let last_octet = 10 + delta as u8 * 2 + u8::from(guard.is_some());
    let mut rules = cycle(count, Protocol::Tcp, [192, 0, 2, last_octet]);
    let back = delta.wrapping_mul(count as u32 - 1).wrapping_neg();
    for (at, rule) in rules.iter_mut().enumerate() {
        let delta = if at == 0 && count > 1 { back } else { delta };
        (rule.rewrite.sequence_delta, rule.rewrite.acknowledgement_delta) = (delta, delta);
        rule.guard = guard;
    }
    rules
}

/// `count` rules in an arbitrary order, each rewriting to the next one's key and the last to the first one's.
fn cycle(count: usize, protocol: Protocol, destination: [u8; 4]) -> Vec<Rule> {
    let destination = Endpoint::new(Address::from_ipv4(destination), 53);
    let key = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        let source = Endpoint::new(Address::from_ipv4([10, a, b, c]), 1024 + (number % 60_000) as u16);
        FlowKey { source, destination, protocol }
    };
    let mut order: Vec<u32> = (0..count as u32).collect();
    // Fisher-Yates with a fixed xorshift: the same order every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    let rule = |position: usize| {
        let (this, next) = (key(order[position]), key(order[(position + 1) % count]));
        let rewrite = Rewrite { source: next.source, destination: next.destination, ..Rewrite::default() };
        Rule { id: RuleId(position as u64), key: this, rewrite, ..Rule::default() }
    };
    let mut rules: Vec<Rule> = (0..count).map(rule).collect();
    // Installed in another order than they are hit in: elements are handed out in order of installation.
    rules.sort_by_key(|rule| rule.key.source);
    rules
}

/// Installs the rules through the engine, a worker's batch at a time, and takes them away again. Returns rules per
/// second of the installing.
fn install(plane: &LoadedPlane, rules: &[Rule]) -> Result<f64> {
    const FLUSH: usize = 256;
    let mut engine = plane.engine(0)?;
    let mut completions = Completions::new();
    let now = Time::ZERO;
    let mut installed = 0;
    let start = Instant::now();
    for chunk in rules.chunks(FLUSH) {
        for rule in chunk {
            ensure!(engine.submit(now, RuleOp::Install(*rule)).is_ok(), "the engine's queue is full");
        }
        engine.flush(now);
        engine.poll(now, &mut completions);
        installed += completions.drain(..).filter(|answer| matches!(answer, Completion::Installed(_))).count();
    }
    let elapsed = start.elapsed();
    ensure!(installed == rules.len(), "only {installed} of {} rules went in", rules.len());
    for chunk in rules.chunks(FLUSH) {
        for rule in chunk {
            ensure!(engine.submit(now, RuleOp::Remove { id: rule.id, key: rule.key }).is_ok(), "the queue is full");
        }
        engine.flush(now);
        engine.poll(now, &mut completions);
        completions.clear();
    }
    Ok(rules.len() as f64 / elapsed.as_secs_f64())
}

/// Where the packets of rules go.
fn loopback() -> NextHop {
    NextHop::lasting(LOOPBACK, [0; 12], 1500, false)
}

/// Puts the rules in as they are once handed over and with a next hop that stays good.
fn activate(plane: &LoadedPlane, rules: &[Rule], next_hop: &NextHop) -> Result<()> {
    let (maps, table) = (plane.maps(), plane.rule_table());
    let changes = maps.named("sequence_v4")?;
    let number = 1u16;
    maps.named("next_hops")?.update(u32::from(number).bytes(), next_hop.bytes(), MapFlags::ANY)?;
    let now = (crate::cpu::now().as_nanos() >> abi::TICK_SHIFT) as u32;
    for rule in rules {
        let mut value = RuleV4::of(rule, 0);
        value.head.flags |= RULE_ACTIVE;
        value.head.until = now.wrapping_add(1 << 30);
        value.head.next_hop = number;
        let key = abi::FlowV4::of(&rule.key);
        if value.head.flags & RULE_SEQUENCE != 0 {
            let of_rule = SequenceChange::of(rule, &value);
            changes
                .update(key.bytes(), of_rule.bytes(), MapFlags::ANY)
                .context("cannot write a rule's sequence change")?;
        }
        table.write(&key, &value).context("cannot write a rule")?;
    }
    Ok(())
}

/// Of linux/pkt_cls.h.
const TC_ACT_REDIRECT: u32 = 7;

/// Nanoseconds a run of `program` takes on a packet of `key`, of `packets` in a row, each of which it is to answer with
/// `verdict`.
fn run(program: BorrowedFd<'_>, key: &FlowKey, packets: usize, verdict: u32) -> Result<f64> {
    let frame = frame(key);
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: packets as i32,
        ..Default::default()
    };
    let start = Instant::now();
    // SAFETY: the options and the frame they point to live through the call.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })
        .context("cannot run the program")?;
    let elapsed = start.elapsed();
    ensure!(options.retval == verdict, "the program returned {}", options.retval as i32);
    Ok(elapsed.as_nanos() as f64 / packets as f64)
}

/// Sequence numbers that [`frame`] starts with over TCP.
const SEQUENCE: u32 = 0x1234_5678;
const ACKNOWLEDGEMENT: u32 = 0x9abc_def0;

/// A packet of `key`, in a frame of 64 bytes with its checksum. To the loopback's address, which is all zeros.
fn frame(key: &FlowKey) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    // 20 bytes of IPv4 header, 50 of packet, TTL 64. The checksums need not be right to be kept in step.
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 1, 0, 0, 64, key.protocol as u8]);
    frame[24..26].copy_from_slice(&[0x12, 0x34]);
    frame[26..30].copy_from_slice(&key.source.address.ipv4_octets());
    frame[30..34].copy_from_slice(&key.destination.address.ipv4_octets());
    frame[34..36].copy_from_slice(&key.source.port.to_be_bytes());
    frame[36..38].copy_from_slice(&key.destination.port.to_be_bytes());
    match key.protocol {
        Protocol::Udp => frame[38..42].copy_from_slice(&[0, 30, 0x56, 0x78]),
        Protocol::Tcp => {
            frame[38..42].copy_from_slice(&SEQUENCE.to_be_bytes());
            frame[42..46].copy_from_slice(&ACKNOWLEDGEMENT.to_be_bytes());
            // 20 bytes of header, ACK, a window, a checksum.
            frame[46..54].copy_from_slice(&[0x50, 0x10, 0x20, 0, 0x56, 0x78, 0, 0]);
        }
    }
    frame
}
