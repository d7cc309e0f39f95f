//! The exporter's thread: takes batches out of the queue and posts each until the collector has taken it, has refused it, or has
//! had its time (OTLP 1.x, "OTLP/HTTP Response" and "Failures").

use super::connection::{Answer, Connection, PROTOBUF};
use super::settings::TracingSettings;
use super::{Lost, Shared, lock};
use crate::events::EventKind;
use crate::run::tell;
use hyper::StatusCode;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long a batch is tried again after its first failure.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(60);
/// The longest pause between two tries, unless the collector asks for a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The longest pause that the collector may ask for.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How often losses are told at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How patient the exporter is. Tests are less so.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// How long the first span of a batch waits at most for others.
    pub(super) batch_every: Duration,
    /// The pause after the first failure; it doubles with each until [`BACKOFF_MAX`].
    pub(super) backoff_min: Duration,
    /// How long a batch is tried again after its first failure.
    pub(super) retry_for: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { batch_every: Duration::from_secs(2), backoff_min: Duration::from_secs(1), retry_for: RETRY_FOR }
    }
}

/// What the exporter goes by.
pub(super) struct Plan {
    settings: TracingSettings,
    resource: Resource,
}

impl Plan {
    /// For the instance of this name.
    pub(super) fn new(settings: &TracingSettings, instance: &str) -> Plan {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim();
        let attribute = |(key, text): (&str, &str)| KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) }),
            ..KeyValue::default()
        };
        // Instances of two hosts may have one name, and their spans must be told apart.
        let id = format!("{instance}@{host}");
        let facts = [
            ("service.name", settings.service_name.as_str()),
            ("service.instance.id", &id),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("host.name", host),
        ];
        let resource = Resource { attributes: facts.map(attribute).into(), ..Resource::default() };
        Plan { settings: settings.clone(), resource }
    }

    /// The message that carries these spans.
    fn message(&self, spans: &[Span]) -> Vec<u8> {
        let scope = InstrumentationScope {
            name: "hairpin".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: spans.to_vec(), ..ScopeSpans::default() }];
        let resource = ResourceSpans { resource: Some(self.resource.clone()), scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![resource] }.encode_to_vec()
    }
}

/// Why a batch was not taken.
enum Failure {
    /// It may be taken later, after this time if the collector names one.
    Later(String, Option<Duration>),
    /// It never will be.
    Final(String),
}

/// The thread's work.
pub(super) fn run(shared: Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // They look names up, and one may hang.
        .max_blocking_threads(2)
        .build();
    match runtime {
        Ok(runtime) => {
            runtime.block_on(Exporter::new(shared).run());
            // A look-up that hangs holds nothing up.
            runtime.shutdown_background();
        }
        Err(error) => tell(EventKind::Limit, &format!("warning: spans are not exported: {error}")),
    }
}

struct Exporter {
    shared: Arc<Shared>,
    connection: Connection,
    /// The next pause after a failure.
    backoff: Duration,
    /// The collector is left alone until then.
    paused_until: Option<Instant>,
    /// When losses were told last, and how many spans had been lost by then.
    told: Option<Instant>,
    told_lost: [u64; Lost::ALL.len()],
    /// Why the last try has failed; empty: it has not.
    failure: String,
}

impl Exporter {
    fn new(shared: Arc<Shared>) -> Exporter {
        Exporter {
            connection: Connection::default(),
            backoff: shared.pace.backoff_min,
            paused_until: None,
            told: None,
            told_lost: [0; Lost::ALL.len()],
            failure: String::new(),
            shared,
        }
    }

    async fn run(mut self) {
        loop {
            let shared = Arc::clone(&self.shared);
            let ends = || shared.ends.load(Ordering::Relaxed);
            let taken = |count| shared.counts.in_flight.store(count, Ordering::Relaxed);
            let batch = shared.queue.batch(shared.pace.batch_every, ends, taken).await;
            if batch.is_empty() {
                return;
            }
            self.deliver(&batch).await;
            taken(0);
        }
    }

