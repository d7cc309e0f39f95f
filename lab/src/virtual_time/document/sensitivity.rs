//! What verdicts hang on: the causes beside a disagreement, and the page of all constants.

use super::super::finding::{CaseFinding, CaseVerdict, Judgement};
use super::super::results::Gathered;
use super::super::sensitivity::{Sensitivity, SensitivityRow};
use super::{Reasons, cell, paragraph, push, scale_name};

/// The constants that make a finding agree more: for each finding that is not agreed with, what was measured.
pub(super) fn causes(
    text: &mut String,
    sensitivity: &Sensitivity,
    gathered: &Gathered<'_>,
    judgements: &[(&CaseFinding, Judgement, Reasons<'_>)],
) {
    let experiment = gathered.experiment.name.as_str();
    let mut lines = Vec::new();
    for ((_, judgement, _), number) in judgements.iter().zip(1..) {
        if matches!(judgement.verdict, CaseVerdict::Agrees | CaseVerdict::NotMeasured) {
            continue;
        }
        let Some(base) = sensitivity.base(experiment, number) else { continue };
        let closer: Vec<String> = sensitivity
            .turned(experiment, number)
            .into_iter()
            .filter(|row| row.verdict > base.verdict)
            .map(|row| format!("{} with {} {}", row.said(), row.constant, row.value))
            .collect();
        let found = if closer.is_empty() { "no constant makes it agree more".to_owned() } else { closer.join("; ") };
        lines.push(format!("- *{number}:* {} there; {found}.", base.said()));
    }
    if lines.is_empty() {
        return;
    }
    let scale = sensitivity.rows.first().map_or(String::new(), |row| scale_name(row.scale));
    let head = format!(
        "What makes these findings agree more, of the constants that are guesses, measured at {scale} \
         (`lab/results/sensitivity.csv` has all verdicts):"
    );
    paragraph(text, &head, "");
    text.push('\n');
    lines.iter().for_each(|line| paragraph(text, line, "  "));
    text.push('\n');
}

/// The page of all constants.
pub fn sensitivity_page(sensitivity: &Sensitivity, command: &str) -> String {
    let mut text = String::new();
    let scale = sensitivity.rows.first().map_or(1.0, |row| row.scale);
    push(&mut text, "# KTH 2022 in virtual time: what verdicts hang on\n");
    let about = format!(
        "`{command}` writes this page. The constants of the profiles that no publication gives are guesses. Here each is \
         given other values, one at a time, and all findings are judged again, at {} of the paper's scale with one seed. \
         `lab/sensitivity.toml` lists the constants; `lab/results/sensitivity.csv` has every verdict with its figures.",
        if scale == 1.0 { "all".to_owned() } else { scale.to_string() }
    );
    paragraph(&mut text, &about, "");
    let (findings, variations) = (base_rows(sensitivity), sensitivity.variations());
    let moved = |row: &&&SensitivityRow| !sensitivity.turned(&row.experiment, row.number).is_empty();
    let about = format!(
        "\n{} of {} verdicts are the same whatever constant is changed; {} change with one at least.",
        findings.len() - findings.iter().filter(moved).count(),
        findings.len(),
        findings.iter().filter(moved).count()
    );
    text.push('\n');
    paragraph(&mut text, &about, "");
    push(&mut text, "\n## By constant\n\n| constant | value | verdicts that change |\n|---|---|---|");
    for (constant, value) in variations {
        let changed: Vec<String> = findings
            .iter()
            .filter_map(|base| {
                let mut turned = sensitivity.turned(&base.experiment, base.number).into_iter();
                let row = turned.find(|row| row.constant == constant && row.value == value)?;
                Some(format!("{} {}: {}, {} else", row.experiment, row.number, row.said(), base.said()))
            })
            .collect();
        let changed = if changed.is_empty() { "none".to_owned() } else { changed.join("; ") };
        push(&mut text, &format!("| {} | {value} | {} |", cell(constant), cell(&changed)));
    }
    push(&mut text, "\n## By finding\n\n| | finding | verdict | turned by |\n|---|---|---|---|");
    for base in findings {
        let turned = sensitivity.turned(&base.experiment, base.number);
        let by: Vec<String> =
            turned.iter().map(|row| format!("{} {}: {}", row.constant, row.value, row.said())).collect();
        let by = if by.is_empty() { "-".to_owned() } else { by.join("; ") };
        let (name, said) = (format!("{} {}", base.experiment, base.number), base.said());
        push(&mut text, &format!("| {name} | {} | {said} | {} |", cell(&base.finding), cell(&by)));
    }
    text
}

fn base_rows(sensitivity: &Sensitivity) -> Vec<&SensitivityRow> {
    sensitivity.rows.iter().filter(|row| row.constant.is_empty()).collect()
}
