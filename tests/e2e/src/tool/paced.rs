//! Requests at a set rate on connections that stay. Times are taken from when a request was due, so that one which is
//! late because the one before it was slow counts as slow, too.

use super::{http, inside};
use crate::namespace::Namespace;
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The threads' nice value. Where client and server share a core, a client that has to wait for the server's slice to
/// end (3 ms and more) before it sees its answer would measure the scheduler: `perf sched latency` shows it.
const NICE: i32 = -20;

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub struct RequestPace {
    /// Whom.
    pub to: SocketAddr,
    /// For what.
    pub page: &'static str,
    /// Connections, each with a thread.
    pub connections: u32,
    /// Requests a second of all of them together.
    pub per_second: f64,
    /// How long requests are made before their times count.
    pub warm_up: Duration,
    /// How long their times count.
    pub duration: Duration,
    /// The core that the threads share.
    pub cpu: usize,
}

/// The results.
#[derive(Clone, Debug)]
pub struct PacedTimes {
    /// Requests answered per second.
    pub per_second: f64,
    /// They took so long on average, in milliseconds.
    pub mean_ms: f64,
    /// Half of them took no longer than that, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 took no longer.
    pub p99_ms: f64,
    /// So many of a hundred, from none to all, took no longer.
    pub percentiles_ms: Vec<f64>,
}

/// Asks; fails if a request does.
pub fn run(client: &Namespace, pace: RequestPace) -> Result<PacedTimes> {
    let interval = Duration::from_secs_f64(f64::from(pace.connections) / pace.per_second);
    let begin = Instant::now() + Duration::from_millis(200);
    let counts = begin + pace.warm_up;
    let threads: Vec<_> = (0..pace.connections)
        .map(|number| {
            let first = begin + interval * number / pace.connections;
            inside::spawn(client, Some(pace.cpu), move || one(pace, first, interval, (counts, counts + pace.duration)))
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        all.extend(inside::join(thread)?);
    }
    ensure!(!all.is_empty(), "no request was due in {:?}", pace.duration);
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    Ok(PacedTimes {
        per_second: all.len() as f64 / pace.duration.as_secs_f64(),
        mean_ms: all.iter().map(Duration::as_secs_f64).sum::<f64>() * 1e3 / all.len() as f64,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        percentiles_ms: (0..=100).map(|percent| at(f64::from(percent) / 100.0)).collect(),
    })
}

/// `counts` and `end`: requests that are due between them count.
fn one(
    pace: RequestPace,
    mut due: Instant,
    interval: Duration,
    (counts, end): (Instant, Instant),
) -> Result<Vec<Duration>> {
    rustix::process::setpriority_process(None, NICE).context("the client's precedence")?;
    let mut connection = http::HttpConnection::open(pace.to, TIMEOUT)?;
    let mut times = Vec::new();
    while due < end {
        sleep(due.saturating_duration_since(Instant::now()));
        let answer = connection.get(pace.page, false, TIMEOUT).context("at a set rate")?;
        ensure!(answer.status == 200, "answered with {}", answer.status);
        if due >= counts {
            times.push(due.elapsed());
        }
        due += interval;
    }
    Ok(times)
}
