//! Measured and simulated, side by side.

use super::{CalibrateArgs, pairs};
use crate::suite::report::{self, Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::calibrate::check::{
    BOUND, CheckCase, CheckLoad, IDLE_MAX, OfferedTimes, PACKETS, RunOutcome, by_size, capacity, compare,
    of_iterations, simulate, write_sizes,
};
use hairpin_lab::calibrate::rings::OverRings;
use hairpin_lab::calibrate::{self, Bench, CalibrationOptions, DevicePoint, calibrate_beside};
use hairpin_lab::testbed::meter::CoreWork;
use hairpin_lab::testbed::{Device, SendRate};
use hairpin_sim::testbed::cores::CoreProfile;
use std::collections::BTreeMap;
use std::path::Path;

/// A generator is asked for this part of what it can do at most.
const GENERATOR: f64 = 0.8;

/// Measurements of everything, unless something else is asked for.
const REPETITIONS: usize = 5;

/// A run, and what was measured of it, in each repetition.
struct Checked {
    case: CheckCase,
    measured: Vec<Checkup>,
}

impl Checked {
    /// Whether all points have been measured that its costs are taken from: of a table the two numbers of flows nearest to
    /// its own.
    fn is_due(&self, flows: &[u32], seen: &[&DevicePoint]) -> bool {
        let CheckCase { device, table, flows: own, .. } = &self.case;
        if *device != Device::Balancer {
            return seen.iter().any(|point| point.device == *device);
        }
        let is_seen = |number: &u32| seen.iter().any(|point| point.table == table.name() && point.flows == *number);
        let (below, above) = (flows.iter().rfind(|flows| *flows <= own), flows.iter().find(|flows| *flows > own));
        below.is_none_or(is_seen) && above.is_none_or(is_seen)
    }
}

/// All runs, measured alternating with the costs that they are simulated with.
struct Runs<'a> {
    checked: Vec<Checked>,
    options: &'a CalibrationOptions,
    sizes: &'a Path,
}

/// A run that was measured once.
struct Checkup {
    /// Packets that were offered, and when.
    packets: u64,
    handed: Vec<(u64, u32)>,
    came: RunOutcome,
    iterations: CoreWork,
    /// The machine's costs in this repetition, known at its end.
    profile: Option<CoreProfile>,
}

pub(super) fn run(arguments: &CalibrateArgs) -> Result<()> {
    std::fs::create_dir_all(&arguments.directory).context("the directory")?;
    let eal = Eal::start(EalOptions::default()).context("DPDK")?;
    println!("calibrate: {}", crate::tables::machine_name());
    let repetitions = arguments.repetitions.unwrap_or(if arguments.quick { 1 } else { REPETITIONS });
    let mut rows = if arguments.pairs { Vec::new() } else { one_core(arguments, eal)? };
    if arguments.profile.is_none() {
        let pairs = pairs::run(arguments, eal, repetitions)?;
        pairs.write(&arguments.directory.join("two-cores.csv"))?;
        rows.extend(pairs.rows()?);
    }
    ensure!(!rows.is_empty(), "there is no such run");
    report::write(&arguments.directory, "calibrate", &rows)?;
    println!("\n{}", report::table(&rows));
    let held = rows.iter().filter(|row| row.held).count();
    println!("{held} of {} bars held", rows.len());
    Ok(())
}

