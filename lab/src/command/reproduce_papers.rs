//! `hairpin-lab reproduce-papers`: the four papers at a tenth of their scale, one part after the other (`make reproduce`).
//!
//! Measurements come first, while the machine is idle; then what is simulated. What cannot be done here is said, with the command
//! that does it, and the pages keep what they have.

use super::progress::{PartOfAll, about};
use super::{CliCommand, CommandLine, print};
use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use hairpin_lab::evidence::{EvidenceSources, PAGE, write};
use hairpin_lab::records::keep_lines;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The share of the processors' time that others may take while something is measured.
const BUSY_MAX: f64 = 0.05;
/// How long one looks at what others take.
const LOOK: Duration = Duration::from_secs(2);
/// Results of what is simulated, and marks of what was measured.
const RESULTS: &str = "target/reproduce";

/// What is done.
#[derive(Args, Debug)]
pub(crate) struct ReproducePapersArguments {
    /// Only say which parts there are, how long they take, and what is left out.
    #[arg(long)]
    plan: bool,
    /// Leave out what is measured on real packets.
    #[arg(long)]
    without_measurements: bool,
    /// Begin anew: results of earlier runs are removed.
    #[arg(long, conflicts_with = "plan")]
    fresh: bool,
    /// Say nothing of how far a part is.
    #[arg(short, long)]
    quiet: bool,
}

/// A part: what checks findings of a paper.
#[derive(Clone, Copy, Debug)]
struct PaperPart {
    paper: &'static str,
    about: &'static str,
    /// How long it takes on two cores, about.
    minutes: u32,
    page: &'static str,
    how: PartKind,
    /// What does it alone.
    alone: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    /// This command of `hairpin-bench` measures it: needs root and an idle machine.
    Measured(&'static str),
    /// This program simulates it; the file of results that is kept, and where.
    Simulated(&'static [&'static str], Option<(&'static str, &'static str)>),
}

/// All parts, in their order.
const PARTS: [PaperPart; 5] = [
    PaperPart {
        paper: "KAIST 2018",
        about: "8,000 connections on real packets",
        minutes: 15,
        page: "middleboxes.md",
        how: PartKind::Measured("middlebox-figures"),
        alone: "make middleboxes-keep",
    },
    PaperPart {
        paper: "Laconic",
        about: "responses on real packets",
        minutes: 20,
        page: "laconic.md",
        how: PartKind::Measured("l7-figures"),
        alone: "make bench-laconic LACONIC=\"--document docs/evidence/laconic.md --keep lab/results/laconic\"",
    },
    PaperPart {
        paper: "Laconic",
        about: "its cards in virtual time",
        minutes: 10,
        page: "laconic-cards.md",
        how: PartKind::Simulated(
            &[
                "reproduce-laconic",
                "--output",
                "target/reproduce-laconic",
                "--document",
                "docs/evidence/laconic-cards.md",
            ],
            Some(("target/reproduce-laconic/laconic.jsonl", "lab/results/laconic-cards.jsonl.gz")),
        ),
        alone: "make reproduce-laconic",
    },
    PaperPart {
        paper: "KTH 2020",
        about: "its methods on modelled cores",
        minutes: 4,
        page: "classification.md",
        how: PartKind::Simulated(&["classify"], None),
        alone: "make classification",
    },
    PaperPart {
        paper: "KTH 2022",
        about: "its experiments in virtual time",
        minutes: 36,
        page: "reproduction.md",
        how: PartKind::Simulated(
            &["reproduce", "--scale", "0.1", "--seeds", "5", "--output", RESULTS],
            Some(("target/reproduce/cases.jsonl", "lab/results/reproduction.jsonl.gz")),
        ),
        alone: "make reproduce-kth-2022",
    },
];

/// What no run of all does: it would take more than an hour and a half.
const ELSEWHERE: &str = "KTH 2020, all methods on real packets: not among the parts, takes 17 minutes of an idle machine and needs DPDK: \
                         make bench-classification\n\
                         KTH 2022, the whole scale: not among the parts, takes hours: make reproduce-full\n";

/// What is at hand.
#[derive(Clone, Debug)]
struct Surroundings {
    is_root: bool,
    /// The share of the processors' time that others take; `None`: it is not known.
    busy: Option<f64>,
    /// The program that measures.
    bench: Option<PathBuf>,
    /// Recordings that KTH 2022's cases replay.
    has_recordings: bool,
    measures: bool,
}

impl Surroundings {
    /// Looks, which takes two seconds.
    fn look(measures: bool) -> Result<Surroundings> {
        let bench = std::env::current_exe().context("this program's path")?.with_file_name("hairpin-bench");
        Ok(Surroundings {
            is_root: rustix::process::geteuid().is_root(),
            busy: busy_share(),
            bench: bench.exists().then_some(bench),
            has_recordings: std::env::var_os("HAIRPIN_TRACES").is_some(),
            measures,
        })
    }

