//! A worker's device on the linux plane: frames of a TAP, asleep until some come.

use super::thread::Device;
use anyhow::{Context, Result};
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_core::time::Time;
use hairpin_linux::device;
use hairpin_linux::tap::{self, Tap, TapIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a device that reports an error is left alone.
const ERROR_REST: Duration = Duration::from_millis(10);

/// A TAP and its name.
pub(crate) struct TapDevice {
    io: TapIo,
    name: String,
}

impl TapDevice {
    /// Takes memory for frames.
    pub(crate) fn new(tap: Tap) -> Result<TapDevice> {
        let name = tap.name().to_string();
        let io = TapIo::new(tap, tap::BUFFERS_DEFAULT).context("cannot take memory for frames")?;
        Ok(TapDevice { io, name })
    }
}

impl FrameIo for TapDevice {
    type Frame = <TapIo as FrameIo>::Frame;

    fn receive(&mut self, out: &mut Batch<Self::Frame>) {
        self.io.receive(out);
    }

    fn transmit(&mut self, batch: &mut Batch<Self::Frame>) {
        self.io.transmit(batch);
    }

    fn allocate(&mut self) -> Option<Self::Frame> {
        self.io.allocate()
    }
}

impl Device for TapDevice {
    const POLLED: bool = false;

    fn advance(&mut self, _: Time) {}

    fn wait(&mut self, wake: &OwnedFd, at_most: Option<Duration>) -> Result<()> {
        let timeout = at_most.and_then(|duration| Timespec::try_from(duration).ok());
        let mut waits = [PollFd::new(&self.io, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for frames"),
        }
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
        out.push(("joined", self.io.counters().joined));
    }
}
