//! Session tickets (RFC 8446, 4.6.1; RFC 5077): sealed with keys that follow from a secret which outlives the process.
//!
//! Keys are derived by epoch, service and set of client CAs. So a ticket never carries a client past a check of certificates
//! that the service which gave it did not make, and all cores and the next process accept each other's tickets.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use rustls::server::ProducesTickets;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long tickets of one key are given out.
const EPOCH: Duration = Duration::from_secs(6 * 3600);
/// Bytes of a ticket that name its epoch.
const EPOCH_BYTES: usize = 4;
/// Bytes of a ticket at most; a longer one is not looked at.
const TICKET_BYTES_MAX: usize = 16 * 1024;

/// From which a service's keys are derived.
#[derive(Clone)]
pub struct TicketSecret {
    /// The balancer's secret: that of this instance, or one that several share.
    pub secret: [u8; 32],
    /// The service's name.
    pub service: String,
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketSecret({})", self.service)
    }
}

/// Seals and opens the tickets of a service.
pub(crate) struct Tickets {
    key: hmac::Key,
    clock: fn() -> u64,
    /// The keys of the epochs used last.
    keys: RwLock<Vec<(u32, Arc<LessSafeKey>)>>,
}

/// Keys that are remembered.
const KEYS: usize = 2;

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Tickets {
    /// `clients`: what tells the service's check of client certificates from others.
    pub(crate) fn new(secret: &TicketSecret, clients: &[u8]) -> Tickets {
        let root = hmac::Key::new(hmac::HMAC_SHA256, &secret.secret);
        let mut context = hmac::Context::with_key(&root);
        context.update(b"hairpin session tickets\0");
        context.update(&(secret.service.len() as u64).to_le_bytes());
        context.update(secret.service.as_bytes());
        context.update(clients);
        let key = hmac::Key::new(hmac::HMAC_SHA256, context.sign().as_ref());
        Tickets { key, clock: unix_s, keys: RwLock::default() }
    }

    fn epoch(&self) -> u32 {
        ((self.clock)() / EPOCH.as_secs()) as u32
    }

    fn key_of(&self, epoch: u32) -> Option<Arc<LessSafeKey>> {
        let known =
            |keys: &[(u32, Arc<LessSafeKey>)]| keys.iter().find(|(of, _)| *of == epoch).map(|(_, key)| Arc::clone(key));
        if let Some(key) = known(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            return Some(key);
        }
        let bytes = hmac::sign(&self.key, &epoch.to_le_bytes());
        let key = Arc::new(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes.as_ref()).ok()?));
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS {
            keys.remove(0);
        }
        keys.push((epoch, Arc::clone(&key)));
        Some(key)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        EPOCH.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let epoch = self.epoch();
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let aad = Aad::from(epoch.to_le_bytes());
        self.key_of(epoch)?.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed).ok()?;
        Some([&epoch.to_le_bytes()[..], &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (epoch, rest) = ticket.split_first_chunk::<EPOCH_BYTES>().filter(|_| ticket.len() <= TICKET_BYTES_MAX)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (now, given) = (self.epoch(), u32::from_le_bytes(*epoch));
        // A ticket lives as long as an epoch, so it is of this one or of the last.
        if given != now && given.wrapping_add(1) != now {
            return None;
        }
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.key_of(given)?.open_in_place(nonce, Aad::from(*epoch), &mut plain).ok()?.len();
        plain.truncate(length);
        Some(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(secret: u8, service: &str, clients: &[u8], clock: fn() -> u64) -> Tickets {
        let secret = TicketSecret { secret: [secret; 32], service: service.to_string() };
        Tickets { clock, ..Tickets::new(&secret, clients) }
    }

    fn noon() -> u64 {
        1_795_867_200
    }

    #[test]
    fn ticket_opens_in_another_process_of_the_same_secret() {
        let ticket = tickets(1, "web", b"", noon).encrypt(b"session").unwrap();
        assert_eq!(tickets(1, "web", b"", noon).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(tickets(2, "web", b"", noon).decrypt(&ticket), None);
    }

    #[test]
    fn ticket_of_another_service_or_client_check_is_refused() {
        let ticket = tickets(1, "web", b"", noon).encrypt(b"session").unwrap();
        assert_eq!(tickets(1, "shop", b"", noon).decrypt(&ticket), None);
        assert_eq!(tickets(1, "web", b"ca", noon).decrypt(&ticket), None);
    }

    #[test]
    fn ticket_lives_two_epochs_at_most() {
        let ticket = tickets(1, "web", b"", noon).encrypt(b"session").unwrap();
        assert!(tickets(1, "web", b"", || noon() + EPOCH.as_secs()).decrypt(&ticket).is_some());
        assert_eq!(tickets(1, "web", b"", || noon() + 2 * EPOCH.as_secs()).decrypt(&ticket), None);
        assert_eq!(tickets(1, "web", b"", || noon() - EPOCH.as_secs()).decrypt(&ticket), None);
    }

    #[test]
    fn damaged_ticket_is_refused() {
        let tickets = tickets(1, "web", b"", noon);
        let ticket = tickets.encrypt(b"session").unwrap();
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert_eq!(tickets.decrypt(&damaged), None, "byte {at}");
            assert_eq!(tickets.decrypt(&ticket[..at]), None, "cut at {at}");
        }
        assert_eq!(tickets.decrypt(&vec![0; TICKET_BYTES_MAX + 1]), None);
    }
}
