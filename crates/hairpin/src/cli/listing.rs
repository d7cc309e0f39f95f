//! Commands that show what an instance has: status, connections, offload.

use super::filter::FilterArgs;
use super::target::InstanceTarget;
use super::{Output, print, stdout};
use crate::control::{ConnectionView, ControlAnswer, ControlClient, ControlRequest, Page, Query, unexpected};
use crate::{json, render, terminal};
use anyhow::Result;
use std::io::Write;
use std::time::Duration;

/// Connections asked for at a time: some 400 KB of answer.
const PAGE: u64 = 1000;
/// Connections that `hairpin offload` explains at most.
const EXPLAINED: u64 = 100;

/// `hairpin status`.
pub(super) fn status(target: &InstanceTarget, output: Output, watch: Option<u64>) -> Result<()> {
    let mut client = target.connect()?;
    let clear = watch.is_some() && terminal::can_move();
    loop {
        let status = client.status()?;
        let text = match output {
            Output::Table => render::status(&status, terminal::width()),
            Output::Json => json::line(&status)?,
        };
        // Home and clear to the end: less flicker than clearing all.
        print(&if clear { format!("\x1b[H\x1b[J{text}") } else { text })?;
        let Some(seconds) = watch else { return Ok(()) };
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// The extent of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Only how many connections there are.
    Count,
    /// This many connections at most.
    Limit(u64),
    /// All of them.
    All,
}

/// `hairpin connections`.
pub(super) fn connections(
    target: &InstanceTarget,
    filter: &FilterArgs,
    output: Output,
    extent: Extent,
    cursor: Option<u64>,
) -> Result<()> {
    filter.check()?;
    let mut client = target.connect()?;
    let query = Query { cursor, ..filter.query() };
    let limit = match extent {
        Extent::Count => return print(&counted(count(&mut client, &query)?, output)?),
        Extent::Limit(limit) => limit,
        Extent::All => u64::MAX,
    };
    list(&mut client, query, limit, output, &mut stdout())
}

fn counted(count: u64, output: Output) -> Result<String> {
    Ok(match output {
        Output::Table => format!("{count}\n"),
        Output::Json => json::line(&serde_json::json!({ "connections": count }))?,
    })
}

fn ask(client: &mut ControlClient, query: Query) -> Result<Page> {
    match client.request(&ControlRequest::Connections(query))? {
        ControlAnswer::Connections(page) => Ok(page),
        other => unexpected(other),
    }
}

fn count(client: &mut ControlClient, query: &Query) -> Result<u64> {
    let (mut sum, mut cursor) = (0, None);
    loop {
        let page = ask(client, Query { limit: 0, cursor, ..query.clone() })?;
        sum += page.matched;
        // A listing that takes long to count comes in parts.
        match page.next {
            Some(next) if Some(next) != cursor => cursor = Some(next),
            _ => return Ok(sum),
        }
    }
}

/// Writes `limit` connections that fit `query` at most, page by page: no more than a page is in memory at any time.
fn list(client: &mut ControlClient, mut query: Query, limit: u64, output: Output, out: &mut impl Write) -> Result<()> {
    let mut table = render::Listing::new(terminal::width());
    let mut left = limit;
    let next = loop {
        query.limit = left.min(PAGE) as u32;
        let page = ask(client, query.clone())?;
        write_page(&page.connections, &mut table, output, out)?;
        left = left.saturating_sub(page.connections.len() as u64);
        match page.next {
            // A page may be short, even empty, before the last one; one that leads nowhere must not be asked for again.
            Some(next) if left > 0 && Some(next) != query.cursor => query.cursor = Some(next),
            next => break next,
        }
    };
    out.flush()?;
    let shown = limit - left;
    match next {
        None if shown == 0 && output == Output::Table => writeln!(out, "no connection fits")?,
        None => {}
        Some(next) => {
            let all = count(client, &query)?;
            let more = format!("{shown} shown, {all} fit; go on with --cursor {next}, or show --all");
            // Programs read lines of JSON; people look at the other output as well.
            match output {
                Output::Table => writeln!(out, "{more}")?,
                Output::Json => eprintln!("{more}"),
            }
        }
    }
    Ok(())
}

fn write_page(
    connections: &[ConnectionView],
    table: &mut render::Listing,
    output: Output,
    out: &mut impl Write,
) -> Result<()> {
    match output {
        Output::Table => out.write_all(table.page(connections).as_bytes())?,
        Output::Json => {
            for connection in connections {
                // Serialised apart, so that an error of the writer stays one of input and output.
                let line = json::line(connection)?;
                out.write_all(line.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// `hairpin offload`.
pub(super) fn offload(target: &InstanceTarget, filter: &FilterArgs, output: Output) -> Result<()> {
    filter.check()?;
    let mut client = target.connect()?;
    if !filter.is_empty() {
        return explain(&mut client, filter.query(), output);
    }
    match client.request(&ControlRequest::Offload)? {
        ControlAnswer::Offload(view) => print(&match output {
            Output::Table => render::within(render::offload(&view), terminal::width()),
            Output::Json => json::line(&*view)?,
        }),
        other => unexpected(other),
    }
}

/// Why each of the connections that fit is, or is not, offloaded.
fn explain(client: &mut ControlClient, mut query: Query, output: Output) -> Result<()> {
    if output == Output::Json {
        return list(client, query, EXPLAINED, output, &mut stdout());
    }
    let mut text = String::new();
    let mut left = EXPLAINED;
    loop {
        query.limit = left as u32;
        let page = ask(client, query.clone())?;
        page.connections.iter().for_each(|connection| text.push_str(&render::explanation(connection)));
        left = left.saturating_sub(page.connections.len() as u64);
        match page.next {
            Some(next) if left > 0 && Some(next) != query.cursor => query.cursor = Some(next),
            Some(_) => {
                let all = count(client, &query)?;
                text.push_str(&format!("{} explained, {all} fit; `hairpin connections` lists all\n", EXPLAINED - left));
                break;
            }
            None => break,
        }
    }
    if text.is_empty() {
        text.push_str("no connection fits\n");
    }
    print(&render::within(text, terminal::width()))
}
