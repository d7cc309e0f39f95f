//! More records than the log can write.

use super::*;
use hairpin_core::config::{Pool, Service};
use hairpin_core::flow::Endpoint;
use hairpin_core::record::{Ending, LOST, flags};
use hairpin_core::time::Time;
use std::net::IpAddr;
use std::path::PathBuf;

/// Bytes of a ring, unless the configuration says how many.
const RING_BYTES: usize = 1 << 20;

/// An access log in a file of its own, of one service, which is removed afterwards.
struct Log {
    log: AccessLog,
    path: PathBuf,
}

impl Log {
    fn new(name: &str) -> Log {
        let path = std::env::temp_dir().join(format!("hairpin-{name}-{}.log", std::process::id()));
        let pool = Pool { addresses: Box::new([]), port_first: 1, port_last: 2, time_wait: Duration::ZERO };
        let service = Service { name: "web".into(), ..Service::vacant() };
        let settings =
            AccessLogSettings { to: Target::File(path.clone()), form: Form::Json(usual_fields()), buffer: RING_BYTES };
        let every = ServiceLog { sample: 1, status: None, slower_than: Duration::ZERO, routes: Vec::new() };
        let log = AccessLog::default();
        let snapshot = Arc::new(Snapshot::new(Box::new([service]), pool));
        let records = ServiceRecords { log: Some(every), route_count: 0 };
        log.configure(Some(&settings), None, &snapshot, vec![records]);
        Log { log, path }
    }

    fn ended(&self) -> AccessLogReading {
        self.log.end();
        self.log.reading()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One exchange of HTTP, as a worker records it.
fn offer(recorder: &mut Recorder) {
    let texts = Texts { line: b"GET /index.html?x=1", host: b"example.org", agent: b"curl/8.0", ..Texts::default() };
    let number = recorder.begin([100, 1000], &texts);
    if number != LOST {
        let end = |last| Endpoint::new(IpAddr::from([10, 0, 0, last]), 80);
        let record = Record::new(Time::ZERO, end(1), end(2), 0);
        let ending = Ending::Done as u8;
        recorder.end(&Record { number, flags: flags::EXCHANGE, status: 200, ending, took: 1000, ..record });
    }
}

fn every_record_is_a_line_or_counted(ring_bytes: usize, all: u64) -> AccessLogReading {
    let log = Log::new(&format!("offered-{ring_bytes}"));
    let mut recorder = log.log.recorder(ring_bytes);
    (0..all).for_each(|_| offer(&mut recorder));
    let reading = log.ended();
    assert_eq!((reading.written + reading.records_lost, reading.lines_lost), (all, 0), "{reading:?}");
    let lines = std::fs::read_to_string(&log.path).unwrap();
    assert_eq!(lines.lines().count() as u64, reading.written);
    assert!(lines.lines().all(|line| line.starts_with('{') && line.ends_with('}')));
    reading
}

#[test]
fn every_record_offered_is_a_line_or_counted() {
    // The smallest ring: two of the longest messages.
    let reading = every_record_is_a_line_or_counted(0, 200_000);
    assert!(reading.records_lost > 0, "more was offered than fits: {reading:?}");
}

#[test]
fn records_left_in_a_ring_at_the_end_are_lines_or_counted() {
    let reading = every_record_is_a_line_or_counted(64 << 20, 300_000);
    assert!(reading.written > 0, "the log had time for some: {reading:?}");
}

#[test]
fn fuller_rings_are_looked_at_sooner() {
    let since = Duration::from_millis(8);
    assert_eq!(pause(0, since), LOOK_LATER);
    assert_eq!((pause(1, since), pause(FULL_ENOUGH, LOOK_SOON)), (LOOK_SOON, LOOK_SOON));
    assert_eq!(pause(256, since), since / 4, "as it was full, records are lost");
    assert_eq!(pause(128, since), since / 2);
}

/// What docs/guide/access-log.md has on a million records a second.
#[test]
#[ignore = "measures: cargo test --release -p hairpin --lib offered -- --ignored --nocapture"]
fn a_million_records_a_second() {
    const SECONDS: u64 = 5;
    for (rate, bytes) in [(100_000, RING_BYTES), (300_000, RING_BYTES), (1_000_000, RING_BYTES), (1_000_000, 64 << 20)]
    {
        let log = Log::new("million");
        let mut recorder = log.log.recorder(bytes);
        let (begun, mut spent, mut longest) = (Instant::now(), Duration::ZERO, Duration::ZERO);
        // Bursts of a worker.
        for burst in 0..rate * SECONDS / 50 {
            let due = Duration::from_nanos(burst * 50 * 1_000_000_000 / rate);
            while begun.elapsed() < due {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            (0..50).for_each(|_| offer(&mut recorder));
            spent += start.elapsed();
            longest = longest.max(start.elapsed());
        }
        let took = begun.elapsed();
        let AccessLogReading { written, records_lost, .. } = log.ended();
        let all = rate * SECONDS;
        println!(
            "{rate} records/s offered in {:.2} s, ring of {} KiB: {:.1} % written, {:.1} % lost and counted; {} ns a record, \
             longest burst of 50 {} us",
            took.as_secs_f64(),
            bytes >> 10,
            100.0 * written as f64 / all as f64,
            100.0 * records_lost as f64 / all as f64,
            spent.as_nanos() as u64 / all,
            longest.as_micros()
        );
        assert_eq!(written + records_lost, all);
    }
}
