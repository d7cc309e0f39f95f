//! The registry's file.

use super::{Place, change, config, merged, plan};
use hairpin::control::BackendAction;
use hairpin::registry::Registry;
use std::os::unix::fs::PermissionsExt;

#[test]
fn the_file_is_whole_and_for_root_only() {
    let place = Place::new("file");
    assert_eq!(format!("{:?}", Registry::load(&place.file()).unwrap()), format!("{:?}", Registry::default()));
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1])])), 0);
    // Remains of a process that died while it wrote do no harm.
    std::fs::write(place.0.join("default.numbers.new"), "{").unwrap();
    registry.save(&place.file()).unwrap();
    let mode = std::fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 1);
    registry.set(&change("s80", "b1", BackendAction::Drain), &config(&plan(&[(80, &[1])]))).unwrap();
    registry.save(&place.file()).unwrap();
    assert!(Registry::load(&place.file()).unwrap().overridden(0));
    // An upgrade from 0.1 keeps overrides, whose field had another name there.
    let text = std::fs::read_to_string(place.file()).unwrap();
    assert!(text.contains("\"overridden\""), "{text}");
    std::fs::write(place.file(), text.replace("\"overridden\"", "\"by_hand\"")).unwrap();
    assert!(Registry::load(&place.file()).unwrap().overridden(0));
    let nowhere = place.0.join("none/x.numbers");
    assert!(format!("{:#}", registry.save(&nowhere).unwrap_err()).starts_with("cannot write "));
}

#[test]
fn a_file_that_is_not_right_is_refused() {
    let place = Place::new("nonsense");
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1, 2]), (81, &[1])])), 0);
    registry.save(&place.file()).unwrap();
    let good = std::fs::read_to_string(place.file()).unwrap();
    let refused = |text: &str| {
        assert_ne!(text, good);
        std::fs::write(place.file(), text).unwrap();
        let error = format!("{:#}", Registry::load(&place.file()).unwrap_err());
        let remedy = format!(
            "cannot use {}, which says to what service and backend connections belong; run the version of Hairpin that \
             has written it, or give those connections up: hairpin run --discard: ",
            place.file().display()
        );
        error.strip_prefix(&remedy).unwrap_or_else(|| panic!("{error}")).to_string()
    };
    refused("");
    refused(&good[..good.len() / 2]);
    assert_eq!(refused("{\"version\":2}"), "it has form 2, this version of Hairpin knows form 1");
    assert!(refused(&good.replace("\"tcp\"", "\"sctp\"")).starts_with("\"sctp\" is none of the words for this"));
    assert!(refused(&good.replace("10.0.0.1:2", "10.0.0.1:x")).starts_with("invalid socket address syntax"));
    assert_eq!(refused(&good.replace("10.0.0.1:2", "10.0.0.1:1")), "backend 1 (b2) is in service s80 twice");
    assert_eq!(refused(&good.replace("192.0.2.1:81", "192.0.2.1:80")), "service 1 (s81) is in it twice");
    assert_eq!(
        refused(&good.replace("{\"service\":1", "{\"service\":7")),
        "backend 2 (b1) belongs to service 7, which it lacks"
    );
    assert_eq!(
        refused(&good.replace("\"backends_used\":3", "\"backends_used\":2")),
        "it has numbers beyond those it counts"
    );
    assert_eq!(
        refused(&good.replace("\"services_used\":2", "\"services_used\":1025")),
        "it counts more numbers than there are"
    );
    assert_eq!(refused(&format!("{good}{}", " ".repeat(16 << 20))), "it has more than 16777216 bytes");
}
