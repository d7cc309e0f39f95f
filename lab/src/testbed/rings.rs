//! Generator, device under test and sink in one process, each lane over a pair of DPDK's rings: runs anywhere.
//!
//! A lane's generator, device core and sink are threads of their own, pinned, where there are processors for all of them;
//! else generator and sink share one. What the device cannot take waits in the ring, as in a NIC's queue: an open loop's
//! packets that find it full are lost (`ring-full`), and a generator without a limit waits.

mod presence;
mod threads;

use super::account::Books;
use super::balancer::{BACKENDS_MAX, BalancerOptions, workers};
use super::card::card;
use super::cores::{CorePlan, allowed, pin};
use super::device::{DeviceCore, Handled, ServingCore};
use super::ends::Outlet;
use super::generator::{Generator, SentCounts};
use super::meter::CoreWork;
use super::offload;
use super::sources::{longest, sources};
use super::table::TableChoice;
use super::{Device, Measurement, Ran, Testbed, Trial, TrialProgress};
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::sink::{PacketSink, SinkOptions};
use crate::traffic::template::LinkAddresses;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_core::flow::Steering;
use hairpin_core::frame::Batch;
use hairpin_dpdk::{Eal, MbufPool, PoolOptions, Ring, RingKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;
use threads::{
    Collector, DeviceEnds, DeviceThreadResult, GeneratorEnd, In, LaneGenerator, Leave, Tasks, TrialState, introduce,
    serve, test, watch,
};

/// Times that a generator's handing over is kept, where iterations are measured.
const HANDED_MAX: usize = 1 << 20;
/// Frames that wait for a device's core, or for a sink, at most: as many as a NIC's queue has descriptors.
const RING: u32 = 1024;
/// Frames that are in no ring: in bursts, and in the caches of lcores.
const IN_HAND: u32 = 1024;
/// Rings in this process.
pub struct RingTestbed {
    eal: Eal,
    metered: bool,
    crowded: bool,
}

impl RingTestbed {
    /// With DPDK, which has been started.
    pub fn new(eal: Eal) -> RingTestbed {
        RingTestbed { eal, metered: false, crowded: false }
    }

    /// Whether the iterations of the device's cores are measured from now on: [`Measurement::work`].
    pub fn set_metered(&mut self, metered: bool) {
        self.metered = metered;
    }

    /// Whether threads share processors where there are too few for a device of so many cores. Packets are counted right
    /// all the same, and how fast they went says nothing: for tests of what several cores have in common.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    fn plan(&self, cpus: &[usize], trial: &Trial) -> Option<CorePlan> {
        let lanes = usize::from(trial.cores);
        if self.crowded { CorePlan::crowded(cpus, lanes) } else { CorePlan::new(cpus, lanes) }
    }

    /// Why `trial` cannot be done on `cpus`.
    fn obstacle_on(&self, trial: &Trial, cpus: &[usize]) -> Option<String> {
        if trial.device == Device::Balancer {
            match TableChoice::named(&trial.table).map(|choice| choice.obstacle(trial.cores)) {
                Ok(None) => {}
                Ok(Some(obstacle)) => return Some(format!("{}: {obstacle}", trial.table)),
                Err(error) => return Some(error.to_string()),
            }
        }
        if trial.offload.is_some() && trial.cores > 1 {
            let cores = trial.cores;
            return Some(format!("{cores} cores behind a modelled card: it works on the thread of one"));
        }
        if !(1..=BACKENDS_MAX).contains(&trial.backends) {
            return Some(format!("{} backends: there can be 1 to {BACKENDS_MAX}", trial.backends));
        }
        if trial.duration < Duration::from_millis(1) || trial.duration > Duration::from_secs(86_400) {
            return Some("a trial takes a millisecond to a day".to_owned());
        }
        if self.plan(cpus, trial).is_none() {
            let needed = usize::from(trial.cores) + 1;
            let there = cpus.len();
            return Some(format!("{} cores for the device need {needed} processors; there are {there}", trial.cores));
        }
        None
    }
}

