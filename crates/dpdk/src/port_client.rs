//! Ports that are clients of a server: memif's. Its driver asks the server once, when the port is started, and not again
//! by itself, whether the server was not there yet, turned the client away, or went. [`Port::seek`] asks again.
//!
//! Asking is stopping and starting the port, so no thread may use its queues meanwhile: they are called back
//! ([`PortIo::renew`](crate::PortIo::renew)), and there are none ([`Port::queue`]) until the port is started.

use crate::ffi::port;
use crate::port::{Inner, Port, PortOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after a server was not there it is asked again.
const ABSENCE: Duration = Duration::from_secs(1);
/// How long a server that is there has for its word before it is asked again; twice as long each time that it did not come,
/// up to [`GREETING_MAX`]. Not shorter: DPDK 22.11's server panics when a client goes before it was greeted ("Error adding
/// fd"), so one that is slow is to be waited for.
const GREETING: Duration = Duration::from_secs(5);
/// The longest that is waited for a server's word.
const GREETING_MAX: Duration = Duration::from_secs(40);
/// How long the driver has, on EAL's thread, for taking down a link that has just gone, and users of a port's queues for
/// giving them back; after that, asking waits for its next iteration.
const RETURN: Duration = Duration::from_millis(500);

/// A client's state.
#[derive(Debug, Default)]
pub(crate) struct PortClient {
    /// A thread is asking: one at most.
    busy: AtomicBool,
    /// Queues are wanted back.
    recalls: AtomicBool,
    state: Mutex<ClientState>,
}

#[derive(Debug, Default)]
struct ClientState {
    asked: Option<Instant>,
    /// Times it was asked, was there, and nothing came of it, since the link was last up.
    in_vain: u32,
    /// The port is not started, and no thread can have a queue of it.
    is_stopped: bool,
}

impl PortClient {
    /// For the device of this name with these arguments; `None`: it is no client.
    pub(crate) fn of(device: &str) -> Option<PortClient> {
        let mut parts = device.split(',');
        let is_memif = parts.next().is_some_and(|name| name.trim().starts_with("net_memif"));
        // As the driver reads it; a client unless something else is said.
        let serves = |role: &str| role.contains("server") || role.contains("master");
        let is_server = parts.filter_map(|part| part.trim().strip_prefix("role=")).any(serves);
        let client = PortClient::default();
        client.state().is_stopped = true;
        (is_memif && !is_server).then_some(client)
    }

    /// Whether queues are wanted back.
    pub(crate) fn recalls(&self) -> bool {
        self.recalls.load(Ordering::Relaxed)
    }

    /// Whether the port may be stopped or started at this moment.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to ask (again); if so, it counts as done.
    fn is_due(&self) -> bool {
        let mut state = self.state();
        let pause = if state.is_stopped { ABSENCE } else { patience(state.in_vain) };
        let due = state.asked.is_none_or(|asked| asked.elapsed() >= pause);
        if due {
            state.in_vain = if state.is_stopped { 0 } else { state.in_vain.saturating_add(1) };
            state.asked = Some(Instant::now());
        }
        due
    }

    /// The link is up.
    fn greeted(&self) {
        self.state().in_vain = 0;
    }
}

impl PortOptions {
    /// Whether the port will be a client ([`Port::is_client`]).
    pub fn is_client(&self) -> bool {
        PortClient::of(&self.device).is_some()
    }
}

impl Port {
    /// Whether it is a client that asks for its link (memif's).
    pub fn is_client(&self) -> bool {
        self.0.client.is_some()
    }

    /// Whether the link is up. If it is not, a client's server is asked again, a second after it was not there, five after
    /// it was asked and nothing came of it, twice as long each time, up to 40: by a thread of its own, since a server that
    /// hangs lets the caller wait. For that, queues have to be given back, which those of a
    /// [`PortIo::of`](crate::PortIo::of) are; while others are in use, the server is not asked.
    pub fn seek(&self) -> bool {
        let up = self.is_up();
        let Some(client) = &self.0.client else { return up };
        if client.is_busy() {
            return up;
        }
        if up {
            client.greeted();
        } else if client.is_due() {
            client.busy.store(true, Ordering::Release);
            let inner = Arc::clone(&self.0);
            let asking = std::thread::Builder::new().name("memif".into()).spawn(move || ask(&inner));
            if asking.is_err() {
                client.busy.store(false, Ordering::Release);
            }
        }
        up
    }
}

/// How long a server has that has let a client wait in vain so often.
fn patience(in_vain: u32) -> Duration {
    GREETING.saturating_mul(1 << in_vain.min(8)).min(GREETING_MAX)
}

/// Asks the server of the client `inner`.
fn ask(inner: &Inner) {
    let Some(client) = &inner.client else { return };
    let mut state = client.state();
    client.recalls.store(true, Ordering::Relaxed);
    // The driver says that the link is down before it takes it down: stopping the port meanwhile would do the same beside
    // it, and what it does late would meet the next connection.
    let has_all = state.is_stopped || (has_settled(RETURN) && take_back(&inner.taken));
    if has_all {
        // SAFETY: the port is open, and no thread has a queue of it until they are released below.
        state.is_stopped = unsafe { port::hairpin_port_restart(inner.id) } != 0;
    }
    client.recalls.store(false, Ordering::Relaxed);
    if has_all && !state.is_stopped {
        inner.taken.iter().for_each(|taken| taken.store(false, Ordering::Release));
    }
    drop(state);
    client.busy.store(false, Ordering::Release);
}

/// Waits until drivers are done with the events they were at, at most so long; whether they are.
fn has_settled(patience: Duration) -> bool {
    // SAFETY: it waits for a function of its own on EAL's thread, which there is once a port is open.
    unsafe { port::hairpin_events_pass(u32::try_from(patience.as_micros()).unwrap_or(u32::MAX)) == 0 }
}

/// Takes all queues, as they are given back. `false`: that takes too long, and none is taken.
fn take_back(queues: &[AtomicBool]) -> bool {
    let since = Instant::now();
    for (count, queue) in queues.iter().enumerate() {
        while queue.swap(true, Ordering::AcqRel) {
            if since.elapsed() > RETURN {
                queues[..count].iter().for_each(|taken| taken.store(false, Ordering::Release));
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks() {
        let asks = |device: &str| PortClient::of(device).is_some();
        assert!(asks("net_memif0,role=client,socket=/run/m.sock"));
        assert!(asks("net_memif0,socket=/run/m.sock") && asks("net_memif1") && asks("net_memif0,role=slave"));
        assert!(!asks("net_memif0,role=server,socket=role=client"));
        assert!(!asks("net_memif0,id=1,role=master") && !asks("net_af_packet0,iface=net_memif0") && !asks(""));
    }

    #[test]
    fn a_slow_server_has_longer_each_time() {
        let seconds = [0, 1, 2, 3, 4, u32::MAX].map(|in_vain| patience(in_vain).as_secs());
        assert_eq!(seconds, [5, 10, 20, 40, 40, 40]);
    }

    #[test]
    fn queues_in_use_are_not_taken() {
        let queues = [AtomicBool::new(false), AtomicBool::new(true)];
        assert!(!take_back(&queues));
        assert_eq!(queues.each_ref().map(|taken| taken.load(Ordering::Relaxed)), [false, true]);
        queues[1].store(false, Ordering::Relaxed);
        assert!(take_back(&queues) && queues.iter().all(|taken| taken.load(Ordering::Relaxed)));
    }
}
