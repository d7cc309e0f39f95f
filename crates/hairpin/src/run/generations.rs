//! Generations of the process: those that have handed over, and still serve connections that they have of services whose
//! TLS or HTTP/2 ends here.
//!
//! Such a process drains. The one that serves now has two descriptors of it: of the process itself, by which it is ended, and
//! of a socket, over which it tells what it has left. Both go on to the next process with each hand-over, so that the one
//! that serves always knows all of them. A process that ends without a hand-over and without a word leaves those before it
//! to their own limit.

use super::orphan::ProcessHandle;
use super::tell;
use crate::events::EventKind;
use crate::status::DrainingStatus;
use anyhow::{Context, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Processes that drain at a time, at most: one more, and the oldest is ended.
pub(crate) const GENERATIONS_MAX: usize = 2;
/// How long processes that are told to end may take before they are killed.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(3);
/// Descriptors that are passed on for each.
const DESCRIPTORS: usize = 2;
/// Bytes of what such a process tells, at most.
const REPORT_BYTES_MAX: usize = 512;

/// A process that has handed over.
#[derive(Debug)]
pub(crate) struct Generation {
    process: ProcessHandle,
    reports: OwnedFd,
    /// As it told last.
    told: DrainingStatus,
}

impl Generation {
    /// This process, about to hand over and to drain for `limit` at most, and what it tells its successors by.
    ///
    /// # Errors
    /// It may have no more open files.
    pub(crate) fn own(connections: u64, limit: Duration) -> Result<(Generation, DrainReporter)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Each report is a message of its own, which whichever process reads next has as a whole.
        let (reports, reporter) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).context("cannot make a socket pair")?;
        let now = super::host::unix_s();
        let told = DrainingStatus {
            pid: std::process::id(),
            since_unix_s: now,
            ends_unix_s: now.saturating_add(limit.as_secs()),
            connections,
        };
        let generation = Generation { process: ProcessHandle::own()?, reports, told: told.clone() };
        Ok((generation, DrainReporter { socket: reporter, told, limit }))
    }

    /// What is passed on beside its descriptors.
    pub(crate) fn told(&self) -> DrainingStatus {
        self.told.clone()
    }

    /// What a process finds it by.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; DESCRIPTORS] {
        [self.process.as_fd(), self.reports.as_fd()]
    }

    /// Takes in what it has told since.
    fn read(&mut self) {
        let mut bytes = [0; REPORT_BYTES_MAX];
        while let Ok((length, _)) = recv(&self.reports, &mut bytes, RecvFlags::DONTWAIT)
            && length > 0
        {
            if let Ok(told) = serde_json::from_slice(&bytes[..length]) {
                self.told = DrainingStatus { pid: self.process.pid, ..told };
            }
        }
    }
}

/// By which a process that drains tells what it has left.
#[derive(Debug)]
pub(crate) struct DrainReporter {
    socket: OwnedFd,
    told: DrainingStatus,
    limit: Duration,
}

