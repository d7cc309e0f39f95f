//! Stamps against a plain list of entries and their deadlines.

mod model;

use super::{Ageing, Deadlines, JUDGED_MAX, Stamps};
use crate::table::Position;
use crate::time::{Duration, Time};
use model::{GRANULARITY, Op, POSITIONS, Pair, after_silence, all_agree, extremes, op, starve};
use proptest::prelude::*;

fn stamps() -> Stamps {
    Stamps::new(POSITIONS as usize, Duration::from_nanos(GRANULARITY))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 700,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agree_with_a_list(start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
                         ops in prop::collection::vec(op(), 1..150)) {
        all_agree(stamps(), start, &ops);
    }
}

/// A block's earliest stamp must not be taken for a future one when it has grown old.
#[test]
fn models_agree_after_an_old_removal() {
    let ops = [Op::Start(1, 0), Op::End(1), Op::Due(16, 1), Op::Start(0, 0), Op::Drain(163_824)];
    all_agree(stamps(), 0, &ops);
}

#[test]
fn silence_is_made_good() {
    after_silence(stamps);
}

#[test]
fn extreme_times_are_survived() {
    extremes(Stamps::new(2, Duration::ZERO));
    extremes(Stamps::new(2, Duration::MAX));
}

/// Entries beyond the reach of a stamp are asked about once per reach, and no sweep is made in between.
#[test]
fn far_deadlines_cost_little() {
    let mut pair = Pair::new(stamps(), 0);
    let far = (GRANULARITY << 14) * 10;
    for position in 0..10 {
        pair.start(position * 8, far);
    }
    let (mut wakes, mut asked) = (0, 0);
    while pair.now + 1000 * GRANULARITY < far {
        let next = pair.ageing.next(Time::from_nanos(pair.now)).expect("entries");
        assert!(next.as_nanos() > pair.now);
        pair.now = next.as_nanos();
        while pair.due() {}
        asked += pair.model.asked.get();
        wakes += 1;
    }
    assert!(wakes <= 11 && asked <= 110, "{wakes} wakes, {asked} questions");
}

/// A packet's entry is asked about once per timeout, not once per tick.
#[test]
fn what_goes_on_is_asked_seldom() {
    let mut pair = Pair::new(stamps(), 0);
    (0..POSITIONS).for_each(|position| pair.start(position, 100 * GRANULARITY));
    let mut asked = 0;
    for tick in 1..1000 {
        pair.now = tick * GRANULARITY;
        let seen = pair.now;
        pair.model.entries.values_mut().for_each(|entry| entry.deadline = seen + 100 * GRANULARITY);
        loop {
            let more = pair.due();
            asked += pair.model.asked.get();
            if !more {
                break;
            }
        }
    }
    assert!(asked <= 10 * POSITIONS as usize, "{asked} questions");
}

#[test]
fn no_entry_starves() {
    starve(stamps());
}
