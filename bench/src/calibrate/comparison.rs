//! Measured and simulated, side by side.

use super::Arguments;
use crate::suite::report::{self, Bar, Row, metric};
use crate::suite::samples::Samples;
use anyhow::{Context, Result, ensure};
use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::calibrate::check::{
    BOUND, Beside, Case, FULL_BURSTS, IDLE_MAX, Load, PACKETS, by_size, capacity, compare, of_turns, simulate,
    write_sizes,
};
use hairpin_lab::calibrate::rings::OverRings;
use hairpin_lab::calibrate::{Bench, Options, calibrate_beside};
use hairpin_lab::testbed::Rate;
use hairpin_lab::testbed::meter::Work;
use hairpin_sim::testbed::cores::CoreProfile;
use std::collections::BTreeMap;
use std::path::Path;

/// A generator is asked for this part of what it can do at most.
const GENERATOR: f64 = 0.8;

/// Measurements of everything, unless something else is asked for.
const REPETITIONS: usize = 5;
/// Trials that do not count, before the others.
const WARM_UP: usize = 3;

/// A run, and what was measured of it.
struct Checked {
    case: Case,
    /// What was offered, and what came of it.
    measured: Vec<(Sent, Beside)>,
    /// The turns of all measurements together.
    turns: Work,
    /// How many packets were sent at a time, and how often, in all of them.
    bursts: BTreeMap<u32, u64>,
}

/// What was offered.
#[derive(Clone, Copy)]
struct Sent {
    packets: u64,
    pps: f64,
}

