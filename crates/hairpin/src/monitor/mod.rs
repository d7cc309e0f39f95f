//! Monitors: what passes interfaces, per flow, to a collector of IPFIX, to lines of JSON, and as top talkers.
//!
//! The kernel filters and counts packets (`hairpin_linux::monitor`); a thread for each monitor makes records of the counts
//! (`flows.rs`) and sends them (`export.rs`, `line.rs`). No packet waits for any of it, and none is changed. A monitor lives as long
//! as its process: with that, however it ends, its programs go.

mod export;
mod flows;
mod ipfix;
mod line;
mod settings;
#[cfg(test)]
mod tests;
mod top;

pub(crate) use line::PROTOCOLS;
pub use settings::{CollectorEnd, MonitorField, MonitorSettings};
pub(crate) use top::Talker;

/// Bounds of monitors.
pub(crate) mod limits {
    pub(crate) use super::export::{RETRY_AFTER, TEMPLATES_EVERY};
    pub(crate) use super::ipfix::MESSAGE_BYTES_MAX;
    pub(crate) use super::{BATCH, PATIENCE};
}

use crate::access_log::Output;
use crate::events::EventKind;
use crate::run::tell;
use anyhow::{Context, Result, bail};
use export::Exporter;
use flows::{FlowRecord, FlowTracker};
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::monitor::{FlowIncidents, FlowMonitor, FlowNews, clean};
use hairpin_linux::programs::AttachMode;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use top::{COUNTERS_PER_SHOWN, SpaceSaving};

/// Monitors at most.
pub(crate) const MONITORS_MAX: usize = 8;
/// The pause between two looks at what the kernel tells.
const PAUSE: Duration = Duration::from_millis(200);
/// Records that are collected before they are sent.
pub(crate) const BATCH: usize = 1024;
/// How long the end of a monitor waits at most for records that are still to be sent.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How programs are attached, and where that is noted.
#[derive(Clone, Debug)]
pub(crate) struct MonitorPlace {
    pub(crate) mode: AttachMode,
    pub(crate) notes: PathBuf,
}

/// The process's monitors.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    running: Vec<Monitor>,
    is_clean: bool,
}

/// One of them. `thread`: `None` if it could not start.
#[derive(Debug)]
struct Monitor {
    settings: MonitorSettings,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    reading: Mutex<MonitorReading>,
    reopens: AtomicBool,
    ends: AtomicBool,
}

/// What a monitor has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MonitorReading {
    /// Why it does not work; empty if it does.
    pub(crate) error: String,
    /// Flows that the kernel counts, at the last look.
    pub(crate) flows: u64,
    /// Reports of flows, by the number of a reason minus one.
    pub(crate) reports: [u64; 4],
    /// Packets and bytes in reports.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) incidents: FlowIncidents,
    /// Records of IPFIX.
    pub(crate) exported: u64,
    pub(crate) lost: u64,
    pub(crate) lines: u64,
    pub(crate) lines_lost: u64,
    /// The largest first.
    pub(crate) top: Vec<Talker>,
}

/// The words of [`MonitorReading::reports`].
pub(crate) const REASONS: [&str; 4] = ["idle", "active", "end", "stop"];

