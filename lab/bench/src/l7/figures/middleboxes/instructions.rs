//! Instructions of the processes between clients and servers, for each response, counted by callgrind.
//!
//! Each runs under callgrind twice and answers so many requests, the second time twice as many, over some connections that
//! stay. The difference is what the requests cost, without what comes before and after. Only what the process itself
//! executes is counted, not what the kernel does for it: of nginx and HAProxy that is without TCP.

use super::super::PageSizes;
use super::super::results::{FigureResults, ResultPlace};
use super::{INSTRUCTIONS, Subject};
use crate::instructions::{TUNABLES, total};
use crate::l7::peers::{BenchNetwork, OTHER_CPU};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::tool::{http::HttpConnection, inside};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Connections, and requests on each: the first time so many, the second time twice as many.
const CONNECTIONS: usize = 16;
const REQUESTS: usize = 100;
/// The longest that a request may take, and the end of a process.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Counts all subjects at all sizes.
pub(super) fn measure(
    net: &BenchNetwork,
    sizes: PageSizes,
    directory: &Path,
    results: &mut FigureResults,
) -> Result<()> {
    let directory = std::path::absolute(directory.join("callgrind"))?;
    std::fs::create_dir_all(&directory).with_context(|| format!("could not make {}", directory.display()))?;
    for subject in Subject::ALL.into_iter().filter(|subject| subject.peer().is_some()) {
        for &(page, bytes) in sizes {
            let once = |requests| {
                count(net, subject, page, requests, &directory)
                    .with_context(|| format!("{requests} requests for {page} through {}", subject.name()))
            };
            let (first, second) = (once(REQUESTS)?, once(2 * REQUESTS)?);
            ensure!(second > first, "{}: {first} instructions, then {second}", subject.name());
            let each = (second - first) as f64 / (CONNECTIONS * REQUESTS) as f64;
            println!("  {page:>5} {:24} {each:10.0} instructions/response", subject.name());
            let place = ResultPlace { part: INSTRUCTIONS, setting: "", series: subject.name(), x: bytes as u64 };
            let per_gbyte = each / bytes as f64 * 1e9;
            results.add(place, 0, &[("instructions_per_response", each), ("instructions_per_gbyte", per_gbyte)]);
        }
    }
    Ok(())
}

/// All instructions of a process that answers so many requests on each connection.
fn count(net: &BenchNetwork, subject: Subject, page: &'static str, requests: usize, directory: &Path) -> Result<u64> {
    let peer = subject.peer().context("not a process of its own")?;
    let file = directory.join(format!("{}-{page}-{requests}", subject.name().replace(' ', "-")));
    let (tunables, out) = (format!("GLIBC_TUNABLES={TUNABLES}"), format!("--callgrind-out-file={}", file.display()));
    let before = ["env", &tunables, "valgrind", "--tool=callgrind", &out];
    let mut running = net.start_for(peer, CONNECTIONS, &before)?;
    let (target, cpu) = (subject.target(), OTHER_CPU.parse()?);
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| inside::spawn(&net.topology.client, Some(cpu), move || ask(target, page, requests)))
        .collect();
    threads.into_iter().try_for_each(inside::join)?;
    running.check()?;
    running.stop()?;
    let profile = std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    total(&profile).with_context(|| format!("no total in {}", file.display()))
}

fn ask(target: SocketAddr, page: &str, requests: usize) -> Result<()> {
    let mut connection = HttpConnection::open(target, TIMEOUT)?;
    for _ in 0..requests {
        let answer = connection.get(page, false, TIMEOUT)?;
        ensure!(answer.status == 200, "answered with {}", answer.status);
    }
    Ok(())
}
