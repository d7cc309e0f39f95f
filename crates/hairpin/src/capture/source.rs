//! The sources of captured packets: a packet socket on each interface, read by a thread of its own.

use anyhow::{Context, Result};
use hairpin_linux::capture::{Capture, CaptureFilter, SNAP_LENGTH_MAX};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

/// Packets between the threads that read them and the thread that writes them; when there are more, the sockets'
/// buffers fill, and the kernel counts the packets that are lost then.
pub(super) const CHANNEL: usize = 4096;
/// How soon a thread sees that it is over.
const TICK: Duration = Duration::from_millis(100);

/// A packet as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenPacket {
    /// Where, by position in the list of interfaces.
    pub(super) interface: u32,
    /// When, since 1970.
    pub(super) timestamp: Duration,
    /// From its Ethernet header on.
    pub(super) bytes: Vec<u8>,
    /// How long it was, if more than that.
    pub(super) length_on_wire: u32,
    /// Whether this host has sent it.
    pub(super) outgoing: bool,
}

/// A message from the capturing threads.
#[derive(Debug)]
pub(super) enum CaptureMessage {
    /// A packet.
    Seen(SeenPacket),
    /// An interface cannot be listened on any longer.
    Failed(anyhow::Error),
}

/// Sockets that are listened on.
#[derive(Debug)]
pub(super) struct CaptureSources {
    threads: Vec<JoinHandle<u64>>,
    over: Arc<AtomicBool>,
}

impl CaptureSources {
    /// Listens on `interfaces` for packets from or to `hosts`, all if there are none. `process` is the instance's, for
    /// advice.
    ///
    /// # Errors
    /// An interface is not there, or this process may not listen.
    pub(super) fn open(
        interfaces: &[String],
        hosts: &[IpAddr],
        process: u32,
    ) -> Result<(CaptureSources, Receiver<CaptureMessage>)> {
        // Packets have to be whole to be judged; the file may keep less of them.
        let filter = CaptureFilter { hosts: hosts.to_vec(), snap_length: SNAP_LENGTH_MAX };
        let open = |name: &String| {
            Capture::open(name, &filter).with_context(|| {
                format!(
                    "cannot capture on {name}; a capture must run as root and in the network namespace of the instance: \
                     nsenter --net --target {process} hairpin capture ..."
                )
            })
        };
        let captures = interfaces.iter().map(open).collect::<Result<Vec<_>>>()?;
        let over = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = sync_channel(CHANNEL);
        let mut sources = CaptureSources { threads: Vec::new(), over: Arc::clone(&over) };
        for (interface, capture) in (0..).zip(captures) {
            let (sender, over) = (sender.clone(), Arc::clone(&over));
            let thread = std::thread::Builder::new().name(format!("capture-{interface}"));
            sources.threads.push(thread.spawn(move || listen(interface, capture, &sender, &over))?);
        }
        Ok((sources, receiver))
    }

    /// Ends it; `messages` is what was not taken. Packets that each socket has lost.
    pub(super) fn stop(self, messages: Receiver<CaptureMessage>) -> Vec<u64> {
        self.over.store(true, Ordering::Relaxed);
        // Threads that wait for room give up.
        drop(messages);
        self.threads.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
    }
}

/// Passes packets on until it is over; how many the kernel could not keep.
fn listen(interface: u32, mut capture: Capture, sender: &SyncSender<CaptureMessage>, over: &AtomicBool) -> u64 {
    while !over.load(Ordering::Relaxed) {
        let message = match capture.next(TICK) {
            Ok(None) => continue,
            Ok(Some(captured)) => CaptureMessage::Seen(SeenPacket {
                interface,
                timestamp: captured.timestamp.duration_since(UNIX_EPOCH).unwrap_or_default(),
                bytes: captured.bytes.to_vec(),
                length_on_wire: u32::try_from(captured.length_on_wire).unwrap_or(u32::MAX),
                outgoing: captured.outgoing,
            }),
            Err(error) => CaptureMessage::Failed(error.into()),
        };
        let failed = matches!(message, CaptureMessage::Failed(_));
        if sender.send(message).is_err() || failed {
            break;
        }
    }
    capture.lost()
}
