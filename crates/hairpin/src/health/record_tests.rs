//! The machine of one backend, with the time told by the test.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;

use super::probe::{CheckFailure, CheckOutcome};
use super::record::{HealthRecord, Moment, SETTLING_MAX};
use super::servers::target;
use super::{Check, CheckTarget, Health, ObservedTotals, Passive, Saved};

const SECOND: Duration = Duration::from_secs(1);

fn address() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

/// A record and the time.
struct Case {
    target: CheckTarget,
    record: HealthRecord,
    now: Moment,
    totals: ObservedTotals,
}

impl Case {
    fn new(target: CheckTarget) -> Self {
        let now = Moment { instant: Instant::now() + 1000 * SECOND, wall: SystemTime::now() };
        let mut case = Case { record: HealthRecord::new(&target, now), target, now, totals: ObservedTotals::default() };
        case.observe(0, 0);
        case
    }

    fn checked() -> Self {
        Case::new(target(1, address(), Check::Tcp))
    }

    fn passive(check: Check) -> Self {
        let passive = Some(Passive { failures: 5, retry: 10 * SECOND });
        Case::new(CheckTarget { passive, ..target(1, address(), check) })
    }

    fn pass(&mut self, by: Duration) {
        self.now = Moment { instant: self.now.instant + by, wall: self.now.wall + by };
    }

    fn result(&mut self, outcome: CheckOutcome) -> Health {
        self.record.result(&self.target, outcome, SECOND / 100, self.now);
        self.record.health()
    }

    fn good(&mut self) -> Health {
        self.result(Ok("connected".into()))
    }

    fn bad(&mut self) -> Health {
        self.result(Err(CheckFailure::Backend("connection refused".into())))
    }

    fn down(&mut self) {
        for _ in 0..self.target.fall {
            self.bad();
        }
        assert_eq!(self.record.health(), Health::Down);
    }

    fn settled(&self) -> bool {
        self.record.backend_health(&self.target, self.now.instant).settled
    }

    fn observe(&mut self, established: u64, failed: u64) -> Health {
        self.totals.established += established;
        self.totals.failed += failed;
        self.record.observe(&self.target, self.totals, self.now);
        self.record.health()
    }

    fn share(&self) -> u16 {
        self.record.backend_health(&self.target, self.now.instant).share_256
    }

    fn available(&self) -> bool {
        self.record.backend_health(&self.target, self.now.instant).available
    }

    fn restored(&self, saved: &Saved) -> Case {
        let mut case = Case::new(self.target.clone());
        case.now = self.now;
        case.record.restore(&case.target, saved, case.now);
        case
    }
}

#[test]
fn first_success_decides_failures_need_agreement() {
    let mut case = Case::checked();
    assert_eq!((case.record.health(), case.available(), case.settled()), (Health::Unknown, true, false));
    assert_eq!([case.bad(), case.bad()], [Health::Unknown; 2]);
    assert_eq!((case.available(), case.settled()), (false, false), "others are better, but that is no verdict");
    assert_eq!(case.record.reason(), "connection refused; failure 2 of 3");
    assert_eq!((case.bad(), case.settled()), (Health::Down, true));
    let mut case = Case::checked();
    case.bad();
    assert_eq!((case.good(), case.settled()), (Health::Up, true));
}

#[test]
fn settling_time_ends_with_the_latest_failure() {
    let mut case = Case::checked();
    case.target.fall = 100;
    case.bad();
    case.pass(SETTLING_MAX - SECOND);
    assert_eq!(case.bad(), Health::Unknown);
    case.pass(SECOND);
    assert_eq!((case.bad(), case.settled()), (Health::Down, true));
}

#[test]
fn an_excused_failure_begins_the_first_checks_anew() {
    let mut case = Case::checked();
    case.bad();
    case.bad();
    case.pass(SETTLING_MAX);
    case.record.excuse("interface eth1 has no link", case.now);
    assert_eq!((case.record.health(), case.available(), case.settled()), (Health::Unknown, true, false));
    assert_eq!(case.record.reason(), "interface eth1 has no link");
    assert_eq!([case.bad(), case.bad(), case.bad()], [Health::Unknown, Health::Unknown, Health::Down]);
}

#[test]
fn unsettled_record_settles_as_down_or_up() {
    let mut case = Case::checked();
    case.down();
    case.record.unsettle(case.now);
    assert_eq!([case.bad(), case.bad()], [Health::Down; 2]);
    assert!(!case.settled());
    assert_eq!((case.bad(), case.settled()), (Health::Down, true));
    case.record.unsettle(case.now);
    assert_eq!((case.good(), case.settled()), (Health::Down, false));
    assert_eq!((case.good(), case.settled()), (Health::Up, true));
}

#[test]
fn without_a_check_there_is_nothing_to_wait_for() {
    assert!(Case::passive(Check::None).settled());
}

