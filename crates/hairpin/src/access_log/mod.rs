//! The access log: a line for each exchange and connection that has ended. Its thread also makes the spans of those that are
//! sampled (`crate::spans`).
//!
//! Workers and HTTPS runtimes put records into rings ([`hairpin_core::record`]); one thread takes them out, puts together what
//! belongs together (`join.rs`), makes lines (`line.rs`) and writes them (`output.rs`). Nothing here can hold up a packet: a
//! ring that is full loses records, an output that does not take lines loses those, and both are counted.

mod escape;
mod join;
mod line;
mod output;
mod settings;

pub(crate) use line::RecordNames;
pub(crate) use output::Output;
pub use settings::{AccessLogSettings, Form, ServiceLog, SyslogEnd, Target};
pub(crate) use settings::{FORMS, Template, usual_fields};

/// Bounds of the access log.
pub(crate) mod limits {
    use std::time::Duration;

    pub(crate) use super::join::{TEXTS_BYTES_MAX, TEXTS_MAX};
    pub(crate) use super::output::RETRY_AFTER;

    /// How long lines are still made and written when the process ends. What is in the rings then is lost, and counted.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
}

use crate::config::ServiceSettings;
use crate::events::EventKind;
use crate::run::tell;
use crate::spans::{SpanFacts, SpanQueue};
use hairpin_core::config::Snapshot;
use hairpin_core::l7::trace::TraceContext;
use hairpin_core::record::{Record, Recorder, Records, Texts};
use hairpin_linux::cpu;
use join::Joiner;
use limits::PATIENCE;
use line::{LineWriter, Names};
use output::TELL_EVERY;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The longest pause between two looks at the rings while there is something in them.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// How full the fullest ring may become from one look to the next, of 256 parts: the pause is chosen so.
const FULL_ENOUGH: u32 = 64;
/// The pause while there is nothing.
const LOOK_LATER: Duration = Duration::from_millis(100);
/// The nice value of the thread: packets go first. Beside a worker that needs all of a core it still gets an eighth of it, enough for
/// tens of thousands of lines a second.
const NICE: i32 = 5;
/// How long the end of a process waits at most beyond that: for an output that takes its time, and to count.
const GRACE: Duration = Duration::from_secs(3);

/// The process's access log. Clones are the same log.
#[derive(Clone, Default)]
pub(crate) struct AccessLog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Rings that the thread has not taken over yet.
    fresh: Mutex<Vec<Records>>,
    /// What the thread goes by; `None`: there is no access log.
    plan: Mutex<Option<Arc<Plan>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Counts,
    reopens: AtomicBool,
    ends: AtomicBool,
}

/// What is to be logged, and how.
struct Plan {
    /// `None`: there are no lines.
    settings: Option<AccessLogSettings>,
    names: Names,
    /// Where spans go; `None`: there are none.
    spans: Option<SpanQueue>,
}

/// What becomes of a service's records.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceRecords {
    /// Which of them become lines; `None`: none.
    log: Option<ServiceLog>,
    /// How many routes the service has: what takes none of them takes its own backends.
    route_count: u16,
}

impl ServiceRecords {
    /// Of services with these settings, by number.
    pub(crate) fn of(services: &[Option<ServiceSettings>]) -> Vec<ServiceRecords> {
        let of = |settings: &ServiceSettings| ServiceRecords {
            log: settings.access_log.clone(),
            route_count: settings.route_count,
        };
        services.iter().map(|settings| settings.as_ref().map(of).unwrap_or_default()).collect()
    }
}

/// What has become of records and lines.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    records_lost: AtomicU64,
    lines_lost: AtomicU64,
}

/// What the access log has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessLogReading {
    /// Lines handed to the output.
    pub(crate) written: u64,
    /// Records that found a worker's ring full, or were still in one when the process ended.
    pub(crate) records_lost: u64,
    /// Lines that the output has not taken.
    pub(crate) lines_lost: u64,
}

impl AccessLog {
    /// A ring of so many bytes for a worker or runtime of this process.
    pub(crate) fn recorder(&self, bytes: usize) -> Recorder {
        let (recorder, records) = Recorder::new(bytes);
        lock(&self.0.fresh).push(records);
        recorder
    }

    /// Goes by these settings, services and backends from now on. `spans`: where those of sampled exchanges go. `services`: by
    /// number.
    pub(crate) fn configure(
        &self,
        settings: Option<&AccessLogSettings>,
        spans: Option<SpanQueue>,
        snapshot: &Arc<Snapshot>,
        services: Vec<ServiceRecords>,
    ) {
        let is_wanted = settings.is_some() || spans.is_some();
        let plan = is_wanted.then(|| {
            Arc::new(Plan { settings: settings.cloned(), names: Names::new(Arc::clone(snapshot), services), spans })
        });
        *lock(&self.0.plan) = plan;
        let mut thread = lock(&self.0.thread);
        if !is_wanted || thread.is_some() {
            return;
        }
        let shared = Arc::clone(&self.0);
        match std::thread::Builder::new().name("access-log".into()).spawn(move || write(&shared)) {
            Ok(handle) => *thread = Some(handle),
            Err(error) => tell(
                EventKind::Limit,
                &format!("warning: no access log and no spans: cannot start their thread: {error}"),
            ),
        }
    }

    /// Opens the file again: another process has moved it.
    pub(crate) fn reopen(&self) {
        self.0.reopens.store(true, Ordering::Relaxed);
    }

