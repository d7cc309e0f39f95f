//! `hairpin capture`: packets of chosen connections, as pcapng.
//!
//! A packet socket on each interface sees every packet before and after translation, whether a worker or a rule
//! forwards it. Only the instance knows which packets belong to the chosen connections: once a second the capture
//! asks it for matching connections, and packets that may be theirs wait until then ([`queue`]). So the first packets of a
//! new connection are not missed, and packets are written in the order in which they were seen.

mod chosen;
mod file;
mod queue;
mod source;

/// Bounds of a capture.
pub(crate) mod limits {
    pub(crate) use super::chosen::CONNECTIONS_MAX;
    pub(crate) use super::queue::{BYTES_MAX, PACKETS_MAX};
}

use crate::cli::connect;
use crate::control::{ControlAnswer, ControlClient, ControlRequest, Query, unexpected};
use crate::status::Status;
use anyhow::{Context, Result, bail};
use chosen::Chosen;
use clap::Args;
use file::CaptureFile;
use hairpin_linux::capture::SNAP_LENGTH_MAX;
use queue::CaptureQueue;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use source::{CaptureMessage, CaptureSources};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the instance is asked for connections, and packets are written.
const REFRESH: Duration = Duration::from_secs(1);
/// How soon a signal is seen.
const TICK: Duration = Duration::from_millis(100);
/// Connections asked for at a time.
const PAGE: u32 = 10_000;

/// The filter, the place and the duration of a capture.
#[derive(Args, Debug)]
pub(crate) struct CaptureArgs {
    /// The file to write; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: String,
    /// The interfaces; those of the instance, unless given.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// End after so many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, such as 30s or 5m.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Bytes of each packet that are kept.
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_LENGTH_MAX)]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=i64::from(SNAP_LENGTH_MAX)))]
    snap_length: u32,
}

/// Captures until the limits are reached, or a signal ends it.
///
/// # Errors
/// No instance answers at `socket`, an interface cannot be listened on, or the file cannot be written.
pub(crate) fn run(socket: &Path, query: &Query, args: &CaptureArgs) -> Result<()> {
    if args.write == "-" && std::io::stdout().is_terminal() {
        bail!(
            "a capture is not for the terminal; name a file with -w FILE, or pipe it, as in `... -w - | tshark -r -`"
        );
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot listen for signals")?;
    }
    let mut client = connect(socket)?;
    let status = client.status()?;
    if status.plane == "dpdk" && args.interfaces.is_empty() {
        bail!(
            "the kernel does not see what passes through ports of the dpdk plane; where a port is an interface of the \
             kernel's (af_packet, af_xdp), name that one with --interfaces"
        );
    }
    let interfaces = if args.interfaces.is_empty() { &status.interfaces } else { &args.interfaces };
    let chosen = Chosen::new(query, &status.services)?;
    let (sources, messages) = CaptureSources::open(interfaces, &chosen.hosts(), status.pid)?;
    let out = destination(&args.write)?;
    let file = CaptureFile::begin(out, interfaces, args.snap_length, &comment(&status, query))?;
    let mut session =
        CaptureSession { chosen, queue: CaptureQueue::default(), file, count: args.count, short_of: false };
    let deadline = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut asker = Asker { socket, query, client: Some(client), silent: false };
    let over = session.run(&messages, &mut asker, deadline, &ended);
    let lost = sources.stop(messages);
    let report = session.end(interfaces, &lost);
    over?;
    eprintln!("{}", report?);
    Ok(())
}

fn destination(name: &str) -> Result<Box<dyn Write>> {
    if name == "-" {
        return Ok(Box::new(crate::cli::stdout()));
    }
    // The file contains the payload of connections.
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(name);
    Ok(Box::new(file.with_context(|| format!("cannot write {name}"))?))
}

/// The file's description of itself.
fn comment(status: &Status, query: &Query) -> String {
    let Query { client, service, backend, state, offloaded, cursor: _, limit: _ } = query;
    let mut comment = format!("instance {} (process {})", status.instance, status.pid);
    for (name, value) in [("client", client), ("service", service), ("backend", backend), ("state", state)] {
        if let Some(value) = value {
            comment.push_str(&format!(", {name} {value}"));
        }
    }
    match offloaded {
        Some(true) => comment.push_str(", offloaded"),
        Some(false) => comment.push_str(", in software"),
        None => {}
    }
    comment
}

/// The instance that knows the connections.
struct Asker<'a> {
    socket: &'a Path,
    query: &'a Query,
    /// None while no instance answers.
    client: Option<ControlClient>,
    /// Whether it has been said that no instance answers.
    silent: bool,
}

