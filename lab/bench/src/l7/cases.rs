//! The cases, and the bars they are held to.

use super::L7Effort;
use super::pages::SIZES;
use super::peers::{BenchNetwork, Intermediary, OTHER_CPU, RunningIntermediary};
use super::processor::Cores;
use super::resent::Resent;
use crate::suite::report::{Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::tool::paced::{self, RequestPace};
use hairpin_e2e::topology::Cards;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Connections of the latency case and of the mix.
const SOME: usize = 32;
/// Bytes from which on a page is large.
const LARGE: usize = 1 << 20;
/// The time to start and end a peer, on average of all, in seconds.
const AROUND_S: f64 = 0.6;
/// How much longer than planned wrk may take.
const GRACE: Duration = Duration::from_secs(30);

/// The requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestLoad {
    /// A page, over connections that stay, or over one each.
    Page { page: &'static str, bytes: usize, connections: usize, close: bool },
    /// Pages of web search's sizes.
    Mix,
    /// 1 KB at half the rate that nginx reaches.
    Latency,
    /// 1 KB, by Hairpin alone, with an access log and without.
    Logged { close: bool },
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct L7Case {
    pub(super) cards: Cards,
    load: RequestLoad,
}

impl L7Case {
    /// Its name.
    pub(super) fn name(&self) -> String {
        let cards = self.cards.name();
        match self.load {
            RequestLoad::Page { page, connections, close, .. } => {
                format!("{cards} {page} x {connections} {}", if close { "new" } else { "kept" })
            }
            RequestLoad::Mix => format!("{cards} mix web-search x {SOME} kept"),
            RequestLoad::Logged { close } => {
                format!("{cards} access log, 1k x {SOME} {}", if close { "new" } else { "kept" })
            }
            RequestLoad::Latency => format!("{cards} latency 1k x {SOME}, half of nginx's rate"),
        }
    }

    /// Whether it belongs to a quick run.
    pub(super) fn is_quick(&self) -> bool {
        match self.load {
            RequestLoad::Page { bytes, connections, .. } => connections == 32 && [1 << 10, 1 << 20].contains(&bytes),
            RequestLoad::Mix | RequestLoad::Latency => true,
            RequestLoad::Logged { .. } => false,
        }
    }

    /// How much of it is measured, unless told otherwise: so that all cases take some twenty minutes. A second has many
    /// responses of the small sizes and few of the large ones, where a connection first has to find its speed.
    pub(super) fn effort(&self) -> L7Effort {
        let seconds = |seconds| Duration::from_secs(seconds);
        match self.load {
            RequestLoad::Page { bytes, .. } if bytes < LARGE => L7Effort { duration: seconds(1), repetitions: 3 },
            RequestLoad::Page { connections, .. } if connections != SOME => {
                L7Effort { duration: seconds(2), repetitions: 2 }
            }
            RequestLoad::Page { .. } | RequestLoad::Mix => L7Effort { duration: seconds(2), repetitions: 3 },
            // The slowest hundredth of a second depends on whether anything held a core up in it: with every peer it lies
            // between 0.3 and 20 ms, so the median of a few says nothing.
            RequestLoad::Logged { .. } => L7Effort { duration: seconds(1), repetitions: 12 },
            RequestLoad::Latency => L7Effort { duration: seconds(1), repetitions: 24 },
        }
    }

    /// Seconds that all peers together take, about.
    pub(super) fn seconds(&self, effort: L7Effort) -> f64 {
        let first = if self.load == RequestLoad::Latency { effort.duration.as_secs_f64() + AROUND_S } else { 0.0 };
        let each = effort.duration.as_secs_f64() + AROUND_S;
        first + (self.peers().len() * effort.repetitions) as f64 * each
    }

    /// Who is measured, the one that the bars are for first.
    fn peers(&self) -> &'static [Intermediary] {
        match self.load {
            RequestLoad::Logged { .. } => &[Intermediary::Logged, Intermediary::Hairpin],
            _ => &Intermediary::ALL,
        }
    }

    /// The bars: against whom, and what.
    fn bars(&self) -> Vec<(BarReference, Bar)> {
        let nginx = BarReference::Peer(Intermediary::Nginx);
        match (self.cards, self.load) {
            (_, RequestLoad::Logged { .. }) => {
                vec![(BarReference::Peer(Intermediary::Hairpin), Bar::AtLeast(0.95))]
            }
            (_, RequestLoad::Latency) => vec![(nginx, Bar::AtMost(1.0))],
            (Cards::Wire | Cards::Xdp, _) => vec![(nginx, Bar::AtLeast(0.95))],
            (Cards::Gso, RequestLoad::Mix) => {
                vec![(BarReference::Peer(Intermediary::Direct), Bar::AtLeast(0.9)), (nginx, Bar::AtLeast(1.6))]
            }
            (Cards::Gso, RequestLoad::Page { bytes, .. }) => match bytes {
                0..=1024 => vec![(BarReference::Best, Bar::AtLeast(1.1))],
                1025..=0xffff => vec![(nginx, Bar::AtLeast(1.0))],
                0x1_0000..=0xf_ffff => vec![(nginx, Bar::AtLeast(1.3))],
                _ => vec![(BarReference::Peer(Intermediary::Direct), Bar::AtLeast(0.7)), (nginx, Bar::AtLeast(1.8))],
            },
        }
    }
}

/// The reference of a bar.
#[derive(Clone, Copy, Debug)]
enum BarReference {
    Peer(Intermediary),
    /// The better of the proxies.
    Best,
}

/// All cases.
pub(super) fn all() -> Vec<L7Case> {
    let mut cases = Vec::new();
    for cards in [Cards::Gso, Cards::Wire] {
        for (page, bytes) in SIZES {
            for connections in [8, 32, 256] {
                for close in [false, true] {
                    cases.push(L7Case { cards, load: RequestLoad::Page { page, bytes, connections, close } });
                }
            }
        }
        cases.push(L7Case { cards, load: RequestLoad::Mix });
        cases.push(L7Case { cards, load: RequestLoad::Latency });
        for close in [false, true] {
            cases.push(L7Case { cards, load: RequestLoad::Logged { close } });
        }
    }
    cases
}

/// Measures a case: each peer in turn, several times.
pub(super) fn measure(net: &BenchNetwork, case: &L7Case, effort: L7Effort) -> Result<Vec<ReportRow>> {
    println!("\n{}", case.name());
    let rate = match case.load {
        RequestLoad::Latency => half_of_nginx(net, effort)?,
        _ => 0.0,
    };
    let mut samples: BTreeMap<Intermediary, RepeatedValues> = BTreeMap::new();
    for repetition in 0..effort.repetitions {
        let mut order = case.peers().to_vec();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for peer in order {
            let mut running = net.start(peer)?;
            let value = once(net, case, effort, peer, rate).with_context(|| peer.name())?;
            running.check()?;
            samples.entry(peer).or_default().push(value);
            // The next one waits until what this one leaves is worked off.
            drop(running);
        }
    }
    let unit = unit(case.load);
    let beside: BTreeMap<String, f64> =
        samples.iter().map(|(peer, samples)| (peer.name().to_owned(), samples.median())).collect();
    let own = case.peers()[0];
    if matches!(case.load, RequestLoad::Logged { .. }) {
        println!("  {}", paired(&samples));
    }
    let ours = samples.remove(&own).unwrap_or_default();
    let rows = case.bars().into_iter().map(|(against, bar)| {
        let against = match against {
            BarReference::Peer(peer) => peer,
            BarReference::Best => {
                let median = |peer| beside.get(Intermediary::name(peer)).copied().unwrap_or(0.0);
                if median(Intermediary::Nginx) >= median(Intermediary::Haproxy) {
                    Intermediary::Nginx
                } else {
                    Intermediary::Haproxy
                }
            }
        };
        let mut others = beside.clone();
        others.remove(own.name());
        ReportRow::new(case.name(), unit, &ours, &others, against.name(), bar)
    });
    Ok(rows.collect())
}

fn unit(load: RequestLoad) -> &'static str {
    match load {
        RequestLoad::Page { bytes, .. } if bytes <= 1024 => "/s",
        RequestLoad::Logged { .. } => "/s",
        RequestLoad::Latency => "ms",
        RequestLoad::Page { .. } | RequestLoad::Mix => "bit/s",
    }
}

