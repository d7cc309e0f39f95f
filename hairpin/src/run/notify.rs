//! What the service manager is told (systemd's `Type=notify`); nothing without one.

use sd_notify::NotifyState;

fn tell(states: &[NotifyState<'_>]) {
    // Nobody listening is fine.
    let _ = sd_notify::notify(states);
}

/// It serves, and is the unit's main process.
pub(super) fn ready() {
    tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
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
