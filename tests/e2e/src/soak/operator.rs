//! The operator, who reloads, drains, enables and disables while the soak goes on.

use super::book::{SoakBook, SoakOperation};
use super::{SERVICES, services};
use crate::peer::{Hairpin, HairpinOptions};
use crate::topology::Topology;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::time::Duration;

/// Runtime overrides of a backend, one after the other.
const ACTIONS: [&str; 4] = ["drain", "enable", "disable", "enable"];
/// Backends by whose hand: server4 comes and goes with the configuration.
const BY_HAND: usize = 3;

/// See the module's documentation.
pub(super) struct Operator<'a> {
    topology: &'a Topology,
    hairpin: Hairpin,
    book: Arc<SoakBook>,
    /// Iterations so far; each has a reload.
    iterations: usize,
    done: [usize; ACTIONS.len()],
    options: HairpinOptions,
}

impl Operator<'_> {
    pub(super) fn new(topology: &Topology, hairpin: Hairpin, book: Arc<SoakBook>) -> Operator<'_> {
        Operator {
            topology,
            hairpin,
            book,
            iterations: 0,
            done: [0; ACTIONS.len()],
            options: HairpinOptions::default(),
        }
    }

    /// A reload, then a step by hand with a backend of each service; spread over this time.
    pub(super) fn iterate(&mut self, over: Duration) -> Result<()> {
        self.hairpin.process().check()?;
        self.reload().with_context(|| format!("reload {}", self.iterations))?;
        let step = self.iterations % ACTIONS.len();
        for (number, (service, _)) in SERVICES.into_iter().enumerate() {
            std::thread::sleep(over / 4);
            let server = 1 + (self.iterations / ACTIONS.len() + number) % BY_HAND;
            let name = format!("server{server}");
            if ACTIONS[step] == "disable" {
                self.book.disabling(service, server);
            }
            self.hairpin.tell(self.topology, &["backend", ACTIONS[step], service, &name])?;
            if ACTIONS[step] == "disable" {
                self.book.is_disabled();
            }
            self.done[step] += 1;
        }
        self.iterations += 1;
        Ok(())
    }

    /// Its Hairpin.
    pub(super) fn hairpin(&mut self) -> &mut Hairpin {
        &mut self.hairpin
    }

    /// The next process has so many workers.
    pub(super) fn set_workers(&mut self, count: usize) -> Result<()> {
        self.options.top = format!("workers = {count}");
        self.hairpin.configure(self.topology, &services(), &self.options)
    }

    /// A reload, and nothing else.
    pub(super) fn reload_now(&mut self) -> Result<()> {
        self.reload()?;
        self.iterations += 1;
        Ok(())
    }

    /// Other weights; every third time server4 is not there. What was done by hand holds as long as a backend's
    /// configuration does not change, so the weight of one that is being treated stays.
    fn reload(&mut self) -> Result<()> {
        let mut services = services();
        for (number, service) in services.iter_mut().enumerate() {
            let treated = 1 + (self.iterations / ACTIONS.len() + number) % BY_HAND;
            let weight =
                |server: usize| if server == treated { 2 } else { 1 + ((server + self.iterations) % 5) as u16 };
            service.weights = (1..=4).map(weight).collect();
            if self.iterations % 3 == 2 {
                service.servers.pop();
                service.weights.pop();
            }
        }
        self.hairpin.configure(self.topology, &services, &self.options)?;
        self.hairpin.tell(self.topology, &["reload"])?;
        Ok(())
    }

    /// The commands given so far.
    pub(super) fn sentence(&self) -> String {
        let [drained, first, disabled, second] = self.done;
        let iterations = self.iterations;
        format!("{iterations} reloads, {drained} backends drained, {disabled} disabled, {} enabled", first + second)
    }

    /// Whether the process is well.
    pub(super) fn check(&mut self) -> Result<()> {
        self.hairpin.process().check()?;
        let reloads = self.hairpin.status()?.reloads;
        ensure!(reloads.failed_total == 0, "a reload failed: {}", reloads.last_error);
        Ok(())
    }

    /// What Hairpin and both ends know of an operation that lasts long, twice: what changes meanwhile tells more.
    pub(super) fn examine(&self, operation: &SoakOperation, met: &[usize]) -> String {
        let SoakOperation { number, kind, about, began, connection, .. } = operation;
        let (kind, port, lasted) = (kind.name(), connection.port, began.elapsed());
        let mut text = format!("{kind} {number} ({about}; port {port}, servers {met:?}) has lasted {lasted:?}:");
        for _ in 0..2 {
            let known = self.hairpin.tell(self.topology, &["connections", "--all", "-o", "json"]);
            let of_port = |line: &&str| line.contains(&format!(":{port}\""));
            let mut lines: Vec<String> = match known {
                Ok(known) => {
                    let all = format!("{} connections, of them:", known.lines().count());
                    [all].into_iter().chain(known.lines().filter(of_port).map(str::to_owned)).collect()
                }
                Err(error) => vec![format!("{error:#}")],
            };
            let servers = met.iter().filter_map(|&server| self.topology.servers.get(server - 1));
            for (namespace, filter) in [(&self.topology.client, format!("sport = :{port}"))]
                .into_iter()
                .chain(servers.map(|at| (at, String::new())))
            {
                let sockets = namespace.script(&format!("ss --no-header -tinoem state all '{filter}'"));
                lines.push(format!("{}: {}", namespace.name(), sockets.unwrap_or_else(|error| format!("{error:#}"))));
            }
            text = [text, lines.join("\n")].join("\n");
            std::thread::sleep(Duration::from_secs(2));
        }
        text
    }

    /// The commands that an investigation begins with.
    pub(super) fn state(&self) -> String {
        let status = self.hairpin.status_table().unwrap_or_else(|error| format!("no status: {error:#}"));
        let logs = self.hairpin.logs();
        let lines: Vec<&str> = logs.lines().collect();
        format!("{status}\nhairpin printed last:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}
