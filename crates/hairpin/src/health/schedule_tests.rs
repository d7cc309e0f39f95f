//! When checks are made, with the time told by the test and no sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use super::probe::CheckFailure;
use super::record::Moment;
use super::schedule::{Job, Schedule};
use super::servers::target;
use super::{Check, CheckTarget, Health, IN_FLIGHT_MAX, ObservedTotals, Passive, StatusRanges};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A schedule, the time, and the checks in flight.
struct Case {
    schedule: Schedule,
    now: Moment,
    running: Vec<Job>,
}

impl Case {
    fn new(targets: Vec<CheckTarget>) -> Self {
        let now = Moment { instant: Instant::now(), wall: SystemTime::now() };
        let mut schedule = Schedule::new(now.instant);
        schedule.update(targets, now).unwrap();
        Case { schedule, now, running: Vec::new() }
    }

    fn pass(&mut self, by: Duration) {
        self.now = Moment { instant: self.now.instant + by, wall: self.now.wall + by };
    }

    /// Runs one iteration; returns the backends whose checks began.
    fn iterate(&mut self) -> Vec<u16> {
        let iteration = self.schedule.iterate(self.now);
        let begun = iteration.jobs.iter().map(|job| job.target.backend).collect();
        self.running.extend(iteration.jobs);
        begun
    }

    /// Ends all checks in flight.
    fn end_all(&mut self, good: bool) {
        for job in std::mem::take(&mut self.running) {
            let outcome = if good { Ok("connected".into()) } else { Err(CheckFailure::Backend("refused".into())) };
            self.schedule.result(&job, outcome, MILLISECOND, self.now);
            self.schedule.end(&job, self.now.instant);
        }
    }

    fn health(&self, backend: u16) -> Health {
        self.schedule.states().iter().find(|state| state.backend == backend).unwrap().health
    }
}

fn every(interval: Duration, backends: std::ops::Range<u16>) -> Vec<CheckTarget> {
    backends.map(|backend| CheckTarget { interval, ..target(backend, address(), Check::Tcp) }).collect()
}

/// With one failure for a verdict.
fn hasty(targets: Vec<CheckTarget>) -> Vec<CheckTarget> {
    targets.into_iter().map(|target| CheckTarget { fall: 1, ..target }).collect()
}

fn address() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

#[test]
fn first_checks_within_a_second_then_spread_over_the_interval() {
    let mut case = Case::new(every(10 * SECOND, 0..1000));
    let mut times: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    let mut busiest = [0; 2];
    for tick in 0..3000_u32 {
        let begun = case.iterate();
        let phase = usize::from(tick > 100);
        busiest[phase] = busiest[phase].max(begun.len());
        for backend in begun {
            times.entry(backend).or_default().push(tick);
        }
        case.end_all(true);
        case.pass(10 * MILLISECOND);
    }
    assert_eq!(times.len(), 1000);
    for (backend, ticks) in times {
        assert!(ticks[0] <= 100, "backend {backend} began {} ms late", ticks[0] * 10);
        let distances: BTreeSet<_> = ticks[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(ticks[1] - ticks[0] <= 1000 && distances == BTreeSet::from([1000]), "backend {backend}: {ticks:?}");
    }
    // Evenly spread that is 10 and 1 at a time.
    assert!(busiest[0] <= 14 && busiest[1] <= 3, "bursts of {busiest:?}");
}

#[test]
fn checks_in_flight_are_bounded() {
    let mut case = Case::new(every(SECOND, 0..600));
    case.pass(SECOND);
    let mut order = case.iterate();
    assert_eq!(order.len(), IN_FLIGHT_MAX);
    assert_eq!(case.schedule.totals().late, 344);
    assert_eq!(case.iterate(), [0_u16; 0]);
    assert_eq!(case.schedule.totals().late, 344, "each late check counts once");
    case.end_all(true);
    order.extend(case.iterate());
    case.end_all(true);
    order.extend(case.iterate());
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 600, "every backend once before any twice");
    let totals = case.schedule.totals();
    assert_eq!((totals.started, totals.in_flight, totals.in_flight_peak), (600, 88, IN_FLIGHT_MAX));
}

#[test]
fn a_check_that_still_runs_is_not_started_again() {
    let mut case = Case::new(every(SECOND, 1..2));
    case.pass(SECOND);
    assert_eq!(case.iterate(), [1]);
    for _ in 0..5 {
        case.pass(SECOND);
        assert_eq!(case.iterate(), [0_u16; 0]);
    }
    let job = case.running.pop().unwrap();
    case.schedule.result(&job, Ok("connected".into()), 5 * SECOND, case.now);
    case.schedule.end(&job, case.now.instant);
    assert_eq!(case.schedule.totals().overran, 1);
    case.pass(SECOND);
    assert_eq!(case.iterate(), [1]);
}

