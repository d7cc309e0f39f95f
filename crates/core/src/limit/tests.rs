use super::*;
use crate::keys::Secret;
use crate::l7::head::{self, Bounds, ParseStatus};
use proptest::prelude::*;
use std::net::IpAddr;
use std::vec::Vec;

const SECRET: Secret = Secret::new([1, 2]);

fn at_ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn rate(count: u32, within_ms: u64, burst: u32) -> Rate {
    Rate::new(count, Duration::from_millis(within_ms), burst).unwrap()
}

fn limit(rate: Rate) -> Limit {
    let (ipv4_prefix, ipv6_prefix) = (32, 64);
    let (kind, header, action) = (LimitKind::Requests(rate), None, LimitAction::Refuse);
    Limit { id: 7, kind, ipv4_prefix, ipv6_prefix, header, action, is_dry_run: false }
}

fn read(head: &[u8]) -> Request<'_> {
    let bounds = Bounds { bytes_max: 1024, fields_max: 10, target_bytes_max: 512 };
    match head::request(head, &bounds) {
        Ok(ParseStatus::Complete(request)) => request,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

fn plain() -> Request<'static> {
    read(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

/// How many of `tries` at one time are admitted.
fn admitted(table: &LimitTable, client: u32, rate: &Rate, now: Time, tries: usize) -> usize {
    let key = table.key(1, &client.to_be_bytes());
    (0..tries).filter(|_| table.take(key, rate, now).refused_for.is_none()).count()
}

#[test]
fn whole_numbers_within_the_longest_time_are_rates() {
    for count in 1..5000 {
        let rate = Rate::new(count, AHEAD_MAX, count).unwrap_or_else(|| panic!("{count} within the longest time"));
        assert_eq!(Rate::new(count, AHEAD_MAX, count + 1), None, "{count}: {rate:?}");
    }
}

#[test]
fn burst_is_admitted_at_once_and_comes_back_at_the_rate() {
    let table = LimitTable::own(1024, SECRET);
    let rate = rate(100, 1000, 20);
    assert_eq!(admitted(&table, 1, &rate, at_ms(5000), 50), 20);
    assert_eq!(admitted(&table, 1, &rate, at_ms(5009), 50), 0);
    assert_eq!(admitted(&table, 1, &rate, at_ms(5010), 50), 1);
    assert_eq!(admitted(&table, 1, &rate, at_ms(5060), 50), 5);
    assert_eq!(admitted(&table, 1, &rate, at_ms(9000), 50), 20, "no more than the burst is saved");
    assert_eq!(admitted(&table, 2, &rate, at_ms(5000), 50), 20, "another client");
}

#[test]
fn refused_requests_are_told_when_to_come_again() {
    let table = LimitTable::own(1024, SECRET);
    let mut counts = [LimitCounts::default(); 1];
    let limits = [limit(rate(1, 10_000, 2))];
    let mut ask = |ms| {
        Limiting { limits: &limits, table: &table, now: at_ms(ms), counts: &mut counts }
            .request(&address("192.0.2.1"), &plain())
    };
    assert_eq!([ask(0), ask(0)], [None, None]);
    let limited = |retry_after_s| Some(Limited { action: LimitAction::Refuse, retry_after_s });
    assert_eq!([ask(0), ask(2500), ask(9999)], [limited(10), limited(8), limited(1)]);
    assert_eq!([ask(10_001), ask(10_001)], [None, limited(10)]);
    assert_eq!(counts[0], LimitCounts { admitted: 3, refused: 4, ..LimitCounts::default() });
}

#[test]
fn dry_run_refuses_nothing_and_counts() {
    let table = LimitTable::own(1024, SECRET);
    let mut counts = [LimitCounts::default(); 1];
    let limits = [Limit { is_dry_run: true, ..limit(rate(1, 1000, 2)) }];
    for _ in 0..5 {
        let mut limiting = Limiting { limits: &limits, table: &table, now: at_ms(0), counts: &mut counts };
        assert_eq!(limiting.request(&address("192.0.2.1"), &plain()), None);
    }
    assert_eq!(counts[0], LimitCounts { admitted: 2, would_refuse: 3, ..LimitCounts::default() });
}

#[test]
fn clients_are_told_apart_by_their_prefix() {
    let limit = Limit { ipv4_prefix: 24, ..limit(rate(1, 1000, 1)) };
    let same = |a: &str, b: &str| limit.client(&address(a)) == limit.client(&address(b));
    assert!(same("192.0.2.1", "192.0.2.255") && !same("192.0.2.1", "192.0.3.1"));
    assert!(same("2001:db8::1", "2001:db8::ffff:0:0:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(!same("192.0.2.1", "2001:db8::1"));
    let table = LimitTable::own(64, SECRET);
    assert_ne!(table.key(1, &[1; 16]), table.key(2, &[1; 16]), "limits do not share clients");
}

#[test]
fn requests_with_a_field_are_counted_by_its_value() {
    let table = LimitTable::own(1024, SECRET);
    let limits = [Limit { header: Some(b"x-key".as_slice().into()), ..limit(rate(1, 1_800_000, 2)) }];
    let mut counts = [LimitCounts::default(); 1];
    let mut limiting = Limiting { limits: &limits, table: &table, now: at_ms(0), counts: &mut counts };
    let mut admits = |client: &str, key: &str| {
        let head = std::format!("GET / HTTP/1.1\r\nHost: a\r\n{key}\r\n");
        limiting.request(&address(client), &read(head.as_bytes())).is_none()
    };
    // One client with two keys, two clients with one key.
    assert!(admits("192.0.2.1", "X-Key: one\r\n") && admits("192.0.2.2", "x-key:one\r\n"));
    assert!(!admits("192.0.2.1", "X-Key: one\r\n") && !admits("192.0.2.3", "X-Key: one\r\nX-Key: two\r\n"));
    assert!(admits("192.0.2.1", "X-Key: two\r\n"));
    // Without the field the address counts.
    assert_eq!([(); 3].map(|()| admits("192.0.2.1", "")), [true, true, false]);
    assert!(admits("192.0.2.2", "Other: one\r\n"));
}

#[test]
fn rates_out_of_range_are_none() {
    let second = Duration::from_secs(1);
    assert!(Rate::new(0, second, 1).is_none() && Rate::new(1, second, 0).is_none());
    assert!(Rate::new(PER_SECOND_MAX, second, 1).is_some() && Rate::new(PER_SECOND_MAX + 1, second, 1).is_none());
    assert!(Rate::new(1, second, 3600).is_some() && Rate::new(1, second, 3601).is_none());
    assert!(Rate::new(u32::MAX, Duration::MAX, 1).is_none());
}

#[test]
fn table_without_room_admits_everything() {
    assert_eq!(admitted(&LimitTable::default(), 1, &rate(1, 1000, 1), at_ms(0), 9), 9);
}

#[test]
fn flood_of_other_clients_displaces_no_client_at_its_limit() {
    let table = LimitTable::own(64, SECRET);
    let rate = rate(10, 1000, 10);
    assert_eq!(admitted(&table, 1, &rate, at_ms(1000), 20), 10);
    let mut displaced = 0;
    for client in 2..100_000 {
        let key = table.key(1, &u32::to_be_bytes(client));
        let taken = table.take(key, &rate, at_ms(1000));
        assert_eq!(taken.refused_for, None, "a new client is admitted, whatever the table has");
        displaced += usize::from(taken.is_displacing);
    }
    assert!(displaced > 99_000, "{displaced}");
    assert_eq!(admitted(&table, 1, &rate, at_ms(1000), 20), 0, "the one that owes most has kept its entry");
    assert_eq!(admitted(&table, 1, &rate, at_ms(1500), 20), 5);
}

#[test]
fn entries_outlive_their_process_and_old_ones_do_not_come_back() {
    let table = LimitTable::own(64, SECRET);
    let rate = rate(1, 1000, 3000);
    assert_eq!(admitted(&table, 1, &rate, at_ms(0), 5000), 3000);
    // In 40 bits of 16 ns the clock goes round in 4.9 hours. What is tended is empty by then.
    let round = (1u64 << 40) * 16 / 1_000_000;
    for ms in (0..round).step_by(20_000) {
        table.tend(at_ms(ms));
    }
    assert_eq!(admitted(&table, 1, &rate, at_ms(round), 5000), 3000, "what was paid long ago is not owed");
}

#[test]
fn tending_counts_who_owes() {
    let table = LimitTable::own(64, SECRET);
    let rate = rate(1, 1000, 1);
    assert!((0..5).all(|client| admitted(&table, client, &rate, at_ms(1000), 1) == 1));
    (0..8).for_each(|_| table.tend(at_ms(1500)));
    assert_eq!(table.clients(), (5, 64));
    (0..16).for_each(|_| table.tend(at_ms(2001)));
    assert_eq!(table.clients(), (0, 64));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "workers are threads of other crates")]
fn workers_together_admit_what_one_would() {
    let table = LimitTable::own(1024, SECRET);
    let rate = rate(1000, 1000, 1000);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let table = table.clone();
            std::thread::spawn(move || admitted(&table, 1, &rate, at_ms(1000), 2000))
        })
        .collect();
    let sum: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(sum, 1000);
}

fn concurrent_limit(most: u32) -> Limit {
    Limit { kind: LimitKind::Concurrent(most), ..limit(rate(1, 1000, 1)) }
}

/// How many of `tries` connections of a client are admitted.
fn connected(limits: &[Limit], table: &LimitTable, client: &str, tries: usize) -> usize {
    let mut counts = [LimitCounts::default(); LIMITS_MAX];
    let mut limiting = Limiting { limits, table, now: at_ms(0), counts: &mut counts };
    (0..tries).filter(|_| limiting.connection(&address(client)).is_none()).count()
}

#[test]
fn connections_at_a_time_are_counted_in_and_out() {
    let (table, limits) = (LimitTable::own(1024, SECRET), [concurrent_limit(3)]);
    assert_eq!(connected(&limits, &table, "192.0.2.1", 5), 3);
    assert_eq!(connected(&limits, &table, "192.0.2.2", 2), 2);
    release(&limits, &table, &address("192.0.2.1"));
    assert_eq!(connected(&limits, &table, "192.0.2.1", 5), 1);
    (0..9).for_each(|_| release(&limits, &table, &address("192.0.2.1")));
    assert_eq!(connected(&limits, &table, "192.0.2.1", 5), 3, "no fewer than none");
    hold(&limits, &table, &address("192.0.2.2"));
    hold(&limits, &table, &address("192.0.2.2"));
    release(&limits, &table, &address("192.0.2.2"));
    assert_eq!(connected(&limits, &table, "192.0.2.2", 5), 0, "those that were adopted count");
}

#[test]
fn connection_that_a_later_limit_refuses_is_held_by_none() {
    let table = LimitTable::own(1024, SECRET);
    let tight = Limit { id: 9, ..concurrent_limit(1) };
    assert_eq!(connected(&[concurrent_limit(3), tight], &table, "192.0.2.1", 5), 1);
    assert_eq!(connected(&[concurrent_limit(3)], &table, "192.0.2.1", 5), 2);
}

#[test]
fn beginnings_of_connections_have_a_rate_of_their_own() {
    let table = LimitTable::own(1024, SECRET);
    let requests = limit(rate(2, 1000, 2));
    let connections = Limit { id: 8, kind: LimitKind::Connections(rate(3, 1000, 3)), ..requests.clone() };
    assert_eq!(connected(&[requests.clone(), connections.clone()], &table, "192.0.2.1", 9), 3);
    let mut counts = [LimitCounts::default(); 2];
    let limits = [requests, connections];
    let mut limiting = Limiting { limits: &limits, table: &table, now: at_ms(0), counts: &mut counts };
    assert_eq!((0..9).filter(|_| limiting.request(&address("192.0.2.1"), &plain()).is_none()).count(), 2);
}

#[test]
fn counts_of_processes_end_with_them() {
    let (workers, limits) = (LimitTable::own(1024, SECRET), [concurrent_limit(10)]);
    let runtimes = workers.of_runtimes();
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 4), 4);
    assert_eq!(connected(&limits, &runtimes, "192.0.2.1", 4), 4);
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 4), 2, "both together");
    workers.forget_workers();
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 9), 6, "those of runtimes are there");
    workers.forget_processes();
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 9), 0, "its own runtimes are not forgotten");
    workers.forget_limits_but(&[7]);
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 9), 0);
    workers.forget_limits_but(&[8]);
    assert_eq!(connected(&limits, &workers, "192.0.2.1", 99), 10);
}

