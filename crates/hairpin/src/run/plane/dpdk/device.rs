//! A worker's device on the dpdk plane: its access to the ports, the link layer around it, what other workers have received
//! for it, and what it does while nothing comes in.

use super::super::super::thread::WorkerDevice;
use super::super::{ForwardingTable, limits};
use super::port_access::PortAccess;
use super::spread::WorkerSpread;
use crate::config::IdleMode;
use anyhow::{Context, Result};
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_core::link::{Link, LinkDrop, Neighbours};
use hairpin_core::time::Time;
use hairpin_dpdk::{Eal, Mbuf, Registration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Iterations without a frame after which a worker that may sleep begins to.
const SPINS: u32 = 64;
/// The first sleep; each is twice as long as the one before.
const SLEEP_MIN: Duration = Duration::from_micros(5);
/// The longest.
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// See the module's documentation. (Dropped in this order: frames before the thread leaves DPDK.)
pub(super) struct PortDevice {
    link: Link<PortAccess>,
    spread: Option<WorkerSpread>,
    rest: Rest,
    _registration: Registration,
}

impl PortDevice {
    /// On the worker's own thread.
    pub(super) fn open(
        eal: Eal,
        access: PortAccess,
        spread: Option<WorkerSpread>,
        (forwarding_table, neighbours): (&ForwardingTable, Arc<Neighbours>),
        idle: IdleMode,
    ) -> Result<PortDevice> {
        let registration = eal.register_thread().context("cannot make a worker's thread known to DPDK")?;
        if idle == IdleMode::Sleep {
            // Sleeps are of microseconds; the kernel would add 50 to each.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("cannot set the timer's slack")?;
        }
        let link = Link::new(Arc::clone(&forwarding_table.plan), neighbours, access);
        Ok(PortDevice { link, spread, rest: Rest::new(idle), _registration: registration })
    }
}

impl FrameIo for PortDevice {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        let before = out.len();
        if let Some(spread) = &mut self.spread {
            spread.collect(out);
        }
        let first = out.len();
        self.link.receive(out);
        if let Some(spread) = &mut self.spread {
            // Handing frames over counts as work as well.
            if out.len() > first {
                self.rest.end();
            }
            spread.hand_over(out, first);
        }
        if out.len() > before {
            self.rest.end();
        }
    }

    fn transmit(&mut self, batch: &mut Batch<Mbuf>) {
        self.link.transmit(batch);
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        self.link.allocate()
    }

    fn room(&self) -> usize {
        self.link.io().room()
    }
}

impl WorkerDevice for PortDevice {
    const POLLED: bool = true;

    fn advance(&mut self, now: Time) {
        self.link.advance(now);
        self.link.io_mut().relay();
    }

    fn wait(&mut self, wake: &OwnedFd, at_most: Option<Duration>) -> Result<()> {
        let Some(sleep) = self.rest.next() else {
            std::hint::spin_loop();
            return Ok(());
        };
        let sleep = at_most.map_or(sleep, |at_most| at_most.min(sleep));
        let timeout = Timespec::try_from(sleep).ok();
        let mut waits = [PollFd::new(wake, PollFlags::IN)];
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait"),
        }
        if !waits[0].revents().is_empty() {
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        Ok(())
    }

    fn set_forwarding_table(&mut self, forwarding_table: &Arc<ForwardingTable>) {
        self.link.set_plan(Arc::clone(&forwarding_table.plan));
        if let Some(spread) = &mut self.spread {
            spread.set_forwarding_table(forwarding_table);
        }
    }

    fn drops(&self, out: &mut Vec<(&'static str, u64)>) {
        let statistics = self.link.statistics();
        out.extend(LinkDrop::ALL.map(|reason| (reason.name(), statistics.dropped(reason))));
        let access = self.link.io();
        out.extend([("misrouted", access.misrouted()), ("too-long", access.too_long()), ("no-link", access.cut_off())]);
        if let Some(spread) = &self.spread {
            out.push((limits::HANDOVER_FULL, spread.dropped()));
        }
    }

    fn events(&self, out: &mut Vec<(&'static str, u64)>) {
        let statistics = self.link.statistics();
        out.extend([
            ("received", statistics.received),
            ("sent", statistics.sent),
            ("resolution-answered", statistics.answered),
            ("resolution-asked", statistics.asked),
            ("echo-answered", statistics.echoed),
            ("announced", statistics.announced),
            ("address-conflict", statistics.conflicts),
            ("no-frame", statistics.no_frame),
        ]);
        if let Some(spread) = &self.spread {
            out.push(("handed-over", spread.handed()));
        }
    }
}

/// How long the next rest is while nothing comes in.
#[derive(Debug)]
struct Rest {
    idle: IdleMode,
    /// Iterations in a row without a frame.
    iterations: u32,
    sleep: Duration,
}

impl Rest {
    fn new(idle: IdleMode) -> Rest {
        Rest { idle, iterations: 0, sleep: SLEEP_MIN }
    }

    /// Something came.
    fn end(&mut self) {
        (self.iterations, self.sleep) = (0, SLEEP_MIN);
    }

    /// How long to sleep; `None`: not at all.
    fn next(&mut self) -> Option<Duration> {
        self.iterations = self.iterations.saturating_add(1);
        if self.idle == IdleMode::Poll || self.iterations <= SPINS {
            return None;
        }
        let sleep = self.sleep;
        self.sleep = (sleep * 2).min(SLEEP_MAX);
        Some(sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_sleep_doubles_and_resets_on_frames() {
        let mut rest = Rest::new(IdleMode::Sleep);
        assert!((0..SPINS).all(|_| rest.next().is_none()));
        let sleeps: Vec<u128> = (0..8).filter_map(|_| rest.next()).map(|sleep| sleep.as_micros()).collect();
        assert_eq!(sleeps, [5, 10, 20, 40, 80, 160, 200, 200]);
        rest.end();
        assert_eq!(rest.next(), None);
        let mut rest = Rest::new(IdleMode::Poll);
        assert!((0..10 * SPINS).all(|_| rest.next().is_none()));
    }
}