#[test]
fn lost_check_frees_its_slot() {
    let mut case = Case::new(every(SECOND, 1..2));
    case.pass(SECOND);
    case.iterate();
    let job = case.running.pop().unwrap();
    case.schedule.end(&job, case.now.instant);
    assert_eq!((case.schedule.totals().in_flight, case.health(1)), (0, Health::Unknown));
    case.pass(SECOND);
    assert_eq!(case.iterate(), [1]);
}

#[test]
fn an_update_keeps_what_is_the_same() {
    let mut case = Case::new(hasty(every(SECOND, 1..5)));
    case.pass(SECOND);
    case.iterate();
    case.end_all(false);
    case.iterate();

    let mut targets = every(SECOND, 1..5);
    targets[0].name = "renamed".into();
    targets[0].fall = 7;
    targets[1].address = "192.0.2.2:80".parse().unwrap();
    targets[2].check = Check::Udp { send: Vec::new(), expect: None };
    targets.pop();
    targets.extend(every(SECOND, 9..10));
    case.schedule.update(targets, case.now).unwrap();
    let seen: Vec<_> = case.schedule.states().iter().map(|state| (state.backend, state.health, state.checks)).collect();
    let anew = |backend| (backend, Health::Unknown, 0);
    assert_eq!(seen, [(1, Health::Down, 1), anew(2), anew(3), anew(9)]);
    assert!(case.schedule.iterate(case.now).changes.is_empty(), "no backend's health changed");
    case.pass(SECOND);
    let mut begun = case.iterate();
    begun.sort_unstable();
    assert_eq!(begun, [1, 2, 3, 9]);
}

#[test]
fn update_keeps_the_phase_changes_the_interval() {
    let mut case = Case::new(every(3600 * SECOND, 1..2));
    case.pass(SECOND);
    case.iterate();
    case.end_all(true);
    let next = case.schedule.iterate(case.now).next;
    case.pass(SECOND);
    case.schedule.update(every(3600 * SECOND, 1..2), case.now).unwrap();
    assert_eq!(case.schedule.iterate(case.now).next, next);
    case.schedule.update(every(SECOND, 1..2), case.now).unwrap();
    case.pass(SECOND);
    assert_eq!(case.iterate(), [1]);
}

#[test]
fn check_result_of_a_changed_target_is_ignored() {
    let mut case = Case::new(every(SECOND, 1..3));
    case.pass(SECOND * 3 / 2);
    assert_eq!(case.iterate().len(), 2);
    let mut moved = every(SECOND, 1..2);
    moved[0].address = "192.0.2.2:80".parse().unwrap();
    case.schedule.update(moved, case.now).unwrap();
    case.end_all(false);
    assert_eq!((case.health(1), case.schedule.totals().in_flight), (Health::Unknown, 0));
    case.pass(SECOND);
    assert_eq!(case.iterate(), [1], "the new one's first check, once");
}

#[test]
fn changed_target_leaves_the_waiting_list() {
    let hourly = || every(3600 * SECOND, 0..300);
    let mut case = Case::new(hourly());
    case.pass(SECOND);
    case.iterate();
    let moved = hourly().into_iter().map(|target| CheckTarget { address: "192.0.2.2:80".parse().unwrap(), ..target });
    case.schedule.update(moved.collect(), case.now).unwrap();
    let mut begun = Vec::new();
    for _ in 0..3 {
        case.end_all(true);
        begun.extend(case.iterate());
        case.pass(SECOND / 2);
    }
    begun.sort_unstable();
    assert_eq!(begun, (0..300).collect::<Vec<_>>(), "each once");
    case.schedule.update(Vec::new(), case.now).unwrap();
    case.end_all(true);
    assert_eq!((case.iterate().len(), case.schedule.totals().in_flight), (0, 0));
}

#[test]
fn a_change_is_told_once() {
    let mut case = Case::new(hasty(every(SECOND, 1..2)));
    case.pass(SECOND);
    case.iterate();
    case.end_all(false);
    let iteration = case.schedule.iterate(case.now);
    let [change] = &iteration.changes[..] else { panic!("{:?}", iteration.changes) };
    assert_eq!((change.backend, change.service.as_str(), change.name.as_str()), (1, "shop", "b1"));
    assert_eq!((change.from, change.to, change.reason.as_str()), (Health::Unknown, Health::Down, "refused"));
    case.pass(SECOND);
    case.iterate();
    case.end_all(false);
    assert!(case.schedule.iterate(case.now).changes.is_empty());
}

