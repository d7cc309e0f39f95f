//! Keys, read on a thread of their own, and whether the terminal is still there.
//!
//! crossterm takes neither the end of its input nor an error for an end: once the terminal has gone, a call of it never
//! returns. So no thread that has anything else to do calls it, and this one is left behind when the process ends.

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::mpsc::{Receiver, sync_channel};

/// Keys read and not yet applied; further ones wait in the terminal.
const CHANNEL: usize = 64;

/// Starts the thread that reads keys.
pub(super) fn begin() -> Result<Receiver<KeyEvent>> {
    let (sender, receiver) = sync_channel(CHANNEL);
    let read = move || {
        while let Ok(event) = event::read() {
            if let Event::Key(key) = event
                && key.kind != KeyEventKind::Release
                && sender.send(key).is_err()
            {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read).context("cannot start a thread")?;
    Ok(receiver)
}

/// Whether the terminal that keys come from has gone.
pub(super) fn is_terminal_gone() -> bool {
    let stdin = std::io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut polled, Some(&at_once)).is_ok_and(|_| polled[0].revents().intersects(gone))
}