/// The device on one core.
fn one_core(arguments: &CalibrateArgs, eal: Eal) -> Result<Vec<ReportRow>> {
    let mut options = if arguments.quick { CalibrationOptions::quick() } else { CalibrationOptions::default() };
    // rte_hash is no table of the data plane's: it is in no profile.
    options.tables.retain(|table| !table.starts_with("rte-hash"));
    options.repetitions = arguments.repetitions.unwrap_or(if arguments.quick { 1 } else { REPETITIONS });
    let wanted = |case: &CheckCase| {
        arguments.only.is_empty() || arguments.only.iter().any(|word| case.to_string().contains(word.as_str()))
    };
    let measures = |case: &CheckCase| options.tables.iter().any(|table| table == case.table.name());
    let cases =
        CheckCase::all().into_iter().filter(|case| wanted(case) && (arguments.profile.is_some() || measures(case)));
    let checked: Vec<Checked> = cases.map(|case| Checked { case, measured: Vec::new() }).collect();
    if checked.is_empty() {
        return Ok(Vec::new());
    }
    let sizes = arguments.directory.join("calibrate-sizes.csv");
    write_sizes(&sizes)?;
    let mut bench = OverRings::new(eal, options.duration);
    let mut runs = Runs { checked, options: &options, sizes: &sizes };
    match &arguments.profile {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let profile =
                CoreProfile::parse(&text).map_err(anyhow::Error::msg).with_context(|| file.display().to_string())?;
            for repetition in 0..options.repetitions {
                runs.measure(repetition, &mut bench, |_| true)?;
                calibrate::SideMeasurement::found(&mut runs, &profile);
            }
        }
        None => {
            let done = calibrate_beside(&options, &mut bench, &mut runs, &mut |what| println!("  {what}"))?;
            let text = done.text();
            std::fs::write(arguments.directory.join("this-machine.toml"), &text).context("the profile")?;
            println!("{text}");
        }
    }
    let _ = std::fs::remove_file(&sizes);
    runs.checked.iter().map(row).collect()
}

impl calibrate::SideMeasurement for Runs<'_> {
    fn after(&mut self, repetition: usize, points: &[&DevicePoint], bench: &mut dyn Bench) -> Result<()> {
        let flows = &self.options.flows;
        self.measure(repetition, bench, |checked| checked.is_due(flows, points))
    }

    fn found(&mut self, profile: &CoreProfile) {
        let all = self.checked.iter_mut().flat_map(|checked| &mut checked.measured);
        all.filter(|checkup| checkup.profile.is_none()).for_each(|checkup| checkup.profile = Some(profile.clone()));
    }
}

impl Runs<'_> {
    /// Those that are due and have not been measured in this repetition; lower loads after the full speeds that they are
    /// parts of.
    fn measure(&mut self, repetition: usize, bench: &mut dyn Bench, due: impl Fn(&Checked) -> bool) -> Result<()> {
        let is_due = |checked: &Checked| checked.measured.len() == repetition && due(checked);
        let mut order: Vec<usize> = (0..self.checked.len()).filter(|&at| is_due(&self.checked[at])).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        order.sort_by_key(|&at| self.checked[at].case.load != CheckLoad::Full);
        order.into_iter().try_for_each(|at| self.run(at, repetition, bench).context("the runs to be compared"))
    }

    fn run(&mut self, at: usize, repetition: usize, bench: &mut dyn Bench) -> Result<()> {
        let case = self.checked[at].case.clone();
        let rate = match case.load.part() {
            None => SendRate::Max,
            Some(part) => SendRate::Packets(self.lower((&case, part), bench)?),
        };
        let trial = case.trial(rate, self.options.duration, self.sizes, 100 + repetition as u64);
        let measured = bench.trial(&trial).with_context(|| case.to_string())?;
        let came = RunOutcome::measured(&measured).with_context(|| format!("{case}: no packet came"))?;
        println!(
            "  {case}: {}packet/s of a busy second, {}packet/s through, {:.0} % idle",
            metric(came.busy_pps),
            metric(came.pps),
            came.idle * 100.0
        );
        // At full speed it is the simulated device that sets the pace.
        let handed = if case.load == CheckLoad::Full { Vec::new() } else { measured.handed };
        let (packets, iterations) = (measured.sent, measured.work.unwrap_or_default());
        self.checked[at].measured.push(Checkup { packets, handed, came, iterations, profile: None });
        Ok(())
    }

    /// A part of what the device takes at full speed, if the generator can do that.
    fn lower(&self, (case, part): (&CheckCase, f64), bench: &mut dyn Bench) -> Result<f64> {
        let full = CheckCase { load: CheckLoad::Full, ..case.clone() };
        let known = self.checked.iter().find(|other| other.case == full).and_then(|other| other.measured.last());
        let came = match known {
            Some(checkup) => checkup.came,
            None => {
                RunOutcome::measured(&bench.trial(&full.trial(SendRate::Max, self.options.duration, self.sizes, 1))?)
                    .with_context(|| format!("{full}: no packet came"))?
            }
        };
        let generator = if came.idle > IDLE_MAX { GENERATOR * came.pps } else { f64::INFINITY };
        Ok((came.busy_pps * part).min(generator))
    }
}

