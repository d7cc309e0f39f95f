//! A process that this one starts, but that is not its child.
//!
//! systemd waits for a main process, and for its end, only if that is a child of its own. So a process that takes over
//! must belong to PID 1 before it says that it is the main process. A process gets another parent only by the end of the
//! one it has: this program is started once more, starts the other one, passes a descriptor of it on, and ends.

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The option that tells a new process to give up connections of HTTP and TLS services. Earlier versions do not know it.
const RESET_HTTP: &str = "--reset-http";

/// How long a killed process may take to end.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A process by a descriptor, which means no other process even when its number is given again.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pub(crate) pid: u32,
    handle: OwnedFd,
}

impl ProcessHandle {
    pub(crate) fn new(pid: u32, handle: OwnedFd) -> ProcessHandle {
        ProcessHandle { pid, handle }
    }

    /// A child that has not been waited for.
    pub(crate) fn of(child: &Child) -> Result<ProcessHandle> {
        let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).context("cannot refer to a process")?;
        Ok(ProcessHandle { pid: child.id(), handle })
    }

    /// This process.
    pub(crate) fn own() -> Result<ProcessHandle> {
        let handle =
            pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).context("cannot refer to this process")?;
        Ok(ProcessHandle { pid: std::process::id(), handle })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Asks it to end in order. One that has ended already is not there to be asked.
    pub(crate) fn tell_to_end(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::TERM);
    }

    /// Kills it and waits until it has ended.
    pub(crate) fn end(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        let _ = self.ends_within(END_PATIENCE);
    }

    /// Whether it ends within that time, which is waited for.
    pub(crate) fn ends_within(&self, patience: Duration) -> bool {
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        // The descriptor of a process can be read from when that has ended.
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        matches!(poll(&mut ended, Some(&patience)), Ok(1..))
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Starts the first of the two processes; `theirs` becomes the standard input of both. `file` is the configuration, and
/// with `reset_http` the second gives up connections of HTTP and TLS services.
pub(crate) fn starter(program: &Path, file: &Path, reset_http: bool, theirs: UnixStream) -> Result<Child> {
    // The file this process runs, also when another one of its name has taken its place.
    let mut command = Command::new("/proc/self/exe");
    command.arg("run").arg("--config").arg(file).arg("--take-over").arg("--as-orphan").arg(program);
    if reset_http {
        command.arg(RESET_HTTP);
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    command.spawn().context("cannot start this program once more")
}

/// The work of that process: it starts `program` on the configuration `file`, to take over, and tells the process at the
/// standard input which one it is.
pub(crate) fn start(program: &Path, file: &Path, reset_http: bool) -> Result<()> {
    let input = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use the standard input")?;
    let stream = UnixStream::from(input);
    stream.peer_addr().context("`--as-orphan` is for `hairpin upgrade`, which starts this process itself")?;
    let mut command = Command::new(program);
    command.arg("run").arg("--config").arg(file).arg("--take-over");
    if reset_http {
        command.arg(RESET_HTTP);
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    announce(&stream, &child).inspect_err(|_| {
        let _ = child.kill();
    })
}

fn announce(stream: &UnixStream, child: &Child) -> Result<()> {
    let process = ProcessHandle::of(child)?;
    let descriptors = [process.handle.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "no space for a descriptor");
    let text = format!("{}\n", process.pid);
    let sent = sendmsg(stream, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::empty())
        .context("cannot pass a process on")?;
    ensure!(sent == text.len(), "a process was passed on in part only");
    Ok(())
}

/// Waits for a child's end, for `patience` at most, and looks after it every `step`; `meanwhile` is called each time.
/// `None`: it took too long and was killed.
pub(crate) fn await_child(
    child: &mut Child,
    (patience, step): (Duration, Duration),
    meanwhile: impl Fn(),
) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        meanwhile();
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() < deadline => std::thread::sleep(step),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
        }
    }
}

/// Why this process cannot hand over, if it cannot.
pub(crate) fn require_no_init() -> Result<()> {
    if rustix::process::getpid().is_init() {
        bail!(
            "this process is PID 1 of its PID namespace, as in a container: with it the kernel ends every other process \
             there, a new one too. To run another version, restart the container: offloaded connections go on, and the \
             next process adopts all of them where the control directory, the memory directory and the pin directory \
             outlive the container"
        );
    }
    Ok(())
}
