//! The thread that asks: which name is due, what came of it, and who is told.

use super::entry::Entry;
use super::lookup::{Client, Outcome};
use super::store::{self, Stored};
use super::{Answers, Question, ResolverSettings};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Look-ups under way at a time; further names wait.
pub(crate) const IN_FLIGHT_MAX: usize = 16;
/// From one change that is told to the next, at least: what changes meanwhile is told with it.
pub(crate) const GATHER: Duration = Duration::from_secs(1);
/// How long a start, or a reload, waits for the first answers of names that have none.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// The thread wakes after so long at the latest.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The file with answers is written after so long, if an answer was confirmed since.
const STORE_EVERY: Duration = Duration::from_secs(600);
/// Commands that wait.
const COMMANDS_MAX: usize = 16;

/// What the thread tells; called from it, must not block.
pub(crate) trait NamesTold: Send + 'static {
    /// The answers are others now.
    fn changed(&self, answers: Arc<Answers>);
    /// People should know this.
    fn log(&self, message: &str);
}

/// How a name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameState {
    /// There was no answer yet.
    Waiting,
    /// The last look-up had an answer.
    Resolved,
    /// The last look-up failed: the answer before it holds.
    Stale,
    /// The name does not exist, or has no such records.
    Empty,
}

impl NameState {
    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            NameState::Waiting => "waiting",
            NameState::Resolved => "resolved",
            NameState::Stale => "stale",
            NameState::Empty => "empty",
        }
    }
}

/// How a name stands now.
#[derive(Clone, Debug)]
pub(crate) struct NameReading {
    pub(crate) question: Question,
    pub(crate) state: NameState,
    /// Addresses of the answer beyond `addresses_max`.
    pub(crate) left_out: usize,
    /// Until it is asked for again.
    pub(crate) wait: Duration,
    /// Since the answer was confirmed; `None`: this process has not asked yet, or in vain.
    pub(crate) age: Option<Duration>,
    pub(crate) failures: u32,
    /// Why the last look-up failed; empty if it did not.
    pub(crate) error: String,
}

/// What the thread has done, and how the names stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamesReading {
    pub(crate) servers: Vec<String>,
    /// Look-ups with addresses, without any, and without an answer.
    pub(crate) lookups: [u64; 3],
    pub(crate) names: Vec<NameReading>,
}

/// What is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    settings: ResolverSettings,
    instance: String,
    questions: Vec<Question>,
}

enum Command {
    /// Look these up from now on, and no others.
    Want(Wanted),
    /// Look these up too; once each has been tried, or after [`FIRST_PATIENCE`], hand over all answers.
    First(Wanted, Box<dyn FnOnce(Arc<Answers>) + Send>),
}

/// The thread. Dropping it breaks off what it does.
pub(crate) struct Names {
    commands: Option<mpsc::Sender<Command>>,
    reading: Arc<Mutex<NamesReading>>,
    thread: Option<JoinHandle<()>>,
}

impl Names {
    /// Starts the thread, which knows `answers` already.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(answers: &Answers, told: impl NamesTold) -> Result<Names> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let reading: Arc<Mutex<NamesReading>> = Arc::default();
        let shared = Arc::clone(&reading);
        let known = answers.clone();
        let body = move || {
            let resolver = Resolver::new(Box::new(told), shared, known);
            runtime.block_on(resolver.run(commands));
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("names".into()).spawn(body);
        Ok(Names { commands: Some(sender), reading, thread: Some(thread.context("cannot start a thread for names")?) })
    }

    /// Looks these up from now on, and no others.
    pub(crate) fn want(&self, settings: &ResolverSettings, instance: &str, questions: Vec<Question>) {
        let wanted = Wanted { settings: settings.clone(), instance: instance.to_string(), questions };
        self.send(Command::Want(wanted));
    }

    /// Looks these up too, and hands over all answers to `then` when each has been tried, or after [`FIRST_PATIENCE`].
    pub(crate) fn first(
        &self,
        settings: &ResolverSettings,
        instance: &str,
        questions: Vec<Question>,
        then: impl FnOnce(Arc<Answers>) + Send + 'static,
    ) {
        let wanted = Wanted { settings: settings.clone(), instance: instance.to_string(), questions };
        self.send(Command::First(wanted, Box::new(then)));
    }

    fn send(&self, command: Command) {
        // The thread reads commands at all times, so they do not pile up. One that finds no room is of a supervisor that sends
        // faster than a thread wakes; the next reload says it again.
        if let Some(commands) = &self.commands {
            let _ = commands.try_send(command);
        }
    }

