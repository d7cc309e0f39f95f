//! `hairpin top --batch`: the same figures as text, again and again, for pipes and files.

use super::TopArgs;
use super::columns::{self, SERVICES};
use super::model::Model;
use super::poll::{self, News};
use super::view;
use crate::cli::{connect, print};
use crate::render::within;
use crate::terminal;
use anyhow::Result;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Prints `args.count` times, or until interrupted, what the instance behind `socket` does.
pub(super) fn run(socket: &Path, args: &TopArgs) -> Result<()> {
    let mut client = connect(socket)?;
    let mut model = args.model();
    let mut round = |model: &mut Model| -> Result<()> {
        let (status, offload) = poll::ask(&mut client)?;
        model.take(News::Figures(status, offload));
        Ok(())
    };
    // What happened between two answers is known from the second one on.
    round(&mut model)?;
    let mut printed = 0;
    while args.count.is_none_or(|count| printed < count) {
        sleep(Duration::from_secs(args.interval));
        round(&mut model)?;
        let text = text(&model, terminal::width());
        print(&if printed > 0 { format!("\n{text}") } else { text })?;
        printed += 1;
    }
    Ok(())
}

/// The figures of a model, on lines of at most `width` columns if that is given.
pub(super) fn text(model: &Model, width: Option<usize>) -> String {
    let mut lines = vec![view::header(model).to_string()];
    lines.extend(view::figures(model, width.unwrap_or(usize::MAX)).iter().map(ToString::to_string));
    let rows = model.rows();
    let table = columns::table(&rows, &SERVICES, model.has_http(), (model.order, model.reversed), width);
    // On a screen these lines stand a column from its edge.
    let mut text: String =
        lines.iter().map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line).trim_end())).collect();
    text.push_str(&format!("\n{}\n", table.header));
    table.rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    within(text, width)
}
