//! A process that is killed, and a hundred that follow each other: what they leave.

use crate::adoption::{STEERING, adopted, key, rule};
use crate::child;
use crate::lifecycle::{attached, attached_by};
use crate::packet::Packet;
use crate::rig::{attach_modes, command, devices, in_namespace, snapshot};
use crate::wire::{Link, Vnet};
use hairpin_core::engine::{Completion, Completions, FlowEngine, RuleOp};
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{LoadedPlane, ProgramOptions};
use hairpin_linux::tap::Tap;
use libbpf_rs::MapCore;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

fn options() -> ProgramOptions {
    ProgramOptions { instance: "crash".to_string(), ..ProgramOptions::default() }
}

fn attach(plane: &mut LoadedPlane) {
    for (slot, name) in ["left", "right"].into_iter().enumerate() {
        let interface = Interface::by_name(name).unwrap();
        plane.attach(slot as u32, interface.index, interface.mac).unwrap();
    }
    plane.attach_worker(0, Interface::by_name("tap-0").unwrap().index).unwrap();
}

/// Waits until the other process says so.
fn said(output: &mut BufReader<ChildStdout>, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended without saying {wanted}");
    }
}

#[test]
fn killed_instance_keeps_forwarding_and_is_adopted() {
    in_namespace(|| {
        let (left, _right) = devices();
        // A frame that leaves by the neighbour entry arrives at its MAC.
        let next_hop = crate::rig::BACKEND_MAC;
        let (near, far) = (Link::open("left-peer"), Link::open("right-peer"));
        let frame = Packet::new(key()).to(left.mac).frame();
        let pass = |count: u32| {
            for _ in 0..count {
                near.send(&Vnet::default(), &frame);
                let arrived = std::iter::from_fn(|| far.receive()).find(|(_, frame)| frame[..6] == next_hop);
                assert!(arrived.is_some());
            }
        };
        let mut other = child::start("crash::holds_everything", Stdio::piped());
        let mut output = BufReader::new(other.stdout.take().unwrap());
        said(&mut output, "it stands");
        let tap = Interface::by_name("tap-0").unwrap().index;
        pass(10);
        other.kill().unwrap();
        other.wait().unwrap();
        pass(10);

        let mut plane = adopted(&options());
        assert_eq!(plane.rules_max(), (1000, 10));
        let taken = Tap::create("tap-0", 64).unwrap();
        assert_eq!(Interface::by_name("tap-0").unwrap().index, tap);
        attach(&mut plane);
        plane.detach_others(&[left.index, Interface::by_name("right").unwrap().index, tap]).unwrap();
        pass(10);
        let rules = plane.rules().unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!((rules[0].key, rules[0].worker, rules[0].total), (key(), 0, 3));
        assert_eq!(plane.totals(4).unwrap()[3].packets, 30);
        // The new process's engine knows the rule as its own.
        let mut engine = plane.engine(0).unwrap();
        engine.submit(cpu::now(), RuleOp::Remove { id: Default::default(), key: key() }).unwrap();
        engine.flush(cpu::now());
        let mut answers = Completions::new();
        engine.poll(cpu::now(), &mut answers);
        let [Completion::Removed(_, Some(counters))] = answers[..] else { panic!("{answers:?}") };
        assert_eq!(counters.packets, 30);
        plane.detach().unwrap();
        assert_eq!(attached(), (0, 0));
        taken.destroy().unwrap();
    });
}

/// The process that is killed.
#[test]
#[ignore = "part of another test"]
fn holds_everything() {
    if !child::is_one() {
        return;
    }
    let mut plane =
        LoadedPlane::load(&ProgramOptions { rules_v4_max: 1000, rules_v6_max: 10, ..options() }, STEERING).unwrap();
    plane.configure(&snapshot()).unwrap();
    let _tap = Tap::create("tap-0", 64).unwrap();
    attach(&mut plane);
    plane.control().heartbeat(cpu::now());
    let mut engine = plane.engine(0).unwrap();
    engine.submit(cpu::now(), RuleOp::Install(rule())).unwrap();
    engine.flush(cpu::now());
    println!("it stands");
    // Until the end: the test writes nothing here.
    std::io::stdin().read_exact(&mut [0]).unwrap_err();
}

/// Programs that use the maps of the plane pinned as `options` says, and all maps they use.
fn objects() -> (usize, usize) {
    let plane = adopted(&options());
    let id = |name: &str| plane.maps().named(name).unwrap().info().unwrap().info.id;
    let ours = [id("rules_v4"), id("events")];
    let all = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let programs: Vec<_> = all.filter(|program| program.map_ids.iter().any(|id| ours.contains(id))).collect();
    let maps: BTreeSet<u32> = programs.iter().flat_map(|program| program.map_ids.clone()).collect();
    (programs.len(), maps.len())
}

/// The pinned objects, by name.
fn pins() -> Vec<String> {
    let found = command("find", &[adopted(&options()).pin_path().to_str().unwrap()]);
    let mut names: Vec<String> = found.lines().map(str::to_string).collect();
    names.sort();
    names
}

#[test]
fn nothing_leaks_over_a_hundred_adoptions() {
    in_namespace(|| {
        devices();
        let _tap = Tap::create("tap-0", 64).unwrap();
        let mut plane = LoadedPlane::load(&options(), STEERING).unwrap();
        attach(&mut plane);
        drop(plane);
        let (before, pinned) = (objects(), pins());
        assert_eq!(before.0, 8);
        let mut other = child::start("crash::adopts_a_hundred_times", Stdio::null());
        let mut said = String::new();
        other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(other.wait().unwrap().success(), "{said}");
        // The kernel frees programs a little later.
        let start = Instant::now();
        while objects() != before {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}, not {before:?}", objects());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(attached(), attached_by(attach_modes()[0]));
        assert_eq!(pins(), pinned);
        adopted(&options()).detach().unwrap();
    });
}

/// The process that does so, alone in its process so that its descriptors can be counted.
#[test]
#[ignore = "part of another test"]
fn adopts_a_hundred_times() {
    if !child::is_one() {
        return;
    }
    let adopt = |round: u32| {
        let mut plane = adopted(&ProgramOptions { keep_ttl: round % 20 < 10, ..options() });
        attach(&mut plane);
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    adopt(0);
    let before = descriptors();
    (1..100).for_each(adopt);
    assert_eq!(descriptors(), before);
    let mut plane = adopted(&options());
    attach(&mut plane);
}
