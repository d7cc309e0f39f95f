//! How one process hands over to another: the old one starts the new one, which is not its child (see `orphan`), and they
//! talk over the socket that is the new one's standard input.
//!
//! The new process prepares everything that takes time and says `ready`. The old one ends its workers and sends the
//! lock, the workers' devices and the listening sockets; frames and clients that arrive meanwhile wait in them. The new
//! one takes over the connections and says `serving`. Until then the old one can go on: it keeps its own descriptors,
//! and what lies in shared memory is whole at any instant.
//!
//! The old one says `yours`: from here on it does not go on. The new one tells the service manager that it is the main
//! process, and closes the socket; only then the old one ends. (systemd ends a service whose main process ends before it
//! has heard of another one.)

use super::descriptors;
use super::generations::{Generation, Generations};
use super::instance::Lock;
use super::orphan::{self, ProcessHandle};
use crate::control::Upgrade;
use crate::health::Saved;
use crate::status::DrainingStatus;
use anyhow::{Context, Result, bail, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a new process may take to prepare, and to take over.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);
/// How long a new process may take to tell the service manager that it is the main process; more than `notify` waits.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// How long one step of waiting takes.
const STEP: Duration = Duration::from_millis(50);
/// How long one look at a program that validates, or starts another one, is after another.
const STARTER_STEP: Duration = Duration::from_millis(5);
/// Bytes that are passed on of what such a program says, at most. (It may say more than a pipe holds only by hanging.)
const SAID_BYTES_MAX: u64 = 16 << 10;
/// The longest word, in bytes. A reason for declining has a sentence or two.
const WORD_BYTES_MAX: usize = 4096;
/// Prefix of the word by which the new process declines; the reason follows.
const DECLINES: &str = "no: ";
/// By this the old process gives up for good.
const COMMITTED: &[u8] = b"yours\n";
/// Bytes of a message at most: states of 16,384 backends take 4 MB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The message from the old process to the new one, beside descriptors.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Legacy {
    /// The devices, in the order of their descriptors.
    pub(crate) taps: Vec<String>,
    /// The health of the backends.
    pub(crate) health: Vec<Saved>,
    /// The listening sockets, in the order of their descriptors, which follow this message; unknown of earlier
    /// versions.
    #[serde(default)]
    pub(crate) listeners: Vec<String>,
    /// The processes that drain since earlier hand-overs and this one, in the order of their descriptors, which come last;
    /// unknown of earlier versions.
    #[serde(default)]
    pub(crate) draining: Vec<DrainingStatus>,
}

/// The new process as the old one sees it.
pub(crate) struct Successor {
    process: ProcessHandle,
    talk: Talk,
}

/// The old process's end of the socket.
struct Talk {
    stream: UnixStream,
    /// Messages of new processes received before this one was identified.
    early: VecDeque<u8>,
}

impl Successor {
    /// Starts the program, or the one that this process runs, on the configuration `file`, if it finds that file right.
    /// `meanwhile` is called now and then. The new process belongs to PID 1 then.
    pub(crate) fn start(how: &Upgrade, file: &Path, meanwhile: impl Fn()) -> Result<Successor> {
        orphan::require_no_init()?;
        let program = match &how.program {
            Some(program) => program.clone(),
            None => own_program()?,
        };
        validate(&program, file, &meanwhile)?;
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
        ours.set_read_timeout(Some(STEP))?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let mut starter = orphan::starter(&program, file, how.reset_http, theirs)?;
        match orphan::await_child(&mut starter, (PATIENCE, STARTER_STEP), meanwhile)? {
            Some(status) if status.success() => {}
            Some(status) => bail!("cannot start {} ({status}); what it printed says why", program.display()),
            None => bail!("starting {} took longer than {} s", program.display(), PATIENCE.as_secs()),
        }
        let mut talk = Talk { stream: ours, early: VecDeque::new() };
        let process = talk.process().with_context(|| format!("cannot see which process is {}", program.display()))?;
        Ok(Successor { process, talk })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Waits until it says `word`; `meanwhile` is called now and then.
    ///
    /// # Errors
    /// It ended, said something else, or took too long; it is ended then.
    pub(crate) fn await_word(&mut self, word: &str, meanwhile: impl Fn()) -> Result<()> {
        let result = match self.talk.word(PATIENCE, meanwhile) {
            Ok(Some(said)) if said == word.as_bytes() => Ok(()),
            Ok(Some(said)) if said.starts_with(DECLINES.as_bytes()) => {
                Err(anyhow::anyhow!("{}", String::from_utf8_lossy(&said[DECLINES.len()..])))
            }
            Ok(Some(said)) => Err(anyhow::anyhow!("it says {:?}, not `{word}`", String::from_utf8_lossy(&said))),
            Ok(None) => Err(anyhow::anyhow!("it ended; what it printed says why")),
            Err(error) => Err(error.context(format!("it has not said `{word}`"))),
        };
        result.inspect_err(|_| self.end())
    }

    /// Leaves everything to it for good, and waits until the service manager knows.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn commit(&mut self, meanwhile: impl Fn()) -> Result<()> {
        // One that is gone is seen below; one of an earlier version does not wait for this.
        let _ = self.talk.stream.write_all(COMMITTED);
        // It says nothing more. If it takes too long to close the socket, it serves all the same.
        let _ = self.talk.word(COMMIT_PATIENCE, meanwhile);
        ensure!(!self.process.has_ended(), "process {} ended as soon as it had taken over", self.process.pid);
        Ok(())
    }

