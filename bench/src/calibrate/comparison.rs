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

/// A run, and what was measured of it, in each repetition.
struct Checked {
    case: Case,
    measured: Vec<Checkup>,
}

/// A run that was measured once.
#[derive(Clone)]
struct Checkup {
    /// Packets that were offered, and how many per second.
    packets: u64,
    pps: f64,
    /// How many were sent at a time, and how often.
    bursts: Vec<(u32, u64)>,
    came: Beside,
    turns: Work,
    /// What the machine's costs were in this repetition.
    profile: CoreProfile,
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
    let mut checked: Vec<Checked> = cases.map(|case| Checked { case, measured: Vec::new() }).collect();
    ensure!(!checked.is_empty(), "there is no such run");
    std::fs::create_dir_all(&arguments.directory).context("the directory")?;
    let sizes = arguments.directory.join("calibrate-sizes.csv");
    write_sizes(&sizes)?;
    let eal = Eal::start(EalOptions::default()).context("DPDK")?;
    let mut bench = OverRings::new(eal, options.duration);
    println!("calibrate: {}", crate::tables::machine_name());
    let mut beside = |repetition: usize, profile: &CoreProfile, bench: &mut dyn Bench| {
        measure(&mut checked, bench, (&options, profile), &sizes, repetition).context("the runs to be compared")
    };
    match &arguments.profile {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let profile =
                CoreProfile::parse(&text).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
            (0..options.repetitions).try_for_each(|repetition| beside(repetition, &profile, &mut bench))?;
        }
        None => {
            let done = calibrate_beside(&options, &mut bench, &mut beside, &mut |what| println!("  {what}"))?;
            let text = done.text();
            std::fs::write(arguments.directory.join("this-machine.toml"), &text).context("the profile")?;
            println!("{text}");
        }
    }
    let _ = std::fs::remove_file(&sizes);
    let rows = checked.iter().filter_map(|checked| row(checked).transpose()).collect::<Result<Vec<Row>>>()?;
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
    (options, profile): (&Options, &CoreProfile),
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
        let bursts = measured.bursts.clone();
        let (packets, pps, turns) = (measured.sent, measured.tx_pps, measured.work.unwrap_or_default());
        let profile = profile.clone();
        checked[at].measured.push(Checkup { packets, pps, bursts, came: beside, turns, profile });
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
    let known = checked.iter().find(|other| other.case == full).and_then(|other| other.measured.last());
    let beside = match known {
        Some(checkup) => checkup.came,
        None => Beside::measured(&bench.trial(&full.trial(Rate::Max, options.duration, sizes, 1))?)
            .with_context(|| format!("{full}: no packet came"))?,
    };
    let generator = if beside.idle > IDLE_MAX { GENERATOR * beside.pps } else { f64::INFINITY };
    Ok((beside.busy_pps * part).min(generator))
}

/// A run that was measured once, simulated with the costs of the same repetition.
fn simulated(case: &Case, checkup: &Checkup) -> Result<Beside> {
    let (pps, bursts) = match case.load {
        Load::Full => (1.5 * capacity(&checkup.profile, case), FULL_BURSTS),
        Load::Half | Load::Tenth => (checkup.pps, &checkup.bursts[..]),
    };
    // Where flows come and go the table fills as it goes.
    let packets = if case.moving { checkup.packets } else { PACKETS };
    simulate(&checkup.profile, case, (pps, bursts), packets)
}

/// What there is to say of a run: that of the repetition whose ratio is in the middle. `None` if it was not measured.
fn row(checked: &Checked) -> Result<Option<Row>> {
    let case = &checked.case;
    let mut all = Vec::new();
    for checkup in &checked.measured {
        let simulated = simulated(case, checkup)?;
        let (ratio, held) = compare(&simulated, &checkup.came);
        all.push((ratio, held, simulated, checkup));
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some(&(ratio, held, simulated, checkup)) = all.get(all.len() / 2) else { return Ok(None) };
    let ratios: Vec<String> = all.iter().map(|(ratio, ..)| format!("{ratio:.2}")).collect();
    println!("  {case}: simulated over measured by repetition: {}", ratios.join(", "));
    println!("  {case}, a packet in turns of: {}", by_size(&checkup.profile, case, &checkup.turns));
    let measured = checkup.came;
    let mut title = case.to_string();
    if case.load == Load::Full && measured.idle > IDLE_MAX {
        title.push_str(&format!(" (generator is the limit, device {:.0} % idle)", measured.idle * 100.0));
    }
    let beside = BTreeMap::from([
        ("measured".to_owned(), measured.busy_pps),
        ("measured, wall clock".to_owned(), measured.pps),
        ("simulated, wall clock".to_owned(), simulated.pps),
        ("profile, turns as measured".to_owned(), of_turns(&checkup.profile, case, &checkup.turns)),
    ]);
    let ours = Samples::from(vec![simulated.busy_pps]);
    let row = Row::new(title, "packet/s", &ours, &beside, "measured", Bar::Within(BOUND));
    ensure!(row.held == held && (row.ratio - ratio).abs() < 1e-9, "{case}: two ratios");
    let spread = Samples::from(all.iter().map(|(ratio, ..)| *ratio).collect::<Vec<f64>>()).spread();
    Ok(Some(Row { spread, ..row }))
}
