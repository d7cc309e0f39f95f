//! From counts to records, messages and lines.

use super::flows::{FlowRecord, FlowTable, FlowTracker, LINGER, Reason, nanos};
use super::ipfix::{Encoder, MESSAGE_BYTES_MAX};
use super::settings::{MonitorField, MonitorSettings};
use super::{REASONS, line};
use anyhow::Result;
use hairpin_core::flow::Address;
use hairpin_linux::monitor::{FLOW_ENDED, FlowCount, FlowEnds, FlowEvent, FlowFilter, FlowHalf};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn settings() -> MonitorSettings {
    MonitorSettings {
        name: "edge".into(),
        interfaces: vec!["eth0".into()],
        filter: FlowFilter { networks: vec![], ports: vec![], protocols: vec![], handshake: true, resent: true },
        fields: vec![MonitorField::Flags, MonitorField::RoundTrip, MonitorField::Resent],
        active_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(15),
        flows_max: 64,
        collector: None,
        observation_domain: 77,
        file: None,
        top: 4,
    }
}

fn ends(number: u8, protocol: u8) -> FlowEnds {
    let far = (Address::from_ipv4([10, 0, 0, number]), 1000);
    FlowEnds::new(far, (Address::from_ipv4([192, 0, 2, 1]), 80), 3, protocol)
}

fn half(packets: u64, first: u64, last: u64) -> FlowHalf {
    FlowHalf { packets, bytes: packets * 100, first, last, resent: 0, next: 0, flags: 0x12 }
}

/// A flow of so many packets in and as many out, from `first` to `last`.
fn flow(packets: u64, first: u64, last: u64) -> FlowCount {
    FlowCount { inward: half(packets, first, last), outward: half(packets, first, last), ..FlowCount::default() }
}

#[derive(Default)]
struct Table(RefCell<HashMap<FlowEnds, FlowCount>>);

impl Table {
    fn put(&self, ends: FlowEnds, count: FlowCount) {
        self.0.borrow_mut().insert(ends, count);
    }
}

impl FlowTable for Table {
    fn each(&self, each: &mut dyn FnMut(&FlowEnds, &FlowCount)) -> Result<()> {
        self.0.borrow().iter().for_each(|(ends, count)| each(ends, count));
        Ok(())
    }

    fn find(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        Ok(self.0.borrow().get(ends).copied())
    }

    fn take(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        Ok(self.0.borrow_mut().remove(ends))
    }
}

fn step(tracker: &mut FlowTracker, table: &Table, news: Vec<FlowEvent>, now: u64) -> Vec<FlowRecord> {
    let mut records = Vec::new();
    tracker.step(table, news, now, |record| records.push(record)).unwrap();
    records
}

#[test]
fn silent_flows_are_reported_and_taken_out() {
    let (mut tracker, table) = (FlowTracker::new(&settings()), Table::default());
    table.put(ends(1, 17), flow(5, SECOND, 2 * SECOND));
    assert_eq!(step(&mut tracker, &table, vec![], 16 * SECOND), []);
    assert_eq!(tracker.flows, 1);
    let records = step(&mut tracker, &table, vec![], 20 * SECOND);
    let [record] = records[..] else { panic!("{records:?}") };
    assert_eq!((record.reason, record.count.inward.packets), (Reason::Idle, 5));
    assert!(table.0.borrow().is_empty() && tracker.flows == 0);
}

#[test]
fn sums_over_active_reports_are_those_of_the_flow() {
    let (mut tracker, table) = (FlowTracker::new(&settings()), Table::default());
    let mut sum = [0; 2];
    let mut reports = Vec::new();
    for second in 1..=200 {
        if second <= 150 {
            table.put(ends(1, 6), flow(second, SECOND, second * SECOND));
        }
        for record in step(&mut tracker, &table, vec![], second * SECOND) {
            sum[0] += record.count.inward.packets;
            sum[1] += record.count.outward.bytes;
            assert!(record.count.inward.first <= record.count.inward.last);
            reports.push((record.reason, second));
        }
    }
    assert_eq!(sum, [150, 15_000]);
    let reasons: Vec<Reason> = reports.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, [Reason::Active, Reason::Active, Reason::Idle], "{reports:?}");
}

#[test]
fn ended_connections_wait_for_last_packets() {
    let (mut tracker, table) = (FlowTracker::new(&settings()), Table::default());
    let ended = |packets, last| FlowCount { state: FLOW_ENDED, ..flow(packets, SECOND, last) };
    let now = 10 * SECOND;
    table.put(ends(1, 6), ended(5, now));
    assert_eq!(step(&mut tracker, &table, vec![FlowEvent::Ended(ends(1, 6))], now), []);
    // A last packet a second later.
    table.put(ends(1, 6), ended(6, now + SECOND));
    assert_eq!(step(&mut tracker, &table, vec![], now + nanos(LINGER)), []);
    let records = step(&mut tracker, &table, vec![], now + 2 * nanos(LINGER));
    assert!(
        records.len() == 1 && records[0].reason == Reason::End && records[0].count.inward.packets == 6,
        "{records:?}"
    );
    // One whose ends have begun another: the former comes as it is, the other one goes on.
    table.put(ends(2, 6), flow(1, 20 * SECOND, 20 * SECOND));
    let news = vec![FlowEvent::Ended(ends(2, 6)), FlowEvent::Former(ends(2, 6), ended(9, 19 * SECOND))];
    let records = step(&mut tracker, &table, news, 20 * SECOND);
    assert!(records.len() == 1 && records[0].count.inward.packets == 9, "{records:?}");
    assert_eq!(step(&mut tracker, &table, vec![], 23 * SECOND), []);
    // The kernel could not tell of an end: a sweep finds it.
    table.put(ends(3, 6), ended(4, 23 * SECOND));
    let records = step(&mut tracker, &table, vec![], 29 * SECOND);
    assert!(records.len() == 1 && records[0].reason == Reason::End && records[0].ends == ends(3, 6), "{records:?}");
    let mut left = Vec::new();
    tracker.end(&table, |record| left.push((record.reason, record.ends))).unwrap();
    assert_eq!(left, [(Reason::Stop, ends(2, 6))]);
}

