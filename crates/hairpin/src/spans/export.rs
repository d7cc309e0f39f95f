//! The exporter's thread: takes batches out of the queue and posts each until the collector has taken it, has refused it, or has
//! had its time (OTLP 1.x, "OTLP/HTTP Response" and "Failures").

use super::connection::{Answer, Connection, PROTOBUF};
use super::settings::{CollectorSettings, TracingSettings};
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

/// How long a batch is tried again after its first failure, unless the collector asks for a longer pause.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(60);
/// The longest pause between two tries, unless the collector asks for a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The longest pause that the collector may ask for, and by how much all its pauses prolong [`RETRY_FOR`] at most.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How long a batch is kept beyond the pause that the collector asks for: it has to be posted then.
const AFTER_A_PAUSE: Duration = Duration::from_secs(5);
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
    /// Why a try has failed last; empty: none has since all losses were told.
    failure: String,
    /// Why the collector has refused spans last.
    refusal: String,
    /// The collector that was tried last.
    collector: Option<CollectorSettings>,
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
            refusal: String::new(),
            collector: None,
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
        }
    }

    /// Tries until these spans are exported or lost.
    async fn deliver(&mut self, spans: &[Span]) {
        let count = spans.len() as u64;
        // When to give it up, and how far pauses may put that off.
        let mut bounds = None;
        loop {
            self.pause().await;
            // There is one before there are spans.
            let Some(plan) = lock(&self.shared.plan).clone() else { return };
            if self.collector.as_ref() != Some(&plan.settings.collector) {
                (self.collector, bounds) = (Some(plan.settings.collector.clone()), None);
                self.backoff = self.shared.pace.backoff_min;
            }
            let is_end = self.shared.ends.load(Ordering::Relaxed);
            match self.attempt(&plan, spans).await {
                Ok(refused) => {
                    self.backoff = self.shared.pace.backoff_min;
                    let refused = refused.min(count);
                    if refused > 0 {
                        self.refusal = "it refuses some of them; its log says why".to_owned();
                    }
                    self.shared.counts.settle(count - refused, Lost::Refused, refused);
                    self.tell(&plan);
                    if self.shared.counts.lost() == self.told_lost {
                        self.failure.clear();
                    }
                    return;
                }
                Err(Failure::Final(what)) => {
                    self.refusal = what;
                    self.shared.counts.settle(0, Lost::Refused, count);
                    return self.tell(&plan);
                }
                Err(Failure::Later(what, asked)) => {
                    self.failure = what;
                    let wait = self.next_pause(asked);
                    let now = Instant::now();
                    self.paused_until = Some(now + wait);
                    let until = now + self.shared.pace.retry_for;
                    let (give_up, latest) = bounds.get_or_insert((until, until + PAUSE_MAX));
                    if asked.is_some() {
                        *give_up = (*give_up).max(now + wait + AFTER_A_PAUSE).min(*latest);
                    }
                    // One that has begun before the process ends is not the last.
                    let ends = self.shared.ends.load(Ordering::Relaxed);
                    if !is_end && (ends || now + wait < *give_up) {
                        // Others may be lost meanwhile.
                        self.tell(&plan);
                        continue;
                    }
                    self.shared.counts.settle(0, Lost::Unreachable, count);
                    return self.tell(&plan);
                }
            }
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
            Some(asked) if !asked.is_zero() => asked.min(PAUSE_MAX),
            _ => longest.mul_f64(0.5 + (RandomState::new().hash_one(()) % 500) as f64 / 1000.0),
        }
    }

    /// Waits as long as the collector is to be left alone; no longer once the process ends, or there is another collector.
    async fn pause(&mut self) {
        let Some(until) = self.paused_until.take() else { return };
        let is_over = || {
            let plan = lock(&self.shared.plan);
            let collector = plan.as_ref().map(|plan| &plan.settings.collector);
            self.shared.ends.load(Ordering::Relaxed) || Instant::now() >= until || collector != self.collector.as_ref()
        };
        while !is_over() {
            // Whether it was roused or the time is over, it looks again.
            let _ = timeout(until.saturating_duration_since(Instant::now()), self.shared.roused.notified()).await;
        }
    }

    /// Tells of losses, if there are new ones.
    fn tell(&mut self, plan: &Plan) {
        let lost = self.shared.counts.lost();
        let fresh: [u64; Lost::ALL.len()] = std::array::from_fn(|why| lost[why] - self.told_lost[why]);
        let count: u64 = fresh.iter().sum();
        if count == 0 || self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        (self.told, self.told_lost) = (Some(Instant::now()), lost);
        let text = self.causes(&plan.settings, fresh);
        tell(EventKind::Limit, &format!("warning: tracing loses spans ({count}): {text}"));
    }

    /// Why these were lost.
    fn causes(&self, settings: &TracingSettings, fresh: [u64; Lost::ALL.len()]) -> String {
        let endpoint = &settings.collector.endpoint;
        let is_among = |why: Lost| fresh[why as usize] > 0;
        let mut causes = Vec::new();
        if is_among(Lost::Refused) {
            causes.push(format!("the collector at {endpoint}: {}", self.refusal));
        }
        // A collector that fails fills the queue, too.
        if is_among(Lost::Unreachable) || (is_among(Lost::QueueFull) && !self.failure.is_empty()) {
            causes.push(format!("the collector at {endpoint}: {}", self.failure));
        } else if is_among(Lost::QueueFull) {
            causes.push(format!(
                "they come faster than the collector at {endpoint} takes them, and the queue of {} is full; raise \
                 `queue` or lower `sample` in [tracing]",
                settings.queue
            ));
        }
        causes.join("; ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_with_their_own_causes() {
        let mut exporter = Exporter::new(Arc::default());
        let collector = CollectorSettings {
            endpoint: "http://c:4318".parse().unwrap(),
            headers: Default::default(),
            headers_file: None,
            roots: Default::default(),
            timeout: RETRY_FOR,
        };
        let settings = TracingSettings {
            collector,
            service_name: String::new(),
            queue: 9,
            sample: 1.0,
            parents: hairpin_core::l7::trace::Parents::Trusted,
        };
        assert!(
            exporter.causes(&settings, [3, 0, 0]).starts_with("they come faster than the collector at http://c:4318/")
        );
        exporter.failure = "cannot connect".to_owned();
        let away = "the collector at http://c:4318/v1/traces: cannot connect";
        assert_eq!(exporter.causes(&settings, [3, 0, 0]), away);
        assert_eq!(exporter.causes(&settings, [3, 2, 0]), away);
        exporter.refusal = "it refuses some of them".to_owned();
        let refused = "the collector at http://c:4318/v1/traces: it refuses some of them";
        assert_eq!(exporter.causes(&settings, [0, 0, 1]), refused);
        assert_eq!(exporter.causes(&settings, [0, 2, 1]), format!("{refused}; {away}"));
    }
}