    /// Passes everything on. A process of an earlier version leaves `listeners` or `draining` unread.
    pub(crate) fn bequeath(
        &mut self,
        lock: &Lock,
        taps: &[OwnedFd],
        listeners: &[(String, BorrowedFd<'_>)],
        draining: &[&Generation],
        mut legacy: Legacy,
    ) -> Result<()> {
        legacy.listeners = listeners.iter().map(|(name, _)| name.clone()).collect();
        legacy.draining = draining.iter().map(|generation| generation.told()).collect();
        let text = serde_json::to_vec(&legacy)?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![lock.as_fd()];
        descriptors.extend(taps.iter().map(AsFd::as_fd));
        let length = (text.len() as u64).to_le_bytes();
        descriptors::send(&self.talk.stream, &length, &descriptors).context("cannot pass the workers' devices on")?;
        self.talk.stream.write_all(&text).context("cannot pass states on")?;
        let listeners: Vec<BorrowedFd<'_>> = listeners.iter().map(|(_, descriptor)| *descriptor).collect();
        descriptors::send_all(&self.talk.stream, &listeners).context("cannot pass the listening sockets on")?;
        let draining: Vec<BorrowedFd<'_>> = draining.iter().flat_map(|generation| generation.descriptors()).collect();
        descriptors::send_all(&self.talk.stream, &draining).context("cannot pass draining processes on")
    }

    /// Ends it.
    pub(crate) fn end(&mut self) {
        self.process.end();
    }
}

impl Talk {
    /// Which process the new one is, as the one that has started it said before it ended.
    fn process(&mut self) -> Result<ProcessHandle> {
        loop {
            let (byte, handle) = self.receive()?.context("it is gone")?;
            let Some(handle) = handle else {
                self.early.push_back(byte);
                ensure!(self.early.len() <= WORD_BYTES_MAX, "it talks too much");
                continue;
            };
            // The other messages of the same process lie together.
            let mut text = vec![byte];
            while let Some((byte, _)) = self.receive()?
                && byte != b'\n'
            {
                text.push(byte);
            }
            let pid = std::str::from_utf8(&text)?.parse().context("its number makes no sense")?;
            return Ok(ProcessHandle::new(pid, handle));
        }
    }

    /// A line; `None` when the socket was closed.
    ///
    /// # Errors
    /// It took too long, or was too long.
    fn word(&mut self, patience: Duration, meanwhile: impl Fn()) -> Result<Option<Vec<u8>>> {
        let mut said = Vec::new();
        let deadline = Instant::now() + patience;
        loop {
            meanwhile();
            ensure!(Instant::now() <= deadline, "{} s have passed", patience.as_secs());
            let byte = match self.early.pop_front() {
                Some(byte) => Some(byte),
                None => match self.receive() {
                    Ok(received) => received.map(|(byte, _)| byte),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            match byte {
                None => return Ok(None),
                Some(b'\n') => return Ok(Some(said)),
                Some(_) if said.len() >= WORD_BYTES_MAX => return Ok(Some(said)),
                Some(byte) => said.push(byte),
            }
        }
    }

    /// A byte, with the descriptor that came with it; `None` when the socket was closed.
    fn receive(&mut self) -> std::io::Result<Option<(u8, Option<OwnedFd>)>> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut byte)];
        let received = match recvmsg(&self.stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        let mut passed = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                passed = descriptors.last();
            }
        }
        Ok((received.bytes > 0).then_some((byte[0], passed)))
    }
}

