//! A plane that is pinned, taken over: what was there stays, what is new takes its place, and no packet notices.

use crate::lifecycle::{attached, attached_by};
use crate::packet::{Packet, v4};
use crate::rig::{
    BACKEND, CLIENT, KEY, NEXT_HOP, OK, REDIRECT, Rig, SHOT, VIP, attach_modes, command, in_namespace, run, snapshot,
};
use crate::wire::{Link, Vnet};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{FlowKey, Protocol, Steering};
use hairpin_core::rewrite::Rewrite;
use hairpin_linux::abi::{self, Bytes};
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{Absent, AdoptedPrograms, AttachMode, LoadedPlane, ProgramOptions, flush};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const STEERING: Steering = Steering::by_hash(KEY, 1);

pub(crate) fn adopted(options: &ProgramOptions) -> LoadedPlane {
    match LoadedPlane::adopt(options, STEERING).unwrap() {
        AdoptedPrograms::Plane(plane) => *plane,
        other => panic!("{other:?}"),
    }
}

fn refused(options: &ProgramOptions) -> String {
    match LoadedPlane::adopt(options, STEERING).unwrap() {
        AdoptedPrograms::Incompatible(why) => why,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn key() -> FlowKey {
    v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp)
}

pub(crate) fn rule() -> Rule {
    let to = v4(CLIENT, 40_000, BACKEND, 8080, Protocol::Tcp);
    let rewrite = Rewrite { source: to.source, destination: to.destination, ..Rewrite::default() };
    Rule { key: key(), rewrite, total: 3, ..Rule::default() }
}

/// A rule that forwards packets from `left` to `right` from the first on, to MACs that tell them from the kernel's own.
fn put(rig: &Rig) {
    rig.put(&rule(), 0, rig.settled(rig.right.index, 1500, false));
}

fn attach(plane: &mut LoadedPlane, left: &Interface, right: &Interface) {
    plane.attach(0, left.index, left.mac).unwrap();
    plane.attach(1, right.index, right.mac).unwrap();
}

/// Packets that the CPUs' backlogs, which all namespaces share, had no room for.
fn backlog_drops() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let dropped = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    dropped.map(|field| u64::from_str_radix(field, 16).unwrap()).sum()
}

