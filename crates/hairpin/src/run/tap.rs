//! A worker's device on the linux plane: frames of a TAP, asleep until some come.

use super::moderation::Moderation;
use super::thread::WorkerDevice;
use anyhow::{Context, Result};
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_core::time::Time;
use hairpin_linux::tap::{self, Tap, TapIo};
use hairpin_linux::{cpu, device};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a device that reports an error is left alone.
const ERROR_REST: Duration = Duration::from_millis(10);

/// A TAP and its name.
pub(crate) struct TapDevice {
    io: TapIo,
    name: String,
    moderation: Moderation,
    /// Whether it has slept whatever came, and the frames that were there afterwards.
    has_rested: bool,
    gathered: u64,
}

impl TapDevice {
    /// Takes memory for frames. `coalesce`: from one wake to the next, at least, while much is to be done.
    pub(crate) fn new(tap: Tap, coalesce: Duration) -> Result<TapDevice> {
        cpu::sleep_exactly();
        let name = tap.name().to_string();
        let io = TapIo::new(tap, tap::BUFFERS_DEFAULT).context("cannot take memory for frames")?;
        Ok(TapDevice { io, name, moderation: Moderation::new(coalesce), has_rested: false, gathered: 0 })
    }
}

impl FrameIo for TapDevice {
    type Frame = <TapIo as FrameIo>::Frame;

    fn receive(&mut self, out: &mut Batch<Self::Frame>) {
        self.io.receive(out);
        self.moderation.received(out.len());
        if std::mem::take(&mut self.has_rested) {
            self.gathered += out.len() as u64;
        }
    }

    fn transmit(&mut self, batch: &mut Batch<Self::Frame>) {
        self.io.transmit(batch);
    }

    fn allocate(&mut self) -> Option<Self::Frame> {
        self.io.allocate()
    }
}

impl WorkerDevice for TapDevice {
    const POLLED: bool = false;

    fn advance(&mut self, _: Time) {}

    fn wait(&mut self, wake: &OwnedFd, at_most: Option<Duration>) -> Result<()> {
        let rest = self.moderation.rest(cpu::now()).filter(|&rest| at_most.is_none_or(|most| rest < most));
        if let Some(rest) = rest {
            std::thread::sleep(rest);
            self.has_rested = true;
            self.moderation.woken(cpu::now());
            return Ok(());
        }
        let timeout = at_most.and_then(|duration| Timespec::try_from(duration).ok());
        let mut waits = [PollFd::new(&self.io, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for frames"),
        }
        self.moderation.woken(cpu::now());
        if !waits[1].revents().is_empty() {
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        // A device that went down or away reports an error at once and for ever: do not spin on it.
        if waits[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            std::thread::sleep(ERROR_REST);
        }
        Ok(())
    }

    fn drops(&self, out: &mut Vec<(&'static str, u64)>) {
        let counters = self.io.counters();
        out.extend([
            ("queue-full", device::transmit_dropped(&self.name).unwrap_or(0)),
            ("unmarked", counters.unmarked),
            ("malformed", counters.malformed),
            ("refused", counters.refused),
            ("no-memory", counters.no_memory),
            ("down", counters.down),
            ("write-failed", counters.write_failed),
        ]);
    }

    fn events(&self, out: &mut Vec<(&'static str, u64)>) {
        out.extend([("joined", self.io.counters().joined), ("gathered", self.gathered)]);
    }
}
