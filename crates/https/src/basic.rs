//! Basic authentication (RFC 7617): who may ask, by a file of users whose passwords are hashed with bcrypt.
//!
//! A hash takes milliseconds on purpose, so that a request whose credentials are not known to be right waits for a thread that
//! checks them, one for each core, of a lower priority than the runtime's. Credentials that were right are remembered under a
//! keyed hash until the next configuration.
//!
//! *Bounds.* Requests that wait, beyond which others are refused with 503; the remembered credentials, of which the oldest
//! gives way.

use aws_lc_rs::{hmac, rand::SystemRandom};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hairpin_core::l7::head::Request;
use hairpin_core::l7::splice::Refused;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Users of a file at most.
pub const USERS_MAX: usize = 10_000;
/// The highest cost of a hash: 2^12 rounds. A check of a higher one would hold up those behind it too long.
pub const COST_MAX: u32 = 12;
/// Requests of a core that wait until their credentials are checked.
pub const CHECKS_MAX: u32 = 64;
/// Credentials that each core remembers to be right.
pub const REMEMBERED_MAX: usize = 4096;
/// How much lower the priority of a check is than that of the runtime on its core (`nice`).
const NICE: i32 = 10;

/// The remedy where a user's password is not hashed with bcrypt.
const REHASH: &str = "hash the password with bcrypt: htpasswd -B FILE USER";

/// Who may ask.
#[derive(PartialEq, Eq)]
pub struct BasicAuth {
    /// The value of `WWW-Authenticate`.
    challenge: Box<str>,
    /// The hash of each user's password.
    users: HashMap<Box<[u8]>, Box<str>>,
    /// The most costly hash, which a password of an unknown user is compared with: that takes as long.
    decoy: Box<str>,
}

/// Nothing of users or their passwords.
impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicAuth").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

impl BasicAuth {
    /// The users of a file as `htpasswd -B` writes it. `realm`: what browsers show, without `"` and `\`.
    ///
    /// # Errors
    /// What is wrong, with its line, and what to do. Neither holds anything of a password.
    pub fn read(realm: &str, file: &[u8]) -> Result<BasicAuth, (String, String)> {
        let mut users = HashMap::new();
        let mut most = (0, Box::default());
        for (line, number) in file.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).zip(1..) {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |what: &str, remedy: &str| (format!("line {number} {what}"), remedy.to_owned());
            let (user, cost, hash) = entry(line).map_err(|(what, remedy)| wrong(what, remedy))?;
            if users.len() == USERS_MAX {
                return Err(wrong("has one user more than a file may have", "have 10000 at most"));
            }
            if users.insert(user.into(), hash.into()).is_some() {
                return Err(wrong("has a user whom a line before it has, too", "leave one of the lines out"));
            }
            if cost > most.0 {
                most = (cost, hash.into());
            }
        }
        if users.is_empty() {
            let remedy = "add one: htpasswd -B FILE USER";
            return Err(("it has no user, so that no request would pass".to_owned(), remedy.to_owned()));
        }
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"").into();
        Ok(BasicAuth { challenge, users, decoy: most.1 })
    }

    /// How many users there are.
    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// Whether a user has this password. Takes as long for one who is not there.
    fn is_right(&self, credentials: &Credentials) -> bool {
        let Some(at) = credentials.0.iter().position(|&byte| byte == b':') else { return false };
        let (user, password) = (&credentials.0[..at], &credentials.0[at + 1..]);
        let hash = self.users.get(user);
        let is_same = bcrypt::verify(password, hash.unwrap_or(&self.decoy)).unwrap_or(false);
        is_same && hash.is_some()
    }
}

/// The user of a line, the cost of the hash, and the hash.
fn entry(line: &[u8]) -> Result<(&[u8], u32, &str), (&'static str, &'static str)> {
    const FORM: &str = "has not the form USER:HASH";
    let at = line.iter().position(|&byte| byte == b':').filter(|&at| at > 0).ok_or((FORM, REHASH))?;
    let hash = str::from_utf8(&line[at + 1..]).map_err(|_| (FORM, REHASH))?;
    if !hash.starts_with("$2y$") && !hash.starts_with("$2b$") {
        return Err(("has a password that is not hashed with bcrypt ($2y$ or $2b$)", REHASH));
    }
    let cost = hash.parse::<bcrypt::HashParts>().map_err(|_| ("has a hash that is not whole", REHASH))?.get_cost();
    if !(4..=COST_MAX).contains(&cost) {
        return Err(("has a hash whose cost is not from 4 to 12", "write htpasswd -B -C 10 FILE USER"));
    }
    Ok((&line[..at], cost, hash))
}

/// `user:password`, as a request gives it.
pub(crate) struct Credentials(Vec<u8>);

