//! One suite for all connection tables: agreement with an ordinary map, how far they fill, what an enemy can do.
// The rules of `core` are not for its tests: these start threads, and are told by the environment how long to run.
#![allow(clippy::disallowed_methods)]

mod attack;
mod faults;
mod filling;
mod model;
mod random;
mod scripts;
mod sharing;
mod stateless;

use hairpin_core::table::concurrent::Concurrent;
use hairpin_core::table::{Hasher, Key};
use hairpin_tables::global_lock::GlobalLock;
use hairpin_tables::two_choice::TwoChoice;
use hairpin_tables::{OwnMethod, OwnTable};
use model::{ModelTest, Subject};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::fmt::Debug;
use std::sync::Arc;

/// Scripts for every kind of key; `HAIRPIN_TABLE_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("HAIRPIN_TABLE_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(if cfg!(miri) { 2 } else { 150 })
}

/// A table that `tables` makes for a capacity, as that many views, agrees with a map, whatever a script does to it.
fn agree<K, T, S>(name: &str, views: usize, keys: S, may_refuse: bool, tables: impl Fn(usize, Hasher) -> Vec<T>)
where
    K: Key + Ord + Debug,
    T: Subject<K>,
    S: Strategy<Value = Vec<K>>,
{
    let config = ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
    let input = (1usize..80, prop::array::uniform4(any::<u64>()), keys, scripts::ops());
    let value_max = ((1u64 << 32) / views as u64 - 1) as u32;
    let done = TestRunner::new(config).run(&input, |(capacity, secret, keys, ops)| {
        let mut model_test = ModelTest::new(tables(capacity, Hasher::new(secret)), keys, value_max, may_refuse);
        for (view, op) in &ops {
            model_test.apply(*view, op);
        }
        model_test.check();
        Ok(())
    });
    if let Err(failure) = done {
        panic!("{name}, {views} views: {failure}");
    }
}

/// The tables of `views` workers, in the hands of one script.
fn agrees<K, S>(method: OwnMethod, views: usize, keys: S, may_refuse: bool)
where
    K: Key + Ord + Debug,
    S: Strategy<Value = Vec<K>>,
{
    agree(method.name(), views, keys, may_refuse, |capacity, hasher| {
        OwnTable::for_workers(method, views, capacity.div_ceil(views), hasher)
    });
}

fn agrees_on_all_keys(method: OwnMethod) {
    let views: &[usize] = if method.is_shared() { &[1, 3] } else { &[1] };
    for &views in views {
        // Views that hold the same keys fill few buckets with them, as an enemy would.
        let may_refuse = views > 1;
        agrees(method, views, scripts::flows(), may_refuse);
        agrees(method, views, scripts::bytes::<13>(), may_refuse);
        agrees(method, views, scripts::bytes::<16>(), may_refuse);
        agrees(method, views, scripts::bytes::<37>(), may_refuse);
        agrees(method, views, scripts::hashes(), true);
    }
}

#[test]
fn two_choice_agrees_with_a_map() {
    agrees_on_all_keys(OwnMethod::TwoChoice);
}

#[test]
fn cuckoo_plus_plus_agrees_with_a_map() {
    agrees_on_all_keys(OwnMethod::CuckooPlusPlus);
}

#[test]
fn inline_agrees_with_a_map() {
    agrees_on_all_keys(OwnMethod::Inline);
}

#[test]
fn global_lock_agrees_with_a_map() {
    agrees_on_all_keys(OwnMethod::GlobalLock);
}

#[test]
fn concurrent_agrees_with_a_map() {
    agrees_on_all_keys(OwnMethod::Concurrent);
}

impl<K: Key> Subject<K> for Arc<Concurrent> {
    fn check(&mut self) {
        assert_eq!(Arc::get_mut(self).map_or(Ok(()), |table| table.check()), Ok(()));
    }
}

impl<K: Key> Subject<K> for Arc<GlobalLock<TwoChoice>> {}

/// A shared table without views in between, as those use it who share the entries too.
#[test]
fn shared_tables_agree_with_a_map_by_themselves() {
    let concurrent = |capacity, hasher| vec![Arc::new(Concurrent::new(capacity, hasher))];
    agree("concurrent", 1, scripts::flows(), false, concurrent);
    agree("concurrent", 1, scripts::hashes(), true, concurrent);
    let locked = |capacity, hasher| vec![Arc::new(GlobalLock::new(TwoChoice::new(capacity, hasher)))];
    agree("global-lock over two-choice", 1, scripts::bytes::<16>(), false, locked);
    agree("global-lock over two-choice", 1, scripts::hashes(), true, locked);
}

/// The methods that track nothing hold nothing, and say so.
#[test]
fn untracked_tables_refuse_everything() {
    for method in [OwnMethod::Stateless, OwnMethod::Maglev] {
        agrees(method, 1, scripts::flows(), false);
        agrees(method, 3, scripts::hashes(), false);
    }
}

#[test]
fn every_method_has_a_name_and_a_table() {
    use hairpin_core::table::{Hash, Table};
    for &method in OwnMethod::ALL {
        assert_eq!(method.name().parse(), Ok(method));
        assert!(method.product().is_none_or(|product| product.name() == method.name()));
        let tables = OwnTable::for_workers(method, 3, 100, Hasher::new([1, 2, 3, 4]));
        assert_eq!(tables.len(), 3);
        for table in &tables {
            assert_eq!(Table::<Hash>::name(table), method.name());
            let room = if method.tracks_connections() { 100 } else { 0 };
            assert_eq!(Table::<Hash>::capacity(table), room, "{method}");
            assert!(Table::<Hash>::bytes(table) >= 4 * room);
        }
    }
    let error = "rte-hash".parse::<OwnMethod>().unwrap_err().to_string();
    assert!(OwnMethod::ALL.iter().all(|method| error.contains(method.name())), "{error}");
    assert!(OwnMethod::ALL.contains(&OwnMethod::DEFAULT) && OwnMethod::DEFAULT.tracks_connections());
}