/// Lets `program` say what it thinks of the configuration, in words that reach who asked for the upgrade.
fn validate(program: &Path, file: &Path, meanwhile: impl Fn()) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("validate").arg("--config").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let Some(status) = orphan::await_child(&mut child, (PATIENCE, STARTER_STEP), meanwhile)? else {
        bail!("{} takes too long to look at {}", program.display(), file.display());
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(SAID_BYTES_MAX).read_to_string(&mut said);
    }
    bail!("{} does not accept {} ({status}): {}", program.display(), file.display(), said.trim_end())
}

/// The file this process was started from; another one of the same name may have taken its place since.
fn own_program() -> Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe").context("cannot see which program this is")?;
    let text = path.to_string_lossy();
    Ok(PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text)))
}

/// The old process as the new one sees it.
pub(crate) struct Predecessor {
    stream: UnixStream,
}

/// The state that the old process has passed on.
pub(crate) struct Inheritance {
    /// The instance's lock.
    pub(crate) lock: Lock,
    /// The workers' devices.
    pub(crate) taps: Vec<(String, OwnedFd)>,
    /// The listening sockets.
    pub(crate) listeners: Vec<(String, OwnedFd)>,
    /// The processes that drain.
    pub(crate) generations: Generations,
    /// The rest.
    pub(crate) legacy: Legacy,
}