#[test]
fn reasons_are_counted_under_their_words() {
    let all = [Reason::Idle, Reason::Active, Reason::End, Reason::Stop];
    assert_eq!(all.map(|reason| (reason as usize - 1, reason.word())).map(|(at, word)| REASONS[at] == word), [true; 4]);
}

/// A field of a message: from here on, so many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[test]
fn messages_keep_their_length_and_count_their_records() {
    let mut encoder = Encoder::new(&settings());
    let mut counted = 0;
    for round in 0..3 {
        for n in 0..100 {
            let record = FlowRecord {
                ends: ends(n, [6, 1][usize::from(n % 10 == 0)]),
                count: flow(1, SECOND, SECOND),
                reason: Reason::End,
            };
            encoder.add(&record, 0, 5 * SECOND);
        }
        let messages = encoder.take(5 * SECOND);
        assert!(messages.len() > 5);
        for (n, message) in messages.iter().enumerate() {
            let bytes = &message.bytes;
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!((number(bytes, 0, 2), number(bytes, 2, 2)), (10, bytes.len() as u64));
            assert_eq!((number(bytes, 4, 4), number(bytes, 8, 4), number(bytes, 12, 4)), (5, counted, 77));
            let has_templates = number(bytes, 16, 2) == 2;
            assert_eq!(has_templates, (n, round) == (0, 0), "message {n} of round {round}");
            counted += message.records;
            // Sets fill the message.
            let mut at = 16;
            while at < bytes.len() {
                at += number(bytes, at + 2, 2) as usize;
            }
            assert_eq!(at, bytes.len());
        }
    }
    assert_eq!(counted, 600);
    assert!(encoder.take(0).is_empty());
    encoder.repeat_templates(true);
    encoder.add(&FlowRecord { ends: ends(1, 6), count: flow(1, 1, 1), reason: Reason::Idle }, 0, 0);
    let message = &encoder.take(0)[0].bytes;
    assert_eq!((number(message, 8, 4), number(message, 16, 2)), (0, 2));
}

#[test]
fn lines_say_what_is_known() {
    let mut count = flow(3, SECOND, 4 * SECOND);
    count.outward = FlowHalf { flags: 0x11, resent: 1, ..half(2, 2 * SECOND, 3 * SECOND) };
    (count.syn, count.syn_ack, count.ack, count.state) = (SECOND, SECOND + 2_000_000, SECOND + 2_500_000, 1);
    let record = FlowRecord { ends: ends(9, 6), count, reason: Reason::End };
    let write = |settings: &MonitorSettings, record: &FlowRecord| {
        let mut out = Vec::new();
        let written = line::write(settings, "eth0", record, (1000 * SECOND, 1010 * SECOND), &mut out);
        (written, String::from_utf8(out).unwrap())
    };
    let expected = "{\"schema\":1,\"time\":\"1970-01-01T00:16:50.000000Z\",\"monitor\":\"edge\",\"interface\":\"eth0\",\
                    \"reason\":\"end\",\"protocol\":\"tcp\",\"far\":\"10.0.0.9\",\"far_port\":1000,\"near\":\"192.0.2.1\",\
                    \"near_port\":80,\"started\":\"1970-01-01T00:16:41.000000Z\",\"duration_ms\":3000,\"packets_in\":3,\
                    \"bytes_in\":300,\"packets_out\":2,\"bytes_out\":200,\"flags_in\":\"SA\",\"flags_out\":\"FA\",\"resent_in\":0,\
                    \"resent_out\":1,\"opened_by\":\"far\",\"server_round_trip_us\":2000,\"client_round_trip_us\":500}\n";
    assert_eq!(write(&settings(), &record), (true, expected.to_string()));
    let bare = MonitorSettings { fields: vec![], ..settings() };
    let (_, text) = write(&bare, &record);
    assert!(text.ends_with("\"bytes_out\":200}\n"), "{text}");
    let icmp = FlowRecord { ends: ends(9, 1), ..record };
    let (_, text) = write(&settings(), &icmp);
    assert!(text.contains("\"protocol\":\"icmp\"") && text.contains("\"icmp_type\":0,\"icmp_code\":80"), "{text}");
    let (_, text) = write(&settings(), &FlowRecord { ends: ends(9, 47), ..record });
    assert!(text.contains("\"protocol\":47") && !text.contains("port"), "{text}");
    let nothing = FlowRecord { count: flow(0, SECOND, SECOND), reason: Reason::Active, ..record };
    assert_eq!(write(&settings(), &nothing), (false, String::new()));
}