impl Asker<'_> {
    /// Tells `chosen` of the connections that fit. An instance that restarts is missing for a moment: what is known
    /// then still counts.
    fn ask(&mut self, chosen: &mut Chosen) {
        if !chosen.asks() {
            return;
        }
        if self.client.is_none() {
            self.client = ControlClient::connect(self.socket).ok().flatten();
        }
        let asked = match &mut self.client {
            Some(client) => pages(client, self.query, chosen),
            None => Err(anyhow::anyhow!("the instance does not answer")),
        };
        match asked {
            Ok(()) => self.silent = false,
            Err(error) => {
                self.client = None;
                if !std::mem::replace(&mut self.silent, true) {
                    eprintln!("the instance cannot be asked for connections, going on with those known: {error:#}");
                }
            }
        }
    }
}

fn pages(client: &mut ControlClient, query: &Query, chosen: &mut Chosen) -> Result<()> {
    let mut query = Query { limit: PAGE, ..query.clone() };
    chosen.begin_round();
    loop {
        match client.request(&ControlRequest::Connections(query.clone()))? {
            ControlAnswer::Connections(page) => {
                let all = page.connections.iter().all(|connection| chosen.learn(connection));
                match page.next {
                    Some(next) if all && Some(next) != query.cursor => query.cursor = Some(next),
                    _ => return Ok(()),
                }
            }
            other => return unexpected(other),
        }
    }
}

/// A capture in progress.
struct CaptureSession<W: Write> {
    chosen: Chosen,
    queue: CaptureQueue,
    file: CaptureFile<W>,
    /// Packets to write at most.
    count: Option<u64>,
    /// Whether it has been said that there are more connections than can be told apart.
    short_of: bool,
}

impl<W: Write> CaptureSession<W> {
    /// Goes on until the count, the deadline or a signal.
    fn run(
        &mut self,
        messages: &Receiver<CaptureMessage>,
        asker: &mut Asker<'_>,
        deadline: Option<Instant>,
        ended: &AtomicBool,
    ) -> Result<()> {
        asker.ask(&mut self.chosen);
        let mut refresh = Instant::now() + REFRESH;
        loop {
            let now = Instant::now();
            let over = ended.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| now >= deadline);
            if over || now >= refresh {
                // A packet seen from here on may be younger than the list of connections: it waits for the next.
                let until = if over { Duration::MAX } else { since_1970() };
                let full = self.take_waiting(messages)?;
                asker.ask(&mut self.chosen);
                if full || self.settle(until)? || over {
                    return Ok(());
                }
                refresh = Instant::now() + REFRESH;
            }
            match messages.recv_timeout(TICK.min(refresh.saturating_duration_since(Instant::now()))) {
                Ok(message) => {
                    if self.take(message)? {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("no interface is listened on any more"),
            }
        }
    }

    /// Takes what has been seen up to now. Whether the count is reached.
    fn take_waiting(&mut self, messages: &Receiver<CaptureMessage>) -> Result<bool> {
        // Bounded, for packets may come as fast as they are taken.
        for message in messages.try_iter().take(source::CHANNEL) {
            if self.take(message)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take(&mut self, message: CaptureMessage) -> Result<bool> {
        let seen = match message {
            CaptureMessage::Seen(seen) => seen,
            CaptureMessage::Failed(error) => return Err(error),
        };
        let Some(flow) = chosen::flow(&seen.bytes) else { return Ok(false) };
        if self.chosen.judge(&flow) == chosen::CaptureVerdict::No {
            return Ok(false);
        }
        if self.queue.push(flow, seen) {
            return Ok(false);
        }
        // Full: what is certain is written, the rest is given up.
        self.settle(Duration::MAX)
    }

    /// Writes the chosen ones among the packets up to `until`, a time since 1970. Whether the count is reached.
    fn settle(&mut self, until: Duration) -> Result<bool> {
        if self.chosen.short() && !std::mem::replace(&mut self.short_of, true) {
            eprintln!(
                "more than {} connections fit; capturing those, narrow the filter for others",
                chosen::CONNECTIONS_MAX
            );
        }
        for packet in self.queue.settle(until, &self.chosen) {
            if self.full() {
                break;
            }
            self.file.packet(&packet)?;
        }
        self.file.flush()?;
        Ok(self.full())
    }

    fn full(&self) -> bool {
        self.count.is_some_and(|count| self.file.packets() >= count)
    }

    /// Ends the file; what there is to report.
    fn end(mut self, interfaces: &[String], lost: &[u64]) -> Result<String> {
        self.file.end(lost, since_1970())?;
        let undecided = match self.queue.given_up() {
            0 => String::new(),
            count => format!(", {count} given up because too many waited"),
        };
        Ok(format!(
            "{} packets captured on {}, {} lost by the kernel{undecided}",
            self.file.packets(),
            interfaces.join(", "),
            lost.iter().sum::<u64>(),
        ))
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
