//! Loading, attaching, pinning, removing.

use crate::rig::{Rig, attach_modes, command, in_namespace, snapshot};
use hairpin_core::flow::Steering;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{AttachMode, LoadedPlane, PIN_DIRECTORY_OWN, ProgramOptions, flush};
use libbpf_rs::MapCore;
use std::path::Path;

/// Programs attached at the ingress of `left`: by tcx, by clsact.
pub(crate) fn attached() -> (u32, usize) {
    let left = Interface::by_name("left").unwrap();
    let mut found =
        libbpf_sys::bpf_prog_query_opts { sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _, ..Default::default() };
    // SAFETY: the options live through the call and ask for no arrays.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(left.index as i32, libbpf_sys::BPF_TCX_INGRESS, &mut found) };
    let tcx = if attach_modes().contains(&AttachMode::Tcx) {
        assert_eq!(result, 0);
        // SAFETY: the number of programs is what this query fills in.
        unsafe { found.__bindgen_anon_1.count }
    } else {
        assert!(result < 0);
        0
    };
    (tcx, command("tc", &["filter", "show", "dev", "left", "ingress"]).matches("direct-action").count())
}

pub(crate) fn attached_by(mode: AttachMode) -> (u32, usize) {
    if mode == AttachMode::Tcx { (1, 0) } else { (0, 1) }
}

#[test]
fn everything_is_pinned_and_all_of_it_goes() {
    for mode in attach_modes() {
        in_namespace(move || {
            let Rig { plane, .. } = Rig::new(1, |options| options.attach = mode);
            let path = plane.pin_path().to_path_buf();
            for part in
                ["maps/rules_v4", "maps/control", "maps/known", "programs/hairpin_ingress", "programs/rules_take"]
            {
                assert!(path.join(part).exists(), "{part}");
            }
            assert_eq!(plane.is_tcx(), Some(mode == AttachMode::Tcx));
            assert_eq!(attached(), attached_by(mode));
            plane.detach().unwrap();
            assert!(!path.exists());
            assert_eq!(attached(), (0, 0));
            let qdiscs = command("tc", &["qdisc", "show", "dev", "left"]);
            assert!(!qdiscs.contains("clsact"), "{qdiscs}");
        });
    }
}

#[test]
fn dead_instance_objects_work_until_removed() {
    for mode in attach_modes() {
        in_namespace(move || {
            let directory = Path::new("/no/such/place");
            let options = |options: &mut ProgramOptions| {
                options.attach = mode;
                options.instance = "dead".to_string();
                options.pin_directory = directory.to_path_buf();
            };
            let Rig { plane, left, .. } = Rig::new(1, options);
            let path = plane.pin_path().to_path_buf();
            assert!(path.starts_with(PIN_DIRECTORY_OWN));
            drop(plane);
            assert!(path.exists());
            assert_eq!(attached(), attached_by(mode), "it goes on without its process");

            let mut again = ProgramOptions::default();
            options(&mut again);
            let mut plane = LoadedPlane::load(&again, Steering::by_hash([1, 2], 1)).unwrap();
            assert_eq!(attached(), (0, 0));
            plane.attach(0, left.index, left.mac).unwrap();
            assert_eq!(attached(), attached_by(mode));
            drop(plane);

            flush(directory, "dead").unwrap();
            assert!(!path.exists());
            assert_eq!(attached(), (0, 0));
            assert!(!Path::new(PIN_DIRECTORY_OWN).exists(), "the file system it mounted is gone too");
            flush(directory, "dead").unwrap();
            flush(directory, "never-was").unwrap();
        });
    }
}

#[test]
fn filters_of_other_programs_stay() {
    in_namespace(|| {
        let Rig { plane, .. } = Rig::new(1, |options| options.attach = AttachMode::Clsact);
        let filter = [
            "filter", "add", "dev", "left", "egress", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid",
            "1:1",
        ];
        command("tc", &filter);
        plane.detach().unwrap();
        let qdiscs = command("tc", &["qdisc", "show", "dev", "left"]);
        assert!(qdiscs.contains("clsact"), "{qdiscs}");
        assert!(command("tc", &["filter", "show", "dev", "left", "egress"]).contains("u32"));
        assert!(!command("tc", &["filter", "show", "dev", "left", "ingress"]).contains("hairpin"));
    });
}

#[test]
fn a_new_configuration_replaces_the_old() {
    in_namespace(|| {
        let Rig { plane, .. } = Rig::new(1, |_| ());
        let count = |plane: &LoadedPlane, map: &str| plane.maps().named(map).unwrap().keys().count();
        assert_eq!((count(&plane, "ends"), count(&plane, "addresses")), (8, 3));
        let mut less = snapshot();
        less.services = less.services[..1].to_vec().into();
        plane.configure(&less).unwrap();
        assert_eq!((count(&plane, "ends"), count(&plane, "addresses")), (2, 1));
        plane.configure(&snapshot()).unwrap();
        assert_eq!((count(&plane, "ends"), count(&plane, "addresses")), (8, 3));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    in_namespace(|| {
        let steering = |workers| Steering::by_hash([1, 2], workers);
        let bad = ProgramOptions { instance: "../elsewhere".to_string(), ..ProgramOptions::default() };
        assert!(LoadedPlane::load(&bad, steering(1)).is_err());
        assert!(LoadedPlane::load(&ProgramOptions::default(), steering(0)).is_err());
        assert!(LoadedPlane::load(&ProgramOptions::default(), steering(65)).is_err());
        let mut plane = LoadedPlane::load(&ProgramOptions::default(), steering(1)).unwrap();
        assert!(plane.attach(64, 1, [0; 6]).is_err());
        let error = plane.attach(0, 4_000_000, [0; 6]).unwrap_err();
        assert!(format!("{error:#}").contains("4000000"), "{error:#}");
        plane.detach().unwrap();
    });
}
