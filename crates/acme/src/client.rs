//! The client's thread: it looks which name is due, orders, and notes what came of it.

use crate::order::{Again, Failure, Ordering};
use crate::round::{Entry, Round, fail, hurry, now_s, read_certificate};
use crate::state::{self, Attempts, StateLock};
use crate::transport::Transport;
use crate::{Authority, ChallengeKind, Host, ORDER_TIMEOUT, Wanted, WantedName, account};
use anyhow::{Context, Result};
use instant_acme::{CertificateIdentifier, Error};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// The machine's clock is looked at again after so long, at the latest.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Another process's lock is tried again after so long, and a directory that cannot be used.
const LOCK_AGAIN: Duration = Duration::from_secs(1);
/// How often the CA is asked when it wants a certificate renewed (RFC 9773, 4.3), in seconds.
const ASK_EVERY_S: std::ops::RangeInclusive<i64> = 3600..=86_400;
/// When it is asked again if it did not answer.
const ASK_AGAIN_S: i64 = 6 * 3600;

/// Attempts at an order whose nonces the CA refuses. In each, the ACME crate sends a request three times before it gives up.
const NONCE_TRIES: u32 = 5;

/// How a name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameState {
    /// There is no certificate yet, and no order has failed.
    Waiting,
    /// The certificate is being ordered.
    Ordering,
    /// There is a certificate.
    Held,
    /// The last order failed. There may be a certificate.
    Failed,
}

impl NameState {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            NameState::Waiting => "waiting",
            NameState::Ordering => "ordering",
            NameState::Held => "held",
            NameState::Failed => "failed",
        }
    }
}

/// The state of a name. Times are seconds since 1970.
#[derive(Clone, Debug)]
pub struct NameReading {
    /// The name.
    pub name: String,
    /// How the CA is shown that it leads here.
    pub challenge: ChallengeKind,
    /// How it stands.
    pub state: NameState,
    /// When its certificate expires, if there is one.
    pub until_unix_s: Option<i64>,
    /// When it is ordered next.
    pub next_unix_s: i64,
    /// Orders that failed since the last one that did not.
    pub failures: u32,
    /// Why the last one failed; empty if it did not.
    pub error: String,
}

/// The state of the client: its names, and when each is due.
#[derive(Clone, Debug, Default)]
pub struct AcmeReading {
    /// The URL of the CA's directory.
    pub directory: String,
    /// The URL of the account, once there is one.
    pub account: Option<String>,
    /// Why nothing is ordered at all; empty if there is no reason.
    pub error: String,
    /// Certificates obtained since the start.
    pub obtained: u64,
    /// Orders failed since the start.
    pub failed: u64,
    /// The names.
    pub names: Vec<NameReading>,
}

/// The client. Dropping it breaks off what it does.
pub struct Acme {
    wanted: Option<watch::Sender<Arc<Wanted>>>,
    reading: Arc<Mutex<AcmeReading>>,
    thread: Option<JoinHandle<()>>,
}

impl Acme {
    /// Starts the client's thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(wanted: Wanted, host: Arc<dyn Host>) -> Result<Acme> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, receiver) = watch::channel(Arc::new(wanted));
        let reading = Arc::default();
        let client = Client { wanted: receiver, host, reading: Arc::clone(&reading), counts: (0, 0), rounds: 0 };
        let body = move || {
            runtime.block_on(client.run());
            // A look-up of a name may still be under way.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("acme".into()).spawn(body);
        let thread = thread.context("cannot start a thread for ACME")?;
        Ok(Acme { wanted: Some(sender), reading, thread: Some(thread) })
    }

    /// Wants these certificates from now on. What failed is tried again soon: its reason may have been removed.
    pub fn configure(&self, wanted: Wanted) {
        self.wanted.iter().for_each(|sender| drop(sender.send_replace(Arc::new(wanted.clone()))));
    }

