//! Ejections, by totals and times that the tests make.

use super::outlier::{EjectionChange, Member, OutcomeTotals, OutlierSettings, Outliers};
use std::time::{Duration, Instant, UNIX_EPOCH};

const SERVICE: u16 = 7;

fn settings() -> OutlierSettings {
    OutlierSettings {
        consecutive: 5,
        error_percent: 50,
        latency_factor: 3,
        latency_min: Duration::from_millis(10),
        requests_min: 20,
        interval: Duration::from_secs(10),
        ejection_time: Duration::from_secs(30),
        ejection_time_max: Duration::from_secs(70),
        max_ejected_percent: 50,
    }
}

/// A service and its backends' totals so far.
struct Service {
    outliers: Outliers,
    settings: OutlierSettings,
    members: Vec<Member>,
    start: Instant,
    seconds: f64,
}

impl Service {
    fn new(backends: u16) -> Service {
        let member = |number| Member { number, takes: true, totals: OutcomeTotals::default() };
        let members = (0..backends).map(member).collect();
        let mut service = Service {
            outliers: Outliers::default(),
            settings: settings(),
            members,
            start: Instant::now(),
            seconds: 0.0,
        };
        assert_eq!(service.after(0.0), []);
        service
    }

    /// Outcomes of a backend.
    fn met(&mut self, backend: usize, good: u64, bad: u64, ms: u64) {
        let totals = &mut self.members[backend].totals;
        totals.good += good;
        totals.bad += bad;
        totals.responses += good;
        totals.response_us += good * ms * 1000;
    }

    /// What changes, so many seconds later.
    fn after(&mut self, seconds: f64) -> Vec<EjectionChange> {
        self.seconds += seconds;
        let since = Duration::from_secs_f64(self.seconds);
        let now = (self.start + since, UNIX_EPOCH + since);
        self.outliers.observe(now, SERVICE, &self.settings, &self.members)
    }

    /// Which backend is ejected by what has come, and for how many seconds.
    fn ejects(&mut self, seconds: f64) -> Vec<(u16, u64)> {
        let of = |change| match change {
            EjectionChange::Ejected { backend, time, .. } => (backend, time.as_secs()),
            change => panic!("{change:?}"),
        };
        self.after(seconds).into_iter().map(of).collect()
    }

    fn ejected(&self) -> Vec<u16> {
        let mut ejected: Vec<u16> = self.outliers.ejected().collect();
        ejected.sort_unstable();
        ejected
    }
}

fn returned(backend: u16, early: bool) -> Vec<EjectionChange> {
    vec![EjectionChange::Returned { backend, early }]
}

#[test]
fn failures_in_a_row_eject() {
    let mut service = Service::new(3);
    service.met(1, 0, 4, 0);
    assert_eq!(service.after(0.3), []);
    service.met(1, 1, 0, 1);
    assert_eq!(service.after(0.3), [], "a success ends the row");
    service.met(1, 0, 4, 0);
    assert_eq!(service.after(0.3), []);
    service.met(1, 0, 1, 0);
    let reason = "5 failures in a row".to_string();
    let ejected = EjectionChange::Ejected { backend: 1, reason: reason.clone(), time: Duration::from_secs(30) };
    assert_eq!(service.after(0.3), [ejected]);
    assert_eq!(service.ejected(), [1]);
    let shown = service.outliers.of(1).unwrap().clone();
    assert_eq!((shown.reason, shown.total, shown.until.is_some()), (reason, 1, true));
    // Requests that had begun before fail on.
    service.met(1, 0, 50, 0);
    assert_eq!(service.after(29.0), []);
    assert_eq!(service.after(1.0), returned(1, false));
    assert_eq!((service.ejected(), service.outliers.of(1).unwrap().until), (vec![], None));
    assert_eq!(service.after(0.3), [], "what failed meanwhile does not count");
}