#[test]
fn programs_are_replaced_under_traffic_and_no_packet_is_lost() {
    for mode in attach_modes() {
        in_namespace(move || {
            let rig = Rig::new(1, |options| options.attach = mode);
            put(&rig);
            let (near, far) = (Link::open("left-peer"), Link::open("right-peer"));
            let Rig { plane, mut options, left, right, .. } = rig;
            let frame = Packet::new(key()).to(left.mac).frame();
            drop(plane);
            let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
            let uncertain = AtomicU64::new(0);
            std::thread::scope(|scope| {
                // One packet at a time: each has to arrive before the next one leaves.
                let traffic = scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let dropped = backlog_drops();
                        near.send(&Vnet::default(), &frame);
                        let arrived = std::iter::from_fn(|| far.receive()).find(|(_, frame)| frame[..12] == NEXT_HOP);
                        if arrived.is_none() && backlog_drops() != dropped {
                            // Perhaps dropped for other tests' packets, on its way in or out.
                            uncertain.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        assert!(arrived.is_some(), "packet {} is lost", sent.load(Ordering::Relaxed));
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                });
                for round in 0..50 {
                    // Most times the programs are the same, every tenth time others are loaded (which takes long).
                    options.keep_ttl = round / 10 % 2 == 0;
                    let before = sent.load(Ordering::Relaxed);
                    let mut plane = adopted(&options);
                    attach(&mut plane, &left, &right);
                    plane.detach_others(&[left.index, right.index]).unwrap();
                    assert_eq!(attached(), attached_by(mode));
                    while sent.load(Ordering::Relaxed) < before + 20 && !traffic.is_finished() {
                        std::thread::yield_now();
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let plane = adopted(&options);
            let total = plane.totals(4).unwrap()[3].packets;
            let (sent, uncertain) = (sent.into_inner(), uncertain.into_inner());
            assert!((sent..=sent + uncertain).contains(&total), "{total} packets took the rule, {sent} arrived");
            let rules = plane.rules().unwrap();
            assert_eq!((rules.len(), rules[0].key), (1, key()));
            drop(plane);
            flush(&options.pin_directory, &options.instance).unwrap();
            assert_eq!(attached(), (0, 0));
        });
    }
}

#[test]
fn everything_stays_but_the_settings() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| {
            (options.rules_v4_max, options.rules_v6_max) = (100, 200);
            options.when_absent = Absent::Pass;
        });
        put(&rig);
        let send = |plane: &LoadedPlane, key| {
            let frame = Packet::new(key).to(rig.left.mac).frame();
            run(plane.ingress_program(), &frame, rig.left.index, Default::default()).unwrap().verdict
        };
        send(&rig.plane, key());
        let other = v4(CLIENT, 40_001, VIP, 80, Protocol::Tcp);
        assert_eq!(send(&rig.plane, other), REDIRECT);
        let events = rig.plane.events().unwrap();

        // Whether rules take their memory at once is no difference either.
        let options = ProgramOptions {
            rules_v4_max: 7,
            when_absent: Absent::DropAll,
            rules_v6_sparse: true,
            ..rig.options.clone()
        };
        let plane = adopted(&options);
        assert_eq!(plane.rules_max(), (100, 200), "the room there is");
        assert_eq!(plane.events().unwrap(), events);
        assert_eq!(plane.totals(4).unwrap()[3].packets, 1);
        assert_eq!(plane.slot(rig.left.index).unwrap(), Some(0));
        assert_eq!(plane.slot(rig.right.index).unwrap(), Some(1));
        assert_eq!(plane.slot(1).unwrap(), None);
        assert_eq!((plane.steering().key, plane.steering().workers), (KEY, 1));
        assert_eq!(send(&plane, other), REDIRECT, "the heart still beats, the ends are known");
        plane.control().heartbeat(hairpin_core::time::Time::ZERO);
        assert_eq!(send(&plane, other), SHOT, "the new setting");
        let again = adopted(&rig.options);
        assert_eq!(send(&again, other), OK);
        assert_eq!(send(&again, key()), REDIRECT);
        assert_eq!(again.rules().unwrap().len(), 1);
        assert_eq!(again.totals(4).unwrap()[3].packets, 2);

        again.control().known()[5].store(9, Ordering::Relaxed);
        again.control().forget_known();
        assert!(plane.control().known().iter().all(|cell| cell.load(Ordering::Relaxed) == 0));
        // An engine of the new process takes away what one of the old has installed.
        assert_eq!(again.remove_rules(&[key()]).unwrap(), 1);
    });
}

#[test]
fn frames_that_old_programs_pass_to_the_kernel_pass_new_ones() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mark = |plane: &LoadedPlane| {
            let mut frame = Packet::new(key()).frame();
            frame[..6].copy_from_slice(&[0x16, 0, 0, 0, 0, 0]);
            run(plane.worker_program(), &frame, rig.right.index, Default::default()).unwrap().mark
        };
        let old = mark(&rig.plane);
        assert_ne!(old, 0);
        let other = ProgramOptions { keep_ttl: true, ..rig.options.clone() };
        for options in [&rig.options, &other, &rig.options] {
            let plane = adopted(options);
            assert_eq!(mark(&plane), old);
            let frame = Packet::new(key()).to(rig.left.mac).frame();
            let buffer = crate::rig::Buffer { mark: old, ..Default::default() };
            let run = run(plane.ingress_program(), &frame, rig.left.index, buffer).unwrap();
            assert_eq!((run.verdict, run.mark), (OK, 0));
        }
    });
}