/// That all interfaces that these settings name are there, and are Ethernet.
///
/// # Errors
/// All that are not.
pub(crate) fn check(all: &[MonitorSettings]) -> Result<()> {
    let mut wrong = Vec::new();
    for (settings, name) in all.iter().flat_map(|settings| settings.interfaces.iter().map(move |name| (settings, name)))
    {
        match Interface::by_name(name) {
            Ok(interface) if interface.ethernet => {}
            Ok(_) => wrong.push(format!("monitor \"{}\": interface {name} is not Ethernet", settings.name)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                wrong.push(format!("monitor \"{}\": {}", settings.name, crate::run::unknown_interface(name)));
            }
            Err(error) => {
                wrong.push(format!("monitor \"{}\": cannot look up interface {name}: {error}", settings.name))
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

impl Monitors {
    /// Goes by these settings from now on. Monitors whose settings are the same go on.
    pub(crate) fn configure(&mut self, wanted: &[MonitorSettings], place: &MonitorPlace) {
        if !std::mem::replace(&mut self.is_clean, true)
            && let Err(error) = clean(&place.notes)
        {
            tell(EventKind::Limit, &format!("warning: filters of former monitors stay: {error:#}"));
        }
        let goes_on =
            |monitor: &Monitor| wanted.contains(&monitor.settings) && lock(&monitor.shared.reading).error.is_empty();
        let (kept, gone) = std::mem::take(&mut self.running).into_iter().partition(goes_on);
        end_all(gone);
        self.running = kept;
        for settings in wanted {
            if !self.running.iter().any(|monitor| monitor.settings == *settings) {
                self.running.push(Monitor::start(settings, place));
            }
        }
        let order = |monitor: &Monitor| wanted.iter().position(|settings| *settings == monitor.settings);
        self.running.sort_by_key(order);
    }

    /// Opens files again: another process has moved them.
    pub(crate) fn reopen(&self) {
        self.running.iter().for_each(|monitor| monitor.shared.reopens.store(true, Ordering::Relaxed));
    }

    /// What each has done so far.
    pub(crate) fn readings(&self) -> impl Iterator<Item = (&MonitorSettings, MonitorReading)> {
        self.running.iter().map(|monitor| (&monitor.settings, lock(&monitor.shared.reading).clone()))
    }

    /// Reports all flows, within [`PATIENCE`], and ends.
    pub(crate) fn end(&mut self) {
        end_all(std::mem::take(&mut self.running));
    }
}

fn end_all(monitors: Vec<Monitor>) {
    for monitor in &monitors {
        monitor.shared.ends.store(true, Ordering::Relaxed);
        monitor.thread.iter().for_each(|thread| thread.thread().unpark());
    }
    let begun = Instant::now();
    for thread in monitors.into_iter().filter_map(|monitor| monitor.thread) {
        while !thread.is_finished() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Monitor {
    fn start(settings: &MonitorSettings, place: &MonitorPlace) -> Monitor {
        let shared = Arc::new(Shared::default());
        let started = Watch::new(settings, place).and_then(|watch| {
            let shared = Arc::clone(&shared);
            let body = move || watch.run(&shared);
            std::thread::Builder::new().name("monitor".into()).spawn(body).context("cannot start its thread")
        });
        let thread = started.map_err(|error| {
            let error = format!("{error:#}");
            tell(EventKind::Limit, &format!("warning: monitor \"{}\" does not work: {error}", settings.name));
            lock(&shared.reading).error = error;
        });
        Monitor { settings: settings.clone(), shared, thread: thread.ok() }
    }
}

/// A monitor's thread.
struct Watch {
    settings: MonitorSettings,
    place: MonitorPlace,
    kernel: FlowMonitor,
    /// The interfaces with its programs, by number.
    attached: HashMap<u32, String>,
    delivery: Delivery,
}

impl Watch {
    fn new(settings: &MonitorSettings, place: &MonitorPlace) -> Result<Watch> {
        let mut watch = Watch {
            kernel: FlowMonitor::load(&settings.filter, settings.flows_max)?,
            settings: settings.clone(),
            place: place.clone(),
            attached: HashMap::new(),
            delivery: Delivery::new(settings),
        };
        watch.attach()?;
        Ok(watch)
    }

    /// Attaches the programs where they are not: to interfaces that are new under their names, too. One that is not there is left
    /// out.
    fn attach(&mut self) -> Result<()> {
        for name in &self.settings.interfaces {
            let Ok(interface) = Interface::by_name(name) else { continue };
            if self.attached.get(&interface.index) != Some(name) {
                let attached = self.kernel.attach(interface.index, self.place.mode, &self.place.notes);
                attached.with_context(|| format!("cannot attach to interface {name}"))?;
                self.attached.insert(interface.index, name.clone());
            }
        }
        Ok(())
    }

    fn run(mut self, shared: &Shared) {
        let result = self.kernel.news().and_then(|news| self.watch(shared, news));
        // Not to be counted without being read.
        let detached = self.kernel.detach();
        if let Err(error) = result.and(detached) {
            let error = format!("{error:#}");
            tell(EventKind::Limit, &format!("warning: monitor \"{}\" has ended: {error}", self.settings.name));
            lock(&shared.reading).error = error;
        }
    }

    fn watch(&mut self, shared: &Shared, mut news: FlowNews) -> Result<()> {
        let mut tracker = FlowTracker::new(&self.settings);
        loop {
            let ends = shared.ends.load(Ordering::Relaxed);
            if shared.reopens.swap(false, Ordering::Relaxed) {
                self.delivery.output.as_mut().into_iter().for_each(Output::reopen);
            }
            if ends {
                self.kernel.detach()?;
            }
            let now = cpu::now().as_nanos();
            let (delivery, attached) = (&mut self.delivery, &self.attached);
            let has_swept = tracker.step(&self.kernel, news.take()?, now, |record| delivery.add(record, attached))?;
            if ends {
                tracker.end(&self.kernel, |record| delivery.add(record, attached))?;
            }
            delivery.send(attached);
            let incidents = self.kernel.incidents()?;
            {
                let mut reading = lock(&shared.reading);
                reading.clone_from(&delivery.reading);
                (reading.flows, reading.incidents) = (tracker.flows, incidents);
                reading.top = delivery.top.top(self.settings.top);
            }
            if ends {
                return Ok(());
            }
            if has_swept && let Err(error) = self.attach() {
                tell(EventKind::Limit, &format!("warning: monitor \"{}\": {error:#}", self.settings.name));
            }
            std::thread::park_timeout(PAUSE);
        }
    }
}

/// Where records go.
struct Delivery {
    settings: MonitorSettings,
    batch: Vec<FlowRecord>,
    exporter: Option<Exporter>,
    output: Option<Output>,
    lines: Vec<u8>,
    top: SpaceSaving,
    reading: MonitorReading,
}

impl Delivery {
    fn new(settings: &MonitorSettings) -> Delivery {
        Delivery {
            settings: settings.clone(),
            batch: Vec::with_capacity(BATCH),
            exporter: Exporter::of(settings),
            output: None,
            lines: Vec::new(),
            top: SpaceSaving::new(settings.top * COUNTERS_PER_SHOWN),
            reading: MonitorReading::default(),
        }
    }

    fn add(&mut self, record: FlowRecord, interfaces: &HashMap<u32, String>) {
        let (inward, outward) = (&record.count.inward, &record.count.outward);
        let bytes = inward.bytes + outward.bytes;
        self.reading.reports[record.reason as usize - 1] += 1;
        self.reading.packets += inward.packets + outward.packets;
        self.reading.bytes += bytes;
        self.top.add(record.ends.far(), bytes);
        self.batch.push(record);
        if self.batch.len() >= BATCH {
            self.send(interfaces);
        }
    }

    /// Sends what has been added.
    fn send(&mut self, interfaces: &HashMap<u32, String>) {
        if self.batch.is_empty() {
            return;
        }
        let (epoch, now) = clock();
        if let Some(exporter) = &mut self.exporter {
            let sent = exporter.send(&self.batch, epoch, now);
            self.reading.exported += sent.exported;
            self.reading.lost += sent.lost;
        }
        if let Some(target) = &self.settings.file {
            let mut count = 0;
            for record in &self.batch {
                let interface = interfaces.get(&record.ends.ifindex).map_or("", String::as_str);
                count += u64::from(line::write(&self.settings, interface, record, (epoch, now), &mut self.lines));
            }
            let written = Output::to(&mut self.output, target, "a monitor").write(&mut self.lines, count);
            self.reading.lines += written.written;
            self.reading.lines_lost += written.lost;
        }
        self.batch.clear();
    }
}

/// When the kernel's clock began, and now: nanoseconds since 1970.
fn clock() -> (u64, u64) {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = flows::nanos(since);
    (now.saturating_sub(cpu::now().as_nanos()), now)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
