//! Drawn lives: configurations, connections, time, restarts and overrides in any order.

use super::{Place, Plan, change, config, no_connections, numbers, plan};
use hairpin::control::BackendAction;
use hairpin::registry::{KEPT_S, Registry};
use hairpin_core::config::{BackendState, ServiceState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The next step of a drawn life.
#[derive(Clone, Debug)]
enum Step {
    /// Services (80 to 83) and backends (1 to 4) of a configuration, as bits, four for each service.
    Configure(u16),
    /// Backends that have connections from now on, as bits like above; those of backends that take none only end.
    Connect(u16),
    /// Seconds pass.
    Wait(u64),
    /// The process is restarted.
    Restart,
    /// A backend is overridden, named like a bit.
    ByHand(u8, BackendAction),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        Just(BackendAction::Enable),
        Just(BackendAction::Drain),
        Just(BackendAction::Disable),
        (0..3u16).prop_map(BackendAction::Weight),
        Just(BackendAction::Reset),
    ];
    let step = prop_oneof![
        4 => any::<u16>().prop_map(Step::Configure),
        3 => any::<u16>().prop_map(Step::Connect),
        2 => (0..100u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        2 => (0..16u8, action).prop_map(|(bit, action)| Step::ByHand(bit, action)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A service's and a backend's port.
fn ends(bit: u16) -> (u16, u16) {
    (80 + bit / 4, 1 + bit % 4)
}

fn of_bits(bits: u16) -> Option<Plan> {
    let mut plan = Plan::new();
    for (service, backend) in (0..16).filter(|bit| bits & (1 << bit) != 0).map(ends) {
        plan.entry(service).or_default().insert(backend, "");
    }
    (!plan.is_empty()).then_some(plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Over any life: numbers are unique, stay as long as they are needed, are never given to another
    /// before they are freed, and none stays that is not needed.
    #[test]
    fn numbers_are_kept_over_any_life(steps in steps()) {
        let place = Place::new("life");
        let mut registry = Registry::default();
        let mut file = config(&plan(&[(80, &[1])]));
        let mut wanted = plan(&[(80, &[1])]);
        let mut connected: BTreeSet<(u16, u16)> = BTreeSet::new();
        let mut known: BTreeMap<(u16, u16), (u16, u16)> = BTreeMap::new();
        let mut had: BTreeSet<u16> = BTreeSet::new();
        let mut now = 1_000;
        for step in steps {
            match step {
                Step::Configure(bits) => if let Some(plan) = of_bits(bits) {
                    file = config(&plan);
                    wanted = plan;
                },
                Step::Connect(bits) => {
                    let chosen: BTreeSet<_> = (0..16).filter(|bit| bits & (1 << bit) != 0).map(ends).collect();
                    connected = known.keys().copied().filter(|end| chosen.contains(end)).collect();
                }
                Step::Wait(seconds) => now += seconds,
                Step::Restart => {
                    registry.save(&place.file()).unwrap();
                    let loaded = Registry::load(&place.file()).unwrap();
                    prop_assert_eq!(format!("{loaded:?}"), format!("{registry:?}"));
                    registry = loaded;
                }
                Step::ByHand(bit, action) => {
                    let (service, backend) = ends(bit.into());
                    let change = change(&format!("s{service}"), &format!("b{backend}"), action);
                    let is_known = known.contains_key(&(service, backend));
                    let is_there = wanted.get(&service).is_some_and(|backends| backends.contains_key(&backend));
                    prop_assert_eq!(registry.set(&change, &file).is_ok(), is_known && is_there);
                }
            }
            let busy: BTreeSet<u16> = connected.iter().map(|end| known[end].1).collect();
            let counts = |number: u16| u64::from(busy.contains(&number));
            let merged = registry.merge(&file, &counts, now).unwrap();
            let found = numbers(&merged.snapshot);
            let unique: BTreeSet<u16> = found.values().map(|(_, number)| *number).collect();
            prop_assert_eq!(unique.len(), found.len());
            for (end, number) in &found {
                // As before, or new and never given before.
                match known.get(end) {
                    Some(before) if !merged.freed_backends.contains(&before.1) => prop_assert_eq!(before, number),
                    _ => prop_assert!(!had.contains(&number.1)),
                }
                let (service, backend) = merged.snapshot.backend(number.1).unwrap();
                let configured = wanted.get(&end.0).is_some_and(|backends| backends.contains_key(&end.1));
                prop_assert_eq!(configured, backend.state != BackendState::Removed);
                prop_assert_eq!(wanted.contains_key(&end.0), service.state == ServiceState::Active);
                prop_assert_eq!(wanted.contains_key(&end.0), merged.settings[usize::from(number.0)].is_some());
            }
            let lost = |end: &(u16, u16)| !found.contains_key(end);
            prop_assert!(!connected.iter().any(lost), "a backend with connections has lost its number");
            let configured = || wanted.iter().flat_map(|(s, backends)| backends.keys().map(move |b| (*s, *b)));
            prop_assert!(!configured().any(|end| lost(&end)));
            for end in known.keys().filter(|end| lost(end)) {
                prop_assert!(merged.freed_backends.contains(&known[end].1));
            }
            had.extend(unique);
            known = found;
        }
        // In the end nothing is left but what is configured.
        registry.merge(&file, &no_connections, now + KEPT_S).unwrap();
        let last = registry.merge(&file, &no_connections, now + KEPT_S).unwrap();
        let left: BTreeSet<(u16, u16)> = numbers(&last.snapshot).into_keys().collect();
        let configured = wanted.iter().flat_map(|(s, backends)| backends.keys().map(move |b| (*s, *b)));
        prop_assert_eq!(left, configured.collect());
        prop_assert!(!registry.frees_now(&no_connections, u64::MAX));
    }
}