#[test]
fn full_set_admits_connections_and_forgets_none() {
    let (table, limits) = (LimitTable::own(8, SECRET), [concurrent_limit(1)]);
    let clients = (0..20).map(|last| std::format!("192.0.2.{last}"));
    let admitted: usize = clients.clone().map(|client| connected(&limits, &table, &client, 2)).sum();
    assert_eq!(admitted, 8 + 2 * 12, "eight are counted");
    assert_eq!(connected(&limits, &table, "192.0.2.0", 2), 0);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "workers are threads of other crates")]
fn workers_together_hold_what_one_would() {
    let (table, limits) = (LimitTable::own(1024, SECRET), [concurrent_limit(500)]);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (table, limits) = (table.clone(), limits.clone());
            std::thread::spawn(move || connected(&limits, &table, "192.0.2.1", 1000))
        })
        .collect();
    let sum: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(sum, 500);
}

proptest! {
    /// However requests come, no more pass in any time than the rate and the burst allow, and no fewer than the rate of a client
    /// that always asks.
    #[test]
    fn never_more_than_rate_and_burst(
        count in 1u32..10_000,
        within_ms in 10u64..10_000,
        burst in 1u32..100,
        steps in prop::collection::vec((0u64..2_000_000_000, 1usize..50), 1..200),
        start in 0u64..1 << 50,
    ) {
        let Some(rate) = Rate::new(count, Duration::from_millis(within_ms), burst) else { return Ok(()) };
        let table = LimitTable::own(64, SECRET);
        let (mut now, mut passed) = (start, 0);
        for (step, tries) in steps {
            now += step;
            passed += admitted(&table, 1, &rate, Time::from_nanos(now), tries);
        }
        let most = f64::from(burst) + (now - start) as f64 / 1e6 / within_ms as f64 * f64::from(count) * 1.01 + 1.0;
        prop_assert!(passed as f64 <= most, "{passed} of {most}");
    }
}
