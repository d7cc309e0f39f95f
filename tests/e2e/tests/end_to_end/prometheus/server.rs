//! Debian's Prometheus beside a Hairpin, and its HTTP API.

use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::topology::Topology;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Where it listens, in the balancer's namespace.
const ADDRESS: &str = "127.0.0.1:9090";
/// How long it may take to start, and to have scraped twice.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// One series of an answer, with its value now.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Its labels, without the metric's name.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// A running Prometheus, ended when dropped.
pub(super) struct Prometheus<'a> {
    namespace: &'a Namespace,
    process: Process,
}

impl<'a> Prometheus<'a> {
    /// Starts it in the balancer with this configuration, and waits until it has scraped its targets twice: counters are seen
    /// before they grow.
    pub(super) fn start(topology: &'a Topology, configuration: &Path) -> Result<Prometheus<'a>> {
        let namespace = &topology.balancer;
        let mut command = namespace.command("prometheus");
        command.arg(format!("--config.file={}", configuration.display()));
        command.arg(format!("--storage.tsdb.path={}", topology.scratch.file("prometheus").display()));
        command.args([&format!("--web.listen-address={ADDRESS}"), "--log.level=warn"]);
        let process = namespace.start(command, &topology.scratch.file("prometheus.log"))?;
        let mut prometheus = Prometheus { namespace, process };
        let has_scraped = || {
            let ready = format!("curl --silent --fail http://{ADDRESS}/-/ready");
            namespace.script(&ready).is_ok()
                && query(namespace, "min(count_over_time(up[1m])) >= 2 and min(up) == 1").is_ok_and(|up| !up.is_empty())
        };
        prometheus.process.wait_until(patience(START_TIMEOUT), has_scraped)?;
        Ok(prometheus)
    }

    /// The answer to a query. Fails with what Prometheus says of it if it is none.
    pub(super) fn query(&self, expression: &str) -> Result<Vec<Sample>> {
        query(self.namespace, expression)
    }

    /// The values of a label of the series that a selector chooses.
    pub(super) fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        let values = get(self.namespace, &format!("label/{label}/values"), &[("match[]", selector)])?;
        Ok(serde_json::from_value(values)?)
    }

    /// Its rules, as it has read them.
    pub(super) fn rules(&self) -> Result<Vec<Value>> {
        let answer = get(self.namespace, "rules", &[])?;
        let groups = answer["groups"].as_array().context("no groups of rules")?;
        Ok(groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten().cloned()).collect())
    }
}

fn query(namespace: &Namespace, expression: &str) -> Result<Vec<Sample>> {
    let answer = get(namespace, "query", &[("query", expression)])?;
    match answer["resultType"].as_str() {
        Some("vector") => answer["result"].as_array().into_iter().flatten().map(sample).collect(),
        Some("scalar") => Ok(vec![Sample { labels: BTreeMap::new(), value: number(&answer["result"][1])? }]),
        other => bail!("`{expression}` is a {other:?}, which no panel and no rule can show"),
    }
}

fn sample(series: &Value) -> Result<Sample> {
    let mut labels: BTreeMap<String, String> = serde_json::from_value(series["metric"].clone())?;
    labels.remove("__name__");
    Ok(Sample { labels, value: number(&series["value"][1])? })
}

fn number(value: &Value) -> Result<f64> {
    value.as_str().and_then(|text| text.parse().ok()).with_context(|| format!("{value} is no number"))
}

fn get(namespace: &Namespace, what: &str, parameters: &[(&str, &str)]) -> Result<Value> {
    let mut curl = namespace.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--get"]);
    for (name, value) in parameters {
        curl.args(["--data-urlencode", &format!("{name}={value}")]);
    }
    let text = command::output(curl.arg(format!("http://{ADDRESS}/api/v1/{what}")))?;
    let mut answer: Value = serde_json::from_str(&text).with_context(|| format!("Prometheus says {text}"))?;
    ensure!(answer["status"] == "success", "Prometheus refuses {parameters:?}: {}", answer["error"]);
    Ok(answer["data"].take())
}