/// What an access log costs, turn by turn.
fn paired(samples: &BTreeMap<Intermediary, RepeatedValues>) -> String {
    let of = |peer| samples.get(&peer).map(RepeatedValues::values).unwrap_or_default();
    let (logged, plain) = (of(Intermediary::Logged), of(Intermediary::Hairpin));
    let ratios: Vec<f64> = logged.iter().zip(plain).map(|(logged, plain)| logged / plain - 1.0).collect();
    let count = ratios.len().max(2) as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Student's t for 95 % and 11 degrees of freedom; more turns make it smaller.
    let reach = 2.2 * (variance / count).sqrt();
    format!(
        "with the log {:+.1} % in {count} turns, 95 % interval {:+.1} to {:+.1} %",
        mean * 100.0,
        (mean - reach) * 100.0,
        (mean + reach) * 100.0
    )
}

/// One measurement of one peer.
fn once(net: &BenchNetwork, case: &L7Case, effort: L7Effort, peer: Intermediary, rate: f64) -> Result<f64> {
    let topology = &net.topology;
    let ends = || [&topology.client, &topology.balancer, &topology.servers[0]];
    let resent = Resent::now(ends())?;
    let before = Cores::now()?;
    let (value, rest) = match case.load {
        RequestLoad::Latency => {
            let times = paced::run(
                &net.topology.client,
                RequestPace {
                    to: peer.target(),
                    page: "1k",
                    connections: SOME as u32,
                    per_second: rate,
                    warm_up: Duration::ZERO,
                    duration: effort.duration,
                    cpu: OTHER_CPU.parse()?,
                },
            )?;
            (times.p99_ms, format!("p50 {:.2} ms at {}/s", times.p50_ms, metric(times.per_second)))
        }
        load => {
            let command = wrk(net, load, peer, effort.duration);
            let line = command::display(&command);
            let log = net.topology.scratch.file("l7-wrk.log");
            let mut process = net.topology.client.start(command, &log)?;
            let status = process.wait(effort.duration + GRACE)?;
            ensure!(status.success(), "`{line}`: {}", process.log());
            let result = load::parse_wrk(&process.log()).with_context(|| process.log())?;
            let value = if unit(load) == "/s" { result.requests_per_s } else { result.bits_per_s };
            let line = line.split_once("-- ").map_or("", |(_, line)| line).to_owned();
            (value, format!("p99 {:.1} ms, {} errors; {line}", result.p99_ms, result.errors))
        }
    };
    let cores = Cores::now()?.since(&before);
    let resent = Resent::now(ends())?.since(&resent);
    println!("  {:8} {:>9}{} {cores}; {resent}; {rest}", peer.name(), metric(value), unit(case.load));
    Ok(value)
}

