//! Secrets of SYN cookies, of this process: a client whose cookie another process has made tries again.

use super::super::super::host;
use anyhow::{Context, Result};
use hairpin_core::l7::cookie::Cookies;
use hairpin_core::time::Time;
use std::sync::{Mutex, PoisonError};

struct Keys {
    /// Of even epochs and of odd ones.
    keys: [[u64; 2]; 2],
    /// The latest epoch that has a key of its own.
    epoch: u64,
}

/// The secrets.
pub(super) struct Secrets(Mutex<Keys>);

impl Secrets {
    /// Draws both.
    pub(super) fn draw(now: Time) -> Result<Secrets> {
        let keys = [host::secret::<2>()?, host::secret::<2>()?];
        Ok(Secrets(Mutex::new(Keys { keys, epoch: Cookies::epoch(now) })))
    }

    /// What cookies are made with now.
    pub(super) fn cookies(&self) -> Cookies {
        Cookies::new(self.0.lock().unwrap_or_else(PoisonError::into_inner).keys)
    }

    /// Draws the next epoch's if it is time.
    pub(super) fn renew(&self, now: Time) -> Result<()> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = Cookies::renewal(now).filter(|next| *next > held.epoch) {
            held.keys[(next % 2) as usize] = host::secret::<2>().context("no new secret for SYN cookies")?;
            held.epoch = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_epoch_gets_a_key_once_and_this_one_keeps_its_own() {
        let secrets = Secrets::draw(Time::ZERO).unwrap();
        let keys = || secrets.0.lock().unwrap().keys;
        let first = keys();
        secrets.renew(Time::ZERO).unwrap();
        assert_eq!(keys(), first, "too early");
        // Within an hour or so there is a time for it.
        let due = (0..10_000).map(|s| Time::from_nanos(s * 1_000_000_000)).find(|now| Cookies::renewal(*now).is_some());
        let due = due.unwrap();
        assert_eq!(Cookies::epoch(due), 0);
        secrets.renew(due).unwrap();
        let second = keys();
        assert_eq!(second[0], first[0]);
        assert_ne!(second[1], first[1]);
        secrets.renew(due).unwrap();
        assert_eq!(keys(), second);
    }
}
