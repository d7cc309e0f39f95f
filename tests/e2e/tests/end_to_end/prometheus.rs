//! What operators get for monitoring: every query of the dashboards, of the rules and of the guide is asked of a Prometheus that
//! scrapes a running Hairpin, and must have data.

mod dashboard;
mod expression;
mod page;
mod server;

use crate::lane;
use anyhow::{Context, Result, ensure};
use expression::Names;
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::collector::{self, Collector};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use server::Prometheus;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("prometheus: {name}"), body);
    vec![
        test("names in expressions are read", expression::are_read),
        test("alerts fire for what they are for, and else not", alerts_fire),
        test("dashboards, rules and guide have data", queries_have_data),
    ]
}

/// How long it may take until every query has data.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

const RULES: &str = "packaging/prometheus/hairpin.rules.yml";
const RULES_TESTS: &str = "tests/e2e/tests/end_to_end/prometheus/rules.test.yml";

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(repository(path)).with_context(|| path.to_owned())
}

fn alerts_fire() -> Result<()> {
    command::output(Command::new("promtool").args(["check", "rules"]).arg(repository(RULES)))?;
    command::output(Command::new("promtool").args(["test", "rules"]).arg(repository(RULES_TESTS)))?;
    // promtool says nothing of alerts without a test, nor of tests without series.
    let (rules, tests) = (read(RULES)?, read(RULES_TESTS)?);
    let (healthy, trouble) = tests.split_once("- name: trouble").context("no trouble")?;
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        ensure!(
            trouble.contains(&format!("'{{alertname=\"{alert}\"}}', value: 1")),
            "{RULES_TESTS}: {alert} fires in no test"
        );
    }
    for series in trouble.lines().filter_map(|line| line.trim().strip_prefix("- {series: '")) {
        let name = series.split('{').next().unwrap_or_default();
        ensure!(healthy.contains(&format!("'{name}{{")), "{RULES_TESTS}: among what is healthy there is no {name}");
    }
    Ok(())
}

/// A Hairpin with a service of every kind, its servers, and the collector of its spans.
struct Scene {
    hairpin: Hairpin,
    servers: Servers,
    _collector: Collector,
}

/// The tables of the configuration that metrics depend on. The CA of `own` is nowhere.
fn tables(topology: &Topology) -> String {
    let (log, state) = (topology.scratch.file("access.log"), topology.scratch.file("acme"));
    format!(
        "[metrics]\nlisten = \"127.0.0.1:9560\"\n[limits]\nconnections_max = 4000\nhttp_connections_max = 2000\nrules_max = \
         4096\n[access_log]\nto = {log:?}\n[offload]\npolicy = \"always\"\n[acme]\nterms_agreed = true\ndirectory = \
         \"https://127.0.0.1:1/directory\"\nstate = {state:?}\n{}",
        collector::table()
    )
}

fn services(topology: &Topology) -> Result<Vec<PeerService>> {
    let gone = "[[service.backend]]\nname = \"gone\"\naddress = \"10.0.2.2:9\"\n[service.health]\ncheck = \"tcp\"\ninterval = \
                \"200ms\"\ntimeout = \"100ms\"\nfall = 1\n";
    // One of its backends has no server; requests for large pages go to a group.
    let web = format!(
        "{gone}[[service.group]]\nname = \"large\"\n[[service.group.backend]]\nname = \
         \"server3\"\naddress = \"10.0.3.2:{HTTP_PORT}\"\n[[service.route]]\npath = \"/10m\"\ngroup = \"large\"\n\
         [[service.route]]\npath = \"/reply\"\nreply = {{ status = 200, body = \"here\" }}\n"
    );
    let own = "[service.https]\nacme = [\"own.test\"]\n".to_owned();
    Ok(vec![
        PeerService { servers: vec![1, 2], server_port: HTTP_PORT, tables: web, ..PeerService::http("web", 80) },
        PeerService { servers: Vec::new(), tables: gone.to_owned(), ..PeerService::http("down", 81) },
        PeerService { server_port: HTTP_PORT, ..PeerService::tcp("raw", Family::V4, 8080) },
        PeerService::https("secure", 443, &certificate(topology, "secure.pem", &["secure.test"])?),
        PeerService { tables: own, ..PeerService::https("own", 444, Path::new("")) },
    ])
}