impl DrainReporter {
    /// How long this process may drain.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Tells how many connections are left, if that has changed.
    pub(crate) fn tell(&mut self, connections: u64) {
        if self.told.connections == connections {
            return;
        }
        self.told.connections = connections;
        if let Ok(text) = serde_json::to_vec(&self.told) {
            // Without a process that listens there is nothing to be done.
            let _ = send(&self.socket, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// The processes that drain, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    all: Vec<Generation>,
    ended: u64,
}

impl Generations {
    /// Those that the process before has passed on.
    pub(crate) fn inherited(told: &[DrainingStatus], descriptors: Vec<OwnedFd>) -> Generations {
        let mut descriptors = descriptors.into_iter();
        let generation = |told: &DrainingStatus| {
            let process = ProcessHandle::new(told.pid, descriptors.next()?);
            Some(Generation { process, reports: descriptors.next()?, told: told.clone() })
        };
        Generations { all: told.iter().map_while(generation).collect(), ended: 0 }
    }

    /// How many descriptors there are of so many processes.
    pub(crate) fn descriptors_of(count: usize) -> usize {
        count * DESCRIPTORS
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Generation> {
        self.all.iter()
    }

    /// Takes in what they have told, and forgets those that have ended.
    pub(crate) fn read(&mut self) {
        self.all.iter_mut().for_each(Generation::read);
        self.all.retain(|generation| !generation.process.has_ended());
    }

    /// Ends the oldest of them where more drain than may.
    pub(crate) fn end_surplus(&mut self) {
        self.read();
        let surplus = self.all.len().saturating_sub(GENERATIONS_MAX);
        for generation in &self.all[..surplus] {
            let DrainingStatus { pid, connections, .. } = generation.told;
            let told = format!(
                "warning: process {pid} ends with {connections} connections that it still had since an earlier upgrade: at most \
                 {GENERATIONS_MAX} processes drain at a time"
            );
            tell(EventKind::Limit, &told);
        }
        self.ended += surplus as u64;
        end(&self.all[..surplus]);
        self.all.drain(..surplus);
    }

    /// Ends all of them.
    pub(crate) fn end_all(&mut self) {
        self.read();
        end(&self.all);
        self.all.clear();
    }

    /// They are another process's from now on.
    pub(crate) fn release(&mut self) {
        self.all.clear();
    }

    /// How many were ended because more would have drained than may.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// As the status shows them.
    pub(crate) fn statuses(&self) -> Vec<DrainingStatus> {
        self.iter().map(Generation::told).collect()
    }
}

/// Tells processes to end, all at once, and kills those that take too long.
fn end(generations: &[Generation]) {
    generations.iter().for_each(|generation| generation.process.tell_to_end());
    let until = Instant::now() + END_PATIENCE;
    for generation in generations {
        if !generation.process.ends_within(until.saturating_duration_since(Instant::now())) {
            generation.process.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A generation that stands for a child, and its reporter.
    fn generation(connections: u64) -> (Generation, DrainReporter, Child) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut generation, reporter) = Generation::own(connections, Duration::from_secs(9)).unwrap();
        generation.process = ProcessHandle::of(&child).unwrap();
        generation.told.pid = child.id();
        (generation, reporter, child)
    }

    fn passed_on(generations: &Generations) -> Generations {
        let descriptors = generations.iter().flat_map(Generation::descriptors);
        let descriptors = descriptors.map(|descriptor| descriptor.try_clone_to_owned().unwrap()).collect();
        Generations::inherited(&generations.statuses(), descriptors)
    }

    #[test]
    fn reports_reach_whichever_process_has_the_socket() {
        let (one, mut reporter, mut child) = generation(5);
        let mut first = Generations { all: vec![one], ended: 0 };
        assert_eq!(reporter.limit(), Duration::from_secs(9));
        let status = &first.statuses()[0];
        assert_eq!((status.connections, status.ends_unix_s - status.since_unix_s), (5, 9));
        reporter.tell(4);
        first.read();
        let mut second = passed_on(&first);
        first.release();
        assert_eq!(second.statuses()[0].connections, 4);
        reporter.tell(3);
        reporter.tell(2);
        second.read();
        assert_eq!((second.statuses()[0].connections, second.statuses()[0].pid), (2, child.id()));
        // No process listens any more.
        drop(second);
        reporter.tell(1);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn third_generation_ends_the_first() {
        let mut made: Vec<_> = (1..=3).map(generation).collect();
        let pids: Vec<u32> = made.iter().map(|(_, _, child)| child.id()).collect();
        let mut generations = Generations::default();
        let mut children = Vec::new();
        for (generation, reporter, child) in made.drain(..) {
            generations.all.push(generation);
            children.push((reporter, child));
        }
        generations.end_surplus();
        assert_eq!(generations.statuses().iter().map(|one| one.pid).collect::<Vec<_>>(), pids[1..]);
        assert_eq!(generations.ended(), 1);
        assert!(children[0].1.try_wait().unwrap().is_some());
        // One that has ended by itself does not count.
        children[1].1.kill().unwrap();
        children[1].1.wait().unwrap();
        generations.read();
        assert_eq!(generations.statuses().len(), 1);
        generations.end_surplus();
        assert_eq!((generations.statuses().len(), generations.ended()), (1, 1));
        generations.end_all();
        assert!(children[2].1.try_wait().unwrap().is_some());
    }

    #[test]
    fn process_that_does_not_listen_to_signals_is_killed() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; echo; exec sleep 1000"]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // It has set the trap by then.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (mut generation, _reporter) = Generation::own(1, Duration::from_secs(9)).unwrap();
        generation.process = ProcessHandle::of(&child).unwrap();
        let mut generations = Generations { all: vec![generation], ended: 0 };
        generations.end_all();
        assert!(child.try_wait().unwrap().is_some());
    }
}
