//! The two text formats.
//!
//! OpenMetrics is written by `prometheus-client`. Prometheus' older format (0.0.4) differs in what a family is called:
//! there `# TYPE` names the series, suffix and all.

use super::counts::MetricsCounts;
use super::families::{self, MetricFamily, MetricKind, MetricView, SampleValue};
use super::labels::Names;
use crate::status::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// The prefix of every name.
pub(super) const PREFIX: &str = "hairpin";

/// `status`, and what the server counts about itself, in OpenMetrics 1.0.
pub(super) fn open_metrics(status: &Arc<Status>, counts: &Arc<MetricsCounts>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Exposition { status: Arc::clone(status), counts: Arc::clone(counts) }));
    let mut written = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut written, &registry);
    written
}

#[derive(Debug)]
struct Exposition {
    status: Arc<Status>,
    counts: Arc<MetricsCounts>,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let view = MetricView { status: &self.status, names: Names::of(&self.status), counts: &self.counts };
        for family in families::all() {
            let metric_type = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
                MetricKind::Info => MetricType::Info,
            };
            let metric = encoder.encode_descriptor(family.name, family.help, None, metric_type)?;
            samples(family, &view, metric)?;
        }
        Ok(())
    }
}

fn samples(family: &MetricFamily, view: &MetricView<'_>, mut metric: MetricEncoder<'_>) -> fmt::Result {
    let mut outcome = Ok(());
    (family.samples)(view, &mut |values, value| {
        debug_assert_eq!(values.len(), family.labels.len(), "{}", family.name);
        let labels = Labels { names: family.labels, values };
        let written = match family.kind {
            MetricKind::Info => metric.encode_info(&labels),
            _ if values.is_empty() => sample(&mut metric, family.kind, value),
            _ => metric.encode_family(&labels).and_then(|mut metric| sample(&mut metric, family.kind, value)),
        };
        if outcome.is_ok() {
            outcome = written;
        }
    });
    outcome
}

fn sample(metric: &mut MetricEncoder<'_>, kind: MetricKind, value: SampleValue<'_>) -> fmt::Result {
    match value {
        // Nothing that is worth a metric is infinite; better no sample than one that cannot be parsed.
        SampleValue::Number(number) if !number.is_finite() => Ok(()),
        SampleValue::Count(count) if kind == MetricKind::Counter => {
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
        }
        SampleValue::Number(number) if kind == MetricKind::Counter => {
            metric.encode_counter::<NoLabelSet, _, u64>(&number, None)
        }
        SampleValue::Count(count) => metric.encode_gauge(&count),
        SampleValue::Number(number) => metric.encode_gauge(&number),
        SampleValue::Histogram { sum, buckets } => {
            let mut buckets = buckets.to_vec();
            if buckets.last().is_none_or(|(upper, _)| *upper < f64::INFINITY) {
                buckets.push((f64::INFINITY, 0));
            }
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}

/// Names and values of one series.
struct Labels<'a> {
    names: &'a [&'a str],
    values: &'a [&'a str],
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.names.iter().zip(self.values).try_for_each(|label| (*label.0, *label.1).encode(encoder.encode_label()))
    }
}

/// OpenMetrics as [`open_metrics`] writes it, turned into Prometheus' text format 0.0.4.
pub(super) fn prometheus(open_metrics: &str) -> String {
    let mut written = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(named) = line.strip_prefix("# HELP ") {
            help = named.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|named| named.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            if let Some((_, help)) = help.take() {
                written.extend(["# HELP ", name, suffix, " ", help, "\n"]);
            }
            written.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            written.extend([line, "\n"]);
        }
    }
    written
}