    /// Why a part is left out.
    fn obstacle(&self, part: &PaperPart) -> Option<String> {
        let PartKind::Measured(_) = part.how else { return None };
        if !self.measures {
            return Some("--without-measurements leaves it out".to_owned());
        }
        if !self.is_root {
            return Some("it needs root, for network namespaces".to_owned());
        }
        if self.bench.is_none() {
            return Some("hairpin-bench is not beside this program".to_owned());
        }
        match self.busy {
            Some(busy) if busy <= BUSY_MAX => None,
            Some(busy) => {
                Some(format!("others take {:.0} % of the processors; it needs an idle machine", busy * 100.0))
            }
            None => Some("/proc/stat does not say whether the machine is idle".to_owned()),
        }
    }
}

/// The share of the processors' time that is taken now.
fn busy_share() -> Option<f64> {
    let now = || {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let times: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect();
        // Of user, nice, system, idle, iowait, ... the fourth and the fifth are not work.
        Some((times.iter().sum::<f64>(), times.get(3)? + times.get(4)?))
    };
    let (all, idle) = now()?;
    std::thread::sleep(LOOK);
    let (later, still) = now()?;
    (later > all).then(|| 1.0 - (still - idle) / (later - all))
}

/// The name of a part's page, and of its results.
fn name(part: &PaperPart) -> &'static str {
    part.page.trim_end_matches(".md")
}

/// The mark of a measurement that is done.
fn mark(part: &PaperPart) -> PathBuf {
    Path::new(RESULTS).join("measured").join(name(part))
}

/// What becomes of each part, in words.
fn plan(surroundings: &Surroundings, is_done: &dyn Fn(&PaperPart) -> bool) -> String {
    let minutes: u32 = wanted(surroundings, is_done).iter().map(|part| part.minutes).sum();
    let mut text = format!("about {minutes} minutes on two cores, once the programs are built:\n");
    for part in &PARTS {
        let PaperPart { paper, about, minutes, page, alone, .. } = part;
        let said = match surroundings.obstacle(part) {
            _ if is_done(part) => format!("done by an earlier run; --fresh measures again; docs/evidence/{page}"),
            Some(obstacle) => format!("LEFT OUT: {obstacle}. docs/evidence/{page} stays as it is; alone: {alone}"),
            None => format!("about {minutes} minutes; docs/evidence/{page}"),
        };
        text.push_str(&format!("{paper}, {about}: {said}\n"));
    }
    if !surroundings.has_recordings {
        text.push_str(
            "KTH 2022: HAIRPIN_TRACES names no recordings: cases that replay them fail, so docs/evidence/reproduction.md stays as it \
             is, and target/reproduce/index.html has what came\n",
        );
    }
    text + ELSEWHERE
}

fn wanted(surroundings: &Surroundings, is_done: &dyn Fn(&PaperPart) -> bool) -> Vec<&'static PaperPart> {
    PARTS.iter().filter(|part| surroundings.obstacle(part).is_none() && !is_done(part)).collect()
}

impl ReproducePapersArguments {
    /// Does all of it. It fails if a part did; what is left out is no failure.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        let began = Instant::now();
        ensure!(
            Path::new("lab/experiments").exists(),
            "run it in the repository's root: there is no lab/experiments here"
        );
        let surroundings = Surroundings::look(!self.without_measurements)?;
        let is_measured = |part: &PaperPart| matches!(part.how, PartKind::Measured(_)) && mark(part).exists();
        let is_done = |part: &PaperPart| !self.fresh && is_measured(part);
        print(&plan(&surroundings, &is_done))?;
        if self.plan {
            return Ok(ExitCode::SUCCESS);
        }
        let parts = wanted(&surroundings, &is_done);
        let mut failed = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let after: u32 = parts[index + 1..].iter().map(|part| part.minutes).sum();
            let place = PartOfAll {
                name: format!("{}, {} of {}", part.paper, index + 1, parts.len()),
                after: Duration::from_secs(60 * u64::from(after)),
            };
            print(&format!(
                "{}: {}, about {} min, {} min in all\n",
                place.name,
                part.about,
                part.minutes,
                part.minutes + after
            ))?;
            let came = match part.how {
                PartKind::Measured(command) => measure(part, command, &surroundings),
                PartKind::Simulated(arguments, kept) => self.simulate(part, (arguments, kept), &surroundings, place),
            };
            if let Err(error) = came {
                eprintln!("{}, {}: {error:#}", part.paper, part.about);
                failed.push(format!("{}, {}", part.paper, part.about));
            }
        }
        write(&EvidenceSources { root: Path::new("."), results: Path::new("lab/results") }, Path::new(PAGE))?;
        print(&format!("{PAGE}; {}\n", about(began.elapsed())))?;
        if failed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        print(&format!("FAILED: {}; another run goes on from here\n", failed.join("; ")))?;
        Ok(ExitCode::FAILURE)
    }

    /// A part in this process. What came is kept once all of it is there.
    fn simulate(
        &self,
        part: &PaperPart,
        (arguments, kept): (&[&str], Option<(&str, &str)>),
        surroundings: &Surroundings,
        place: PartOfAll,
    ) -> Result<()> {
        let mut arguments: Vec<&str> = arguments.to_vec();
        let is_model = arguments[0] == "reproduce";
        if is_model && surroundings.has_recordings {
            arguments.extend(["--document", "docs/evidence/reproduction.md", "--tables", "lab/results/reproduction"]);
            if Path::new("target/reproduce-kept/full/cases.jsonl").exists() {
                arguments.extend(["--beside", "1=target/reproduce-kept/full"]);
            }
            if Path::new("lab/results/sensitivity.csv").exists() {
                arguments.extend(["--constants", "lab/results/sensitivity.csv"]);
            }
        }
        if self.fresh && arguments[0] != "classify" {
            arguments.push("--fresh");
        }
        if self.quiet {
            arguments.push("--quiet");
        }
        let mut command = CommandLine::try_parse_from(std::iter::once("hairpin-lab").chain(arguments))?.action;
        match &mut command {
            CliCommand::Reproduce(arguments) => arguments.part = Some(place),
            CliCommand::ReproduceLaconic(arguments) => arguments.part = Some(place),
            CliCommand::Classify(arguments) => arguments.part = Some(place),
            _ => {}
        }
        ensure!(command.perform()? == ExitCode::SUCCESS, "cases failed; `{}` does it alone", part.alone);
        if let Some((from, into)) = kept {
            let lines = std::fs::read_to_string(from).with_context(|| format!("could not read {from}"))?;
            keep_lines(Path::new(into), &lines)?;
        }
        Ok(())
    }
}