impl Checked {
    /// The measurement in the middle, by packets of a busy second.
    fn middle(&self) -> Option<(Sent, Beside)> {
        let mut sorted = self.measured.clone();
        sorted.sort_by(|one, other| one.1.busy_pps.total_cmp(&other.1.busy_pps));
        sorted.get(sorted.len() / 2).copied()
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = if arguments.quick { Options::quick() } else { Options::default() };
    // rte_hash is no table of the data plane's: it is in no profile.
    options.tables.retain(|table| !table.starts_with("rte-hash"));
    options.repetitions = arguments.repetitions.unwrap_or(if arguments.quick { 1 } else { REPETITIONS });
    let wanted = |case: &Case| {
        arguments.only.is_empty() || arguments.only.iter().any(|word| case.to_string().contains(word.as_str()))
    };
    let measures = |case: &Case| options.tables.iter().any(|table| table == case.table.name());
    let cases = Case::all().into_iter().filter(|case| wanted(case) && (arguments.profile.is_some() || measures(case)));
    let mut checked: Vec<Checked> = cases
        .map(|case| Checked { case, measured: Vec::new(), turns: Work::default(), bursts: BTreeMap::new() })
        .collect();
    ensure!(!checked.is_empty(), "there is no such run");
    std::fs::create_dir_all(&arguments.directory).context("the directory")?;
    let sizes = arguments.directory.join("calibrate-sizes.csv");
    write_sizes(&sizes)?;
    let eal = Eal::start(EalOptions::default()).context("DPDK")?;
    let mut bench = OverRings::new(eal, options.duration);
    println!("calibrate: {}", crate::tables::machine_name());
    let mut beside = |repetition: usize, bench: &mut dyn Bench| {
        measure(&mut checked, bench, &options, &sizes, repetition).context("the runs to be compared")
    };
    let profile = match &arguments.profile {
        Some(file) => {
            (0..options.repetitions).try_for_each(|repetition| beside(repetition, &mut bench))?;
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            CoreProfile::parse(&text).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?
        }
        None => {
            let done = calibrate_beside(&options, &mut bench, &mut beside, &mut |what| println!("  {what}"))?;
            let text = done.text();
            std::fs::write(arguments.directory.join("this-machine.toml"), &text).context("the profile")?;
            println!("{text}");
            done.profile
        }
    };
    let _ = std::fs::remove_file(&sizes);
    let rows = checked.iter().filter_map(|checked| row(&profile, checked).transpose()).collect::<Result<Vec<Row>>>()?;
    report::write(&arguments.directory, "calibrate", &rows)?;
    println!("\n{}", report::table(&rows));
    let held = rows.iter().filter(|row| row.held).count();
    println!("{held} of {} bars held", rows.len());
    Ok(())
}

/// All runs once; lower loads after the full speeds that they are parts of.
fn measure(
    checked: &mut [Checked],
    bench: &mut dyn Bench,
    options: &Options,
    sizes: &Path,
    repetition: usize,
) -> Result<()> {
    let mut order: Vec<usize> = (0..checked.len()).collect();
    if repetition % 2 == 1 {
        order.reverse();
    }
    order.sort_by_key(|&at| checked[at].case.load != Load::Full);
    // What was measured before that left a processor idle, and whoever gives out processors (a virtual machine's host, too) moves
    // threads when that changes: the first trial would find another machine than all others.
    for _ in 0..WARM_UP {
        bench.trial(&checked[order[0]].case.trial(Rate::Max, options.duration, sizes, 1)).context("warming up")?;
    }
    for at in order {
        let case = checked[at].case.clone();
        let rate = match case.load.part() {
            None => Rate::Max,
            Some(part) => Rate::Packets(lower(checked, (&case, part), bench, options, sizes)?),
        };
        let trial = case.trial(rate, options.duration, sizes, 100 + repetition as u64);
        let measured = bench.trial(&trial).with_context(|| case.to_string())?;
        let beside = Beside::measured(&measured).with_context(|| format!("{case}: no packet came"))?;
        println!(
            "  {case}: {}packet/s of a busy second, {}packet/s through, {:.0} % idle",
            metric(beside.busy_pps),
            metric(beside.pps),
            beside.idle * 100.0
        );
        checked[at].turns.add(&measured.work.unwrap_or_default());
        for (packets, count) in &measured.bursts {
            *checked[at].bursts.entry(*packets).or_default() += count;
        }
        checked[at].measured.push((Sent { packets: measured.sent, pps: measured.tx_pps }, beside));
    }
    Ok(())
}

/// A part of what the device takes at full speed, if the generator can do that.
fn lower(
    checked: &[Checked],
    (case, part): (&Case, f64),
    bench: &mut dyn Bench,
    options: &Options,
    sizes: &Path,
) -> Result<f64> {
    let full = Case { load: Load::Full, ..case.clone() };
    let known = checked.iter().find(|other| other.case == full).and_then(|other| other.measured.last().copied());
    let beside = match known {
        Some((_, beside)) => beside,
        None => Beside::measured(&bench.trial(&full.trial(Rate::Max, options.duration, sizes, 1))?)
            .with_context(|| format!("{full}: no packet came"))?,
    };
    let generator = if beside.idle > IDLE_MAX { GENERATOR * beside.pps } else { f64::INFINITY };
    Ok((beside.busy_pps * part).min(generator))
}

/// What there is to say of a run; `None` if it was not measured.
fn row(profile: &CoreProfile, checked: &Checked) -> Result<Option<Row>> {
    let Some((offered, measured)) = checked.middle() else { return Ok(None) };
    let case = &checked.case;
    let measured_bursts: Vec<(u32, u64)> = checked.bursts.iter().map(|(&packets, &count)| (packets, count)).collect();
    let (pps, bursts) = match case.load {
        Load::Full => (1.5 * capacity(profile, case), FULL_BURSTS),
        Load::Half | Load::Tenth => (offered.pps, &measured_bursts[..]),
    };
    // Where flows come and go the table fills as it goes.
    let packets = if case.moving { offered.packets } else { PACKETS };
    let simulated = simulate(profile, case, (pps, bursts), packets)?;
    let (ratio, held) = compare(&simulated, &measured);
    println!("  {case}, a packet in turns of: {}", by_size(profile, case, &checked.turns));
    let mut title = case.to_string();
    if case.load == Load::Full && measured.idle > IDLE_MAX {
        title.push_str(&format!(" (generator is the limit, device {:.0} % idle)", measured.idle * 100.0));
    }
    let beside = BTreeMap::from([
        ("measured".to_owned(), measured.busy_pps),
        ("measured, wall clock".to_owned(), measured.pps),
        ("simulated, wall clock".to_owned(), simulated.pps),
        ("profile, turns as measured".to_owned(), of_turns(profile, case, &checked.turns)),
    ]);
    let all: Vec<f64> = checked.measured.iter().map(|(_, measured)| measured.busy_pps).collect();
    let ours = Samples::from(vec![simulated.busy_pps]);
    let row = Row::new(title, "packet/s", &ours, &beside, "measured", Bar::Within(BOUND));
    ensure!(row.held == held && (row.ratio - ratio).abs() < 1e-9, "{case}: two ratios");
    Ok(Some(Row { spread: Samples::from(all).spread(), ..row }))
}
