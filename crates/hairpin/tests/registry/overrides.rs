//! Overrides of backends.

use super::{Place, Plan, change, config, merged, plan, state};
use hairpin::control::BackendAction;
use hairpin::registry::Registry;
use hairpin_core::config::BackendState;
use std::collections::BTreeMap;

#[test]
fn an_override_holds_until_it_is_taken_back() {
    let mut registry = Registry::default();
    let file = config(&plan(&[(80, &[1, 2])]));
    merged(&mut registry, &file, 0);
    let set = |registry: &mut Registry, backend: &str, action| {
        registry.set(&change("s80", backend, action), &file).unwrap_or_else(|error| format!("error: {error:#}"))
    };
    let until = "this holds until it is reset, or the configuration says something else about it";
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Drain),
        format!(
            "service s80: backend b2: enabled, weight 1 -> drain, weight 1; its connections go on for up to 1h; {until}"
        )
    );
    assert!(registry.overridden(1) && !registry.overridden(0) && !registry.overridden(9));
    let place = Place::new("overridden");
    registry.save(&place.file()).unwrap();
    let mut registry = Registry::load(&place.file()).unwrap();
    assert_eq!(state(&merged(&mut registry, &file, 7), 1), Some((BackendState::Draining, 1)));
    assert_eq!(registry.draining_since(1), Some(7));
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Drain),
        "service s80: backend b2 is so already: drain, weight 1"
    );
    assert_eq!(
        set(&mut registry, "10.0.0.1:2", BackendAction::Weight(4)),
        format!("service s80: backend b2: drain, weight 1 -> drain, weight 4; round-robin ignores weights; {until}")
    );
    assert_eq!(state(&merged(&mut registry, &file, 8), 1), Some((BackendState::Draining, 4)));
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Disable),
        format!("service s80: backend b2: drain, weight 4 -> disabled, weight 4; its connections are ended; {until}")
    );
    assert_eq!(state(&merged(&mut registry, &file, 9), 1), Some((BackendState::Disabled, 4)));
    assert_eq!(registry.draining_since(1), None);
    // The configuration says the same again: only the weight is overridden now.
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Enable),
        format!("service s80: backend b2: disabled, weight 4 -> enabled, weight 4; {until}")
    );
    assert!(registry.overridden(1));
    merged(&mut registry, &file, 10);
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Weight(1)),
        "service s80: backend b2: enabled, weight 4 -> enabled, weight 1; round-robin ignores weights; that is what \
         the configuration says"
    );
    assert!(!registry.overridden(1));
    merged(&mut registry, &file, 11);
    set(&mut registry, "b1", BackendAction::Disable);
    merged(&mut registry, &file, 12);
    assert_eq!(
        set(&mut registry, "b1", BackendAction::Reset),
        "service s80: backend b1 is as the configuration says again: enabled, weight 1"
    );
    assert_eq!(state(&merged(&mut registry, &file, 13), 0), Some((BackendState::Enabled, 1)));
    assert_eq!(
        set(&mut registry, "b1", BackendAction::Reset),
        "service s80: backend b1 is as the configuration says already: enabled, weight 1"
    );
}

#[test]
fn override_ends_when_the_configuration_changes() {
    let with = |text: &'static str| config(&Plan::from([(80, BTreeMap::from([(1, text), (2, "")]))]));
    let mut registry = Registry::default();
    merged(&mut registry, &with("weight = 2"), 0);
    registry.set(&change("s80", "b1", BackendAction::Drain), &with("weight = 2")).unwrap();
    // Something else about another backend does not end it.
    let other = config(&plan(&[(80, &[1, 2, 3])]));
    let mut elsewhere = registry.clone();
    assert!(merged(&mut registry, &with("weight = 2"), 1).notes.is_empty());
    assert!(registry.overridden(0));
    let ended = merged(&mut elsewhere, &other, 1);
    assert_eq!(state(&ended, 0), Some((BackendState::Enabled, 1)));
    assert_eq!(
        ended.notes,
        ["service s80: backend b1 is as the configuration says again (enabled, weight 1); the override has ended"]
    );
    assert!(!elsewhere.overridden(0));
    // Nor does it outlive a removal.
    merged(&mut registry, &config(&plan(&[(80, &[2])])), 2);
    assert!(!registry.overridden(0));
    assert_eq!(state(&merged(&mut registry, &with("weight = 2"), 3), 0), Some((BackendState::Enabled, 2)));
}

#[test]
fn unknown_names_name_the_nearest() {
    let mut registry = Registry::default();
    let file = config(&plan(&[(80, &[1, 2]), (8080, &[3])]));
    let mut said = |service: &str, backend: &str| {
        registry.set(&change(service, backend, BackendAction::Drain), &file).unwrap_err().to_string()
    };
    assert_eq!(said("s8008", "b1"), "there is no service \"s8008\"; did you mean s8080?");
    assert_eq!(said("mail", "b1"), "there is no service \"mail\"; there are: s80, s8080");
    assert_eq!(said("s80", "c1"), "service s80 has no backend \"c1\"; did you mean b1?");
    assert_eq!(said("s80", "10.0.0.1:3"), "service s80 has no backend \"10.0.0.1:3\"; there are: b1, b2");
    assert_eq!(said("s80", "b1"), "backend b1 of service s80 has no number yet; reload first");
}
