//! Requests that wait until a backend of their group has fewer than it may have.
//!
//! A core has a queue for each group, ordered by priority and arrival. The first one in it tries to get a backend: when a request of
//! this core leaves one, and every few milliseconds, since those of other cores leave backends, too. A request that comes while others
//! of its priority or a higher one wait, waits behind them.
//!
//! *Bounds.* A queue's length and the time in it, for which its requests are refused with 503; what waits is one task each.

use hairpin_core::l7::config::Group;
use hairpin_core::l7::splice::Refused;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How often the first one in a queue tries to get a backend that a request of another core may have left.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// The bounds of a group's queue on each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Requests that wait at a time, 1 to 100,000.
    pub requests_max: u32,
    /// How long each waits at most, 10 ms to an hour.
    pub timeout: Duration,
}

/// The highest priority first, then by arrival.
type PlaceKey = (Reverse<u8>, u64);

/// The queues of a core.
#[derive(Default)]
pub(crate) struct Queues {
    waiting: RefCell<HashMap<Group, BTreeMap<PlaceKey, Rc<Notify>>>>,
    arrivals: Cell<u64>,
}

/// A request's place in a queue, left when this is dropped.
struct Place<'a> {
    queues: &'a Queues,
    group: Group,
    key: PlaceKey,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.queues.waiting.borrow_mut().get_mut(&self.group) {
            queue.remove(&self.key);
        }
        self.queues.wake(self.group);
    }
}

impl Place<'_> {
    fn is_first(&self) -> bool {
        let waiting = self.queues.waiting.borrow();
        waiting.get(&self.group).and_then(|queue| queue.first_key_value()).is_some_and(|(first, _)| *first == self.key)
    }
}

impl Queues {
    /// Whether requests wait that go before one of this priority that comes now.
    pub(crate) fn precede(&self, group: Group, priority: u8) -> bool {
        let waiting = self.waiting.borrow();
        let first = waiting.get(&group).and_then(|queue| queue.first_key_value());
        first.is_some_and(|((Reverse(first), _), _)| *first >= priority)
    }

    /// A request of this core has left a backend of `group`.
    pub(crate) fn wake(&self, group: Group) {
        let waiting = self.waiting.borrow();
        let first = waiting.get(&group).and_then(|queue| queue.first_key_value());
        first.into_iter().for_each(|(_, first)| first.notify_one());
    }

    /// Waits until a request may try to get a backend, and `attempt` has got one.
    ///
    /// # Errors
    /// Why the request is refused: as many wait as may, its time is over, or what `attempt` says, beside that all are full.
    pub(crate) async fn wait<T>(
        &self,
        (group, priority): (Group, u8),
        settings: QueueSettings,
        mut attempt: impl FnMut() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let woken = Rc::new(Notify::new());
        let place = self.enter((group, priority), settings.requests_max, &woken).ok_or(Refused::BackendsFull)?;
        let deadline = Instant::now() + settings.timeout;
        loop {
            let is_first = place.is_first();
            if is_first {
                match attempt() {
                    Err(Refused::BackendsFull) => {}
                    other => return other,
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Refused::QueueTimeout);
            }
            let until = if is_first { deadline.min(now + TRY_EVERY) } else { deadline };
            tokio::select! {
                () = woken.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    fn enter(&self, (group, priority): (Group, u8), most: u32, woken: &Rc<Notify>) -> Option<Place<'_>> {
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let key = (Reverse(priority), arrival);
        let mut waiting = self.waiting.borrow_mut();
        let queue = waiting.entry(group).or_default();
        if queue.len() >= most as usize {
            return None;
        }
        queue.insert(key, Rc::clone(woken));
        Some(Place { queues: self, group, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(body: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
    }

    const SETTINGS: QueueSettings = QueueSettings { requests_max: 3, timeout: Duration::from_secs(60) };

    #[test]
    fn highest_priority_goes_first_and_the_length_is_bounded() {
        let (queues, free, done) = (Queues::default(), Cell::new(0), RefCell::new(Vec::new()));
        let attempt = || match free.get() {
            0 => Err(Refused::BackendsFull),
            more => {
                free.set(more - 1);
                Ok(())
            }
        };
        let wait = async |number: usize, priority: u8| {
            let got = queues.wait((1, priority), SETTINGS, attempt).await;
            done.borrow_mut().push((number, got));
        };
        let leave = async {
            while done.borrow().len() < 4 {
                free.set(1);
                queues.wake(1);
                while free.get() > 0 {
                    tokio::task::yield_now().await;
                }
            }
        };
        run(async { tokio::join!(wait(0, 4), wait(1, 9), wait(2, 4), wait(3, 9), leave) });
        let expected = [(3, Err(Refused::BackendsFull)), (1, Ok(())), (0, Ok(())), (2, Ok(()))];
        assert_eq!(done.into_inner(), expected, "the fourth finds three");
    }

    #[test]
    fn time_is_bounded_and_other_refusals_end_it() {
        let queues = Queues::default();
        let settings = QueueSettings { timeout: Duration::from_millis(10), ..SETTINGS };
        let full = || Err::<(), _>(Refused::BackendsFull);
        assert_eq!(run(queues.wait((1, 0), settings, full)), Err(Refused::QueueTimeout));
        let none = || Err::<(), _>(Refused::NoBackend);
        assert_eq!(run(queues.wait((1, 0), SETTINGS, none)), Err(Refused::NoBackend));
        assert!(!queues.precede(1, 0), "none is left");
    }

    #[test]
    fn requests_that_come_later_stand_behind() {
        let queues = Queues::default();
        assert!(!queues.precede(1, 0));
        let place = queues.enter((1, 4), 9, &Rc::default()).unwrap();
        assert!(queues.precede(1, 4) && queues.precede(1, 0) && !queues.precede(1, 5) && !queues.precede(2, 0));
        drop(place);
        assert!(!queues.precede(1, 0));
    }
}
