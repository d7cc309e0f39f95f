//! Handing a flow over from a worker to a rule: offloaded packets do not overtake those still on their way through it.

use crate::packet::{Packet, v4};
use crate::rig::{BACKEND, CLIENT, REDIRECT, Rig, VIP, in_namespace};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{RULE_ACTIVE, RULE_FENCED};
use std::thread::sleep;
use std::time::Duration;

fn key(port: u16) -> FlowKey {
    v4(CLIENT, port, VIP, 80, Protocol::Tcp)
}

fn rule(port: u16) -> Rule {
    let to = v4(CLIENT, port, BACKEND, 8080, Protocol::Tcp);
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    Rule { key: key(port), rewrite, ..Rule::default() }
}

/// Whether the packet went to the worker, and then its CPU and ticket.
fn send(rig: &Rig, port: u16) -> Option<(u8, u32)> {
    let run = rig.ingress(&Packet::new(key(port)).to(rig.left.mac).frame());
    assert_eq!(run.verdict, REDIRECT);
    let [0x0a, 0, cpu, a, b, c, ..] = run.frame[..] else { return None };
    Some((cpu, u32::from_be_bytes([0, a, b, c])))
}

fn slow(options: &mut hairpin_linux::programs::ProgramOptions) {
    options.handover_bound = Duration::from_secs(3600);
}

#[test]
fn at_once_when_nothing_is_on_its_way() {
    in_namespace(|| {
        let rig = Rig::new(1, slow);
        let (cpu, ticket) = send(&rig, 1).expect("a miss goes to the worker");
        rig.plane.control().publish(0, cpu, ticket);
        rig.put(&rule(1), 0, |_| ());
        assert_eq!(send(&rig, 1), None);
        assert_eq!(rig.head(&key(1)).flags, RULE_ACTIVE);
    });
}

#[test]
fn waits_behind_a_fence_that_moves() {
    in_namespace(|| {
        let rig = Rig::new(1, slow);
        let (cpu, first) = send(&rig, 1).unwrap();
        rig.put(&rule(1), 0, |_| ());
        let (fenced, counted) = rig.counted(|| send(&rig, 1));
        let (_, second) = fenced.expect("one is still on its way");
        assert_eq!(second, first + 1);
        assert_eq!(counted, [("rule-fenced", 1), ("to-worker", 1)].into());
        let head = rig.head(&key(1));
        assert_eq!((head.flags, head.fence), (RULE_FENCED, u32::from(cpu) << 24 | second));
        rig.plane.control().publish(0, cpu, first);
        let (_, third) = send(&rig, 1).expect("the second is still on its way");
        rig.plane.control().publish(0, cpu, second);
        let (_, fourth) = send(&rig, 1).expect("the third is");
        assert_eq!(fourth, third + 1);
        rig.plane.control().publish(0, cpu, fourth);
        assert_eq!(send(&rig, 1), None);
        assert_eq!(send(&rig, 1), None);
        assert_eq!(rig.head(&key(1)).packets, 2);
    });
}

#[test]
fn does_not_wait_for_other_workers() {
    in_namespace(|| {
        let rig = Rig::new(2, slow);
        let workers: Vec<u16> = (1..200).collect();
        let mut ports = [None, None];
        for port in workers {
            let before = rig.tickets();
            send(&rig, port).unwrap();
            let after = rig.tickets();
            let worker = if after[0] > before[0] { 0 } else { 1 };
            ports[worker] = Some(port);
        }
        let [Some(port), Some(other)] = ports else { panic!("all on one worker") };
        let given = rig.tickets();
        rig.plane.control().publish(0, cpu_of(&rig, other), given[0]);
        rig.put(&rule(port), 0, |_| ());
        assert_eq!(send(&rig, port), None, "worker 1's packets do not matter");
    });
}

fn cpu_of(rig: &Rig, port: u16) -> u8 {
    send(rig, port).unwrap().0
}

#[test]
fn ends_by_its_bound() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.handover_bound = Duration::from_millis(20));
        send(&rig, 1).unwrap();
        rig.put(&rule(1), 0, |_| ());
        send(&rig, 1).expect("fenced");
        sleep(Duration::from_millis(60));
        rig.heartbeat();
        let (sent, counted) = rig.counted(|| send(&rig, 1));
        assert_eq!(sent, None);
        assert_eq!(counted, [("handover-bound", 1)].into());
    });
}

#[test]
fn tickets_wrap() {
    in_namespace(|| {
        let rig = Rig::new(1, slow);
        let cpus = libbpf_rs::num_possible_cpus().unwrap();
        let start = 0x00ff_fffe_u32;
        let mut element = vec![0; 64 * 4];
        element[..4].copy_from_slice(&start.to_ne_bytes());
        let maps = rig.plane.maps();
        use libbpf_rs::MapCore;
        let flags = libbpf_rs::MapFlags::ANY;
        maps.named("tickets").unwrap().update_percpu(&0u32.to_ne_bytes(), &vec![element; cpus], flags).unwrap();
        let (cpu, last) = send(&rig, 1).unwrap();
        assert_eq!(last, 0x00ff_ffff);
        rig.plane.control().publish(0, cpu, start);
        rig.put(&rule(1), 0, |_| ());
        assert_eq!(send(&rig, 1), Some((cpu, 0)), "fenced, and the ticket wraps");
        rig.plane.control().publish(0, cpu, last);
        assert_eq!(send(&rig, 1), Some((cpu, 1)));
        rig.plane.control().publish(0, cpu, 1);
        assert_eq!(send(&rig, 1), None);
    });
}

#[test]
fn no_wait_when_the_process_is_away() {
    in_namespace(|| {
        let rig = Rig::new(1, slow);
        send(&rig, 1).unwrap();
        rig.put(&rule(1), 0, |_| ());
        rig.stop_beating();
        assert_eq!(send(&rig, 1), None);
    });
}
