//! Queries for connections of HTTP and TLS services. They lie in the workers' own memory, so the workers answer: one query
//! an iteration at most, each a bounded number of places, into memory of the thread that asks. Workers wait for no thread
//! here, and pay one load an iteration while no thread asks.

use hairpin_core::l7::splice::{LOOKED_MAX, SplicedConnection};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Queries that may wait at most; each client of the control socket has one at a time.
pub(crate) const QUERIES_MAX: usize = 16;
/// How long a query is waited for.
pub(crate) const QUERY_PATIENCE: Duration = Duration::from_secs(1);

/// The result of a query.
pub(crate) struct SpliceAnswer {
    /// Connections, in order of their places.
    pub(crate) found: Vec<SplicedConnection>,
    /// The position to continue from; `None`: there are no more.
    pub(crate) next: Option<u32>,
}

struct SpliceQuery {
    start: u32,
    found: Vec<SplicedConnection>,
    answer: SyncSender<SpliceAnswer>,
}

/// Queries that wait for a worker.
#[derive(Default)]
pub(crate) struct SpliceQueries {
    asked: AtomicBool,
    waiting: Mutex<VecDeque<SpliceQuery>>,
}

impl SpliceQueries {
    /// Asks for what lies at place `start` and behind; `wake` wakes the worker. `None`: too many ask, or the worker does
    /// not answer in time.
    pub(crate) fn ask(&self, start: u32, wake: impl FnOnce()) -> Option<SpliceAnswer> {
        let (answer, answered) = sync_channel(1);
        let query = SpliceQuery { start, found: Vec::with_capacity(LOOKED_MAX), answer };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= QUERIES_MAX {
            return None;
        }
        waiting.push_back(query);
        self.asked.store(true, Ordering::Release);
        drop(waiting);
        wake();
        answered.recv_timeout(QUERY_PATIENCE).ok()
    }

    /// Whether a query waits for the worker.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// The worker answers the query that has waited longest, unless a thread is just adding one.
    pub(crate) fn answer(&self, query: impl FnOnce(u32, &mut Vec<SplicedConnection>) -> Option<u32>) {
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let first = waiting.pop_front();
        self.asked.store(!waiting.is_empty(), Ordering::Release);
        drop(waiting);
        if let Some(SpliceQuery { start, mut found, answer }) = first {
            let next = query(start, &mut found);
            // A thread that no longer waits does not want the answer.
            let _ = answer.try_send(SpliceAnswer { found, next });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_who_asks_is_answered_one_at_a_time() {
        let splice_queries = Arc::new(SpliceQueries::default());
        assert!(!splice_queries.is_asked());
        let askers: Vec<_> = (0..4u32)
            .map(|start| {
                let splice_queries = Arc::clone(&splice_queries);
                std::thread::spawn(move || (start, splice_queries.ask(start, || ()).and_then(|answer| answer.next)))
            })
            .collect();
        let mut answers = 0;
        while answers < 4 {
            splice_queries.answer(|start, found| {
                answers += 1;
                assert!(found.is_empty() && found.capacity() >= LOOKED_MAX);
                Some(start * 10)
            });
            std::thread::yield_now();
        }
        for asker in askers {
            let (start, answer) = asker.join().unwrap();
            assert_eq!(answer, Some(start * 10));
        }
        assert!(!splice_queries.is_asked());
        splice_queries.answer(|_, _| panic!("no client has asked"));
    }

    #[test]
    fn silent_worker_query_is_bounded() {
        let splice_queries = SpliceQueries::default();
        assert!(splice_queries.ask(0, || ()).is_none());
        // The look still waits; the worker may answer it, and no thread receives the answer.
        assert!(splice_queries.is_asked());
        for _ in 0..QUERIES_MAX {
            let (answer, _) = sync_channel(1);
            splice_queries.waiting.lock().unwrap().push_back(SpliceQuery { start: 0, found: Vec::new(), answer });
        }
        assert!(splice_queries.ask(0, || panic!("a query that does not wait wakes no worker")).is_none());
        assert_eq!(splice_queries.waiting.lock().unwrap().len(), QUERIES_MAX + 1);
        for _ in 0..=QUERIES_MAX {
            splice_queries.answer(|_, _| None);
        }
        assert!(!splice_queries.is_asked());
    }
}
