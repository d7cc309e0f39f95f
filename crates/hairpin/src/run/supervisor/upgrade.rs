//! Handing over to a new process, and going on where that has failed.

use super::super::generations::{DrainReporter, Generation};
use super::super::handover::{Legacy, Successor};
use super::super::inspect::{EngineView, Inspector};
use super::super::instance::{InstanceRecord, Lock};
use super::super::plane::{self, Plane};
use super::super::worker_pool::WorkerMemory;
use super::super::{ProcessEnd, ReplySender, begin, former, host, log, notify, reconcile, tell};
use super::{HEARTBEAT, READ_HEARTBEATS, Supervisor, TELL_PATIENCE};
use crate::control::Upgrade;
use crate::events::EventKind;
use anyhow::{Context, Result, bail};
use hairpin_linux::cpu;
use hairpin_linux::shared::{OpenedTable, SharedTable};
use hairpin_linux::tap::Tap;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

impl Supervisor {
    /// Hands over to a new process. The end of this one, if the other has taken over; this one goes on if not.
    pub(super) fn hand_over(
        &mut self,
        how: &Upgrade,
        answer: ReplySender<u32>,
        (known, client): (&Receiver<()>, Sender<()>),
        lock: &mut Lock,
    ) -> Option<ProcessEnd> {
        let Some(descriptors) = self.plane.descriptors() else {
            let why = "the ports of the dpdk plane cannot be passed on to another process: restart this one (`hairpin stop`, \
                       then `hairpin run`); forwarded connections are kept";
            tell(EventKind::Refusal, &format!("no upgrade: {why}"));
            let _ = answer.send(Err(why.to_string()));
            return None;
        };
        tell(EventKind::Upgrade, "starting a new process to take over");
        let heartbeat = signs_of_life(&*self.plane);
        let prepared = Successor::start(how, &self.options.file, &heartbeat).and_then(|mut successor| {
            successor.await_word("ready", &heartbeat)?;
            let own = self.own_generation().inspect_err(|_| successor.end())?;
            Ok((successor, own))
        });
        let (mut successor, own) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let why = format!("the new process did not get ready: {error:#}; this one goes on, nothing changed");
                tell(EventKind::Refusal, &why);
                let _ = answer.send(Err(why));
                return None;
            }
        };
        // From here on frames wait in the devices.
        self.metrics = None;
        self.api.end();
        self.worker_pool.end(how.reset_http);
        let legacy = Legacy { taps: self.record.taps.clone(), health: self.health.saved(), ..Legacy::default() };
        self.generations.read();
        let draining: Vec<&Generation> =
            self.generations.iter().chain(own.iter().map(|(generation, _)| generation)).collect();
        let passed = successor.bequeath(lock, descriptors, &self.listeners.descriptors(), &draining, legacy);
        match passed.and_then(|()| successor.await_word("serving", &heartbeat)) {
            Ok(()) => {
                let pid = successor.pid();
                if let Err(error) = successor.commit(&heartbeat) {
                    let why =
                        format!("{error:#}; start it again: what is left in the kernel goes on, and it adopts that");
                    let _ = answer.send(Err(why.clone()));
                    return Some(ProcessEnd::Failed(why));
                }
                let _ = answer.send(Ok(pid));
                let _ = known.recv_timeout(TELL_PATIENCE);
                self.generations.release();
                self.termination.report_by(own.map(|(_, reporter)| reporter));
                Some(ProcessEnd::HandedOver { pid, client })
            }
            Err(error) => {
                successor.end();
                let resumed = self.resume(lock);
                let why = format!("the new process did not take over: {error:#}");
                let (told, end) = match resumed {
                    Ok(()) => (format!("{why}; this one goes on"), None),
                    Err(failure) => {
                        let told = format!("{why}; and this one cannot go on: {failure:#}");
                        (told.clone(), Some(ProcessEnd::Failed(told)))
                    }
                };
                tell(EventKind::Refusal, &told);
                let _ = answer.send(Err(told));
                end
            }
        }
    }

    /// Removes the devices that a process with more workers has handed over. It has them open until it ends.
    pub(in super::super) fn remove_surplus_devices(&mut self) {
        let wanted = begin::tap_names(&self.config.settings, self.parameters.cpus.len());
        let removed = begin::remove_surplus_devices(&mut self.record, wanted.clone(), &self.socket, Tap::take_away);
        if let Err(error) = removed {
            // The next process is passed only the devices of this one's workers.
            self.record.taps = wanted;
            log(&format!("warning: {error:#}; `ip link delete` removes it"));
        }
    }

    /// Ends processes that have handed over: the oldest, where more drain than may.
    pub(in super::super) fn bound_draining(&mut self) {
        self.with_heartbeat(|supervisor| supervisor.generations.end_surplus());
    }

    /// Ends all processes that have handed over.
    pub(in super::super) fn end_draining(&mut self) {
        self.with_heartbeat(|supervisor| supervisor.generations.end_all());
    }

    /// This process as one that drains, and what it tells its successors by; `None`: it has nothing to drain.
    fn own_generation(&self) -> Result<Option<(Generation, DrainReporter)>> {
        let limit = self.config.settings.upgrade_drain_limit;
        self.termination.clients().map(|clients| Generation::own(clients, limit)).transpose()
    }

    /// Goes on after a hand-over that failed: new workers take the connections from where the old ones left them.
    fn resume(&mut self, lock: &mut Lock) -> Result<()> {
        let OpenedTable::Table(table) = SharedTable::open(&self.record.table)? else {
            bail!("the connection table {} is gone", self.record.table.display());
        };
        // The other process may have made routes, and removed some.
        if let Some(there) = InstanceRecord::read(&self.socket)? {
            self.record.local_routes = there.local_routes;
        }
        let snapshot = Arc::clone(&self.snapshot);
        self.open_terminated(&snapshot)?;
        self.close_unneeded();
        // It may have given the table another shape.
        let (settings, steering) = (&self.config.settings, self.parameters.steering);
        let (mut table, resteered) = begin::table(settings, &self.record.table, Some(table), steering)?;
        self.plane.resume(&self.record.taps)?;
        self.parameters.resteered = resteered;
        self.parameters.held = Arc::new(self.plane.rules()?);
        self.parameters.formers = former::load(&self.socket);
        // New workers number their requests from the beginning, and no id may come again.
        self.parameters.seeds = host::secret()?;
        self.parameters.loads = Default::default();
        self.parameters.occupancy = Default::default();
        self.plane.steer(steering)?;
        let mut splices = begin::splices(settings, true, &table, &steering)?;
        let memory = WorkerMemory { connections: table.regions(), splices: splices.regions() };
        let (mut worker_pool, taken) = self.plane.worker_pool(&self.parameters, memory, &self.sender)?;
        let held = &self.parameters.held;
        let tables = (&mut table, &*self.snapshot);
        let (_, heard) = reconcile::reconcile(&*self.plane, tables, &taken.splice_rules, held, &steering, resteered)?;
        worker_pool.tell_set_up(heard);
        self.inspector = Inspector::new(
            table.views()?,
            Arc::clone(&self.snapshot),
            EngineView::of(&*self.plane),
            plane::policy(&*self.plane, &self.config.settings),
            worker_pool.handles(),
        );
        self.inspector.ask_terminated(self.termination.lister());
        self.table = table;
        worker_pool.begin();
        self.worker_pool = worker_pool;
        lock.sign().context("cannot sign the lock")?;
        super::super::requests::listen(&self.socket, &self.sender, self.inspector.clone())?;
        self.serve_metrics();
        self.serve_api();
        notify::ready();
        self.stand();
        self.schedule();
        Ok(())
    }
}

/// Gives signs of life to the BPF programs, and to the service manager, while a new process prepares: that may take
/// longer than the manager's watchdog waits.
fn signs_of_life(plane: &dyn Plane) -> impl Fn() + use<> {
    let heartbeat = plane.heartbeat_sender();
    let told = Cell::new(Instant::now());
    move || {
        heartbeat(cpu::now());
        if told.get().elapsed() >= HEARTBEAT * READ_HEARTBEATS as u32 {
            notify::alive();
            told.set(Instant::now());
        }
    }
}