/// A part by `hairpin-bench`, which prints how far it is.
fn measure(part: &PaperPart, command: &str, surroundings: &Surroundings) -> Result<()> {
    let bench = surroundings.bench.as_ref().context("hairpin-bench is not beside this program")?;
    let (document, kept) = (Path::new("docs/evidence").join(part.page), Path::new("lab/results").join(name(part)));
    let mut measuring = Command::new(bench);
    measuring.arg(command).arg("--document").arg(document).arg("--keep").arg(kept);
    let status = measuring.status().with_context(|| format!("could not run {}", bench.display()))?;
    ensure!(status.success(), "hairpin-bench {command} ended with {status}; `{}` does it alone", part.alone);
    let mark = mark(part);
    let named = || format!("could not write {}", mark.display());
    std::fs::create_dir_all(mark.parent().unwrap_or(Path::new(""))).with_context(named)?;
    std::fs::write(&mark, "").with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_hand() -> Surroundings {
        let bench = Some(PathBuf::from("hairpin-bench"));
        Surroundings { is_root: true, busy: Some(0.01), bench, has_recordings: true, measures: true }
    }

    fn minutes(surroundings: &Surroundings) -> u32 {
        wanted(surroundings, &|_| false).iter().map(|part| part.minutes).sum()
    }

    #[test]
    fn all_parts_take_less_than_ninety_minutes() {
        assert!(minutes(&at_hand()) < 90);
        let papers: std::collections::BTreeSet<&str> = PARTS.iter().map(|part| part.paper).collect();
        assert_eq!(papers.len(), 4);
    }

    #[test]
    fn what_is_left_out_is_said() {
        let said = |surroundings: &Surroundings| plan(surroundings, &|_| false);
        assert!(!said(&at_hand()).contains("LEFT OUT"));
        for (surroundings, why) in [
            (Surroundings { is_root: false, ..at_hand() }, "it needs root"),
            (Surroundings { busy: Some(0.5), ..at_hand() }, "others take 50 % of the processors"),
            (Surroundings { busy: None, ..at_hand() }, "/proc/stat"),
            (Surroundings { bench: None, ..at_hand() }, "hairpin-bench is not beside"),
            (Surroundings { measures: false, ..at_hand() }, "--without-measurements"),
        ] {
            let text = said(&surroundings);
            assert_eq!(text.matches(&format!("LEFT OUT: {why}")).count(), 2, "{text}");
            assert!(text.contains("make middleboxes-keep") && text.contains("make bench-laconic"), "{text}");
            assert!(minutes(&surroundings) < minutes(&at_hand()));
        }
        let text = said(&Surroundings { has_recordings: false, ..at_hand() });
        assert!(text.contains("HAIRPIN_TRACES names no recordings"), "{text}");
        assert!(text.contains("make bench-classification") && text.contains("make reproduce-full"), "{text}");
        let text = plan(&at_hand(), &|part| part.paper == "KAIST 2018");
        assert!(text.contains("real packets: done by an earlier run"), "{text}");
    }

    #[test]
    fn simulated_parts_are_commands_of_this_program() {
        for part in PARTS {
            if let PartKind::Simulated(arguments, _) = part.how {
                CommandLine::try_parse_from(["hairpin-lab"].iter().chain(arguments)).unwrap();
            }
        }
    }

    #[test]
    fn busy_share_is_a_share() {
        assert!((0.0..=1.0).contains(&busy_share().unwrap()));
    }
}