impl Testbed for RingTestbed {
    fn obstacle(&self, trial: &Trial) -> Option<String> {
        let cpus = match allowed() {
            Ok(cpus) => cpus,
            Err(error) => return Some(format!("{error:#}")),
        };
        self.obstacle_on(trial, &cpus)
    }

    fn measure(&mut self, trial: &Trial, progress: &mut dyn FnMut(TrialProgress)) -> Result<Measurement> {
        let cpus = allowed()?;
        if let Some(obstacle) = self.obstacle_on(trial, &cpus) {
            bail!("{obstacle}");
        }
        let plan = self.plan(&cpus, trial).context("too few processors")?;
        progress(TrialProgress::Preparing { what: "sources, tables and rings".to_owned() });
        let lanes = u32::from(trial.cores);
        let pool = MbufPool::create(
            &self.eal,
            PoolOptions {
                name: "lab".to_owned(),
                mbufs: lanes * (2 * RING + IN_HAND) + 1023,
                data_room: longest(trial.packet_size).max(512).next_multiple_of(64),
                cache: 128,
            },
        )?;
        let before = pool.in_use();
        let measured = self.trial(trial, &plan, &pool, progress);
        let after = pool.in_use();
        ensure!(
            after == before,
            "{} frames are missing from the pool: {after} in use, {before} before",
            after - before
        );
        measured
    }
}

