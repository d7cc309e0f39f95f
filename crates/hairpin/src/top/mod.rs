//! `hairpin top`: an instance, live.
//!
//! One thread asks the instance once a second ([`poll`]), another reads keys ([`keys`]), this one draws what is known
//! ([`view`]), so that neither an instance that is slow, or away, nor a terminal that has gone makes it stick.

mod columns;
mod keys;
mod model;
mod poll;
mod view;

#[cfg(test)]
mod tests;

use crate::cli::connect;
use anyhow::{Context, Result, bail};
use model::Model;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::KeyEvent;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How soon a key, a signal or news are seen.
const TICK: Duration = Duration::from_millis(100);

/// Shows the instance behind `socket` until a key or a signal ends it, or the terminal has gone.
///
/// # Errors
/// No instance answers there, or standard output is no terminal.
pub(crate) fn run(socket: &Path) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("`hairpin top` needs a terminal; `hairpin status --watch` writes the same to anything");
    }
    // A mistyped name is told before the screen is cleared; later the instance may come and go.
    drop(connect(socket)?);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot listen for signals")?;
    }
    let news = poll::begin(socket.to_path_buf())?;
    // Gives the terminal back in a panic, too.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let shown = keys::begin().and_then(|keys| show(&mut terminal, &news, &keys, &ended));
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    news: &Receiver<poll::News>,
    keys: &Receiver<KeyEvent>,
    ended: &AtomicBool,
) -> Result<()> {
    let mut model = Model::default();
    while !ended.load(Ordering::Relaxed) && !keys::is_terminal_gone() {
        news.try_iter().for_each(|news| model.take(news));
        terminal.draw(|frame| view::draw(frame, &mut model)).context("cannot draw")?;
        // A round of drawing per key would lag behind a key that is held down.
        let mut patience = TICK;
        loop {
            match keys.recv_timeout(patience) {
                Ok(key) if model.key(key) => return Ok(()),
                Ok(_) => patience = Duration::ZERO,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => bail!("cannot read keys"),
            }
        }
    }
    Ok(())
}
