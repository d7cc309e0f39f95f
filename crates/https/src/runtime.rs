//! A runtime for each core: one thread, its tasks, and what the rest of the process tells it and hears from it.

use crate::client;
use crate::control::ListedConnection;
use crate::local::{Local, LocalParts, TerminationStatistics};
use crate::setup::Configuration;
use anyhow::{Context, Result, bail};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::flow::Endpoint;
use hairpin_core::keys::Secret;
use hairpin_core::limit::LimitTable;
use hairpin_core::record::Recorder;
use hairpin_core::time::Time;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The interval at which a runtime tells its counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// The interval at which idle connections to backends are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long a listener rests after an error: the process may have no descriptor left.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How long a runtime may take to start, or to apply a command.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are listed at a time: no request waits longer for it.
pub const LISTED_MAX: usize = 256;

/// The options that all runtimes share.
#[derive(Clone)]
pub struct RuntimesOptions {
    /// Connections of every backend.
    pub loads: Loads,
    /// Weights of every backend as they count now.
    pub effective_weights: EffectiveWeights,
    /// The secret of sticky cookies, unless the configuration shares one with other balancers.
    pub secret: Secret,
    /// For draws; need not be secret.
    pub seed: u64,
    /// Clients' connections that one core may have.
    pub clients_max: usize,
    /// Called on each thread before anything else, with the number of its core: pins it.
    pub enter: fn(usize) -> Result<()>,
    /// The clock of records and limits, which is the workers'.
    pub now: fn() -> Time,
    /// The clients of limits, which workers share.
    pub limits: LimitTable,
    /// Makes a ring for records of exchanges, one for each core.
    pub recorder: Arc<dyn Fn() -> Recorder + Send + Sync>,
    /// The processor time that the calling thread has used.
    pub thread_time: fn() -> Duration,
}

/// The counters of one core.
#[derive(Clone, Debug, Default)]
pub struct CoreReading {
    /// Processor time of its thread.
    pub busy: Duration,
    /// Its counters.
    pub statistics: TerminationStatistics,
}

/// Sockets that clients connect to.
type Listening = Vec<(Endpoint, TcpListener)>;

enum Command {
    /// Serve this configuration at these sockets.
    Configure(Box<Configuration>, Listening, mpsc::Sender<()>),
    /// Publish at once.
    Publish(mpsc::Sender<()>),
    /// List connections from a key on, so many at most.
    List(u64, usize, mpsc::Sender<Vec<ListedConnection>>),
    /// Accept no client, and end each connection with the requests that it has.
    Drain,
    /// Break off connections of services.
    Abort(Arc<[u16]>),
    /// Break off what is at backends.
    EndBackends(Arc<[u16]>),
    /// End.
    Stop,
}

struct CoreHandle {
    commands: UnboundedSender<Command>,
    published: Arc<Mutex<CoreReading>>,
    thread: Option<JoinHandle<()>>,
}

/// The runtimes of all cores. Dropping them ends their connections.
pub struct Runtimes {
    cores: Vec<CoreHandle>,
}

impl Runtimes {
    /// Starts a runtime for each of `listening`, the sockets of one core each. `cores` are the cores' numbers.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn start(
        options: &RuntimesOptions,
        configuration: &Configuration,
        cores: &[usize],
        listening: Vec<Listening>,
    ) -> Result<Runtimes> {
        let mut runtimes = Runtimes { cores: Vec::new() };
        for ((number, &cpu), listening) in (0..).zip(cores).zip(listening) {
            let parts = CoreParts {
                options: options.clone(),
                configuration: configuration.clone(),
                cpu,
                core: (number, cores.len() as u16),
                listening,
            };
            runtimes.cores.push(start_core(parts)?);
        }
        Ok(runtimes)
    }

    /// Puts another configuration into force, with the sockets of each core.
    ///
    /// # Errors
    /// A runtime does not answer.
    pub fn configure(&self, configuration: &Configuration, listening: Vec<Listening>) -> Result<()> {
        let (done, is_done) = mpsc::channel();
        for (core, listening) in self.cores.iter().zip(listening) {
            let command = Command::Configure(Box::new(configuration.clone()), listening, done.clone());
            if core.commands.send(command).is_err() {
                bail!("a runtime of the terminating path has ended");
            }
        }
        drop(done);
        self.cores.iter().try_for_each(|_| is_done.recv_timeout(PATIENCE)).context("a runtime does not answer")
    }

    /// Accepts no clients any more; connections end with the requests that they have.
    pub fn drain(&self) {
        self.cores.iter().for_each(|core| drop(core.commands.send(Command::Drain)));
    }

    /// Breaks off the connections of these services, by number.
    pub fn abort(&self, services: &[u16]) {
        let services: Arc<[u16]> = services.into();
        self.cores.iter().for_each(|core| drop(core.commands.send(Command::Abort(Arc::clone(&services)))));
    }

    /// Breaks off requests that are at one of these backends, by number, and closes idle connections to them.
    pub fn end_backends(&self, backends: &[u16]) {
        let backends: Arc<[u16]> = backends.into();
        self.cores.iter().for_each(|core| drop(core.commands.send(Command::EndBackends(Arc::clone(&backends)))));
    }

    /// Clients' connections now, as published last.
    pub fn clients(&self) -> u64 {
        self.readings().iter().map(|reading| reading.statistics.http.client_conns_now).sum()
    }

    /// How the cores are asked for their connections, from other threads.
    pub fn lister(&self) -> ConnectionLister {
        ConnectionLister(self.cores.iter().map(|core| core.commands.clone()).collect())
    }

    /// Asks for counters of this moment, and waits for them as long as `patience`.
    pub fn refresh(&self, patience: Duration) {
        let (done, is_done) = mpsc::channel();
        let asked = self.cores.iter().filter(|core| core.commands.send(Command::Publish(done.clone())).is_ok()).count();
        for _ in 0..asked {
            if is_done.recv_timeout(patience).is_err() {
                return;
            }
        }
    }

    /// The counters of each core, as published last.
    pub fn readings(&self) -> Vec<CoreReading> {
        let read = |core: &CoreHandle| core.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.cores.iter().map(read).collect()
    }
}

