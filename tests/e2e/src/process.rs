//! Programs that run beside us and are ended, by their own process id, when their guard is dropped.

use crate::{cleanup, command};
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may take to end after it has been asked to.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// `usual`, times `HAIRPIN_PATIENCE` (1 unless set, 1 to 100): emulated machines need longer for what programs do.
pub fn patience(usual: Duration) -> Duration {
    static TIMES: OnceLock<u32> = OnceLock::new();
    let told = || std::env::var("HAIRPIN_PATIENCE").ok().and_then(|text| text.parse().ok());
    usual * (*TIMES.get_or_init(|| told().unwrap_or(1).clamp(1, 100)))
}

/// A running program. Dropping it asks it to end (SIGTERM), then kills it.
#[derive(Debug)]
pub struct Process {
    id: u32,
    line: String,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` in a process group of its own (so that a terminal's Ctrl-C reaches us first), with its output
    /// in the file `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Process> {
        let line = command::display(&command);
        let file = File::create(log).with_context(|| format!("could not create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().with_context(|| format!("could not start `{line}` (scripts/install-deps)"))?;
        cleanup::add_process(child.id());
        Ok(Process { id: child.id(), line, log: log.to_path_buf(), ended: None })
    }

    /// Takes over the guard of a program that another one of ours has started and that outlives it: it becomes a child
    /// of this process when its parent ends, if [`Process::inherit_orphans`] was called before. Its output goes where its
    /// parent's did, to `log`.
    pub fn adopt(id: u32, line: &str, log: &Path) -> Process {
        cleanup::add_process(id);
        Process { id, line: line.to_owned(), log: log.to_path_buf(), ended: None }
    }

    /// From now on orphans among the descendants of this process become its children.
    pub fn inherit_orphans() -> Result<()> {
        nix::sys::prctl::set_child_subreaper(true).context("could not become the reaper of orphans")
    }

    /// The file of its output.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The command line it was started with.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its exit status, if it has ended.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        cleanup::stand_still_if_ending();
        if self.ended.is_none() {
            self.ended = self.reap()?;
            if self.ended.is_some() {
                cleanup::remove_process(self.id);
            }
        }
        Ok(self.ended)
    }

    fn reap(&self) -> Result<Option<ExitStatus>> {
        // A raw status as wait(2) gives it: the exit status in the second byte, a signal in the first.
        match waitpid(Pid::from_raw(self.id as i32), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => Ok(Some(ExitStatus::from_raw(code << 8))),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Some(ExitStatus::from_raw(signal as i32))),
            Ok(_) => Ok(None),
            // An orphan whose parent has not ended yet.
            Err(Errno::ECHILD) if Path::new(&format!("/proc/{}", self.id)).exists() => Ok(None),
            Err(error) => Err(error).with_context(|| format!("`{}` (process {}) is not there", self.line, self.id)),
        }
    }

    /// Fails, with what it printed, if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.status()? {
            None => Ok(()),
            Some(status) => bail!("`{}` ended ({status}):\n{}", self.line, self.log()),
        }
    }

    /// Waits until `ready` says yes; fails if the program ends first or `timeout` passes.
    pub fn wait_until(&mut self, timeout: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            self.check()?;
            if start.elapsed() > timeout {
                bail!("`{}` was not ready after {timeout:?}:\n{}", self.line, self.log());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for its end, at most `timeout`; it is killed and an error returned when that passes.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            if start.elapsed() > timeout {
                self.signal(Signal::SIGKILL);
                bail!("`{}` did not end within {timeout:?}:\n{}", self.line, self.log());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Sends it a signal, if it is still there.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(Pid::from_raw(self.id as i32), signal);
        }
    }

    /// Sends a signal to it and what it has started in its process group, if it is still there.
    pub fn signal_group(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = killpg(Pid::from_raw(self.id as i32), signal);
        }
    }

    /// Has it stand still until SIGCONT, and waits, at most `timeout`, until all of its threads do: they are told by the
    /// one that takes the signal, when that gets its turn.
    pub fn pause(&mut self, timeout: Duration) -> Result<()> {
        self.signal(Signal::SIGSTOP);
        let id = self.id;
        self.wait_until(timeout, || {
            threads(id).is_ok_and(|all| all.iter().all(|status| status.contains("\nState:\tT")))
        })
    }

    /// Asks it to end and waits for that; kills it if it does not within ten seconds.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.status()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM);
        // One that stands still would not hear it.
        self.signal_group(Signal::SIGCONT);
        self.wait(patience(END_TIMEOUT))
    }

    /// Memory of it that is resident, with what it shares, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/smaps_rollup", self.id);
        let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.map(|kilobytes| kilobytes * 1024).with_context(|| format!("{path} has an unknown form"))
    }

    /// Memory of it that is resident, in bytes: what it has mapped twice counts once, and memory of the kernel's maps, which it
    /// shares, does not count.
    pub fn own_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/smaps", self.id);
        let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
        let (mut of_kernel, mut kilobytes) = (false, None);
        for line in text.lines() {
            if let Some(size) = line.strip_prefix("Pss:") {
                let size: u64 = size.trim().trim_end_matches(" kB").parse()?;
                *kilobytes.get_or_insert(0) += if of_kernel { 0 } else { size };
            } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                of_kernel = line.contains("anon_inode:bpf-map");
            }
        }
        kilobytes.map(|kilobytes: u64| kilobytes * 1024).with_context(|| format!("{path} has an unknown form"))
    }

    /// How many file descriptors it has open.
    pub fn descriptors(&self) -> Result<usize> {
        let path = format!("/proc/{}/fd", self.id);
        Ok(std::fs::read_dir(&path).with_context(|| format!("could not read {path}"))?.count())
    }

    /// Processor time it has used so far, user and system, all threads, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.id);
        let stat = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
        // The name, in parentheses, may hold anything; fields 14 and 15 (proc(5)) are counted from behind it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).with_context(|| format!("{path} has an unknown form"))?;
        Ok((user + system) as f64 / CLOCK_TICKS_PER_SECOND)
    }
}

/// The entry in /proc of each thread of a process (its `status`). A thread may end while they are read: it is left out.
pub fn threads(process: u32) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        match std::fs::read_to_string(task?.path().join("status")) {
            Ok(status) => all.push(status),
            // Not there any more when it was opened, or when it was read.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            Err(error) => return Err(error).context("could not read a thread's status"),
        }
    }
    Ok(all)
}

/// USER_HZ of every Linux architecture Rust supports as a host.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("{error:#}");
        }
        if self.ended.is_none() {
            self.signal(Signal::SIGKILL);
            let _ = waitpid(Pid::from_raw(self.id as i32), None);
        }
        cleanup::remove_process(self.id);
    }
}
