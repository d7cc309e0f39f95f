//! The queue of spans: bounded, filled by one thread and emptied by another.

use super::lock;
use opentelemetry_proto::tonic::trace::v1::Span;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Spans of a batch at most.
pub(super) const BATCH_MAX: usize = 512;

/// Spans that wait for the exporter. The lock is held to move spans, never while one is sent.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// The first span has come, a batch is full, or the process ends.
    filled: Notify,
}

#[derive(Default)]
struct Waiting {
    spans: VecDeque<Span>,
    /// How many there may be.
    room: usize,
}

impl Queue {
    /// Takes so many spans at most from now on; those that are there stay.
    pub(super) fn set_room(&self, room: usize) {
        lock(&self.waiting).room = room;
    }

    pub(super) fn has_room(&self) -> bool {
        let waiting = lock(&self.waiting);
        waiting.spans.len() < waiting.room
    }

    fn len(&self) -> usize {
        lock(&self.waiting).spans.len()
    }

    /// How many spans are here or in the batch that was taken out, of which `in_flight` tells.
    pub(super) fn waiting(&self, in_flight: impl Fn() -> u64) -> u64 {
        let waiting = lock(&self.waiting);
        waiting.spans.len() as u64 + in_flight()
    }

    /// Adds a span; `false`: there is no room.
    pub(super) fn add(&self, span: Span) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.spans.len() >= waiting.room {
            return false;
        }
        waiting.spans.push_back(span);
        let count = waiting.spans.len();
        drop(waiting);
        if count == 1 || count == BATCH_MAX {
            self.wake();
        }
        true
    }

    /// Has [`Queue::batch`] see what has changed.
    pub(super) fn wake(&self) {
        self.filled.notify_one();
    }

    /// Waits for a batch and takes it out, the oldest spans first; its first one waits no longer than `every`. Once `ends` says
    /// so it does not wait, and the batch may be empty. `taken` is told how many there are before the queue looks shorter.
    pub(super) async fn batch(&self, every: Duration, ends: impl Fn() -> bool, taken: impl Fn(u64)) -> Vec<Span> {
        let mut due = None;
        loop {
            let count = self.len();
            let is_due = due.is_some_and(|due| Instant::now() >= due);
            if ends() || count >= BATCH_MAX || (count > 0 && is_due) {
                let mut waiting = lock(&self.waiting);
                let count = waiting.spans.len().min(BATCH_MAX);
                taken(count as u64);
                return waiting.spans.drain(..count).collect();
            }
            if count == 0 {
                self.filled.notified().await;
            } else {
                let due = *due.get_or_insert_with(|| Instant::now() + every);
                // Whether it was woken or the time is over, it looks again.
                let _ = timeout(due.saturating_duration_since(Instant::now()), self.filled.notified()).await;
            }
        }
    }
}
