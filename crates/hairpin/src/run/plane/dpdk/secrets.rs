//! Keys of SYN cookies: shared with other balancers, or this process's own. Without shared ones, a client whose cookie
//! another process has made tries again.

use super::super::super::host;
use anyhow::{Context, Result};
use hairpin_core::keys::Secret;
use hairpin_core::l7::cookie::{Cookies, EpochKeys};
use hairpin_core::time::Time;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct HeldSecrets {
    keys: EpochKeys,
    /// Shared keys: by how much real time is ahead of the clock, in ns, modulo 2^64.
    ahead_ns: Option<u64>,
}

/// The keys.
pub(super) struct Secrets(Mutex<HeldSecrets>);

impl Secrets {
    /// Draws both.
    pub(super) fn draw(now: Time) -> Result<Secrets> {
        Ok(Secrets(Mutex::new(drawn(now)?)))
    }

    fn held(&self) -> MutexGuard<'_, HeldSecrets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secrets that make cookies now.
    pub(super) fn cookies(&self) -> Cookies {
        let held = self.held();
        Cookies::new(held.keys.keys).ahead(held.ahead_ns.unwrap_or(0))
    }

    /// Draws the next epoch's if it is time; both if others were shared.
    pub(super) fn renew(&self, now: Time) -> Result<()> {
        let mut held = self.held();
        if held.ahead_ns.is_some() {
            *held = drawn(now)?;
        } else if let Some(next) = Cookies::renewal(now).filter(|next| *next > held.keys.last) {
            held.keys.keys[(next % 2) as usize] = host::secret::<2>().context("no new secret for SYN cookies")?;
            held.keys.last = next;
        }
        Ok(())
    }

    /// Makes them of `secret`, for real time, which is ahead by `ahead_ns`; what another secret has made stays for the rest
    /// of its epoch.
    pub(super) fn share(&self, secret: &Secret, now: Time, ahead_ns: u64) {
        let mut held = self.held();
        let real = Time::from_nanos(now.as_nanos().wrapping_add(ahead_ns));
        let keys = match held.ahead_ns {
            Some(_) => held.keys.renewed(secret, real),
            None => EpochKeys::of(secret, real),
        };
        *held = HeldSecrets { keys, ahead_ns: Some(ahead_ns) };
    }
}

/// Own ones.
fn drawn(now: Time) -> Result<HeldSecrets> {
    let keys = [host::secret::<2>()?, host::secret::<2>()?];
    Ok(HeldSecrets { keys: EpochKeys { keys, last: Cookies::epoch(now) }, ahead_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secrets: &Secrets) -> [[u64; 2]; 2] {
        secrets.held().keys.keys
    }

    #[test]
    fn next_epoch_key_is_drawn_once() {
        let secrets = Secrets::draw(Time::ZERO).unwrap();
        let first = keys(&secrets);
        secrets.renew(Time::ZERO).unwrap();
        assert_eq!(keys(&secrets), first, "too early");
        // Within an hour or so there is a time for it.
        let due = (0..10_000).map(|s| Time::from_nanos(s * 1_000_000_000)).find(|now| Cookies::renewal(*now).is_some());
        let due = due.unwrap();
        assert_eq!(Cookies::epoch(due), 0);
        secrets.renew(due).unwrap();
        let second = keys(&secrets);
        assert_eq!(second[0], first[0]);
        assert_ne!(second[1], first[1]);
        secrets.renew(due).unwrap();
        assert_eq!(keys(&secrets), second);
    }

    #[test]
    fn shared_keys_come_and_go() {
        let secrets = Secrets::draw(Time::ZERO).unwrap();
        let (secret, other, ahead) = (Secret::new([1, 2]), Secret::new([1, 3]), 1 << 60);
        secrets.share(&secret, Time::ZERO, ahead);
        let shared = EpochKeys::of(&secret, Time::from_nanos(ahead));
        assert_eq!(secrets.held().keys, shared);
        secrets.share(&other, Time::ZERO, ahead);
        let epoch = (Cookies::epoch(Time::from_nanos(ahead)) % 2) as usize;
        assert_eq!(keys(&secrets)[epoch], shared.keys[epoch], "in use");
        secrets.renew(Time::ZERO).unwrap();
        assert!(keys(&secrets).iter().all(|key| !shared.keys.contains(key)));
        assert_eq!(secrets.held().ahead_ns, None);
    }
}