#[test]
fn fall_and_rise_count_results_in_a_row() {
    let mut case = Case::checked();
    case.good();
    assert_eq!([case.bad(), case.bad(), case.good()], [Health::Up; 3]);
    assert_eq!([case.bad(), case.bad()], [Health::Up; 2]);
    assert_eq!(case.record.state(1).against, 2);
    let before = case.now.wall;
    case.pass(SECOND);
    assert_eq!(case.bad(), Health::Down);
    assert_eq!([case.good(), case.bad(), case.good()], [Health::Down; 3]);
    let state = case.record.state(1);
    assert_eq!((state.since, state.reason.as_str()), (before + SECOND, "connection refused"));
    assert_eq!(case.good(), Health::Up);
    let state = case.record.state(1);
    assert_eq!((state.checks, state.failures, state.last_duration), (11, 6, Some(SECOND / 100)));
    assert_eq!((state.reason.as_str(), state.against), ("connected", 0));
}

#[test]
fn while_it_is_down_the_latest_reason_is_shown() {
    let mut case = Case::checked();
    case.down();
    let since = case.record.state(1).since;
    case.pass(SECOND);
    case.result(Err(CheckFailure::Backend("HTTP status 503, expected 200-399".into())));
    let state = case.record.state(1);
    assert_eq!((state.reason.as_str(), state.since), ("HTTP status 503, expected 200-399", since));
}

#[test]
fn what_the_host_lacks_changes_nothing() {
    let mut case = Case::checked();
    let lack = || Err(CheckFailure::Local("this host cannot check: too many open files".into()));
    assert_eq!(case.result(lack()), Health::Unknown);
    assert_eq!(case.record.reason(), "this host cannot check: too many open files");
    case.good();
    case.bad();
    case.bad();
    assert_eq!([case.result(lack()), case.result(lack())], [Health::Up; 2]);
    assert_eq!(case.record.state(1).checks, 3);
    assert_eq!(case.bad(), Health::Down, "nor does it interrupt what was in a row");
}

#[test]
fn passive_failures_take_down_checks_bring_up() {
    let mut case = Case::passive(Check::Tcp);
    case.good();
    assert_eq!(case.observe(0, 4), Health::Up);
    assert_eq!(case.observe(1, 3), Health::Up, "a success in the interval");
    assert_eq!(case.observe(0, 4), Health::Up);
    assert_eq!(case.observe(0, 2), Health::Down);
    assert_eq!(case.record.reason(), "passive: 6 failures in a row");
    assert_eq!(case.record.retry_at(), None);
    assert_eq!(case.observe(3, 0), Health::Down, "begun before");
    assert_eq!([case.good(), case.good()], [Health::Down, Health::Up]);
    assert_eq!([case.observe(0, 4), case.observe(0, 1)], [Health::Up, Health::Down]);
}

#[test]
fn passive_only_backend_is_retried_with_backoff() {
    let mut case = Case::passive(Check::None);
    for seconds in [10, 20, 40, 80, 80] {
        assert_eq!(case.observe(0, 5), Health::Down);
        assert_eq!(case.record.retry_at(), Some(case.now.instant + seconds * SECOND));
        case.pass(seconds * SECOND - SECOND);
        case.observe(0, 100);
        case.record.retry(case.now);
        assert_eq!(case.record.health(), Health::Down, "too early");
        case.pass(SECOND);
        case.record.retry(case.now);
        assert_eq!((case.record.health(), case.available()), (Health::Unknown, true));
        assert_eq!(case.observe(0, 4), Health::Unknown);
    }
    assert_eq!(case.observe(1, 0), Health::Up);
    assert_eq!(case.record.reason(), "passive: a client was served");
    assert_eq!(case.observe(0, 5), Health::Down);
    assert_eq!(case.record.retry_at(), Some(case.now.instant + 10 * SECOND), "the pause begins anew");
}

#[test]
fn totals_that_go_back_begin_anew() {
    let mut case = Case::passive(Check::None);
    case.observe(10, 10);
    case.totals = ObservedTotals { established: 0, failed: 8 };
    assert_eq!(case.observe(0, 0), Health::Up);
    assert_eq!(case.observe(0, 4), Health::Up);
    assert_eq!(case.observe(0, 1), Health::Down);
}

#[test]
fn nothing_is_observed_without_passive() {
    let mut case = Case::checked();
    case.good();
    assert_eq!(case.observe(0, 1_000_000), Health::Up);
}

#[test]
fn slow_start_grows_from_a_sixteenth() {
    let mut case = Case::checked();
    case.target.slow_start = 30 * SECOND;
    case.good();
    assert_eq!(case.share(), 256, "it never was down");
    for _ in 0..3 {
        case.bad();
    }
    case.good();
    case.good();
    assert_eq!((case.available(), case.share()), (true, 16));
    case.pass(15 * SECOND);
    assert_eq!(case.share(), 136);
    case.pass(15 * SECOND - Duration::from_nanos(1));
    assert_eq!(case.share(), 255);
    case.pass(Duration::from_nanos(1));
    assert_eq!(case.share(), 256);
    case.pass(1000 * SECOND);
    assert_eq!(case.share(), 256);
}