#[test]
fn a_trial_without_an_active_check() {
    let passive = Some(Passive { failures: 3, retry: 10 * SECOND });
    let mut case = Case::new(vec![CheckTarget { passive, ..target(1, address(), Check::None) }]);
    assert_eq!(case.schedule.iterate(case.now).next, None);
    case.schedule.observe(1, ObservedTotals::default(), case.now);
    case.schedule.observe(1, ObservedTotals { established: 0, failed: 3 }, case.now);
    case.schedule.observe(2, ObservedTotals { established: 0, failed: 3 }, case.now);
    let iteration = case.schedule.iterate(case.now);
    assert_eq!((iteration.changes[0].to, iteration.next), (Health::Down, Some(case.now.instant + 10 * SECOND)));
    case.pass(10 * SECOND);
    let iteration = case.schedule.iterate(case.now);
    assert_eq!((iteration.changes[0].to, iteration.next), (Health::Unknown, None));
    assert!(iteration.jobs.is_empty());

    // However late the iteration comes, no state is skipped.
    case.schedule.observe(1, ObservedTotals { established: 0, failed: 6 }, case.now);
    case.pass(100 * SECOND);
    let told: Vec<_> = case.schedule.iterate(case.now).changes.iter().map(|change| change.to).collect();
    assert_eq!(told, [Health::Down, Health::Unknown]);

    // A trial that is planned is not planned twice by an update or a restart, and goes with the rule it came from.
    case.schedule.observe(1, ObservedTotals { established: 0, failed: 9 }, case.now);
    let saved = case.schedule.saved();
    case.schedule.update(vec![CheckTarget { passive, ..target(1, address(), Check::None) }], case.now).unwrap();
    assert_eq!(case.schedule.iterate(case.now).next, Some(case.now.instant + 40 * SECOND));
    case.schedule.update(vec![target(1, address(), Check::None)], case.now).unwrap();
    assert_eq!((case.schedule.iterate(case.now).next, case.health(1)), (None, Health::Unknown));

    let mut after = Case::new(vec![CheckTarget { passive, ..target(1, address(), Check::None) }]);
    after.schedule.restore(&saved, after.now);
    let iteration = after.schedule.iterate(after.now);
    assert_eq!((iteration.changes.len(), iteration.next), (0, Some(after.now.instant + 40 * SECOND)));
    assert_eq!(after.health(1), Health::Down);
}

#[test]
fn a_bad_update_changes_nothing() {
    let mut case = Case::new(hasty(every(SECOND, 1..3)));
    case.pass(SECOND);
    case.iterate();
    case.end_all(false);
    let mut twice = every(SECOND, 1..3);
    twice[1].backend = 1;
    let error = case.schedule.update(twice, case.now).unwrap_err();
    assert!(error.to_string().contains("two health checks for the backend number 1"), "{error}");
    let bad = CheckTarget { fall: 0, ..target(7, address(), Check::Tcp) };
    let error = format!("{:#}", case.schedule.update(vec![bad], case.now).unwrap_err());
    assert_eq!(error, "health check of backend b7 of service shop: fall is 0; allowed are 1 to 1000");
    assert_eq!((case.health(1), case.health(2)), (Health::Down, Health::Down));
}

#[test]
fn bounds_of_a_target() {
    use super::HttpCheck;
    let http = |change: fn(&mut HttpCheck)| {
        let mut check = super::servers::get();
        change(&mut check);
        CheckTarget { check: Check::Http(check), ..target(1, address(), Check::Tcp) }
    };
    let udp = |send: usize, expect: usize| {
        target(1, address(), Check::Udp { send: vec![0; send], expect: Some(vec![0; expect]) })
    };
    let plain = || target(1, address(), Check::Tcp);
    let passive = |failures, retry| CheckTarget { passive: Some(Passive { failures, retry }), ..plain() };
    for good in [plain(), http(|_| {}), udp(1452, 4096), udp(0, 1), passive(1, SECOND)] {
        good.validate().unwrap();
    }
    let bad = [
        CheckTarget { rise: 0, ..plain() },
        CheckTarget { rise: 1001, ..plain() },
        CheckTarget { interval: Duration::ZERO, ..plain() },
        CheckTarget { timeout: Duration::ZERO, ..plain() },
        CheckTarget { slow_start: Duration::MAX, ..plain() },
        CheckTarget { address: "192.0.2.1:0".parse().unwrap(), ..plain() },
        passive(0, SECOND),
        passive(1, Duration::ZERO),
        udp(1453, 1),
        udp(1, 0),
        udp(1, 4097),
        http(|check| check.method = "GE T".into()),
        http(|check| check.method = "CONNECT".into()),
        http(|check| check.path = "health".into()),
        http(|check| check.path = "/a b".into()),
        http(|check| check.path = "/\r\nX: y".into()),
        http(|check| check.path = "/".repeat(4097)),
        http(|check| check.host = Some("a\r\nX: y".into())),
        http(|check| check.host = Some(String::new())),
        http(|check| check.body = Some(String::new())),
        http(|check| (check.method, check.body) = ("HEAD".into(), Some("x".into()))),
    ];
    for (index, bad) in bad.iter().enumerate() {
        assert!(bad.validate().is_err(), "number {index}: {bad:?}");
    }
}