#[test]
fn ratio_of_an_interval_ejects() {
    let mut service = Service::new(3);
    for (backend, good, bad) in [(0, 30, 5), (1, 9, 9), (2, 15, 20)] {
        service.met(backend, good, bad, 1);
    }
    assert_eq!(service.after(5.0), [], "the interval is not over");
    service.met(0, 1, 0, 1);
    let changes = service.after(5.0);
    let [EjectionChange::Ejected { backend: 2, reason, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(reason, "20 of 35 failed in 10s");
    // Each interval begins anew.
    service.met(1, 1, 10, 1);
    assert_eq!(service.after(10.0), [], "11 are too few");
}

#[test]
fn latency_beyond_the_others_ejects() {
    let mut service = Service::new(4);
    for (backend, ms) in [(0, 20), (1, 30), (2, 40), (3, 89)] {
        service.met(backend, 25, 0, ms);
    }
    assert_eq!(service.after(10.0), [], "three times 30 ms is more");
    for (backend, ms) in [(0, 20), (1, 30), (2, 40), (3, 91)] {
        service.met(backend, 25, 0, ms);
    }
    let changes = service.after(10.0);
    let [EjectionChange::Ejected { backend: 3, reason, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(reason, "latency 91.0 ms, the others' median 30.0 ms");
    // Below the least latency, and of too few responses.
    let mut service = Service::new(3);
    for (backend, good, ms) in [(0, 25, 1), (1, 25, 9), (2, 19, 500)] {
        service.met(backend, good, 0, ms);
    }
    assert_eq!(service.after(10.0), []);
}

#[test]
fn ejections_grow_up_to_a_bound_and_shrink_again() {
    let mut service = Service::new(2);
    let eject = |service: &mut Service| {
        service.met(0, 0, 5, 0);
        service.ejects(0.3)
    };
    assert_eq!(eject(&mut service), [(0, 30)]);
    assert_eq!(service.after(30.0), returned(0, false));
    assert_eq!(eject(&mut service), [(0, 60)]);
    assert_eq!(service.after(60.0), returned(0, false));
    assert_eq!(eject(&mut service), [(0, 70)], "the bound");
    assert_eq!(service.after(70.0), returned(0, false));
    for _ in 0..3 {
        assert_eq!(service.after(10.0), []);
    }
    assert_eq!(eject(&mut service), [(0, 30)], "intervals without an ejection count back");
}

#[test]
fn bounds_hold_and_the_last_is_never_ejected() {
    let mut service = Service::new(4);
    (0..4).for_each(|backend| service.met(backend, 0, 9, 0));
    assert_eq!(service.ejects(0.3), [(0, 30), (1, 30)], "half of four");
    assert_eq!(service.outliers.of(2).unwrap().prevented, 1);
    (2..4).for_each(|backend| service.met(backend, 0, 9, 0));
    assert_eq!(service.after(0.3), []);
    assert_eq!(service.outliers.of(2).unwrap().prevented, 1, "one run of failures is one");
    let mut service = Service::new(2);
    service.settings.max_ejected_percent = 0;
    (0..2).for_each(|backend| service.met(backend, 0, 9, 0));
    assert_eq!(service.ejects(0.3), [(0, 30)], "one may be, and not the last");
    service.settings.max_ejected_percent = 100;
    service.met(1, 0, 9, 0);
    assert_eq!(service.after(0.3), []);
    // One that is down does not count as another.
    let mut service = Service::new(2);
    service.members[1].takes = false;
    service.met(0, 0, 9, 0);
    assert_eq!(service.after(0.3), []);
}

#[test]
fn ejected_backends_return_when_no_other_is_left() {
    let mut service = Service::new(3);
    service.met(0, 0, 5, 0);
    assert_eq!(service.ejects(0.3), [(0, 30)]);
    service.members[1].takes = false;
    assert_eq!(service.after(0.3), []);
    service.members[2].takes = false;
    assert_eq!(service.after(0.3), returned(0, true));
}

#[test]
fn totals_and_members_may_begin_anew() {
    let mut service = Service::new(2);
    service.met(0, 1000, 4, 1);
    assert_eq!(service.after(0.3), []);
    // The first totals of a backend serve for comparison.
    let late = Member { number: 5, takes: true, totals: OutcomeTotals { bad: 99, ..OutcomeTotals::default() } };
    service.members.push(late);
    service.members[0].totals = OutcomeTotals::default();
    assert_eq!(service.after(0.3), []);
    service.met(0, 0, 5, 0);
    assert_eq!(service.ejects(0.3), [(0, 30)]);
    service.members.remove(0);
    assert_eq!((service.after(0.3), service.ejected()), (vec![], vec![]), "it is no member any more");
    service.met(1, 0, 5, 0);
    assert_eq!(service.ejects(0.3), [(5, 30)]);
    service.outliers.forget(SERVICE);
    assert!(service.ejected().is_empty() && service.outliers.of(5).is_none());
}

#[test]
fn tests_that_are_off_eject_nothing() {
    let mut service = Service::new(3);
    (service.settings.consecutive, service.settings.error_percent, service.settings.latency_factor) = (0, 0, 0);
    service.met(0, 30, 9000, 9000);
    service.met(1, 30, 0, 1);
    service.met(2, 0, 9000, 0);
    assert_eq!(service.after(10.0), []);
}
