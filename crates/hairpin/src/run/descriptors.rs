//! Descriptors over a socket between two processes.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Descriptors of one message at most; the kernel takes 253 (`SCM_MAX_FD`).
const MESSAGE_MAX: usize = 200;
/// How long a message waits until the other process has received earlier ones.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one step of that takes.
const STEP: Duration = Duration::from_millis(2);
/// The bytes of a message that has nothing to say: a stream passes descriptors only beside bytes.
const FILLER: &[u8] = b".";

/// Sends `bytes`, and beside them descriptors, [`MESSAGE_MAX`] at most.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "{} are too many", descriptors.len());
    let deadline = Instant::now() + PATIENCE;
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()) {
            // A process without CAP_SYS_RESOURCE may have as many on their way as it may have open.
            Err(Errno::TOOMANYREFS) if Instant::now() < deadline => std::thread::sleep(STEP),
            sent => break sent?,
        }
    };
    ensure!(sent == bytes.len(), "they were passed on in part only");
    Ok(())
}

/// Receives `bytes`, all of them, and the descriptors beside them.
pub(super) fn receive(stream: &UnixStream, bytes: &mut [u8]) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let wanted = bytes.len();
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, flags)
        .context("the old process does not hand over")?;
    ensure!(received.bytes == wanted, "the old process has changed its mind");
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok(descriptors)
}

/// Sends any number of descriptors.
pub(super) fn send_all(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    descriptors.chunks(MESSAGE_MAX).try_for_each(|some| send(stream, FILLER, some))
}

/// Receives `count` descriptors that [`send_all`] has sent.
pub(super) fn receive_all(stream: &UnixStream, count: usize) -> Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    while all.len() < count {
        let wanted = (count - all.len()).min(MESSAGE_MAX);
        let some = receive(stream, &mut [0; FILLER.len()])?;
        ensure!(
            some.len() == wanted,
            "{} of {wanted} descriptors arrived; this process may have too few open (`ulimit -n`, `LimitNOFILE=`)",
            some.len()
        );
        all.extend(some);
    }
    Ok(all)
}