/// A run that was measured once, simulated with the costs of the same repetition.
fn simulated(case: &CheckCase, checkup: &Checkup, profile: &CoreProfile) -> Result<RunOutcome> {
    let offered = match case.load {
        CheckLoad::Full => OfferedTimes::in_bursts(1.5 * capacity(profile, case)),
        CheckLoad::Half | CheckLoad::Tenth => OfferedTimes::Recorded(&checkup.handed),
    };
    // If flows come and go, the table fills meanwhile.
    let packets = if case.moving { checkup.packets } else { PACKETS };
    simulate(profile, case, offered, packets)
}

/// The report of a run: that of the repetition whose ratio is in the middle.
fn row(checked: &Checked) -> Result<ReportRow> {
    let case = &checked.case;
    let mut all = Vec::new();
    for checkup in &checked.measured {
        let profile = checkup.profile.as_ref().with_context(|| format!("{case}: a repetition without a profile"))?;
        let simulated = simulated(case, checkup, profile)?;
        let (ratio, held) = compare(&simulated, &checkup.came);
        all.push((ratio, held, simulated, (checkup, profile)));
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let middle = all.get(all.len() / 2).with_context(|| format!("{case} was not measured"))?;
    let &(ratio, held, simulated, (checkup, profile)) = middle;
    let ratios: Vec<String> = all.iter().map(|(ratio, ..)| format!("{ratio:.2}")).collect();
    println!("  {case}: simulated over measured by repetition: {}", ratios.join(", "));
    println!("  {case}, a packet in turns of: {}", by_size(profile, case, &checkup.iterations));
    let measured = checkup.came;
    let mut title = case.to_string();
    if case.load == CheckLoad::Full && measured.idle > IDLE_MAX {
        title.push_str(&format!(" (generator is the limit, device {:.0} % idle)", measured.idle * 100.0));
    }
    let beside = BTreeMap::from([
        ("measured".to_owned(), measured.busy_pps),
        ("measured, wall clock".to_owned(), measured.pps),
        ("simulated, wall clock".to_owned(), simulated.pps),
        ("profile, turns as measured".to_owned(), of_iterations(profile, case, &checkup.iterations)),
    ]);
    let ours = RepeatedValues::from(vec![simulated.busy_pps]);
    let row = ReportRow::new(title, "packet/s", &ours, &beside, "measured", Bar::Within(BOUND));
    ensure!(row.held == held && (row.ratio - ratio).abs() < 1e-9, "{case}: two ratios");
    let spread = RepeatedValues::from(all.iter().map(|(ratio, ..)| *ratio).collect::<Vec<f64>>()).spread();
    Ok(ReportRow { spread, ..row })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_due_when_its_costs_have_been_measured() {
        let options = CalibrationOptions::default();
        let points = options.points();
        for case in CheckCase::all() {
            let checked = Checked { case: case.clone(), measured: Vec::new() };
            for mut points in [points.iter().collect::<Vec<_>>(), points.iter().rev().collect()] {
                let due = |count: usize| checked.is_due(&options.flows, &points[..count]);
                let first = (0..=points.len()).find(|&count| due(count)).expect("it is never due");
                let last = points[first - 1];
                assert_eq!(last.device, case.device, "{case}");
                if case.device == Device::Balancer {
                    assert_eq!(last.table, case.table.name(), "{case}");
                    let between = options.flows.iter().position(|&flows| flows > case.flows).expect("beyond the last");
                    assert!(options.flows[between - 1..=between].contains(&last.flows), "{case}: {last}");
                }
                points.truncate(first - 1);
                assert!(!checked.is_due(&options.flows, &points), "{case}");
            }
        }
    }
}