    /// What it has done so far.
    pub(crate) fn reading(&self) -> AccessLogReading {
        let Counts { written, records_lost, lines_lost } = &self.0.counts;
        let [written, records_lost, lines_lost] =
            [written, records_lost, lines_lost].map(|count| count.load(Ordering::Relaxed));
        AccessLogReading { written, records_lost, lines_lost }
    }

    /// Writes what is left, a bounded time, and ends. Workers and runtimes must have ended before.
    pub(crate) fn end(&self) {
        self.0.ends.store(true, Ordering::Relaxed);
        let Some(thread) = lock(&self.0.thread).take() else { return };
        thread.thread().unpark();
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < PATIENCE + GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When the workers' clock began, in nanoseconds since 1970.
fn epoch() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(cpu::now().as_nanos())
}

/// The lines of one look at the rings, each with the time of its end, in nanoseconds of the workers' clock.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    lines: Vec<(u64, Range<usize>)>,
}

impl Batch {
    /// Moves all lines to `out`, in the order of their ends, whichever worker they are of; how many there were.
    fn sort_into(&mut self, out: &mut Vec<u8>) -> u64 {
        self.lines.sort_by_key(|(end, _)| *end);
        self.lines.iter().for_each(|(_, place)| out.extend_from_slice(&self.bytes[place.clone()]));
        let count = self.lines.len() as u64;
        self.lines.clear();
        self.bytes.clear();
        self.bytes.shrink_to(output::KEPT_BYTES_MAX);
        count
    }
}

impl Plan {
    /// Queues the span of an exchange that began at `started`, in nanoseconds since 1970, if it is sampled.
    fn push_span(&self, (record, texts): (&Record, &Texts<'_>), started: u64) {
        let Some(queue) = &self.spans else { return };
        let Some(trace) = texts.trace().filter(TraceContext::is_sampled) else { return };
        queue.push(&SpanFacts {
            trace_id: trace.trace,
            span_id: trace.span,
            parent_id: trace.has_parent().then_some(trace.parent),
            started_ns: started,
            record,
            texts,
            names: self.names.of(record),
        });
    }
}

/// The thread's work.
fn write(shared: &Shared) {
    // A log that is written at the priority of workers is no disaster.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut joiners: Vec<Joiner> = Vec::new();
    let mut output = None;
    let mut told = None;
    let (mut batch, mut lines, mut writer) = (Batch::default(), Vec::new(), LineWriter::default());
    let mut looked = Instant::now();
    let mut ends_since = None;
    loop {
        // Before the rings are read for the last time.
        if shared.ends.load(Ordering::Relaxed) {
            ends_since.get_or_insert_with(Instant::now);
        }
        joiners.extend(lock(&shared.fresh).drain(..).map(Joiner::new));
        let plan = lock(&shared.plan).clone();
        if shared.reopens.swap(false, Ordering::Relaxed) {
            output.as_mut().into_iter().for_each(Output::reopen);
        }
        let (now, epoch, mut fullest, mut is_all) = (Instant::now(), epoch(), 0, true);
        for joiner in &mut joiners {
            let look = joiner.read(|record, texts| {
                let Some(plan) = &plan else { return };
                let started = epoch.saturating_add(record.started);
                plan.push_span((record, texts), started);
                let Some(settings) = &plan.settings else { return };
                if plan.names.wants(record) {
                    let from = batch.bytes.len();
                    writer.write(&mut batch.bytes, (&settings.form, &plan.names), (record, texts), started / 1000);
                    batch.lines.push((record.started.saturating_add(record.took), from..batch.bytes.len()));
                }
            });
            fullest = fullest.max(look.share);
            is_all &= look.is_all;
        }
        let lost = joiners.iter().map(Joiner::lost).sum();
        let before = shared.counts.records_lost.swap(lost, Ordering::Relaxed);
        if lost > before && told.is_none_or(|told: Instant| told.elapsed() > TELL_EVERY) {
            told = Some(Instant::now());
            let what = "warning: the access log and tracing lose records: rings of workers are full; raise `buffer` in \
                        [access_log], or lower `sample` in [tracing]";
            tell(EventKind::Limit, what);
        }
        let count = batch.sort_into(&mut lines);
        if let Some(settings) = plan.as_ref().and_then(|plan| plan.settings.as_ref()) {
            let output = Output::to(&mut output, &settings.to, "the access log");
            let written = output.write(&mut lines, count);
            shared.counts.written.fetch_add(written.written, Ordering::Relaxed);
            shared.counts.lines_lost.fetch_add(written.lost, Ordering::Relaxed);
        }
        match ends_since {
            Some(_) if is_all => return,
            Some(since) if since.elapsed() > PATIENCE => {
                let left: u64 = joiners.iter_mut().map(Joiner::discard).sum();
                shared.counts.records_lost.fetch_add(left, Ordering::Relaxed);
                let what = format!(
                    "warning: the access log lost {left} records: their lines were not written within {PATIENCE:?} of the \
                     process's end"
                );
                tell(EventKind::Limit, &what);
                return;
            }
            _ => {}
        }
        if is_all {
            std::thread::park_timeout(pause(fullest, now.duration_since(looked)));
        }
        looked = now;
    }
}

/// The pause after a look that found the fullest ring in use by so many of 256 parts, as long after the look before.
fn pause(fullest: u32, since: Duration) -> Duration {
    match fullest {
        0 => LOOK_LATER,
        _ => LOOK_SOON.min(since * FULL_ENOUGH / fullest),
    }
}

#[cfg(test)]
mod offered;