    /// How the names stand.
    pub(crate) fn reading(&self) -> NamesReading {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Looks questions up on this thread, each once, for [`FIRST_PATIENCE`] at most: those that have an answer then.
///
/// # Errors
/// There is no runtime, or no resolver.
pub(crate) fn first(settings: &ResolverSettings, questions: &[Question]) -> Result<Answers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(async {
        let client = Arc::new(Client::new(settings)?);
        let (mut lookups, mut rest) = (JoinSet::new(), questions.iter().cloned());
        let mut answers = Answers::new();
        let deadline = tokio::time::Instant::now() + FIRST_PATIENCE;
        loop {
            while lookups.len() < IN_FLIGHT_MAX
                && let Some(question) = rest.next()
            {
                ask(&mut lookups, &client, question);
            }
            let Ok(Some(Ok((question, outcome)))) = tokio::time::timeout_at(deadline, lookups.join_next()).await else {
                return anyhow::Ok(answers);
            };
            let now = Instant::now();
            let mut entry = Entry::new(None, now);
            entry.note(outcome, settings, now);
            answers.extend(entry.found.map(|found| (question, found)));
        }
    });
    runtime.shutdown_background();
    answers
}

fn ask(lookups: &mut JoinSet<(Question, Outcome)>, client: &Arc<Client>, question: Question) {
    let client = Arc::clone(client);
    lookups.spawn(async move {
        let outcome = client.ask(&question).await;
        (question, outcome)
    });
}

/// A reload that waits for first answers.
struct Waiting {
    questions: Vec<Question>,
    until: Instant,
    then: Box<dyn FnOnce(Arc<Answers>) + Send>,
}

struct Resolver {
    told: Box<dyn NamesTold>,
    shared: Arc<Mutex<NamesReading>>,
    /// Answers that were known before their questions were asked.
    known: Answers,
    wanted: Option<Wanted>,
    client: Option<Arc<Client>>,
    /// Why there is no client.
    why_none: String,
    /// The state of `/etc/resolv.conf` and `/etc/hosts` that the client was made with.
    system: Vec<(PathBuf, Option<(u64, SystemTime)>)>,
    entries: BTreeMap<Question, Entry>,
    lookups: JoinSet<(Question, Outcome)>,
    counts: [u64; 3],
    is_changed: bool,
    last_told: Option<Instant>,
    last_stored: Instant,
    is_confirmed: bool,
    waiting: Vec<Waiting>,
}

impl Resolver {
    fn new(told: Box<dyn NamesTold>, shared: Arc<Mutex<NamesReading>>, known: Answers) -> Resolver {
        Resolver {
            told,
            shared,
            known,
            wanted: None,
            client: None,
            why_none: String::new(),
            system: Vec::new(),
            entries: BTreeMap::new(),
            lookups: JoinSet::new(),
            counts: [0; 3],
            is_changed: false,
            last_told: None,
            last_stored: Instant::now(),
            is_confirmed: false,
            waiting: Vec::new(),
        }
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            let now = Instant::now();
            self.begin_lookups(now);
            self.tell(now);
            self.publish(now);
            let wait = self.wait(now);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Want(wanted)) => self.want(wanted, true),
                    Some(Command::First(wanted, then)) => {
                        let (questions, until) = (wanted.questions.clone(), Instant::now() + FIRST_PATIENCE);
                        self.want(wanted, false);
                        self.waiting.push(Waiting { questions, until, then });
                    }
                    None => break,
                },
                Some(ended) = self.lookups.join_next() => {
                    // A look-up that panics is hickory's mistake; its name is asked for again.
                    match ended {
                        Ok((question, outcome)) => self.note(&question, outcome),
                        Err(_) => self.forget_lookups(),
                    }
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.store();
    }

    /// Has names asked for again that are being asked for.
    fn forget_lookups(&mut self) {
        let due = Instant::now() + LOOK_AGAIN;
        for entry in self.entries.values_mut().filter(|entry| entry.is_asked) {
            (entry.is_asked, entry.due) = (false, due);
        }
    }

    fn want(&mut self, wanted: Wanted, is_all: bool) {
        let now = Instant::now();
        if self.wanted.as_ref().is_none_or(|before| before.settings != wanted.settings) {
            self.client = None;
            self.entries.values_mut().for_each(|entry| entry.due = now);
        }
        if is_all {
            self.entries.retain(|question, _| wanted.questions.contains(question));
        }
        for question in &wanted.questions {
            let known = self.known.remove(question);
            self.entries.entry(question.clone()).or_insert_with(|| Entry::new(known, now));
        }
        self.wanted = Some(wanted);
    }

    fn begin_lookups(&mut self, now: Instant) {
        let Some(wanted) = &self.wanted else { return };
        let due = |entry: &Entry| !entry.is_asked && entry.due <= now;
        if self.entries.values().any(due) {
            let system = system_files(&wanted.settings);
            if self.client.is_none() || system != self.system {
                (self.client, self.why_none) = match Client::new(&wanted.settings) {
                    Ok(client) => (Some(Arc::new(client)), String::new()),
                    Err(error) => (None, format!("{error:#}")),
                };
                self.system = system;
            }
        }
        let settings = wanted.settings.clone();
        for (question, entry) in &mut self.entries {
            if entry.is_asked || entry.due > now {
                continue;
            }
            match &self.client {
                Some(_) if self.lookups.len() >= IN_FLIGHT_MAX => break,
                Some(client) => {
                    entry.is_asked = true;
                    ask(&mut self.lookups, client, question.clone());
                }
                None => {
                    self.counts[2] += 1;
                    entry.note(Outcome::Failed(self.why_none.clone()), &settings, now);
                }
            }
        }
    }

