//! The cost for packets when a client reads the metrics and the status ten times a second.

use super::report::{Bar, ReportRow};
use super::samples::RepeatedValues;
use super::{SuitePlan, progress};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, control};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Scrapes a second: of the metrics, and as many of the status.
const PER_SECOND: u32 = 10;
/// The default address of the metrics.
const METRICS: &str = "127.0.0.1:9560";
/// One load runs all the time; scrapes are on for so long, then off, then off, then on, and so forth.
const SLICE: Duration = Duration::from_millis(500);
/// Rounds of four slices: many, as the effect is smaller than what one slice differs from the next by.
const ROUNDS: u32 = 50;
const ROUNDS_QUICK: u32 = 5;
/// Processor time is told in hundredths of a second: long enough for a thousandth of a core to show.
const IDLE: Duration = Duration::from_secs(10);

/// Packets of short connections, most of which go through the workers, with scrapes and without, in turn; and the
/// processor time that scrapes take.
pub(super) fn scrapes(plan: &SuitePlan) -> Result<Vec<ReportRow>> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let service = PeerService::tcp("http", Family::V4, HTTP_PORT);
    let mut hairpin = Hairpin::start(&topology, std::slice::from_ref(&service), &HairpinOptions::default())?;
    let time = processor_time(&topology, &mut hairpin)?;
    let rounds = if plan.quick { ROUNDS_QUICK } else { ROUNDS };
    // Longer than it takes: it is ended when all is measured.
    let duration = SLICE * 8 * rounds + Duration::from_secs(30);
    let options = WrkOptions { page: "1k", connections: 64, duration, close: true };
    let command = load::wrk_command(&topology.client, &service.listen(), 1, &options);
    let mut wrk = topology.client.start(command, &topology.scratch.file("wrk-scrape"))?;
    sleep(Duration::from_secs(2));
    let (mut with, mut without, mut ratios) =
        (RepeatedValues::default(), RepeatedValues::default(), RepeatedValues::default());
    for _ in 0..rounds {
        // On, off, off, on: what drifts falls on both alike.
        let (first, second) = (slice(&topology, &hairpin, true)?, slice(&topology, &hairpin, false)?);
        let (third, fourth) = (slice(&topology, &hairpin, false)?, slice(&topology, &hairpin, true)?);
        with.push((first + fourth) / 2.0);
        without.push((second + third) / 2.0);
        ratios.push((first + fourth) / (second + third));
    }
    wrk.check().context("wrk ended too early")?;
    hairpin.process().check()?;
    progress("scrape", "scraped", with.median(), " packet/s", "");
    progress("scrape", "left alone", without.median(), " packet/s", "");
    progress("scrape", "ratio", ratios.median(), "", &format!("median of {rounds} rounds, each on, off, off, on"));
    let beside = BTreeMap::from([("left alone".to_owned(), without.median())]);
    let mut row =
        ReportRow::new("scraped 10 times a second", "packet/s", &with, &beside, "left alone", Bar::AtLeast(0.99));
    // Slices of a round lie close together in time: the median of their ratios is less noisy than that of the medians.
    row.ratio = ratios.median();
    row.held = row.bar.holds(row.ratio);
    Ok(vec![
        row,
        ReportRow::against_value("10 scrapes a second", "% of the cores", &time, "1 %", 1.0, Bar::AtMost(1.0)),
    ])
}

/// Packets per second that reach the servers' cards.
fn slice(topology: &Topology, hairpin: &Hairpin, scraped: bool) -> Result<f64> {
    let arrived = || topology.servers.iter().map(|server| server.received_packets("eth0")).sum::<Result<u64>>();
    let scraper = scraped.then(|| Scraper::start(topology, hairpin));
    let (before, start) = (arrived()?, Instant::now());
    sleep(SLICE);
    let rate = (arrived()? - before) as f64 / start.elapsed().as_secs_f64();
    if let Some(scraper) = scraper {
        ensure!(scraper.stop()? > 0, "nothing was scraped");
    }
    Ok(rate)
}

/// Share of all cores, which workers and packets have to themselves otherwise, that scrapes take of the process when
/// nothing else happens, in percent.
fn processor_time(topology: &Topology, hairpin: &mut Hairpin) -> Result<RepeatedValues> {
    let cores = std::thread::available_parallelism()?.get() as f64;
    let mut samples = RepeatedValues::default();
    for _ in 0..3 {
        let mut share = |scraped: bool| -> Result<f64> {
            let scraper = scraped.then(|| Scraper::start(topology, hairpin));
            let (before, start) = (hairpin.process().cpu_seconds()?, Instant::now());
            sleep(IDLE);
            let share = (hairpin.process().cpu_seconds()? - before) / start.elapsed().as_secs_f64();
            scraper.map_or(Ok(0), Scraper::stop)?;
            Ok(share * 100.0 / cores)
        };
        let percent = share(true)? - share(false)?;
        progress("10 scrapes a second", "hairpin", percent, "% of the cores", "");
        samples.push(percent.max(0.0));
    }
    Ok(samples)
}

/// Reads metrics and status again and again.
struct Scraper {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Scraper {
    fn start(topology: &Topology, hairpin: &Hairpin) -> Scraper {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let socket: PathBuf = hairpin.socket();
        let thread = inside::spawn(&topology.balancer, None, {
            let (stop, count) = (stop.clone(), count.clone());
            move || {
                let start = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let metrics = metrics(METRICS.parse()?)?;
                    ensure!(metrics.contains("hairpin_"), "no metrics in {metrics:.200}");
                    control::status(&socket)?;
                    let done = count.fetch_add(1, Ordering::Relaxed) + 1;
                    let due = Duration::from_secs(1) * done as u32 / PER_SECOND;
                    sleep(due.saturating_sub(start.elapsed()));
                }
                Ok(())
            }
        });
        Scraper { stop, count, thread }
    }

    fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        inside::join(self.thread)?;
        Ok(self.count.load(Ordering::Relaxed))
    }
}

fn metrics(from: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&from, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
