//! `hairpin events`.

use super::target::InstanceTarget;
use super::{Output, print};
use crate::events::{self, Event, EventKind, EventReader, Level};
use crate::{json, render, terminal};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// How often events are looked for with --follow.
const STEP: Duration = Duration::from_millis(500);

/// Which events.
#[derive(Args, Debug)]
pub(super) struct EventsArgs {
    /// Only events of this kind; may be given several times.
    #[arg(short, long = "kind", value_name = "KIND")]
    kinds: Vec<EventKind>,
    /// Only warnings.
    #[arg(short, long)]
    warnings: bool,
    /// Only events of the last so long, such as 90s, 15m, 2h or 7d.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// Only the last so many.
    #[arg(short = 'n', long, value_name = "N")]
    last: Option<usize>,
    /// Go on with events as they happen, until interrupted.
    #[arg(short, long)]
    follow: bool,
}

impl EventsArgs {
    fn wants(&self, event: &Event, from: &str) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && (!self.warnings || event.level == Level::Warning)
            && &*event.time >= from
    }
}

/// Prints what has happened to an instance, whether its process lives or not.
pub(super) fn events(target: &InstanceTarget, args: &EventsArgs, output: Output) -> Result<()> {
    let file = events::path(&target.socket()?);
    let from = args.since.map(|since| SystemTime::now().checked_sub(since).map(events::stamp).unwrap_or_default());
    let from = from.unwrap_or_default();
    let mut reader = EventReader::new(file.clone());
    let read = |reader: &mut EventReader| -> Result<Vec<Event>> {
        let read = reader.read().with_context(|| format!("cannot read {}", file.display()))?;
        Ok(read.into_iter().filter(|event| args.wants(event, &from)).collect())
    };
    let mut shown = read(&mut reader)?;
    if shown.is_empty() && !file.exists() {
        if !args.follow {
            bail!("{}", none(&file));
        }
        eprintln!("{}", none(&file));
    }
    shown.drain(..shown.len().saturating_sub(args.last.unwrap_or(usize::MAX)));
    loop {
        for event in &shown {
            print(&match output {
                Output::Table => row(event, terminal::width()),
                Output::Json => json::line(event)?,
            })?;
        }
        if !args.follow {
            return Ok(());
        }
        sleep(STEP);
        shown = read(&mut reader)?;
    }
}

fn none(file: &Path) -> String {
    format!(
        "no events: {} is not there. No instance has served with this control socket since the machine started: name the right \
         one with --instance, --config or --socket",
        file.display()
    )
}

/// An event as people read it; further lines of its text stand below the first. On a terminal of this width, which may be
/// narrow, they stand further to the left. Nothing in it can change the terminal.
fn row(event: &Event, width: Option<usize>) -> String {
    let head = format!("{} {:<7} {:<11} ", event.time, event.level.word(), event.kind.word());
    let shown = |line: &str| -> String {
        line.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
    };
    let mut lines = event.message.lines().map(shown);
    let mut text = format!("{head}{}\n", lines.next().unwrap_or_default());
    let indent = width.map_or(head.len(), |_| 4);
    lines.for_each(|line| text += &format!("{:indent$}{line}\n", ""));
    render::within(text, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_event_cannot_move_the_cursor() {
        let event = Event::new(EventKind::Health, "down: \u{1b}[2J\n  more", SystemTime::UNIX_EPOCH);
        let at = "1970-01-01T00:00:00.000Z";
        let expected = format!("{at} info    health      down: \u{fffd}[2J\n{:45}  more\n", "");
        assert_eq!(row(&event, None), expected);
        let expected = format!("{at} info    health\n    down: \u{fffd}[2J\n      more\n");
        assert_eq!(row(&event, Some(45)), expected);
    }
}