#[test]
fn what_is_not_understood_is_left_alone() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        put(&rig);
        let (options, path) = (&rig.options, rig.plane.pin_path().to_path_buf());
        let missing = ProgramOptions { instance: "never-was".to_string(), ..options.clone() };
        assert!(matches!(LoadedPlane::adopt(&missing, STEERING).unwrap(), AdoptedPrograms::Absent));
        assert!(
            LoadedPlane::adopt(&ProgramOptions { instance: "../x".to_string(), ..options.clone() }, STEERING).is_err()
        );

        let maps = rig.plane.maps();
        let control = maps.named("control").unwrap();
        let right = control.lookup(0u32.bytes(), MapFlags::ANY).unwrap().unwrap();
        let block = abi::ControlBlock::from_bytes(&right).unwrap();
        let with = |change: &dyn Fn(&mut abi::ControlBlock)| {
            let mut other = block;
            change(&mut other);
            control.update(0u32.bytes(), other.bytes(), MapFlags::ANY).unwrap();
            let why = refused(options);
            control.update(0u32.bytes(), &right, MapFlags::ANY).unwrap();
            why
        };
        assert!(with(&|block| block.abi_version += 1).contains("version"));
        assert!(with(&|block| block.abi_layout ^= 1).contains("layout"));
        assert!(with(&|block| block.network ^= 1).contains("network namespace"));
        let other_key = Steering::by_hash([1, 2], 1);
        let AdoptedPrograms::Incompatible(why) = LoadedPlane::adopt(options, other_key).unwrap() else { panic!() };
        assert!(why.contains("key"), "{why}");

        // A map that holds other elements, or is another kind of map, or is not there.
        let totals = path.join("maps/totals");
        let most = maps.named("totals").unwrap().max_entries();
        for (kind, value, entries, what) in [
            (MapType::PercpuArray, 24, most, "value size 24"),
            (MapType::PercpuArray, 16, 5, "size 5"),
            (MapType::Array, 16, most, "type"),
        ] {
            let sizes = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
                ..Default::default()
            };
            let mut other = MapHandle::create(kind, Some("totals"), 4, value, entries, &sizes).unwrap();
            std::fs::remove_file(&totals).unwrap();
            other.pin(&totals).unwrap();
            let why = refused(options);
            assert!(why.contains("totals") && why.contains(what), "{why}");
        }
        std::fs::remove_file(&totals).unwrap();
        assert!(refused(options).contains("map totals is not pinned"));
        MapHandle::try_from(maps.named("totals").unwrap()).unwrap().pin(&totals).unwrap();

        // All this has changed nothing.
        assert_eq!(attached(), attached_by(attach_modes()[0]));
        assert_eq!(adopted(options).rules().unwrap().len(), 1);

        // A process that died while it pinned or unpinned leaves nothing that counts, and `load` gets over it.
        std::fs::remove_file(path.join("maps/control")).unwrap();
        assert!(matches!(LoadedPlane::adopt(options, STEERING).unwrap(), AdoptedPrograms::Absent));
        let plane = LoadedPlane::load(options, STEERING).unwrap();
        assert!(plane.rules().unwrap().is_empty());
        assert_eq!(attached(), (0, 0));
    });
}

#[test]
fn a_swap_that_was_cut_short_is_done_again() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let path = rig.plane.pin_path().join("programs");
        let control = rig.plane.maps();
        let control = control.named("control").unwrap();
        let fingerprint = || {
            let block = control.lookup(0u32.bytes(), MapFlags::ANY).unwrap().unwrap();
            abi::ControlBlock::from_bytes(&block).unwrap()
        };
        let before = fingerprint();
        assert_ne!(before.programs, 0);
        // The process died after it had pinned one program beside the old one, or between two.
        let cut = abi::ControlBlock { programs: 0, ..before };
        control.update(0u32.bytes(), cut.bytes(), MapFlags::ANY).unwrap();
        std::fs::rename(path.join("hairpin_worker"), path.join("hairpin_worker-new")).unwrap();
        drop(adopted(&rig.options));
        assert_eq!(fingerprint().programs, before.programs);
        let mut names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let all = [
            "hairpin_check",
            "hairpin_ingress",
            "hairpin_worker",
            "hairpin_xdp",
            "rules_assign",
            "rules_put",
            "rules_sample",
            "rules_take",
        ];
        assert_eq!(names, all);
        // One is missing although all should be there.
        std::fs::remove_file(path.join("rules_take")).unwrap();
        drop(adopted(&rig.options));
        assert!(path.join("rules_take").exists());
    });
}

