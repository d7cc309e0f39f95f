//! One status, shared by all clients that ask at about the same time.

use super::MakeStatus;
use super::counts::MetricsCounts;
use super::text;
use crate::status::Status;
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a status is as good as a new one.
const FRESH: Duration = Duration::from_millis(100);
/// Statuses in memory at most, among them those that slow clients are still reading: with 16,384 backends each may
/// take 50 MB. At that limit, every client gets the newest until one is freed.
pub(crate) const ALIVE_MAX: usize = 4;

/// A form a status can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// JSON, one line.
    Json,
}

impl Format {
    /// The value of Content-Type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::Json => "application/json",
        }
    }
}

/// A status and its forms, each written when it is first asked for.
#[derive(Debug)]
struct RenderedStatus {
    at: Instant,
    status: Result<Arc<Status>, String>,
    counts: Arc<MetricsCounts>,
    forms: [OnceLock<Vec<u8>>; 3],
}

impl RenderedStatus {
    /// Takes a while for large configurations.
    fn write(&self, format: Format) -> Result<(), String> {
        let status = self.status.as_ref().map_err(String::clone)?;
        self.forms[format as usize].get_or_init(|| match format {
            Format::OpenMetrics => text::open_metrics(status, &self.counts).into_bytes(),
            Format::Prometheus => text::prometheus(&text::open_metrics(status, &self.counts)).into_bytes(),
            // Numbers that are not finite are the only thing JSON cannot say; serde_json writes them as null.
            Format::Json => crate::json::line(&**status).unwrap_or_default().into_bytes(),
        });
        Ok(())
    }
}

/// One form; it keeps the status alive while it is being sent.
struct WrittenStatus(Arc<RenderedStatus>, Format);

impl AsRef<[u8]> for WrittenStatus {
    fn as_ref(&self) -> &[u8] {
        self.0.forms[self.1 as usize].get().map_or(&[], Vec::as_slice)
    }
}

/// Somewhere a status that is being made will appear.
type Awaited = watch::Receiver<Option<Arc<RenderedStatus>>>;

#[derive(Debug, Default)]
struct Latest {
    made: Option<Arc<RenderedStatus>>,
    running: Option<Awaited>,
    /// All that clients may still be reading.
    alive: Vec<Weak<RenderedStatus>>,
}

/// Makes statuses, never two at once.
pub(super) struct StatusSource {
    make: Arc<Mutex<Box<MakeStatus>>>,
    latest: Arc<Mutex<Latest>>,
    counts: Arc<MetricsCounts>,
}

impl StatusSource {
    pub(super) fn new(make: Box<MakeStatus>) -> StatusSource {
        StatusSource { make: Arc::new(Mutex::new(make)), latest: Arc::default(), counts: Arc::default() }
    }

    /// The server's counters.
    pub(super) fn counts(&self) -> &Arc<MetricsCounts> {
        &self.counts
    }

    /// A status not older than about [`FRESH`], in `format`; the error says why there is none.
    pub(super) async fn written(&self, format: Format) -> Result<Bytes, String> {
        let made = self.fresh().await?;
        if made.forms[format as usize].get().is_none() {
            let writing = Arc::clone(&made);
            let written = tokio::task::spawn_blocking(move || writing.write(format)).await;
            written.map_err(|_| "the status cannot be written down".to_string())??;
        }
        Ok(Bytes::from_owner(WrittenStatus(made, format)))
    }

    /// A status not older than about [`FRESH`], not written down; the error says why there is none.
    pub(super) async fn status(&self) -> Result<Arc<Status>, String> {
        self.fresh().await?.status.clone()
    }

    async fn fresh(&self) -> Result<Arc<RenderedStatus>, String> {
        let mut awaited = {
            let mut latest = lock(&self.latest);
            if let Some(made) = latest.usable() {
                return Ok(made);
            }
            match &latest.running {
                Some(running) => running.clone(),
                None => self.start(&mut latest),
            }
        };
        let made = awaited.wait_for(Option::is_some).await;
        let made = made.map_err(|_| "the server is stopping".to_string())?;
        made.clone().ok_or_else(|| "there is no status".to_string())
    }

    /// Has a status made, for the next client too: it is made even if the client that asked has given up.
    fn start(&self, latest: &mut Latest) -> Awaited {
        let (sender, receiver) = watch::channel(None);
        latest.running = Some(receiver.clone());
        let (make, shared, counts) = (Arc::clone(&self.make), Arc::clone(&self.latest), Arc::clone(&self.counts));
        tokio::task::spawn_blocking(move || {
            let made = catch_unwind(AssertUnwindSafe(|| lock(&make)()));
            let status = made.unwrap_or_else(|_| Err("making the status failed".to_string())).map(Arc::new);
            let made = Arc::new(RenderedStatus { at: Instant::now(), status, counts, forms: Default::default() });
            let mut latest = lock(&shared);
            latest.running = None;
            latest.alive.push(Arc::downgrade(&made));
            latest.made = Some(Arc::clone(&made));
            drop(latest);
            // The clients that waited may have gone.
            sender.send_replace(Some(made));
        });
        receiver
    }
}

impl Latest {
    /// The newest, if it is fresh or nothing newer may be made.
    fn usable(&mut self) -> Option<Arc<RenderedStatus>> {
        self.alive.retain(|made| made.strong_count() > 0);
        let crowded = self.alive.len() >= ALIVE_MAX;
        self.made.clone().filter(|made| crowded || made.at.elapsed() < FRESH)
    }
}

/// No holder of these locks leaves anything half done.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