    fn note(&mut self, question: &Question, outcome: Outcome) {
        let which = match outcome {
            Outcome::Found { .. } => 0,
            Outcome::None { .. } => 1,
            Outcome::Failed(_) => 2,
        };
        self.counts[which] += 1;
        let (Some(wanted), Some(entry)) = (&self.wanted, self.entries.get_mut(question)) else { return };
        let (was_well, had_none) = (entry.failures == 0, entry.none_since.is_some());
        self.is_changed |= entry.note(outcome, &wanted.settings, Instant::now());
        self.is_confirmed |= entry.failures == 0;
        let (kind, name) = (question.kind(), &question.name);
        if was_well && entry.failures > 0 {
            let kept = if entry.found.is_some() { "the last answer is kept" } else { "it has no answer yet" };
            self.told.log(&format!("warning: name {name} ({kind}) cannot be looked up: {}; {kept}", entry.error));
        } else if !was_well && entry.failures == 0 {
            self.told.log(&format!("name {name} ({kind}) is answered again"));
        } else if !had_none && entry.none_since.is_some() {
            let hold = humantime::format_duration(wanted.settings.hold);
            self.told.log(&format!(
                "warning: name {name} does not exist, or has no {kind} records; this counts after {hold}"
            ));
        }
    }

    /// Tells what has changed, and hands over first answers.
    fn tell(&mut self, now: Instant) {
        if self.waiting.iter().any(|waiting| self.is_over(waiting, now)) {
            let answers = Arc::new(self.answers());
            for waiting in std::mem::take(&mut self.waiting) {
                match self.is_over(&waiting, now) {
                    true => (waiting.then)(Arc::clone(&answers)),
                    false => self.waiting.push(waiting),
                }
            }
        }
        if self.is_changed && self.may_tell(now) {
            (self.is_changed, self.last_told) = (false, Some(now));
            self.told.changed(Arc::new(self.answers()));
            self.store();
        }
        if self.is_confirmed && now >= self.last_stored + STORE_EVERY {
            self.store();
        }
    }

    fn is_over(&self, waiting: &Waiting, now: Instant) -> bool {
        let is_tried = |question: &Question| self.entries.get(question).is_none_or(|entry| entry.is_tried);
        now >= waiting.until || waiting.questions.iter().all(is_tried)
    }

    fn may_tell(&self, now: Instant) -> bool {
        self.last_told.is_none_or(|last| now >= last + GATHER)
    }

    fn wait(&self, now: Instant) -> Duration {
        let is_full = self.lookups.len() >= IN_FLIGHT_MAX;
        let due = self.entries.values().filter(|entry| !entry.is_asked && !is_full).map(|entry| entry.wait(now));
        let told =
            self.last_told.filter(|_| self.is_changed).map(|last| (last + GATHER).saturating_duration_since(now));
        let waiting = self.waiting.iter().map(|waiting| waiting.until.saturating_duration_since(now));
        due.chain(told).chain(waiting).min().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)
    }

    fn answers(&self) -> Answers {
        self.entries.iter().filter_map(|(question, entry)| Some((question.clone(), entry.found.clone()?))).collect()
    }

    fn store(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let now = Instant::now();
        let (mut confirmed, mut others) = (Vec::new(), Vec::new());
        for (question, entry) in &self.entries {
            match (&entry.found, entry.confirmed) {
                (Some(found), Some(at)) => {
                    confirmed.push(Stored::new(question, found, now.saturating_duration_since(at)));
                }
                _ => others.push(question),
            }
        }
        if let Err(error) = store::save(&wanted.settings, &wanted.instance, confirmed, &others) {
            self.told.log(&format!("warning: {error:#}; a restart begins without answers for names"));
        }
        (self.last_stored, self.is_confirmed) = (now, false);
    }

    fn publish(&self, now: Instant) {
        let reading = |(question, entry): (&Question, &Entry)| NameReading {
            question: question.clone(),
            state: match &entry.found {
                None => NameState::Waiting,
                Some(_) if entry.failures > 0 => NameState::Stale,
                Some(found) if found.is_empty() => NameState::Empty,
                Some(_) => NameState::Resolved,
            },
            left_out: entry.left_out,
            wait: entry.wait(now),
            age: entry.confirmed.map(|confirmed| now.saturating_duration_since(confirmed)),
            failures: entry.failures,
            error: entry.error.clone(),
        };
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = NamesReading {
            servers: self.client.as_ref().map(|client| client.servers.clone()).unwrap_or_default(),
            lookups: self.counts,
            names: self.entries.iter().map(reading).collect(),
        };
    }
}

/// When the system's files about names were written, if these are what is gone by: they change without a reload.
fn system_files(settings: &ResolverSettings) -> Vec<(PathBuf, Option<(u64, SystemTime)>)> {
    if !settings.servers.is_empty() {
        return Vec::new();
    }
    let written = |path: &str| {
        let facts = std::fs::metadata(path).ok();
        (PathBuf::from(path), facts.and_then(|facts| Some((facts.ino(), facts.modified().ok()?))))
    };
    ["/etc/resolv.conf", "/etc/hosts"].map(written).to_vec()
}