fn wrk(net: &BenchNetwork, load: RequestLoad, peer: Intermediary, duration: Duration) -> Command {
    let mut wrk = net.topology.client.command_on(OTHER_CPU, "wrk");
    let (page, connections, close) = match load {
        RequestLoad::Page { page, connections, close, .. } => (page, connections, close),
        RequestLoad::Logged { close } => ("1k", SOME, close),
        RequestLoad::Mix | RequestLoad::Latency => ("1k", SOME, false),
    };
    wrk.args(["-t1", &format!("-c{connections}"), &format!("-d{}s", duration.as_secs().max(1)), "--latency"]);
    if close {
        wrk.args(["-H", "Connection: close"]);
    }
    if load == RequestLoad::Mix {
        wrk.arg("-s").arg(&net.mix);
    }
    wrk.arg(format!("http://{}/{page}", peer.target()));
    wrk
}

/// Half of the requests a second that nginx answers.
fn half_of_nginx(net: &BenchNetwork, effort: L7Effort) -> Result<f64> {
    let load = RequestLoad::Page { page: "1k", bytes: 1 << 10, connections: SOME, close: false };
    let _running: RunningIntermediary = net.start(Intermediary::Nginx)?;
    let peak = once(net, &L7Case { cards: net.topology.cards, load }, effort, Intermediary::Nginx, 0.0)?;
    Ok(peak / 2.0)
}
