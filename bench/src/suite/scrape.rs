//! What it costs the packets that somebody reads the metrics and the status ten times a second.

use super::report::{Bar, Row};
use super::samples::Samples;
use super::{Plan, progress};
use crate::load::{self, WrkOptions};
use crate::peer::{Hairpin, HairpinOptions, Service, control};
use crate::servers::{HTTP_PORT, Servers};
use crate::tool::inside;
use crate::topology::{Family, Options, Topology};
use anyhow::{Context, Result, ensure};
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
/// Where the metrics are unless the configuration says otherwise.
const METRICS: &str = "127.0.0.1:9560";
/// Pairs of measurements with and without scrapes, each this long.
const PAIRS: usize = 10;
const EACH: Duration = Duration::from_secs(3);
/// Processor time is told in hundredths of a second: long enough for a thousandth of a core to show.
const IDLE: Duration = Duration::from_secs(10);

/// Short connections, all of which go through the workers, with scrapes and without, in turn; and the processor time a
/// scrape takes.
pub(super) fn scrapes(plan: &Plan) -> Result<Vec<Row>> {
    let topology = Topology::create(Options::default())?;
    let _servers = Servers::start(&topology)?;
    let service = Service::tcp("http", Family::V4, HTTP_PORT);
    let mut hairpin = Hairpin::start(&topology, std::slice::from_ref(&service), &HairpinOptions::default())?;
    let time = processor_time(&topology, &mut hairpin)?;
    let options = WrkOptions { page: "1k", connections: 64, duration: EACH, close: true };
    let once = || Ok::<_, anyhow::Error>(load::wrk(&topology, &vec![service.listen(); 2], &options)?.requests_per_s);
    once().context("warming up")?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    let mut ratios = Samples::default();
    for pair in 0..if plan.quick { 2 } else { PAIRS } {
        // The order changes, so that what drifts falls on both alike.
        let rate = |scraped: bool| -> Result<f64> {
            let scraper = scraped.then(|| Scraper::start(&topology, &hairpin));
            let rate = once()?;
            let rest = scraper.map_or(Ok(String::new()), |s| s.stop().map(|count| format!("{count} scrapes")))?;
            progress("scrape", if scraped { "scraped" } else { "left alone" }, rate, "/s", &rest);
            Ok(rate)
        };
        let first = rate(pair % 2 == 0)?;
        let second = rate(pair % 2 != 0)?;
        let (scraped, alone) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        with.push(scraped);
        without.push(alone);
        ratios.push(scraped / alone);
    }
    hairpin.process().check()?;
    progress("scrape", "ratio", ratios.median(), "", "median of the pairs' ratios");
    let beside = BTreeMap::from([("left alone".to_owned(), without.median())]);
    let mut row = Row::new("scraped 10 times a second", "/s", &with, &beside, "left alone", Bar::AtLeast(0.99));
    // Pairs lie close together in time: the median of their ratios is less noisy than the ratio of the medians.
    row.ratio = ratios.median();
    row.held = row.bar.holds(row.ratio);
    Ok(vec![row, Row::against_value("10 scrapes a second", "% of a core", &time, "1 %", 1.0, Bar::AtMost(1.0))])
}

/// Share of a core that scrapes take of the process when nothing else happens, in percent.
fn processor_time(topology: &Topology, hairpin: &mut Hairpin) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..3 {
        let mut share = |scraped: bool| -> Result<f64> {
            let scraper = scraped.then(|| Scraper::start(topology, hairpin));
            let (before, start) = (hairpin.process().cpu_seconds()?, Instant::now());
            sleep(IDLE);
            let share = (hairpin.process().cpu_seconds()? - before) / start.elapsed().as_secs_f64();
            scraper.map_or(Ok(0), Scraper::stop)?;
            Ok(share * 100.0)
        };
        let percent = share(true)? - share(false)?;
        progress("10 scrapes a second", "hairpin", percent, "% of a core", "");
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
