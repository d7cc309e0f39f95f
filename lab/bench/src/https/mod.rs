//! HTTPS services beside nginx and HAProxy, on two cores: `make bench-https`.
//!
//! The balancer has core 1 to itself, with all that arrives at its interfaces; client and server share core 0 (as in
//! [`l7`](crate::l7)). The client's cryptography costs more than the balancer's, so core 0 is often full before core 1 is.
//! What is compared is therefore work for each second that core 1 was busy; the rate stands beside it.

mod cases;
pub mod kernel_tls;
mod peers;

use crate::suite::report::{self, ReportRow};
use anyhow::{Result, bail};
use cases::HttpsCase;
use peers::HttpsNetwork;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The arguments of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpsArgs {
    /// A quick run: one second, once.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name contains one of these, as `h1 1k`, `h2`, `handshakes`, `memory`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Measurements of each peer.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Lists the cases.
    #[arg(long)]
    list: bool,
    /// The directory for `https.json`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// Measures the cases asked for, prints as it goes and a table at the end, and writes `https.json`. Fails if a case could not
/// be measured; a missed bar is no failure.
pub fn run(arguments: &HttpsArgs) -> Result<()> {
    let all = cases::all();
    let wanted = |case: &&HttpsCase| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| case.name().contains(part.as_str()))
    };
    let cases: Vec<&HttpsCase> = all.iter().filter(wanted).collect();
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name()));
        return Ok(());
    }
    if cases.is_empty() {
        bail!("no case is called so; --list names them");
    }
    let (seconds, repetitions) = if arguments.quick { (1, 1) } else { (arguments.seconds, arguments.repetitions) };
    let duration = Duration::from_secs(seconds.max(1));
    let net = HttpsNetwork::create()?;
    let (mut rows, mut failed): (Vec<ReportRow>, Vec<String>) = (Vec::new(), Vec::new());
    println!("balancer on core 1 with all that arrives at its interfaces, client and server on core 0");
    let start = Instant::now();
    for (done, case) in (1..).zip(&cases) {
        match cases::measure(&net, case, duration, repetitions.max(1)) {
            Ok(more) => rows.extend(more),
            Err(error) => {
                println!("  {} could not be measured: {error:#}", case.name());
                failed.push(case.name());
            }
        }
        report::write(&arguments.directory, "https", &rows)?;
        let took = start.elapsed().as_secs_f64();
        let left = took / f64::from(done) * (cases.len() as f64 - f64::from(done));
        println!("[{took:.0} s, about {left:.0} s left]");
    }
    let held = rows.iter().filter(|row| row.held).count();
    println!("\n{}", report::table(&rows));
    println!("{held} of {} bars held, {:.0} s", rows.len(), start.elapsed().as_secs_f64());
    if failed.is_empty() { Ok(()) } else { bail!("could not measure {}", failed.join(", ")) }
}