impl Predecessor {
    /// The process that has started this one.
    pub(crate) fn find() -> Result<Predecessor> {
        let stdin = std::io::stdin();
        let copy = stdin.as_fd().try_clone_to_owned().context("cannot use the standard input")?;
        let stream = UnixStream::from(copy);
        stream.peer_addr().context("`--take-over` is for `hairpin upgrade`, which starts this process itself")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Predecessor { stream })
    }

    /// Says a word.
    pub(crate) fn say(&mut self, word: &str) -> Result<()> {
        self.stream.write_all(format!("{word}\n").as_bytes()).context("the old process is gone")
    }

    /// Says why this process cannot take over.
    pub(crate) fn decline(&mut self, why: &anyhow::Error) {
        let text: String = format!("{DECLINES}{why:#}").replace('\n', " ").chars().take(WORD_BYTES_MAX / 4).collect();
        // The write fails if the old process has ended; then there is no process to tell.
        let _ = self.say(&text);
    }

    /// Waits until the old process has given up for good. One that says nothing has ended, or will not go on either: it
    /// would have ended this process.
    pub(crate) fn await_commitment(&mut self) {
        let mut word = [0; COMMITTED.len()];
        let _ = self.stream.read_exact(&mut word);
    }

    /// Lets the old process end. The socket is the standard input as well, so that closing this copy alone would do
    /// nothing.
    pub(crate) fn release(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Takes what is passed on.
    pub(crate) fn inherit(&mut self, socket: &Path) -> Result<Inheritance> {
        let mut length = [0; 8];
        let passed = descriptors::receive(&self.stream, &mut length)?;
        let length = u64::from_le_bytes(length) as usize;
        ensure!(length <= MESSAGE_BYTES_MAX, "the old process passes {length} bytes on, which makes no sense");
        let mut text = vec![0; length];
        self.stream.read_exact(&mut text).context("the old process does not hand over")?;
        let legacy: Legacy = serde_json::from_slice(&text).context("what the old process passes on makes no sense")?;
        if passed.len() != legacy.taps.len() + 1 {
            bail!("the old process passes {} descriptors on for {} devices", passed.len(), legacy.taps.len());
        }
        let listeners = descriptors::receive_all(&self.stream, legacy.listeners.len())
            .context("the old process does not pass its listening sockets on")?;
        let draining = Generations::descriptors_of(legacy.draining.len());
        let draining = descriptors::receive_all(&self.stream, draining)
            .context("the old process does not pass draining processes on")?;
        let generations = Generations::inherited(&legacy.draining, draining);
        let mut passed = passed.into_iter();
        let lock = passed.next().context("the old process passes no lock on")?;
        let lock = Lock::received(lock, socket)?;
        let named = |names: &[String], all: &mut dyn Iterator<Item = OwnedFd>| names.iter().cloned().zip(all).collect();
        let taps = named(&legacy.taps, &mut passed);
        let listeners = named(&legacy.listeners, &mut listeners.into_iter());
        Ok(Inheritance { lock, taps, listeners, generations, legacy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Child;

    fn successor(ours: UnixStream) -> (Successor, Child) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let talk = Talk { stream: ours, early: VecDeque::new() };
        (Successor { process: ProcessHandle::of(&child).unwrap(), talk }, child)
    }

    #[test]
    fn lock_devices_and_states_arrive() {
        let directory = std::env::temp_dir().join(format!("hairpin-handover-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("i.sock");
        let lock = Lock::take(&socket).unwrap().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(STEP)).unwrap();
        let (mut successor, mut child) = successor(ours);
        let mut predecessor = Predecessor { stream: theirs };
        predecessor.say("ready").unwrap();
        successor.await_word("ready", || {}).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let legacy = Legacy { taps: vec!["hp-i-0".into()], ..Legacy::default() };
        // More than one message takes.
        let (other, mut written) = std::io::pipe().unwrap();
        let copies: Vec<_> = (0..300).map(|_| other.try_clone().unwrap()).collect();
        let listeners: Vec<_> =
            (0..300).map(|n| format!("192.0.2.1:443/{n}")).zip(copies.iter().map(AsFd::as_fd)).collect();
        let (own, mut reporter) = Generation::own(7, Duration::from_secs(60)).unwrap();
        successor.bequeath(&lock, &[reader.into()], &listeners, &[&own], legacy).unwrap();
        let inherited = predecessor.inherit(&socket).unwrap();
        assert_eq!((&*inherited.taps[0].0, inherited.taps.len()), ("hp-i-0", 1));
        assert_eq!((&*inherited.listeners[299].0, inherited.listeners.len()), ("192.0.2.1:443/299", 300));
        for (_, descriptor) in inherited.listeners {
            written.write_all(b"y").unwrap();
            let mut byte = [0];
            std::fs::File::from(descriptor).read_exact(&mut byte).unwrap();
        }
        let mut generations = inherited.generations;
        reporter.tell(6);
        generations.read();
        let told = generations.statuses();
        assert_eq!((told[0].pid, told[0].connections, told.len()), (std::process::id(), 6, 1));
        writer.write_all(b"x").unwrap();
        let mut byte = [0];
        let mut device = std::fs::File::from(inherited.taps.into_iter().next().unwrap().1);
        device.read_exact(&mut byte).unwrap();
        // The lock is held until both have released it.
        drop(lock);
        assert!(Lock::take(&socket).unwrap().is_err());
        inherited.lock.remove();
        assert!(Lock::take(&socket).unwrap().is_ok());
        std::fs::remove_dir_all(&directory).unwrap();
        predecessor.release();
        assert!(successor.commit(|| {}).is_ok(), "the socket was closed by one that lives");
        successor.end();
        assert!(successor.process.has_ended());
        child.wait().unwrap();
    }

    #[test]
    fn process_that_passes_no_listeners_is_understood() {
        let legacy: Legacy = serde_json::from_str("{\"taps\": [\"hp-i-0\"], \"health\": []}").unwrap();
        assert_eq!((legacy.taps.len(), legacy.listeners.len(), legacy.draining.len()), (1, 0, 0));
    }

    #[test]
    fn successor_that_ends_or_misspeaks_is_an_error() {
        for (words, expected) in [("", "it ended"), ("no\n", "it says \"no\""), ("no: too old\n", "too old")] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(STEP)).unwrap();
            theirs.write_all(words.as_bytes()).unwrap();
            drop(theirs);
            let (mut successor, mut child) = successor(ours);
            let error = successor.await_word("ready", || {}).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            child.wait().unwrap();
        }
    }
}