impl RingTestbed {
    fn trial(
        &self,
        trial: &Trial,
        plan: &CorePlan,
        pool: &MbufPool,
        progress: &mut dyn FnMut(TrialProgress),
    ) -> Result<Measurement> {
        let seeds = seeds(trial.seed);
        let steering = Steering::by_hash([seeds[0], seeds[1]], trial.cores);
        let session = seeds[2] ^ clock::now();
        let made = sources(trial, session, steering, LinkAddresses::default())?;
        let cores = device_cores(trial, trial.seed, &self.eal)?;
        let duration = trial.duration.as_nanos() as u64;
        let round_trip = trial.round_trip && trial.device == Device::Balancer && trial.offload.is_none();
        let (lanes, balanced) = (trial.cores, trial.device == Device::Balancer && !round_trip);
        let flows = made.flows.div_ceil(usize::from(lanes)) * if lanes > 1 { 2 } else { 1 };
        let options = SinkOptions { session, generators: lanes, flows, balanced, duration };
        let (mut generators, mut collectors, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for (traffic, core) in made.lanes.into_iter().zip(cores) {
            let (ring, from) = Ring::create(&self.eal, RING, RingKind::OneToOne)?;
            let (to, back) = Ring::create(&self.eal, RING, RingKind::OneToOne)?;
            let mut generator = Generator::new(GeneratorEnd { ring, pool: pool.clone() }, traffic, session);
            if self.metered && generators.is_empty() {
                generator.record(HANDED_MAX);
            }
            generators.push(generator);
            let io = DeviceEnds { from, to, pool: pool.clone() };
            devices.push(match &trial.offload {
                Some(offload) => {
                    let nic = card(&offload.card, trial.table_entries as usize, trial.seed);
                    let behind = if offload.marks { ServingCore::behind_marks } else { ServingCore::behind };
                    behind(core, io, nic)
                }
                None => {
                    if round_trip {
                        ServingCore::before_backends(core, io)
                    } else {
                        ServingCore::new(core, io)
                    }
                }
            });
            collectors.push(Collector { from: In(back), sink: PacketSink::new(options, 0), batch: Batch::new() });
        }
        let count = || AtomicU32::new(u32::from(lanes));
        let idle = (0..lanes).map(|_| Default::default()).collect();
        let state =
            TrialState { unaware: count(), generating: count(), serving: count(), idle, ..TrialState::default() };
        let done = std::thread::scope(|scope| {
            self.perform(scope, &state, trial, plan, (generators, collectors, devices), progress)
        });
        let ThreadsResult { generators, collectors, handled, work, ran } = done?;
        let measured = close(trial, &generators, collectors, handled)?;
        let handed = generators.first().map_or_else(Vec::new, |generator| generator.handed().to_vec());
        Ok(Measurement { work, ran: Some(ran), handed, ..measured })
    }

    /// Runs all threads, the calling one among them until the clock starts.
    fn perform<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        state: &'env TrialState,
        trial: &'env Trial,
        plan: &'env CorePlan,
        parts: (Vec<LaneGenerator>, Vec<Collector>, Vec<ServingCore<DeviceEnds>>),
        progress: &mut dyn FnMut(TrialProgress),
    ) -> Result<ThreadsResult> {
        // Whatever happens here, the threads are told to leave: the scope waits for them.
        let _leave = Leave(state);
        let (mut generators, mut collectors, devices) = parts;
        let (threads, told) = std::sync::mpsc::channel();
        let serving: Vec<_> = devices
            .into_iter()
            .zip(&plan.device)
            .enumerate()
            .map(|(lane, (device, &cpu))| {
                let (threads, eal, metered) = (threads.clone(), &self.eal, self.metered);
                scope.spawn(move || serve(device, lane, (cpu, metered), eal, state, threads))
            })
            .collect();
        drop(threads);
        let device = told.iter().take(serving.len()).collect();
        self.introduce(state, trial, plan, (&mut generators, &mut collectors), progress)?;
        let mut testing: Vec<ScopedJoinHandle<'_, Result<Tasks>>> = Vec::new();
        let mut by_cpu: BTreeMap<usize, Tasks> = BTreeMap::new();
        for (generator, &cpu) in generators.into_iter().zip(&plan.generators) {
            by_cpu.entry(cpu).or_default().generators.push(generator);
        }
        for (collector, &cpu) in collectors.into_iter().zip(&plan.sinks) {
            by_cpu.entry(cpu).or_default().collectors.push(collector);
        }
        for (cpu, tasks) in by_cpu {
            let eal = &self.eal;
            testing.push(scope.spawn(move || test(tasks, trial, cpu, eal, state)));
        }
        state.measuring.store(true, Ordering::Release);
        while state.unaware.load(Ordering::Acquire) > 0 {
            // A core that could not begin is not aware of anything; it will say why.
            if state.serving.load(Ordering::Acquire) < u32::from(trial.cores) {
                break;
            }
            std::thread::yield_now();
        }
        progress(TrialProgress::Started { device });
        let start = clock::now();
        state.start.store(start, Ordering::Release);
        watch(state, trial, start, &testing, progress);
        let (generators, collectors, handled) = (Vec::new(), Vec::new(), Vec::new());
        let ran = Ran { device: 1.0, testers: 1.0 };
        let mut done = ThreadsResult { generators, collectors, handled, work: None, ran };
        for tester in testing {
            let tested = tester.join().map_err(|_| anyhow!("the generator's or sink's thread has panicked"))??;
            done.ran.testers = done.ran.testers.min(tested.ran);
            done.generators.extend(tested.generators);
            done.collectors.extend(tested.collectors);
        }
        for device in serving {
            let served = device.join().map_err(|_| anyhow!("the device's thread has panicked"))??;
            let DeviceThreadResult { device, before, ran } = served;
            done.ran.device = done.ran.device.min(ran);
            done.handled.push(device.handled().since(&before));
            if let Some(work) = device.work() {
                done.work.get_or_insert_default().add(&work);
            }
            device.retire();
        }
        Ok(done)
    }