impl Credentials {
    /// Those of a request that has one `Authorization` field, of the scheme `Basic` (in any case).
    fn of(request: &Request<'_>) -> Option<Credentials> {
        let mut fields = request.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"authorization"));
        let (Some((_, value)), None) = (fields.next(), fields.next()) else { return None };
        let (scheme, token) = value.split_at_checked(5)?;
        let is_basic = scheme.eq_ignore_ascii_case(b"basic") && token.starts_with(b" ");
        let decoded = STANDARD.decode(token.trim_ascii()).ok().filter(|_| is_basic)?;
        decoded.contains(&b':').then_some(Credentials(decoded))
    }
}

/// The credentials of a request, before a password is hashed.
pub(crate) enum Seen {
    /// They were right before.
    Right,
    /// There are none that could be right.
    None,
    /// They have to be checked.
    Unknown(PendingCheck),
}

/// Credentials that have to be checked.
pub(crate) struct PendingCheck {
    guard: Rc<BasicGuard>,
    credentials: Credentials,
}

/// The users of one or more routes, on one core.
pub(crate) struct BasicGuard {
    auth: Arc<BasicAuth>,
    remembered: Remembered,
}

/// The keyed hash of credentials.
type Tag = [u8; 32];

/// Credentials that were right: their hashes, with a key that only this has.
struct Remembered {
    /// `None`: there was no randomness, and nothing is remembered.
    key: Option<hmac::Key>,
    tags: RefCell<(HashSet<Tag>, VecDeque<Tag>)>,
}

impl Remembered {
    fn new() -> Remembered {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Remembered { key, tags: RefCell::default() }
    }

    fn tag(&self, credentials: &Credentials) -> Option<Tag> {
        hmac::sign(self.key.as_ref()?, &credentials.0).as_ref().try_into().ok()
    }

    fn has(&self, credentials: &Credentials) -> bool {
        self.tag(credentials).is_some_and(|tag| self.tags.borrow().0.contains(&tag))
    }

    fn add(&self, credentials: &Credentials) {
        let Some(tag) = self.tag(credentials) else { return };
        let (tags, order) = &mut *self.tags.borrow_mut();
        if !tags.insert(tag) {
            return;
        }
        order.push_back(tag);
        if order.len() > REMEMBERED_MAX
            && let Some(oldest) = order.pop_front()
        {
            tags.remove(&oldest);
        }
    }
}

impl BasicGuard {
    pub(crate) fn new(auth: &Arc<BasicAuth>) -> BasicGuard {
        BasicGuard { auth: Arc::clone(auth), remembered: Remembered::new() }
    }

    /// The value of `WWW-Authenticate`.
    pub(crate) fn challenge(&self) -> &[u8] {
        self.auth.challenge.as_bytes()
    }

    /// What is known of a request's credentials.
    pub(crate) fn see(self: &Rc<BasicGuard>, request: &Request<'_>) -> Seen {
        match Credentials::of(request) {
            None => Seen::None,
            Some(credentials) if self.remembered.has(&credentials) => Seen::Right,
            Some(credentials) => Seen::Unknown(PendingCheck { guard: Rc::clone(self), credentials }),
        }
    }
}

/// Where credentials of a core's requests are checked: one at a time.
pub(crate) struct CredentialChecks {
    turn: Arc<Semaphore>,
    waiting: Cell<u32>,
}

impl Default for CredentialChecks {
    fn default() -> CredentialChecks {
        CredentialChecks { turn: Arc::new(Semaphore::new(1)), waiting: Cell::new(0) }
    }
}

/// A request that waits, as long as this exists.
struct Waiting<'a>(&'a Cell<u32>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl CredentialChecks {
    /// Waits until credentials have been checked.
    ///
    /// # Errors
    /// Why the request is refused, and the status: they are wrong, or as many wait as may.
    pub(crate) async fn check(&self, pending: PendingCheck) -> Result<(), (u16, Refused)> {
        const BUSY: (u16, Refused) = (503, Refused::AuthenticationBusy);
        if self.waiting.get() >= CHECKS_MAX {
            return Err(BUSY);
        }
        self.waiting.set(self.waiting.get() + 1);
        let _waiting = Waiting(&self.waiting);
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| BUSY)?;
        let PendingCheck { guard, credentials } = pending;
        // A request that came with the same ones may have been waiting before.
        if guard.remembered.has(&credentials) {
            return Ok(());
        }
        let auth = Arc::clone(&guard.auth);
        let checked = tokio::task::spawn_blocking(move || {
            // The check goes on when its client has gone, and the next one waits for it.
            let _turn = turn;
            // Linux has a priority for each thread; this one does nothing else.
            let _ = rustix::process::setpriority_process(None, NICE);
            (auth.is_right(&credentials), credentials)
        });
        match checked.await {
            Ok((true, credentials)) => {
                guard.remembered.add(&credentials);
                Ok(())
            }
            Ok((false, _)) => Err((401, Refused::Unauthorized)),
            Err(_) => Err(BUSY),
        }
    }
}

#[cfg(test)]
mod tests;
