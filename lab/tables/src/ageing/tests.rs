//! Every mechanism against a plain list of entries and their deadlines.

#[path = "../../../../crates/core/src/table/ageing/tests/model.rs"]
mod model;

use super::buckets::{BucketStamps, Indexed};
use super::{Ageing, Deadlines, JUDGED_MAX, SlabSweep, Wheel};
use arrayvec::ArrayVec;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::{Hash, Hasher, Position, Table};
use hairpin_core::time::{Duration, Time};
use model::{GRANULARITY, Model, Op, POSITIONS, after_silence, all_agree, extremes, op, starve};
use proptest::prelude::*;

/// Entries whose keys follow from their positions.
struct Keyed<'a, D>(&'a D);

impl<D: Deadlines> Deadlines for Keyed<'_, D> {
    fn deadline(&self, position: Position) -> Option<Time> {
        self.0.deadline(position)
    }
}

impl<D: Deadlines> Indexed<Hash> for Keyed<'_, D> {
    fn key(&self, position: Position) -> Hash {
        // Scattered, and the same in every run.
        Hash((u64::from(position) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Bucket stamps with a table of their own, which is nearly full when all entries are there.
struct Buckets {
    table: CuckooPlusPlus,
    stamps: BucketStamps,
}

impl Ageing for Buckets {
    fn name(&self) -> &'static str {
        "bucket-stamps"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn late_max(&self) -> Duration {
        // One more than without displacement, which is as often as it happens here in a row.
        Duration::from_nanos(3 * GRANULARITY)
    }

    fn started(&mut self, position: Position, deadline: Time) {
        let (key, stamp) = (Keyed(&Model::default()).key(position), self.stamps.stamp(deadline));
        if !self.table.restamp(&key, 2 * position, stamp) {
            self.table.insert_stamped(&key, 2 * position, stamp).expect("room for all");
        }
    }

    fn ended(&mut self, position: Position) {
        self.table.remove(&Keyed(&Model::default()).key(position), 2 * position);
    }

    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool {
        let mut over = ArrayVec::<Position, 8>::new();
        let more = self.stamps.due(now, &mut self.table, &Keyed(entries), &mut over);
        over.iter().for_each(|&position| self.ended(position));
        // The room of the tests is smaller than a bucket.
        assert!(over.len() <= out.remaining_capacity());
        out.extend(over);
        more
    }

    fn next(&self, now: Time) -> Option<Time> {
        // Sweeps are made whether there is anything or not.
        Some(now + Duration::from_nanos(GRANULARITY))
    }
}

fn buckets() -> Buckets {
    let table = CuckooPlusPlus::new(POSITIONS as usize, Hasher::new([1, 2, 3, 4]));
    Buckets { table, stamps: BucketStamps::new(Duration::from_nanos(GRANULARITY)) }
}

fn wheel() -> Wheel {
    Wheel::new(POSITIONS as usize, Duration::from_nanos(GRANULARITY), 64)
}

fn sweep() -> SlabSweep {
    SlabSweep::new(Duration::from_nanos(GRANULARITY))
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
        all_agree(wheel(), start, &ops);
        all_agree(sweep(), start, &ops);
        all_agree(buckets(), start, &ops);
    }
}

/// A block's earliest stamp must not be taken for a future one when it has grown old.
#[test]
fn models_agree_after_an_old_removal() {
    let ops = [Op::Start(1, 0), Op::End(1), Op::Due(16, 1), Op::Start(0, 0), Op::Drain(163_824)];
    all_agree(wheel(), 0, &ops);
    all_agree(sweep(), 0, &ops);
    all_agree(buckets(), 0, &ops);
}

#[test]
fn silence_is_made_good() {
    after_silence(wheel);
    after_silence(sweep);
    after_silence(buckets);
}

#[test]
fn extreme_times_are_survived() {
    extremes(Wheel::new(2, Duration::ZERO, 1));
    extremes(SlabSweep::new(Duration::ZERO));
    extremes(SlabSweep::new(Duration::from_nanos(100)));
}

#[test]
fn no_entry_starves() {
    starve(wheel());
    starve(sweep());
}
