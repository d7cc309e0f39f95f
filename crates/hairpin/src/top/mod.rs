//! `hairpin top`: an instance, live.
//!
//! One thread asks the instance at an interval ([`poll`]), another reads keys ([`keys`]), this one draws what is known
//! ([`view`], [`detail`]), so that neither an instance that is slow, or away, nor a terminal that has gone makes it stick.

mod batch;
mod columns;
mod commands;
mod detail;
mod interval;
mod keys;
mod model;
mod order;
mod poll;
mod view;

#[cfg(test)]
mod http_tests;
#[cfg(test)]
mod tests;

use crate::cli::connect;
use crate::terminal;
use anyhow::{Context, Result, bail};
use clap::Args;
use model::Model;
use order::SortOrder;
use poll::Poll;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyEvent;
use ratatui::style::Color;
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How soon a key, a signal or news are seen.
const TICK: Duration = Duration::from_millis(100);

/// What to show, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// Sort services, and the backends of each, by this column: what there is most of first, names from A to Z.
    #[arg(short, long, value_name = "COLUMN", default_value = "configuration")]
    sort: SortOrder,
    /// Turn the order round.
    #[arg(short, long)]
    reverse: bool,
    /// Only services and backends with this text in their names or addresses; letters may be large or small.
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// How often to ask the instance, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print the figures and the table as text after each interval, without keys, to anything; no line is cut unless it is a
    /// terminal's.
    #[arg(short, long)]
    batch: bool,
    /// End after so many prints; without it they go on until interrupted.
    #[arg(short = 'n', long, value_name = "N", requires = "batch")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl TopArgs {
    fn model(&self) -> Model {
        Model::new(self.sort, self.reverse, self.filter.clone())
    }
}

/// Shows the instance behind `socket` until a key or a signal ends it, or the terminal has gone.
///
/// # Errors
/// No instance answers there, or standard output is no terminal and `--batch` is not given.
pub(crate) fn run(socket: &Path, args: &TopArgs) -> Result<()> {
    if args.batch {
        return batch::run(socket, args);
    }
    if !terminal::can_move() || !std::io::stdin().is_terminal() {
        bail!(
            "`hairpin top` needs a terminal, and one that can move its cursor; `hairpin top --batch` and \
             `hairpin status --watch` write to anything"
        );
    }
    // A mistyped name is told before the screen is cleared; later the instance may come and go.
    drop(connect(socket)?);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot listen for signals")?;
    }
    let poll = Poll::begin(socket.to_path_buf(), Duration::from_secs(args.interval))?;
    // Gives the terminal back in a panic, too.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let shown = keys::begin().and_then(|keys| show(&mut terminal, args.model(), &poll, &keys, &ended));
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    mut model: Model,
    poll: &Poll,
    keys: &Receiver<KeyEvent>,
    ended: &AtomicBool,
) -> Result<()> {
    let has_colour = terminal::has_colour();
    while !ended.load(Ordering::Relaxed) && !keys::is_terminal_gone() {
        poll.news.try_iter().for_each(|news| model.take(news));
        let draw = |frame: &mut Frame<'_>| {
            view::draw(frame, &mut model);
            if !has_colour {
                uncolour(frame.buffer_mut());
            }
        };
        terminal.draw(draw).context("cannot draw")?;
        let detail = model.detail.clone();
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
        if model.detail != detail {
            poll.want(model.detail.as_ref().map(|service| service.name.clone()));
        }
    }
    Ok(())
}

/// Takes away colours. Bold, dim and reversed text stays: crossterm, which knows NO_COLOR too, leaves out a colour's code but
/// not the sequence around it, and an empty one ends them.
fn uncolour(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
    }
}