/// Asks the cores for their connections.
#[derive(Clone)]
pub struct ConnectionLister(Vec<UnboundedSender<Command>>);

impl ConnectionLister {
    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.0.len()
    }

    /// Connections of a core from the key `start` on, in the order of their keys, at most [`LISTED_MAX`]; fewer if there are no
    /// more. `None`: the core does not answer in time.
    pub fn list(&self, core: usize, start: u64) -> Option<Vec<ListedConnection>> {
        let (answer, answered) = mpsc::channel();
        self.0.get(core)?.send(Command::List(start, LISTED_MAX, answer)).ok()?;
        answered.recv_timeout(PATIENCE).ok()
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        for core in &self.cores {
            let _ = core.commands.send(Command::Stop);
        }
        for thread in self.cores.iter_mut().filter_map(|core| core.thread.take()) {
            let _ = thread.join();
        }
    }
}

struct CoreParts {
    options: RuntimesOptions,
    configuration: Configuration,
    cpu: usize,
    core: (u16, u16),
    listening: Listening,
}

fn start_core(parts: CoreParts) -> Result<CoreHandle> {
    let (commands, received) = unbounded_channel();
    let published = Arc::new(Mutex::new(CoreReading::default()));
    let (ready, is_ready) = mpsc::channel();
    let on_thread = Arc::clone(&published);
    let name = format!("https-{}", parts.core.0);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let entered = (parts.options.enter)(parts.cpu);
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match (entered, built) {
            (Ok(()), Ok(runtime)) => {
                let _ = ready.send(Ok(()));
                LocalSet::new().block_on(&runtime, run(parts, received, on_thread));
            }
            (Err(error), _) => drop(ready.send(Err(error))),
            (_, Err(error)) => drop(ready.send(Err(error.into()))),
        }
    });
    let thread = Some(thread.context("cannot start a thread for HTTPS")?);
    is_ready.recv_timeout(PATIENCE).context("a thread for HTTPS does not start")??;
    Ok(CoreHandle { commands, published, thread })
}

/// Serves until told to stop.
async fn run(parts: CoreParts, mut commands: UnboundedReceiver<Command>, published: Arc<Mutex<CoreReading>>) {
    let CoreParts { options, configuration, core, listening, .. } = parts;
    let local = Local::new(
        LocalParts {
            loads: options.loads,
            effective_weights: options.effective_weights,
            secret: options.secret,
            core,
            seed: options.seed,
            clients_max: options.clients_max,
            recorder: (options.recorder)(),
            now: options.now,
            limits: options.limits,
        },
        &configuration,
    );
    let publisher = Publisher { published, thread_time: options.thread_time };
    let listeners = RefCell::default();
    listen(&local, &listeners, listening);
    let mut publish = interval(PUBLISH_EVERY);
    let mut sweep = interval(SWEEP_EVERY);
    publish.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Configure(configuration, listening, done)) => {
                    local.configure(&configuration);
                    listen(&local, &listeners, listening);
                    let _ = done.send(());
                }
                Some(Command::Publish(done)) => {
                    publisher.publish(&local);
                    let _ = done.send(());
                }
                Some(Command::List(start, most, answer)) => {
                    let _ = answer.send(local.controls.list(start, most));
                }
                Some(Command::Drain) => {
                    listen(&local, &listeners, Vec::new());
                    local.controls.drain_all();
                }
                Some(Command::Abort(services)) => local.controls.abort(&services),
                Some(Command::EndBackends(backends)) => {
                    local.pool.borrow_mut().forget(&backends);
                    local.controls.end_backends(&backends);
                }
                Some(Command::Stop) | None => return publisher.publish(&local),
            },
            _ = publish.tick() => publisher.publish(&local),
            _ = sweep.tick() => local.pool.borrow_mut().sweep(),
        }
    }
}

struct Publisher {
    published: Arc<Mutex<CoreReading>>,
    thread_time: fn() -> Duration,
}

impl Publisher {
    fn publish(&self, local: &Local) {
        let reading = CoreReading { busy: (self.thread_time)(), statistics: local.counts.copy() };
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = reading;
    }
}

/// Accepts clients at these sockets, and at no others. One that is there already goes on.
fn listen(local: &Rc<Local>, listeners: &RefCell<HashMap<Endpoint, AbortHandle>>, listening: Listening) {
    let mut listeners = listeners.borrow_mut();
    listeners.retain(|endpoint, task| {
        let stays = listening.iter().any(|(wanted, _)| wanted == endpoint);
        if !stays {
            task.abort();
        }
        stays
    });
    for (endpoint, socket) in listening {
        let make = || tokio::task::spawn_local(accept(Rc::clone(local), endpoint, socket)).abort_handle();
        listeners.entry(endpoint).or_insert_with(make);
    }
}

/// Accepts clients at one socket.
async fn accept(local: Rc<Local>, endpoint: Endpoint, socket: TcpListener) {
    let _ = socket.set_nonblocking(true);
    let socket = loop {
        let made = socket.try_clone().and_then(tokio::net::TcpListener::from_std);
        match made {
            Ok(socket) => break socket,
            // The kernel sends this core its share of the clients all the same.
            Err(_) => sleep(ACCEPT_REST).await,
        }
    };
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => client::begin(&local, endpoint, stream, peer),
            Err(_) => sleep(ACCEPT_REST).await,
        }
    }
}