    /// Tries until these spans are exported or lost.
    async fn deliver(&mut self, spans: &[Span]) {
        let count = spans.len() as u64;
        let mut give_up = None;
        loop {
            self.pause().await;
            let Some(plan) = lock(&self.shared.plan).clone() else { return };
            let is_end = self.shared.ends.load(Ordering::Relaxed);
            let (why, what) = match self.attempt(&plan, spans).await {
                Ok(refused) => {
                    (self.backoff, self.failure) = (self.shared.pace.backoff_min, String::new());
                    let refused = refused.min(count);
                    self.shared.counts.exported.fetch_add(count - refused, Ordering::Relaxed);
                    self.shared.counts.lose(Lost::Refused, refused);
                    return self.tell(&plan, "the collector refuses some of them; its log says why");
                }
                Err(Failure::Final(what)) => (Lost::Refused, what),
                Err(Failure::Later(what, asked)) => {
                    let wait = self.next_pause(asked);
                    let now = Instant::now();
                    self.paused_until = Some(now + wait);
                    self.failure.clone_from(&what);
                    let give_up = *give_up.get_or_insert(now + self.shared.pace.retry_for);
                    // One that has begun before the process ends is not the last.
                    let ends = self.shared.ends.load(Ordering::Relaxed);
                    if !is_end && (ends || now + wait < give_up) {
                        // Others may be lost meanwhile.
                        self.tell(&plan, &what);
                        continue;
                    }
                    (Lost::Unreachable, what)
                }
            };
            self.shared.counts.lose(why, count);
            return self.tell(&plan, &what);
        }
    }

    /// How many spans the collector has refused of those that it was given.
    async fn attempt(&mut self, plan: &Plan, spans: &[Span]) -> Result<u64, Failure> {
        let collector = &plan.settings.collector;
        let posted = self.connection.post(collector, plan.message(spans).into());
        match timeout(collector.timeout, posted).await {
            Ok(Ok(answer)) => judge(&answer),
            Ok(Err(error)) => {
                let remedy = "see that it takes OTLP over HTTP there (`endpoint` in [tracing])";
                Err(Failure::Later(format!("{error:#}; {remedy}"), None))
            }
            Err(_) => {
                let patience = humantime::format_duration(collector.timeout);
                Err(Failure::Later(format!("it has not answered within {patience} (`timeout` in [tracing])"), None))
            }
        }
    }

    /// The pause after a failure: what the collector asks for, or else one that grows, and differs between instances.
    fn next_pause(&mut self, asked: Option<Duration>) -> Duration {
        let longest = self.backoff;
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
        match asked {
            Some(asked) => asked.min(PAUSE_MAX),
            None => longest.mul_f64(0.5 + (RandomState::new().hash_one(()) % 500) as f64 / 1000.0),
        }
    }

    /// Waits as long as the collector is to be left alone; no longer once the process ends.
    async fn pause(&mut self) {
        let Some(until) = self.paused_until.take() else { return };
        if !self.shared.ends.load(Ordering::Relaxed) {
            let _ = timeout(until.saturating_duration_since(Instant::now()), self.shared.ended.notified()).await;
        }
    }

    /// Tells of losses, if there are new ones. `what`: why the last try has failed.
    fn tell(&mut self, plan: &Plan, what: &str) {
        let lost = self.shared.counts.lost();
        let fresh: [u64; Lost::ALL.len()] = std::array::from_fn(|why| lost[why] - self.told_lost[why]);
        let count: u64 = fresh.iter().sum();
        if count == 0 || self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        (self.told, self.told_lost) = (Some(Instant::now()), lost);
        let settings = &plan.settings;
        let endpoint = &settings.collector.endpoint;
        let text = match self.failure.is_empty() && fresh[Lost::QueueFull as usize] == count {
            true => format!(
                "they come faster than the collector at {endpoint} takes them, and the queue of {} is full; raise \
                 `queue` or lower `sample` in [tracing]",
                settings.queue
            ),
            false => format!("the collector at {endpoint}: {what}"),
        };
        tell(EventKind::Limit, &format!("warning: tracing loses spans ({count}): {text}"));
    }
}

/// What an answer means: how many spans were refused of those sent.
fn judge(answer: &Answer) -> Result<u64, Failure> {
    let status = answer.status;
    let said = format!("it answers with status {} {}", status.as_u16(), status.canonical_reason().unwrap_or_default());
    match status {
        _ if status.is_success() => {
            let is_json = answer.kind.starts_with(b"application/json");
            if is_json || answer.body.is_empty() {
                return Ok(0);
            }
            let read = ExportTraceServiceResponse::decode(&answer.body[..]);
            match read.ok().filter(|_| answer.kind.starts_with(PROTOBUF.as_bytes())) {
                Some(read) => Ok(read.partial_success.map_or(0, |part| part.rejected_spans.max(0) as u64)),
                None => Err(Failure::Final(format!("{said}, but not by OTLP; see `endpoint` in [tracing]"))),
            }
        }
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Err(Failure::Later(
            format!("{said}: it has too much to do, or what is behind it has failed"),
            answer.retry_after,
        )),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(Failure::Final(format!("{said}; see `headers_file` in [tracing]")))
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Err(Failure::Final(format!("{said}; see the path of `endpoint` in [tracing]")))
        }
        _ => Err(Failure::Final(format!("{said}; its log may say why"))),
    }
}