    /// The state of the client.
    pub fn reading(&self) -> AcmeReading {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        drop(self.wanted.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The process stops.
struct Stopped;

struct Client {
    wanted: watch::Receiver<Arc<Wanted>>,
    host: Arc<dyn Host>,
    reading: Arc<Mutex<AcmeReading>>,
    /// Certificates obtained, orders failed.
    counts: (u64, u64),
    /// Configurations so far.
    rounds: u64,
}

impl Client {
    async fn run(mut self) {
        while let Ok(()) = self.round().await {}
    }

    /// Serves one configuration, until there is another one.
    async fn round(&mut self) -> Result<(), Stopped> {
        let wanted = Arc::clone(&self.wanted.borrow_and_update());
        let Some(lock) = self.lock(&wanted).await? else { return Ok(()) };
        let mut round = Round::read(wanted, &*self.host);
        // A process that starts waits on; one that starts again and again would not be borne by the CA.
        if self.rounds > 0 {
            hurry(&mut round.attempts);
            round.entries.iter_mut().for_each(|entry| hurry(&mut entry.attempts));
        }
        self.rounds += 1;
        let result = self.serve(&mut round).await;
        drop(lock);
        result
    }

    /// Takes the lock; `None`: another configuration has come.
    async fn lock(&mut self, wanted: &Wanted) -> Result<Option<StateLock>, Stopped> {
        let mut told = String::new();
        loop {
            let why = match StateLock::take(&wanted.state) {
                Ok(Some(lock)) => return Ok(Some(lock)),
                Ok(None) => format!("another process orders certificates in {}", wanted.state.display()),
                Err(error) => format!("{error:#}"),
            };
            if told != why {
                // During an upgrade the other process ends within a second or so.
                self.host.log(&format!("ACME waits: {why}"));
                self.change(|reading| {
                    reading.error.clone_from(&why);
                    reading.directory.clone_from(&wanted.authority.directory);
                });
                told = why;
            }
            if self.pause(LOCK_AGAIN).await? {
                return Ok(None);
            }
        }
    }

    async fn serve(&mut self, round: &mut Round) -> Result<(), Stopped> {
        loop {
            self.publish(round, None);
            let now = now_s();
            let wait = match round.next() {
                Some((at, due)) if due <= now => {
                    self.attempt(round, at).await?;
                    Duration::ZERO
                }
                _ if self.ask(round, now).await? => Duration::ZERO,
                Some((_, due)) => Duration::from_secs((due - now) as u64).min(LOOK_AGAIN),
                None => LOOK_AGAIN,
            };
            if self.pause(wait).await? {
                return Ok(());
            }
        }
    }

    /// Waits. Whether another configuration has come.
    async fn pause(&mut self, wait: Duration) -> Result<bool, Stopped> {
        tokio::select! {
            changed = self.wanted.changed() => changed.map(|()| true).map_err(|_| Stopped),
            () = sleep(wait) => Ok(false),
        }
    }

    /// Orders a certificate for an entry, and notes what came of it.
    async fn attempt(&mut self, round: &mut Round, at: usize) -> Result<(), Stopped> {
        self.publish(round, Some(at));
        let ordering = tokio::spawn(order(Arc::clone(&round.wanted), Arc::clone(&self.host), {
            let entry = &round.entries[at];
            (entry.wanted.clone(), entry.held.as_ref().and_then(|held| held.identifier.clone()))
        }));
        let result = match self.unless_unwanted(&round.wanted, &round.entries[at].wanted, ordering).await? {
            Some(result) => result,
            None => return Ok(()),
        };
        let entry = &mut round.entries[at];
        let name = entry.wanted.name.clone();
        match result.and_then(|pem| self.keep(entry, &pem)) {
            Ok(()) => {
                self.counts.0 += 1;
                self.host.log(&format!("ACME: {name} has a certificate by {}", round.wanted.authority.directory));
                entry.save(&*self.host);
                round.attempts = Attempts::default();
                let _ = state::write_attempts(&round.directory, &round.attempts);
                self.host.obtained();
            }
            Err(failure) => {
                self.counts.1 += 1;
                if failure.is_of_authority {
                    fail(&mut round.attempts, &failure);
                    let _ = state::write_attempts(&round.directory, &round.attempts);
                } else {
                    entry.fail(&failure);
                    entry.save(&*self.host);
                    // The CA answers.
                    round.attempts = Attempts::default();
                }
                let due = round.due_s(&round.entries[at]);
                let minutes = ((due - now_s()).max(0) + 59) / 60;
                self.host.log(&format!(
                    "warning: ACME: no certificate for {name}: {}; the next try is in {minutes} min",
                    failure.why
                ));
            }
        }
        Ok(())
    }

    /// Waits for an order; breaks it off, and returns `None`, when a configuration comes that wants it no more.
    async fn unless_unwanted(
        &mut self,
        wanted: &Wanted,
        name: &WantedName,
        mut ordering: tokio::task::JoinHandle<Result<String, Failure>>,
    ) -> Result<Option<Result<String, Failure>>, Stopped> {
        let mut receiver = self.wanted.clone();
        let result = loop {
            tokio::select! {
                ended = &mut ordering => break Some(match ended {
                    Ok(result) => result,
                    Err(_) => Err(Failure::of_name("the order ended by an error of Hairpin's own")),
                }),
                changed = receiver.changed() => {
                    if changed.is_err() {
                        ordering.abort();
                        return Err(Stopped);
                    }
                    let new = Arc::clone(&receiver.borrow_and_update());
                    if new.authority != wanted.authority || new.state != wanted.state || !new.names.contains(name) {
                        ordering.abort();
                        break None;
                    }
                }
            }
        };
        // Answers are withdrawn, whatever came of it; that is not waited for.
        self.host.answer(Vec::new(), oneshot::channel().0);
        Ok(result)
    }

    /// Puts chain and key into their file.
    fn keep(&self, entry: &mut Entry, pem: &str) -> Result<(), Failure> {
        let check = |file: &Path| self.host.check(file).map_err(anyhow::Error::msg);
        let written = state::write(&entry.file, pem.as_bytes(), check);
        written.map_err(|error| Failure::of_name(format!("the certificate cannot be used: {error:#}")))?;
        entry.held = read_certificate(&entry.file, &*self.host).unwrap_or_default();
        let now = now_s();
        entry.attempts = Attempts { last_s: now, obtained_s: now, ..Attempts::default() };
        (entry.window, entry.ask_s) = (None, 0);
        Ok(())
    }

    /// Asks the CA when it wants the next certificate renewed whose turn it is. Whether one was asked for.
    async fn ask(&mut self, round: &mut Round, now: i64) -> Result<bool, Stopped> {
        let is_due = |entry: &&mut Entry| entry.ask_s <= now;
        let authority = round.authority().clone();
        let Some(entry) = round.entries.iter_mut().filter(is_due).find(|entry| entry.held.is_some()) else {
            return Ok(false);
        };
        let identifier = entry.held.as_ref().and_then(|held| held.identifier.clone());
        let asked = identifier.map(|identifier| window(&authority, &round.directory, identifier));
        let answer = match asked {
            Some(asked) => {
                let mut receiver = self.wanted.clone();
                tokio::select! {
                    answer = timeout(ORDER_TIMEOUT, asked) => answer.ok().and_then(Result::ok).flatten(),
                    _ = receiver.changed() => return Ok(false),
                }
            }
            None => None,
        };
        match answer {
            Some((window, again_s)) => {
                entry.window = Some(window);
                entry.ask_s = now + again_s.clamp(*ASK_EVERY_S.start(), *ASK_EVERY_S.end());
            }
            None => entry.ask_s = now + ASK_AGAIN_S,
        }
        Ok(true)
    }

    fn change(&self, change: impl FnOnce(&mut AcmeReading)) {
        change(&mut self.reading.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Shows others what is known. `ordering`: the entry that is being ordered.
    fn publish(&self, round: &Round, ordering: Option<usize>) {
        let name = |(at, entry): (usize, &Entry)| NameReading {
            name: entry.wanted.name.clone(),
            challenge: entry.wanted.challenge,
            state: if ordering == Some(at) { NameState::Ordering } else { entry.state() },
            until_unix_s: entry.held.as_ref().map(|held| held.validity.until_s),
            next_unix_s: round.due_s(entry),
            failures: entry.attempts.failures,
            error: entry.attempts.error.clone(),
        };
        let reading = AcmeReading {
            directory: round.authority().directory.clone(),
            account: account::url(&round.directory),
            error: round.attempts.error.clone(),
            obtained: self.counts.0,
            failed: self.counts.1,
            names: round.entries.iter().enumerate().map(name).collect(),
        };
        self.change(|shown| *shown = reading);
    }
}

/// One order, within its time.
async fn order(wanted: Arc<Wanted>, host: Arc<dyn Host>, wish: Wish) -> Result<String, Failure> {
    let obtain = || order_once(Arc::clone(&wanted), Arc::clone(&host), wish.clone());
    let forget = || {
        host.log("warning: ACME: the CA does not know the account (any more); another one is made");
        account::set_aside(&state::of_authority(&wanted.state, &wanted.authority))
    };
    match timeout(ORDER_TIMEOUT, begun_again(obtain, forget)).await {
        Ok(result) => result,
        Err(_) => Err(Failure::of_name(format!("the order took longer than {} s", ORDER_TIMEOUT.as_secs()))),
    }
}

/// The name of an order, and the certificate that it replaces.
type Wish = (WantedName, Option<CertificateIdentifier<'static>>);

async fn order_once(wanted: Arc<Wanted>, host: Arc<dyn Host>, (name, replaces): Wish) -> Result<String, Failure> {
    let of_authority = state::of_authority(&wanted.state, &wanted.authority);
    let broken = |error: anyhow::Error| Failure { is_of_authority: true, ..Failure::of_name(format!("{error:#}")) };
    let transport = Transport::new(&wanted.authority).map_err(broken)?;
    let (account, is_new) = account::open(&wanted.authority, &of_authority, &transport).await?;
    if is_new {
        host.log(&format!("ACME: made the account {}", account.id()));
    }
    Ordering { account, transport, name, replaces, host }.obtain().await
}

/// Begins an order again when the CA refuses its nonces, [`NONCE_TRIES`] times in all, and once when the CA does not know the
/// account, after `forget` has put that aside.
///
/// A CA whose servers do not share their nonces refuses some of them whatever the client does, and says so at once: a wait of
/// minutes helps neither side. A CA that has lost its accounts, or whose operator has removed this one, will not know it
/// tomorrow either.
async fn begun_again<T, F>(mut obtain: impl FnMut() -> F, forget: impl Fn() -> Result<()>) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let (mut tries, mut has_forgotten) = (1, false);
    loop {
        match obtain().await {
            Err(failure) if failure.again == Again::FreshNonce && tries < NONCE_TRIES => tries += 1,
            Err(failure) if failure.again == Again::NewAccount && !has_forgotten => {
                forget().map_err(|error| Failure { why: format!("{}; {error:#}", failure.why), ..failure })?;
                has_forgotten = true;
            }
            result => return result,
        }
    }
}

/// When the CA wants a certificate renewed, and in how many seconds it is to be asked again; `None`: it does not say.
async fn window(
    authority: &Authority,
    of_authority: &Path,
    identifier: CertificateIdentifier<'static>,
) -> Result<Option<((i64, i64), i64)>> {
    let transport = Transport::new(authority)?;
    let Some(account) = account::existing(authority, of_authority, &transport).await? else { return Ok(None) };
    match account.renewal_info(&identifier).await {
        Ok((info, again)) => {
            let window = info.suggested_window;
            Ok(Some(((window.start.unix_timestamp(), window.end.unix_timestamp()), again.as_secs() as i64)))
        }
        Err(Error::Unsupported(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of attempts at an order that fails `failures` times with `failure`, how often the account was put aside, and
    /// the result.
    fn tries(failures: u32, failure: &Failure) -> (u32, u32, Result<(), Failure>) {
        let (mut begun, forgotten) = (0, std::cell::Cell::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let obtain = || {
            begun += 1;
            std::future::ready(if begun <= failures { Err(failure.clone()) } else { Ok(()) })
        };
        let forget = || {
            forgotten.set(forgotten.get() + 1);
            Ok(())
        };
        let result = runtime.block_on(begun_again(obtain, forget));
        (begun, forgotten.get(), result)
    }

    #[test]
    fn order_is_begun_again_within_bounds() {
        let refused = Failure { again: Again::FreshNonce, ..Failure::of_name("badNonce") };
        assert_eq!(tries(2, &refused), (3, 0, Ok(())));
        assert_eq!(tries(u32::MAX, &refused), (NONCE_TRIES, 0, Err(refused)));
        let unknown = Failure { again: Again::NewAccount, ..Failure::of_name("accountDoesNotExist") };
        assert_eq!(tries(1, &unknown), (2, 1, Ok(())));
        assert_eq!(tries(u32::MAX, &unknown), (2, 1, Err(unknown)));
        let other = Failure::of_name("no route");
        assert_eq!(tries(1, &other), (1, 0, Err(other)));
    }
}
