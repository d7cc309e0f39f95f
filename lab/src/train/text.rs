//! The model's file: what it was made from and how good it is, in comments, then the tree.

use super::score::{Figures, HandedShare, Score};
use super::{FOLDS, Origin, Trained, TrainingOptions};
use std::fmt::Write;

/// Characters of a line of comment at most.
const LINE_MAX: usize = 110;

/// The file's text. `command` made it.
pub fn text(trained: &Trained, origins: &[Origin], options: &TrainingOptions, command: &str) -> String {
    let mut text = String::new();
    let bounds = &options.bounds;
    let flows: usize = origins.iter().map(|origin| origin.flows.len()).sum();
    let long = origins.iter().flat_map(|origin| &origin.flows).filter(|flow| flow.is_long(bounds)).count();
    let lines = [
        "A model of the policy decision-tree: what a connection's first packets say of how it goes on."
            .to_string(),
        String::new(),
        "Made by:".to_string(),
        format!("  {command}"),
        format!(
            "of {flows} connections, {long} of them long: with {} packets or more after the first {} that the policy is \
             shown. (Lengths are bytes of IP packets, gaps and times microseconds.)",
            bounds.more, bounds.packets
        ),
        String::new(),
        "How good models made in the same way are on connections that they were not made from. Accuracy stands beside \
         that of taking all for what most of them are, and of looking at nothing: all that have the first packets are \
         taken for long. Packets saved, what rules cost taken off, are given as a share of what an oracle saves, and with \
         how many pairs of rules, beside always and heavy-hitter (16 packets), as if there were always room."
            .to_string(),
    ];
    lines.iter().for_each(|line| comment(&mut text, line));
    for (name, score) in parts(trained) {
        let Figures { flows, long, precision, recall, accuracy, majority, waiting, of_oracle, .. } =
            score.figures(options.cost);
        let saved = |place: usize, handed: HandedShare| format!("{:.3} with {}", of_oracle[place], handed.pairs);
        let line = format!(
            "  {name}: {flows} connections, {long} long; precision {precision:.3}, recall {recall:.3}, accuracy \
             {accuracy:.3} ({majority:.3}, {waiting:.3}); saved {} (always {}, heavy-hitter {}; oracle 1 with {})",
            saved(0, score.tree),
            saved(1, score.always),
            saved(2, score.heavy_hitter),
            score.oracle.pairs
        );
        comment(&mut text, &line);
    }
    let _ = write!(text, "\n{}", trained.tree);
    text
}

/// All that was held out, with a name for each.
pub fn parts(trained: &Trained) -> impl Iterator<Item = (String, Score)> + '_ {
    let of_origins = trained.by_origins.map(|score| ("one file held out at a time".to_string(), score));
    let by_flows = (format!("1 of {FOLDS} connections held out at a time"), trained.by_flows);
    let each = trained.by_origin.iter().map(|part| (format!("{} held out", part.name), part.score));
    [Some(by_flows), of_origins].into_iter().flatten().chain(each)
}

/// Adds a text as lines of comment, broken between words; what cannot be printed is left out.
fn comment(text: &mut String, line: &str) {
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let indent = line.len() - line.trim_start().len();
    let mut width = 1;
    text.push('#');
    for _ in 0..indent {
        text.push(' ');
        width += 1;
    }
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        if width > indent + 1 && width + 1 + word.chars().count() > LINE_MAX {
            let _ = write!(text, "\n#{:indent$}", "");
            width = indent + 1;
        }
        text.push(' ');
        text.push_str(word);
        width += 1 + word.chars().count();
    }
    text.push('\n');
}