impl Scene {
    fn start(topology: &Topology) -> Result<Scene> {
        let servers = Servers::start(topology)?;
        let collector = Collector::start(topology)?;
        let options = HairpinOptions { tables: tables(topology), ..HairpinOptions::default() };
        let services = services(topology)?;
        let hairpin = Hairpin::start(topology, &services, &options)?;
        // `/health` of server1 answers 503.
        servers.say(topology, 1, None)?;
        hairpin.tell(topology, &["reload"])?;
        Ok(Scene { hairpin, servers, _collector: collector })
    }
}

/// Clients of all services, until it is dropped: answers of all classes that nginx gives, and of Hairpin's own, small pages and such
/// that the engine carries, over kept connections and new ones.
fn traffic(topology: &Topology) -> Result<Process> {
    let vip = vip(Family::V4);
    let script = format!(
        "get() {{ curl --silent --insecure --max-time 10 --output /dev/null \"$@\" || true; }}\nwhile :; do\n\
         get 'http://{vip}/1k?[1-20]'; get 'http://{vip}/health?[1-4]'; get http://{vip}/none; get http://{vip}/reply\n\
         get http://{vip}/10m; get 'http://{vip}:81/?[1-2]'; get http://{vip}:8080/10m; get 'http://{vip}:8080/1k?[1-5]'\n\
         get --http1.1 'https://{vip}/1k?[1-5]'; get --http2 'https://{vip}/128k?[1-5]'\nsleep 0.1\ndone\n"
    );
    let mut sh = topology.client.command("sh");
    sh.args(["-c", &script]);
    topology.client.start(sh, &topology.scratch.file("traffic.log"))
}

fn queries_have_data() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let mut scene = Scene::start(&topology)?;
    let text = page::configuration(&read(page::PATH)?, &repository(RULES).display().to_string())?;
    let configuration = topology.scratch.write("prometheus.yml", &text)?;
    let prometheus = Prometheus::start(&topology, &configuration)?;
    let _traffic = traffic(&topology)?;
    // Rates need some samples, and rules a few rounds.
    let start = Instant::now();
    while let Err(error) = all_have_data(&prometheus) {
        scene.hairpin.process().check()?;
        scene.servers.check()?;
        ensure!(start.elapsed() < patience(PATIENCE), "{error:#}");
        sleep(Duration::from_secs(1));
    }
    // For answers to be shown rates have a minute of traffic behind them.
    let is_written = std::env::var_os("HAIRPIN_WRITE_DOCS").is_some();
    if is_written {
        sleep(Duration::from_secs(75).saturating_sub(start.elapsed()));
    }
    page_is_right(&prometheus, is_written)
}

/// Dashboards of the package.
const DASHBOARDS: [&str; 2] = ["packaging/grafana/hairpin-overview.json", "packaging/grafana/hairpin-service.json"];
/// The services that the dashboard of one service shows: for queries of what only HTTPS services have, and for all others.
const SERVICES: [(&str, bool); 2] = [("secure", true), ("web", false)];

