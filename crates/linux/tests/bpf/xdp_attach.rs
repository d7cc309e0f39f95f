//! The XDP program on devices: attached, refused, taken over, removed; and that the kernel sends what it redirects.

use crate::adoption::adopted;
use crate::rig::{Rig, command, in_namespace};
use hairpin_linux::abi::Bytes;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{LoadedPlane, flush, has_whole_checksums};
use libbpf_rs::MapCore;

/// The number of the XDP program in the driver of `device`; 0: none.
fn program_of(device: &str) -> u32 {
    let mut number = 0;
    let index = Interface::by_name(device).unwrap().index as i32;
    // SAFETY: the number is written, and lives through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query_id(index, libbpf_sys::XDP_FLAGS_DRV_MODE as i32, &mut number) };
    assert_eq!(result, 0);
    number
}

fn programs() -> [bool; 2] {
    ["left", "right"].map(|device| program_of(device) != 0)
}

fn devices(plane: &LoadedPlane) -> Vec<u32> {
    let mut found: Vec<u32> =
        plane.maps().named("devices").unwrap().keys().filter_map(|key| u32::from_bytes(&key)).collect();
    found.sort_unstable();
    found
}

/// Lets the other end of a pair poll, which frames that are redirected need.
fn poll(device: &str) {
    command("ethtool", &["-K", &format!("{device}-peer"), "gro", "on"]);
}

fn both(rig: &Rig) -> [(u32, Interface); 2] {
    [(0, rig.left.clone()), (1, rig.right.clone())]
}

#[test]
fn xdp_is_attached_to_all_interfaces_or_none() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |_| ());
        let interfaces = both(&rig);
        poll("left");
        // Before Linux 6.3 the kernel does not tell that the other end does not poll.
        let says = |error: anyhow::Error, words: &str| {
            let error = format!("{error:#}");
            assert!(error.contains(words), "{error}");
        };
        let refused = rig.plane.attach_xdp(&interfaces);
        if let Err(error) = refused {
            says(error, "interface right: the other end of the pair does not poll");
            assert_eq!((programs(), rig.plane.is_xdp()), ([false, false], false));
        }
        poll("right");
        rig.plane.attach_xdp(&interfaces).unwrap();
        assert_eq!((programs(), rig.plane.is_xdp()), ([true, true], true));
        assert_eq!(devices(&rig.plane), [rig.left.index, rig.right.index]);
        rig.plane.attach_xdp(&interfaces).unwrap();
        rig.plane.detach_xdp().unwrap();
        assert_eq!((programs(), rig.plane.is_xdp(), devices(&rig.plane).len()), ([false, false], false, 0));

        // The kernel's own words, and another program's place.
        let lo = Interface::by_name("lo").unwrap();
        says(
            rig.plane.attach_xdp(&[(2, lo)]).unwrap_err(),
            "interface lo: its driver does not run XDP programs natively",
        );
        command("ip", &["link", "add", "many", "numtxqueues", "4", "type", "veth", "peer", "name", "one"]);
        let one = Interface::by_name("one").unwrap();
        says(rig.plane.attach_xdp(&[(2, one)]).unwrap_err(), "rx queues not less than peer tx queues");
        let other = std::os::fd::AsRawFd::as_raw_fd(&rig.plane.xdp_program());
        // SAFETY: the descriptor is open, there are no options.
        let attached = unsafe { libbpf_sys::bpf_xdp_attach(rig.right.index as i32, other, 4, std::ptr::null()) };
        assert_eq!(attached, 0);
        says(rig.plane.attach_xdp(&interfaces).unwrap_err(), "interface right: another XDP program is attached");
        assert_eq!((programs(), rig.plane.is_xdp()), ([false, true], false));
        assert!(!has_whole_checksums(&rig.left));
        rig.plane.detach().unwrap();
    });
}

#[test]
fn xdp_links_are_taken_over_and_go_with_everything() {
    in_namespace(|| {
        let mut rig = Rig::new(1, |_| ());
        let interfaces = both(&rig);
        poll("left");
        poll("right");
        rig.plane.attach_xdp(&interfaces).unwrap();
        let Rig { plane, options, left, right, .. } = rig;
        let path = plane.pin_path().to_path_buf();
        drop(plane);
        assert_eq!(programs(), [true, true], "it goes on without its process");
        assert!(path.join(format!("links/xdp-{}", left.index)).exists());

        // The same program, and one of a build that differs.
        for keep_ttl in [false, true] {
            let options = hairpin_linux::programs::ProgramOptions { keep_ttl, ..options.clone() };
            let mut plane = adopted(&options);
            let before = program_of("left");
            plane.attach(0, left.index, left.mac).unwrap();
            plane.attach(1, right.index, right.mac).unwrap();
            plane.attach_xdp(&interfaces).unwrap();
            assert_eq!(program_of("left") != before, keep_ttl);
            assert_eq!(devices(&plane), [left.index, right.index]);
        }
        // An interface that the configuration has no longer.
        let mut plane = adopted(&options);
        plane.attach(1, right.index, right.mac).unwrap();
        plane.attach_xdp(&interfaces[1..]).unwrap();
        plane.detach_others(&[right.index]).unwrap();
        assert_eq!((programs(), devices(&plane)), ([false, true], vec![right.index]));
        // A device that is gone, and its namesake.
        drop(plane);
        command("ip", &["link", "delete", "right"]);
        let mut plane = adopted(&options);
        plane.attach(0, left.index, left.mac).unwrap();
        plane.attach_xdp(&interfaces[..1]).unwrap();
        plane.detach_others(&[left.index]).unwrap();
        drop(plane);
        flush(&options.pin_directory, &options.instance).unwrap();
        assert_eq!(program_of("left"), 0);
        assert!(!path.exists());
    });
}
