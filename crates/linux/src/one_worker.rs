//! One worker on the linux plane, with all that stands around it: for a function other than the balancer's, which `hairpin`
//! runs. docs/internals/functions.md has an example.
//!
//! It has neither reloads, nor upgrades, nor adoption: what an earlier process of the same instance has left is removed at the
//! start, and everything is removed at the end. If the process dies, packets of the named ends are dropped until the next start.

use crate::cpu;
use crate::device::{self, Interface};
use crate::engine::KernelEngine;
use crate::programs::{LoadedPlane, ProgramOptions};
use crate::tap::{BUFFERS_DEFAULT, QUEUE_PACKETS_DEFAULT, Tap, TapIo};
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::config::{Backend, BackendState, Pool, Service, ServiceState, Snapshot};
use hairpin_core::event_loop::{EventLoop, FlowFunction, Ticket};
use hairpin_core::flow::{Endpoint, Protocol, Steering};
use hairpin_core::time::Duration;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};

/// The longest sleep: well below the heartbeat's timeout.
const SLEEP_MOST: Duration = Duration::from_millis(500);
/// How long it sleeps when the device has no room for what is to be sent.
const BLOCKED_FOR: Duration = Duration::from_millis(1);
/// Ends at most: as many as there are numbers for services.
const ENDS_MAX: usize = crate::abi::SERVICES_MAX;

/// The plane, with one worker's device and engine.
#[derive(Debug)]
pub struct OneWorker {
    plane: LoadedPlane,
    io: TapIo,
    engine: KernelEngine,
}

impl OneWorker {
    /// Loads the programs under the name `instance` (at most 14 characters: the TAP device is called so, with a 0 at the
    /// end), and attaches them to `interfaces` of the calling thread's network namespace. From now on packets to and from
    /// `ends` that arrive there go to the worker unless a rule takes them; all others stay the kernel's.
    ///
    /// # Errors
    /// No rights, no such interface, more than 1,024 ends; see [`LoadedPlane::load`].
    pub fn start<'a>(
        instance: &str,
        interfaces: impl IntoIterator<Item = &'a str>,
        ends: &[(Endpoint, Protocol)],
    ) -> Result<OneWorker> {
        ensure!(ends.len() <= ENDS_MAX, "{} ends: there can be {ENDS_MAX}", ends.len());
        let device = format!("{instance}0");
        ensure!(device.len() <= device::NAME_BYTES_MAX, "the name {instance} is too long for a device");
        let everything = ProgramOptions { policer_backend_pps: u32::MAX, ..ProgramOptions::default() };
        let options = ProgramOptions { instance: instance.to_owned(), ..everything };
        let mut plane = LoadedPlane::load(&options, Steering::by_hash([0; 2], 1))?;
        match attach(&mut plane, &device, interfaces, ends) {
            Ok((io, engine)) => Ok(OneWorker { plane, io, engine }),
            Err(error) => {
                // What comes first is why; the rest is only tidied up.
                let _ = plane.detach();
                Err(error)
            }
        }
    }

    /// Runs `function` until `end` can be read or is closed, then removes device and programs.
    ///
    /// # Errors
    /// The device is down or gone, or something cannot be removed.
    pub fn run<F: FlowFunction>(self, function: F, end: &impl AsFd) -> Result<F> {
        let OneWorker { plane, io, engine } = self;
        let control = plane.control();
        let publish = |ticket: Ticket| control.publish(0, ticket.cpu, ticket.number);
        let mut event_loop = EventLoop::new(function, io, engine, cpu::now, cpu::time_of_day);
        let mut result = Ok(false);
        while matches!(result, Ok(false)) {
            let now = cpu::now();
            control.heartbeat(now);
            let busy = event_loop.iterate(now, publish);
            let due = event_loop.worker.poll_timeout(now).map_or(SLEEP_MOST, |due| due.since(now).min(SLEEP_MOST));
            let sleep = match busy {
                true => Duration::ZERO,
                false if event_loop.is_blocked() => due.min(BLOCKED_FOR),
                false => due,
            };
            result = wait(&event_loop.io, end, sleep);
        }
        event_loop.finish(cpu::now(), publish);
        let EventLoop { worker, io, engine, .. } = event_loop;
        drop(engine);
        let removed = io.into_tap().destroy().context("cannot remove the worker's device");
        let detached = plane.detach();
        result.and(removed).and(detached).map(|()| worker)
    }
}

fn attach<'a>(
    plane: &mut LoadedPlane,
    device: &str,
    interfaces: impl IntoIterator<Item = &'a str>,
    ends: &[(Endpoint, Protocol)],
) -> Result<(TapIo, KernelEngine)> {
    let tap = Tap::create(device, QUEUE_PACKETS_DEFAULT)?;
    let index = Interface::by_name(tap.name())?.index;
    let io = TapIo::new(tap, BUFFERS_DEFAULT).context("cannot take memory for frames")?;
    let engine = plane.engine(0)?;
    plane.attach_worker(0, index)?;
    let control = plane.control();
    control.heartbeat(cpu::now());
    (0..ends.len()).for_each(|service| control.set_client_rate(service, u32::MAX));
    plane.configure(&snapshot(ends))?;
    for (slot, name) in (0..).zip(interfaces) {
        let interface = Interface::by_name(name).with_context(|| format!("interface {name}"))?;
        plane.attach(slot, interface.index, interface.mac)?;
    }
    Ok((io, engine))
}

/// To the programs each end is a service, and this service's only backend. So they hand packets of both directions over.
fn snapshot(ends: &[(Endpoint, Protocol)]) -> Snapshot {
    let service = |(number, &(endpoint, protocol)): (u16, &(Endpoint, Protocol))| {
        let backend = Backend {
            number,
            name: "".into(),
            endpoint,
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        };
        let backends = Box::from([backend]);
        Service { state: ServiceState::Active, endpoint, protocol, backends, ..Service::vacant() }
    };
    let pool = Pool { addresses: Box::default(), port_first: 1024, port_last: 65_535, time_wait: Duration::ZERO };
    Snapshot::new((0..).zip(ends).map(service).collect(), pool)
}

/// Sleeps until frames are there, or `end` is to be read or closed (`true`), or for so long.
fn wait(io: &TapIo, end: &impl AsFd, at_most: Duration) -> Result<bool> {
    let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut waits = [of(io.as_raw_fd()), of(end.as_fd().as_raw_fd())];
    let milliseconds = at_most.as_micros().div_ceil(1000) as libc::c_int;
    // SAFETY: two elements lie there, and live through the call.
    if unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, milliseconds) } < 0 {
        let error = Error::last_os_error();
        return if error.kind() == ErrorKind::Interrupted {
            Ok(false)
        } else {
            Err(error).context("cannot wait for frames")
        };
    }
    if waits[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
        bail!("the TAP device {} is down or gone", io.tap().name());
    }
    Ok(waits[1].revents != 0)
}
