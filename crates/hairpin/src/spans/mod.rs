//! Spans: what records of sampled exchanges become, and their way to a collector by OTLP over HTTP.
//!
//! The access log's thread pushes spans into one bounded queue (`queue.rs`), made of records by OpenTelemetry's conventions
//! (`span.rs`). One thread takes them out in batches (`export.rs`) and posts them (`connection.rs`). A collector that is slow or
//! dead fills the queue and no more: what finds no room in it, and what the collector does not take in time, is lost and counted.

mod connection;
mod export;
mod queue;
mod settings;
mod span;
#[cfg(test)]
mod tests;

pub use settings::{CollectorSettings, Endpoint, TracingSettings};
pub(crate) use span::SpanFacts;

/// Bounds of the export of spans.
pub(crate) mod limits {
    pub(crate) use super::PATIENCE;
    pub(crate) use super::connection::ANSWER_BYTES_MAX;
    pub(crate) use super::export::{PAUSE_MAX, RETRY_FOR};
}

use crate::events::EventKind;
use crate::run::tell;
use export::{Pace, Plan};
use queue::Queue;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long the end of a process waits at most for spans that are still to be exported.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The process's export of spans. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Spans(Arc<Shared>);

/// Where spans begin their way to the collector. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct SpanQueue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pace: Pace,
    queue: Queue,
    /// What the thread goes by; `None`: there has been no tracing.
    plan: Mutex<Option<Arc<Plan>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Counts,
    ends: AtomicBool,
    /// Wakes the thread from a pause once the process ends, or there is another collector.
    roused: Notify,
}

#[derive(Default)]
struct Counts {
    exported: AtomicU64,
    /// By the number of a [`Lost`].
    lost: [AtomicU64; Lost::ALL.len()],
    /// Spans taken out of the queue whose fate is open.
    in_flight: AtomicU64,
}

/// Why spans were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The queue was full.
    QueueFull,
    /// The collector could not be reached or did not take them within [`export::RETRY_FOR`].
    Unreachable,
    /// The collector refused them.
    Refused,
}

/// The reason under which records count that found a worker's ring full: they come no further than the access log's thread.
pub(crate) const RING_FULL: &str = "ring-full";

impl Lost {
    /// All of them, in order.
    pub(crate) const ALL: [Lost; 3] = [Lost::QueueFull, Lost::Unreachable, Lost::Refused];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lost::QueueFull => "queue-full",
            Lost::Unreachable => "unreachable",
            Lost::Refused => "refused",
        }
    }
}

/// What has become of spans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpansReading {
    /// Spans that the collector has taken.
    pub(crate) exported: u64,
    /// Spans lost, by the number of a [`Lost`].
    pub(crate) lost: [u64; Lost::ALL.len()],
    /// Spans in the queue and in the batch that is on its way.
    pub(crate) waiting: u64,
}

impl Counts {
    fn lost(&self) -> [u64; Lost::ALL.len()] {
        std::array::from_fn(|why| self.lost[why].load(Ordering::Acquire))
    }

    fn lose(&self, why: Lost, count: u64) {
        self.lost[why as usize].fetch_add(count, Ordering::AcqRel);
    }

    /// The fate of the batch in flight is known: so many spans were exported, and so many lost.
    fn settle(&self, exported: u64, why: Lost, lost: u64) {
        // First, so that a reading has no span twice.
        self.in_flight.store(0, Ordering::Release);
        self.exported.fetch_add(exported, Ordering::AcqRel);
        self.lose(why, lost);
    }
}

impl Spans {
    /// Goes by these settings from now on, for the instance of this name. `None`: what is in the queue is still exported.
    pub(crate) fn configure(&self, settings: Option<&TracingSettings>, instance: &str) {
        self.0.queue.set_room(settings.map_or(0, |settings| settings.queue));
        let Some(settings) = settings else { return };
        *lock(&self.0.plan) = Some(Arc::new(Plan::new(settings, instance)));
        self.0.roused.notify_one();
        let mut thread = lock(&self.0.thread);
        if thread.is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        match std::thread::Builder::new().name("spans".into()).spawn(move || export::run(shared)) {
            Ok(handle) => *thread = Some(handle),
            Err(error) => {
                tell(EventKind::Limit, &format!("warning: spans are not exported: cannot start a thread: {error}"))
            }
        }
    }

    /// Where spans are to be pushed.
    pub(crate) fn queue(&self) -> SpanQueue {
        SpanQueue(Arc::clone(&self.0))
    }

    /// What has become of spans so far.
    pub(crate) fn reading(&self) -> SpansReading {
        let counts = &self.0.counts;
        SpansReading {
            exported: counts.exported.load(Ordering::Acquire),
            lost: counts.lost(),
            waiting: self.0.queue.waiting(|| counts.in_flight.load(Ordering::Acquire)),
        }
    }

    /// Exports what is left, within [`PATIENCE`], and ends. No more spans may be pushed.
    pub(crate) fn end(&self) {
        self.0.ends.store(true, Ordering::Relaxed);
        let Some(thread) = lock(&self.0.thread).take() else { return };
        self.0.roused.notify_one();
        self.0.queue.wake();
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let left = self.reading().waiting;
        if left > 0 {
            let what =
                format!("warning: {left} spans are lost: the process ends, and the collector has not taken them");
            tell(EventKind::Limit, &what);
        }
    }
}

impl SpanQueue {
    /// Makes a span of these facts and queues it. It never waits: a span that finds no room is lost and counted.
    pub(crate) fn push(&self, facts: &SpanFacts<'_>) {
        let Shared { queue, counts, .. } = &*self.0;
        if !queue.has_room() || !queue.add(span::of(facts)) {
            counts.lose(Lost::QueueFull, 1);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