#[test]
fn attachments_change_with_the_configuration() {
    in_namespace(|| {
        let modes = attach_modes();
        let Rig { plane, mut options, left, right, .. } = Rig::new(2, |options| options.attach = attach_modes()[0]);
        drop(plane);
        // Another way of attaching: never both, never none for long.
        for mode in [AttachMode::Clsact, AttachMode::Auto, AttachMode::Tcx, AttachMode::Tcx, AttachMode::Auto] {
            if mode == AttachMode::Tcx && !modes.contains(&mode) {
                continue;
            }
            options.attach = mode;
            let mut plane = adopted(&options);
            attach(&mut plane, &left, &right);
            attach(&mut plane, &left, &right);
            let tcx = !matches!(mode, AttachMode::Clsact | AttachMode::Auto) || attached() == (1, 0);
            assert_eq!(attached(), if tcx { (1, 0) } else { (0, 1) });
            assert_eq!(plane.is_tcx(), Some(tcx));
        }
        // `left` is no longer wanted, nor are the workers' devices (both loopback here); a third one has come.
        command("ip", &["link", "add", "third", "type", "veth", "peer", "name", "third-peer"]);
        let third = Interface::by_name("third").unwrap();
        let mut plane = adopted(&options);
        plane.attach(1, right.index, right.mac).unwrap();
        plane.attach(2, third.index, third.mac).unwrap();
        plane.detach_others(&[right.index, third.index]).unwrap();
        assert_eq!(attached(), (0, 0));
        assert_eq!(plane.slot(left.index).unwrap(), None);
        assert_eq!((plane.slot(right.index).unwrap(), plane.slot(third.index).unwrap()), (Some(1), Some(2)));
        let element = |map: &str, index: u32| {
            let value = plane.maps().named(map).unwrap().lookup(index.bytes(), MapFlags::ANY).unwrap().unwrap();
            u32::from_bytes(&value).unwrap()
        };
        assert_eq!([0, 1, 2].map(|slot| element("interfaces", slot)), [0, right.index, third.index]);
        assert_eq!([0, 1].map(|worker| element("workers", worker)), [0, 0]);

        // A device that has gone, and one that has come under its number.
        drop(plane);
        command("ip", &["link", "delete", "third"]);
        let index = third.index.to_string();
        let line = ["link", "add", "other", "index", &index, "type", "veth", "peer", "name", "other-peer"];
        command("ip", &line);
        let other = Interface::by_name("other").unwrap();
        let mut plane = adopted(&options);
        plane.attach(1, right.index, right.mac).unwrap();
        plane.attach(2, other.index, other.mac).unwrap();
        drop(plane);
        command("ip", &["link", "delete", "other"]);
        let mut plane = adopted(&options);
        plane.attach(1, right.index, right.mac).unwrap();
        plane.detach_others(&[right.index]).unwrap();
        plane.detach().unwrap();
    });
}

#[test]
fn a_qdisc_of_our_own_is_still_known_to_be_after_adoptions() {
    in_namespace(|| {
        let Rig { plane, options, left, right, .. } = Rig::new(1, |options| options.attach = AttachMode::Clsact);
        drop(plane);
        for _ in 0..3 {
            attach(&mut adopted(&options), &left, &right);
        }
        // The test deletes our qdisc; it is made anew.
        command("tc", &["qdisc", "delete", "dev", "left", "clsact"]);
        attach(&mut adopted(&options), &left, &right);
        assert_eq!(attached(), (0, 1));
        adopted(&options).detach().unwrap();
        let no_qdisc = || {
            for device in ["left", "right"] {
                let qdiscs = command("tc", &["qdisc", "show", "dev", device]);
                assert!(!qdiscs.contains("clsact"), "{qdiscs}");
            }
        };
        no_qdisc();
        // A qdisc that was there before is not ours. The test deletes it; the one made anew is ours.
        command("tc", &["qdisc", "add", "dev", "left", "clsact"]);
        attach(&mut LoadedPlane::load(&options, STEERING).unwrap(), &left, &right);
        attach(&mut adopted(&options), &left, &right);
        command("tc", &["qdisc", "delete", "dev", "left", "clsact"]);
        attach(&mut adopted(&options), &left, &right);
        assert_eq!(attached(), (0, 1));
        adopted(&options).detach().unwrap();
        no_qdisc();
    });
}

