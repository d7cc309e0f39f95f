//! Notifications to the service manager (systemd's `Type=notify`); none without one.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use std::os::fd::AsFd;

/// How long a manager may take to read what it is told: as sd_notify_barrier(3) waits by default in systemd-notify.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

fn tell(states: &[NotifyState<'_>]) {
    // It is fine if no service manager listens.
    let _ = sd_notify::notify(states);
}

/// It serves, and is the unit's main process.
pub(super) fn ready() {
    tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
}

/// How it does, in a line.
pub(super) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// Waits until the manager has read everything that it was told, for [`PATIENCE`] at most.
pub(super) fn settle() {
    let Ok((ours, theirs)) = std::io::pipe() else { return };
    if sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()]).is_err() {
        return;
    }
    drop(theirs);
    // The manager closes its end; without one, or with one that takes no descriptors, it is closed by now.
    let _ = poll(&mut [PollFd::new(&ours, PollFlags::empty())], Some(&PATIENCE));
}

/// It reads its configuration again; [`ready`] ends that.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// It ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// It is alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}