fn all_have_data(prometheus: &Prometheus<'_>) -> Result<()> {
    for path in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(&read(path)?).context(path)?;
        dashboard::is_well_formed(&dashboard).context(path)?;
        for (service, of_https) in SERVICES {
            let queries = dashboard::queries(prometheus, &dashboard, service).context(path)?;
            for query in queries.into_iter().filter(|query| query.expression.contains("hairpin_https_") == of_https) {
                has_data(prometheus, &query.expression, &query.legend, !query.is_of_events).context(query.place)?;
            }
        }
    }
    for rule in prometheus.rules()? {
        let (name, query) = (rule["name"].as_str().unwrap_or_default(), rule["query"].as_str().unwrap_or_default());
        ensure!(rule["health"] == "ok", "rule {name}: {}", rule["lastError"]);
        let annotations = rule["annotations"].as_object().into_iter().flat_map(|all| all.values());
        let named = annotations.flat_map(|text| dashboard::labels(text.as_str().unwrap_or_default()));
        let named = named.filter_map(|inside| Some(inside.strip_prefix("$labels.")?.to_owned())).collect();
        has_data(prometheus, query, &named, rule["type"] == "recording").with_context(|| format!("rule {name}"))?;
    }
    // Only Hairpin answers clients of `down`, and all that it says is 503.
    for query in ["service:hairpin_http_errors:ratio_rate5m == 1", "service:hairpin_http_requests:rate5m > 0"] {
        let samples = prometheus.query(query)?;
        ensure!(
            samples.iter().any(|sample| sample.labels.get("service").is_some_and(|name| name == "down")),
            "`{query}` lacks `down`: {samples:?}"
        );
    }
    for (query, _) in page::queries(&read(page::PATH)?)? {
        has_data(prometheus, query, &BTreeSet::new(), true).context(page::PATH)?;
    }
    Ok(())
}

/// All that an expression names is there, and the labels that what shows its answer names. Unless it is of events that need not
/// happen, it has an answer, and a number in it.
fn has_data(prometheus: &Prometheus<'_>, expression: &str, shown: &BTreeSet<String>, now: bool) -> Result<()> {
    let samples = prometheus.query(expression)?;
    ensure!(!now || samples.iter().any(|sample| sample.value.is_finite()), "`{expression}` has no data: {samples:?}");
    let names = Names::of(expression);
    let mut known = BTreeSet::new();
    for selector in &names.selectors {
        let series = prometheus.query(selector)?;
        ensure!(!series.is_empty(), "`{expression}`: there is no {selector}");
        known.extend(series.into_iter().flat_map(|sample| sample.labels.into_keys()));
    }
    let unknown: Vec<_> = names.labels.difference(&known).collect();
    ensure!(unknown.is_empty(), "`{expression}`: no series has the labels {unknown:?}");
    let answered: BTreeSet<_> = samples.into_iter().flat_map(|sample| sample.labels.into_keys()).collect();
    let missing: Vec<_> = shown.difference(if now { &answered } else { &known }).collect();
    ensure!(missing.is_empty(), "`{expression}` is shown by labels that its answer lacks: {missing:?}");
    Ok(())
}

/// The guide has the answers of a run, with the series of this one, and the alerts that there are. `HAIRPIN_WRITE_DOCS=1` writes
/// both.
fn page_is_right(prometheus: &Prometheus<'_>, is_written: bool) -> Result<()> {
    let page = read(page::PATH)?;
    let rules = prometheus.rules()?;
    let alerts: Vec<&Value> = rules.iter().filter(|rule| rule["type"] == "alerting").collect();
    let mut answers = BTreeMap::new();
    for (query, _) in page::queries(&page)? {
        answers.insert(query.to_owned(), page::answer(&prometheus.query(query)?));
    }
    let right = page::with_alerts(&page, &alerts)?;
    if is_written {
        std::fs::write(repository(page::PATH), page::with_answers(&right, &answers)?)?;
        return Ok(());
    }
    const RENEW: &str = "HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin-e2e --test end_to_end -- prometheus:";
    ensure!(page == right, "{}: the table of alerts is old; run: {RENEW}", page::PATH);
    for (query, answer) in page::queries(&page)? {
        let (old, new) = (page::labels(answer), page::labels(&answers[query]));
        ensure!(old == new, "{}: `{query}` has other series now: {new:?}; run: {RENEW}", page::PATH);
    }
    Ok(())
}