#[test]
fn ends_of_an_earlier_configuration_go() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let plane = adopted(&rig.options);
        let count = |map: &str| plane.maps().named(map).unwrap().keys().count();
        assert_eq!((count("ends"), count("addresses")), (8, 3));
        let mut less = snapshot();
        less.services = less.services[..1].to_vec().into();
        plane.configure(&less).unwrap();
        assert_eq!((count("ends"), count("addresses")), (2, 1));
        // There are as many ends as there is room for, and all of them are replaced by others.
        let ends = plane.maps();
        let ends = ends.named("ends").unwrap();
        let start = Instant::now();
        for number in 2..ends.max_entries() {
            let mut end = abi::EndKey::zeroed();
            end.address[..4].copy_from_slice(&number.to_ne_bytes());
            ends.update(end.bytes(), abi::EndRoles::zeroed().bytes(), MapFlags::ANY).unwrap();
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        plane.configure(&snapshot()).unwrap();
        assert_eq!((count("ends"), count("addresses")), (8, 3));
    });
}

#[test]
fn the_number_of_workers_changes_when_it_is_said_to() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let workers = || -> Vec<usize> {
            let before = rig.tickets();
            for port in 0..64 {
                let key = v4(CLIENT, 50_000 + port, VIP, 80, Protocol::Tcp);
                rig.ingress(&Packet::new(key).to(rig.left.mac).frame());
            }
            let after = rig.tickets();
            (0..abi::WORKERS_MAX).filter(|&worker| after[worker] != before[worker]).collect()
        };
        assert_eq!(workers(), [0]);
        let more = Steering::by_hash(KEY, 3);
        let AdoptedPrograms::Plane(plane) = LoadedPlane::adopt(&rig.options, more).unwrap() else { panic!() };
        for worker in 1..3u32 {
            rig.write("workers", &worker, &1u32);
        }
        assert_eq!(workers(), [0], "not yet");
        plane.steer(more).unwrap();
        assert_eq!(workers(), [0, 1, 2]);
        assert_eq!(plane.steering().workers, 3);
        assert!(plane.steer(Steering::by_hash(KEY, 0)).is_err());
    });
}

/// The process died with packets in its hands: their tickets are never published.
#[test]
fn a_hand_over_does_not_wait_for_what_died_with_the_process() {
    in_namespace(|| {
        let rig = Rig::new(1, |options| options.handover_bound = Duration::from_secs(3600));
        let send = |plane: &LoadedPlane, port: u16| -> Option<(u8, u32)> {
            let frame = Packet::new(v4(CLIENT, port, VIP, 80, Protocol::Tcp)).to(rig.left.mac).frame();
            let run = run(plane.ingress_program(), &frame, rig.left.index, Default::default()).unwrap();
            let [0x0a, 0, cpu, a, b, c, ..] = run.frame[..] else { return None };
            Some((cpu, u32::from_be_bytes([0, a, b, c])))
        };
        for _ in 0..10 {
            send(&rig.plane, 1).expect("a miss");
        }
        rig.put(&rule(), 0, |_| ());
        send(&rig.plane, 40_000).expect("fenced");
        let plane = adopted(&rig.options);
        // The first packet of the new process's time takes the place of all that are lost.
        let (cpu, ticket) = send(&plane, 40_000).expect("still fenced");
        plane.control().publish(0, cpu, ticket);
        assert_eq!(send(&plane, 40_000), None, "it is done, so the rule takes over");
        // A rule that is put in now waits for nothing that is lost either.
        let fresh = v4(CLIENT, 40_001, VIP, 80, Protocol::Tcp);
        rig.put(&Rule { key: fresh, ..rule() }, 0, |_| ());
        assert_eq!(send(&plane, 40_001), None);
    });
}