#[test]
fn trial_uses_slow_start_once() {
    let mut case = Case::passive(Check::None);
    case.target.slow_start = 30 * SECOND;
    case.observe(0, 5);
    case.pass(10 * SECOND);
    case.record.retry(case.now);
    assert_eq!(case.share(), 16);
    case.pass(15 * SECOND);
    assert_eq!(case.observe(1, 0), Health::Up);
    assert_eq!(case.share(), 136);
}

#[test]
fn states_survive_a_restart() {
    let mut case = Case::checked();
    case.target.slow_start = 30 * SECOND;
    case.down();
    case.pass(5 * SECOND);
    let saved = case.record.saved(&case.target);
    let json = serde_json::to_string(&saved).unwrap();
    assert_eq!(serde_json::from_str::<Saved>(&json).unwrap(), saved);
    let mut after = case.restored(&saved);
    let (old, new) = (case.record.state(1), after.record.state(1));
    assert_eq!((new.health, &new.reason), (old.health, &old.reason));
    assert!(old.since.duration_since(new.since).unwrap() < SECOND / 1000, "{:?} {:?}", old.since, new.since);
    assert!(after.settled());
    assert_eq!([after.good(), after.good()], [Health::Down, Health::Up], "the first success no longer decides");

    after.pass(15 * SECOND);
    let saved = after.record.saved(&after.target);
    assert!((136..=137).contains(&after.restored(&saved).share()), "slow start goes on");
}

#[test]
fn a_restored_state_must_fit() {
    let mut case = Case::checked();
    case.down();
    let saved = case.record.saved(&case.target);
    let moved = Saved { address: "192.0.2.2:80".parse().unwrap(), ..saved.clone() };
    assert_eq!(case.restored(&moved).record.health(), Health::Unknown, "another address");

    let mut known = Case::checked();
    known.target = case.target.clone();
    known.good();
    known.record.restore(&known.target, &saved, known.now);
    assert_eq!(known.record.health(), Health::Up, "fresher news");

    case.target.check = Check::None;
    assert_eq!(case.restored(&saved).record.health(), Health::Unknown, "nothing could bring it back");
    case.target.passive = Some(Passive { failures: 5, retry: 10 * SECOND });
    let tried = case.restored(&Saved { trips: u32::MAX, ..saved });
    assert_eq!(tried.record.retry_at(), Some(case.now.instant + 80 * SECOND));
}

#[test]
fn a_restored_state_from_a_hostile_file_is_tamed() {
    let case = Case::checked();
    let saved = Saved {
        backend: 1,
        address: case.target.address,
        health: Health::Up,
        reason: "\u{1b}[2J\n".repeat(1000),
        since_unix_ms: u64::MAX,
        returned_unix_ms: Some(0),
        trips: 3,
    };
    let state = case.restored(&saved).record.state(1);
    assert_eq!((state.reason.chars().count(), state.since), (200, case.now.wall));
    assert!(!state.reason.contains(char::is_control));
}

#[test]
fn what_nothing_can_bring_back_does_not_stay_down() {
    let mut case = Case::passive(Check::None);
    case.observe(0, 5);
    case.target.passive = None;
    case.record.retarget(&case.target, case.now);
    assert_eq!((case.record.health(), case.record.retry_at()), (Health::Unknown, None));
}

proptest! {
    /// Against the plainest model: the verdict changes exactly when the last `fall` or `rise` results all differ from
    /// it; before the first one, a success is enough.
    #[test]
    fn any_sequence_of_results(
        results in prop::collection::vec(any::<bool>(), 1..200),
        rise in 1u32..6,
        fall in 1u32..6,
    ) {
        let mut case = Case::checked();
        (case.target.rise, case.target.fall) = (rise, fall);
        let first = results.iter().position(|&good| good).unwrap_or(usize::MAX).min(fall as usize - 1);
        let mut up = results.get(first).copied().unwrap_or(false);
        let mut begun = first + 1;
        for (index, &good) in results.iter().enumerate() {
            let health = if good { case.good() } else { case.bad() };
            if index <= first {
                let verdict = if up { Health::Up } else { Health::Down };
                prop_assert_eq!(health, if index < first { Health::Unknown } else { verdict });
                continue;
            }
            let needed = if up { fall } else { rise } as usize;
            let since = &results[begun..=index];
            if since.len() >= needed && since[since.len() - needed..].iter().all(|&result| result != up) {
                up = !up;
                begun = index + 1;
            }
            prop_assert_eq!(health, if up { Health::Up } else { Health::Down });
        }
    }

    /// Shares never shrink while a backend starts, and stay in range.
    #[test]
    fn any_slow_start(
        slow_ns in 1u64..86_400_000_000_000,
        steps in prop::collection::vec(1u64..10_000_000_000_000, 1..50),
    ) {
        let mut case = Case::checked();
        case.target.slow_start = Duration::from_nanos(slow_ns);
        case.down();
        case.good();
        case.good();
        let mut last = case.share();
        prop_assert_eq!(last, 16);
        for step in steps {
            case.pass(Duration::from_nanos(step));
            let share = case.share();
            prop_assert!((last..=256).contains(&share));
            last = share;
        }
    }
}