#[test]
fn ranges_of_statuses() {
    for text in ["200-399", "200", "200,204,300-308"] {
        assert_eq!(text.parse::<StatusRanges>().unwrap().to_string(), text);
    }
    let ranges: StatusRanges = " 200 - 204 , 404".parse().unwrap();
    let good: Vec<_> = (0..=999).filter(|&status| ranges.contains(status)).collect();
    assert_eq!(good, [200, 201, 202, 203, 204, 404]);
    let many = ["200"; 33].join(",");
    for bad in ["", "200,", "-", "99", "600", "2xx", "300-200", "200-", "200-300-400", many.as_str()] {
        assert!(bad.parse::<StatusRanges>().is_err(), "{bad:?}");
    }
}

#[test]
fn first_checks_that_fail_are_repeated_within_a_second() {
    let mut case = Case::new(every(60 * SECOND, 1..2));
    case.pass(SECOND);
    for _ in 0..3 {
        assert_eq!((case.iterate(), case.health(1)), (vec![1], Health::Unknown));
        case.end_all(false);
        case.pass(SECOND);
    }
    assert_eq!(case.health(1), Health::Down);
    assert_eq!(case.iterate(), [0_u16; 0], "from now on at its interval");
}

/// As after a start of the machine: the balancer is there before the switch lets it speak.
#[test]
fn first_failures_without_a_link_are_ignored() {
    let mut case = Case::new(every(SECOND, 1..3));
    case.schedule.set_links(Some("interface eth1 has no link".into()), case.now.instant);
    for _ in 0..8 {
        case.pass(SECOND);
        case.iterate();
        case.end_all(false);
    }
    let state = case.schedule.states().remove(0);
    assert_eq!((state.health, state.checks), (Health::Unknown, 0));
    assert_eq!(state.reason, "not checked: interface eth1 has no link");
    case.pass(SECOND);
    case.iterate();
    case.schedule.set_links(None, case.now.instant);
    case.end_all(false);
    assert_eq!(case.schedule.states()[0].reason, "checked before the links were up");
    for _ in 0..3 {
        case.pass(SECOND);
        case.iterate();
        case.end_all(false);
    }
    assert_eq!((case.health(1), case.health(2)), (Health::Down, Health::Down), "now they count");
}

#[test]
fn down_link_excuses_failures_for_30_s() {
    let mut case = Case::new(every(SECOND, 1..2));
    case.schedule.set_links(Some("interface eth1 has no link".into()), case.now.instant);
    for second in 0..35 {
        assert!(second > 30 || case.health(1) == Health::Unknown, "after {second} s");
        case.pass(SECOND);
        case.iterate();
        case.end_all(false);
    }
    assert_eq!(case.health(1), Health::Down);
}

/// A common cause kept all from answering: when the first is back, the state of the others is unknown for a while.
#[test]
fn first_recovery_makes_others_settle_anew() {
    let mut case = Case::new(every(60 * SECOND, 1..4));
    for _ in 0..4 {
        case.pass(SECOND);
        case.iterate();
        case.end_all(false);
    }
    let settled = |case: &Case| -> Vec<bool> { case.schedule.states().iter().map(|state| state.settled).collect() };
    assert_eq!((settled(&case), case.health(3)), (vec![true; 3], Health::Down));
    let mut up = 0;
    while up == 0 {
        case.pass(SECOND);
        case.iterate();
        let was_running = !case.running.is_empty();
        let job = case.running.first().map(|job| job.target.backend);
        case.end_all(true);
        if was_running && job.is_some_and(|backend| case.health(backend) == Health::Up) {
            up = job.unwrap();
        }
    }
    let states = case.schedule.states();
    let others = || states.iter().filter(|state| state.health == Health::Down);
    assert!(others().count() > 0 && others().all(|state| !state.settled), "{states:?}");
    for _ in 0..5 {
        case.pass(SECOND);
        case.iterate();
        case.end_all(false);
    }
    assert_eq!(settled(&case), [true; 3], "their failures count again, once a second");
    assert_eq!(case.health(up), Health::Up);
}