    /// Makes the flows known to the device, if the trial wants that: lane by lane, on the first generator's processor.
    fn introduce(
        &self,
        state: &TrialState,
        trial: &Trial,
        plan: &CorePlan,
        lanes: (&mut [LaneGenerator], &mut [Collector]),
        progress: &mut dyn FnMut(TrialProgress),
    ) -> Result<()> {
        if trial.run < 2 {
            return Ok(());
        }
        progress(TrialProgress::Preparing { what: format!("{} flows become connections", trial.flows) });
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<()> {
                pin(plan.generators[0])?;
                let _registered = self.eal.register_thread()?;
                let lanes = lanes.0.iter_mut().zip(lanes.1).zip(&state.idle);
                for ((generator, collector), idle) in lanes {
                    introduce(generator, collector, idle)?;
                }
                Ok(())
            });
            thread.join().map_err(|_| anyhow!("the introducing thread has panicked"))?
        })
    }
}

/// The result when all threads are done.
struct ThreadsResult {
    generators: Vec<LaneGenerator>,
    collectors: Vec<Collector>,
    handled: Vec<Handled>,
    work: Option<CoreWork>,
    ran: Ran,
}

/// The device's cores, dealt to and drawn from `seed`: what a device in a process of its own begins with.
///
/// # Errors
/// There is no such table, or it cannot be made.
pub fn device_cores(trial: &Trial, seed: u64, eal: &Eal) -> Result<Vec<DeviceCore>> {
    let seeds = seeds(seed);
    let steering = Steering::by_hash([seeds[0], seeds[1]], trial.cores);
    let lanes = usize::from(trial.cores);
    Ok(match trial.device {
        Device::Wire => (0..lanes).map(|_| DeviceCore::Wire).collect(),
        Device::Forwarder => (0..lanes).map(|_| DeviceCore::Forwarder(Box::default())).collect(),
        Device::Balancer => {
            let choice = TableChoice::named(&trial.table)?;
            let options = BalancerOptions {
                backends: trial.backends,
                connections_each: (trial.table_entries as usize).div_ceil(lanes),
                method: choice.method(),
                steering,
                seeds,
            };
            let tables = choice.tables(lanes, options.connections(), seeds, &Some(*eal))?;
            match &trial.offload {
                Some(offload) => {
                    let boxed = |worker| DeviceCore::Offloading(Box::new(worker));
                    offload::workers(&options, tables, offload)?.into_iter().map(boxed).collect()
                }
                None => {
                    let boxed = |worker| DeviceCore::Balancer(Box::new(worker));
                    workers(&options, tables).into_iter().map(boxed).collect()
                }
            }
        }
    })
}

/// Secrets made of a seed.
fn seeds(seed: u64) -> [u64; 4] {
    let mut random = fastrand::Rng::with_seed(seed);
    [(); 4].map(|()| random.u64(..))
}

/// The accounts over all lanes.
fn close(
    trial: &Trial,
    generators: &[LaneGenerator],
    collectors: Vec<Collector>,
    handled: Vec<Handled>,
) -> Result<Measurement> {
    let duration = trial.duration.as_nanos() as u64;
    let mut sinks = collectors.into_iter().map(|collector| collector.sink);
    let mut sink = sinks.next().context("there is no sink")?;
    sinks.for_each(|other| sink.merge(&other));
    let mut timeline = generators.first().map_or(Timeline::new(0, duration), |first| first.timeline().clone());
    generators.iter().skip(1).for_each(|generator| timeline.merge(generator.timeline()));
    let mut sent = SentCounts::default();
    for generator in generators {
        sent.add(generator.sent());
    }
    let mut all = Handled::default();
    handled.into_iter().for_each(|one| all.add(one));
    let offered = sent.packets - sent.refused;
    ensure!(all.received == offered, "{offered} frames went into the rings, and {} came out", all.received);
    let came = sink.counts().frames;
    ensure!(all.sent == came, "the device sent {} frames, and {came} came", all.sent);
    let behind = generators.iter().map(Generator::behind).sum();
    let (full, between) = (GeneratorEnd::FULL, Vec::new());
    Books { sent, full, behind, timeline, handled: all, between, sink: &sink, duration }.close()
}
