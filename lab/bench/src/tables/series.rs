//! Throughput as a table fills, and how far it can be filled.

use super::keys;
use super::measure::{self, MeasureWindow};
use super::methods::Candidate;
use super::results::{Fact, FigureKey, REFUSAL, TableResults};
use super::subject::{BURST, TableSize, TableSubject};
use super::{FilledMethod, TablesPlan};
use anyhow::Result;
use std::time::Duration;

/// Slots of these tables.
pub(super) const SLOTS: usize = 1 << 20;
/// How full they are, in percent.
pub(super) const LOADS: [usize; 6] = [50, 60, 70, 80, 90, 95];

/// Entries at a load.
pub(super) fn entries(percent: usize) -> usize {
    SLOTS * percent / 100 / BURST * BURST
}

/// Fills all methods that have a bound step by step and gives each some rounds at every step, with one thread; then fills
/// them until they refuse.
pub(super) fn by_load(plan: &TablesPlan, candidates: &[Candidate], results: &mut TableResults) {
    // Some take more than their slots; none takes twice as many.
    let population = keys::population(2 * SLOTS, 0);
    let window = MeasureWindow { timed: plan.window.timed.min(Duration::from_millis(50)), ..plan.window };
    let mut size = TableSize { slots: SLOTS, entries: 0, brim: true };
    let mut tables: Vec<FilledMethod> = Vec::new();
    for method in candidates {
        match method.make(&size, &[1]) {
            Ok(subject) if subject.slots().is_some() => {
                tables.push(FilledMethod { name: method.name.clone(), subject })
            }
            // It has no bound, or is not there; then that was said before.
            _ => {}
        }
    }
    for percent in LOADS {
        let (from, to) = (size.entries, entries(percent));
        size.entries = to;
        let shares = keys::shares(&population[..to], 1, percent as u64);
        tables.retain(|table| {
            let more = insert(&*table.subject, &population[from..to], plan);
            let Ok(inserted) = more else {
                return results.record(&of(table, &size, 0), more.map(|_| Default::default()));
            };
            if from + inserted < to {
                results.facts.push(refusal(table, from + inserted));
            }
            from + inserted == to
        });
        for repetition in 0..plan.load_repetitions {
            tables.retain(|table| {
                let round = measure::round(&*table.subject, &shares, window, repetition, &plan.processors);
                // Some take a little more than they promise, until chance is against them.
                if round.as_ref().is_err_and(|error| error.is::<measure::KeysRefused>()) {
                    results.facts.push(refusal(table, to));
                    return false;
                }
                results.record(&of(table, &size, repetition), round)
            });
            tables.reverse();
        }
    }
    for table in &tables {
        match insert(&*table.subject, &population[size.entries..], plan) {
            Ok(inserted) => results.facts.push(refusal(table, size.entries + inserted)),
            Err(error) => results.failures.push(format!("filling {}: {error:#}", table.name)),
        }
    }
}

fn of(table: &FilledMethod, size: &TableSize, repetition: usize) -> FigureKey {
    FigureKey::of(&table.name, size, 1, repetition)
}

fn refusal(table: &FilledMethod, entries: usize) -> Fact {
    let (method, value) = (table.name.clone(), entries as f64 / table.subject.slots().unwrap_or(SLOTS) as f64);
    Fact { method, what: REFUSAL, unit: "of all slots", slots: SLOTS, entries, value }
}

/// Inserts keys until one is refused; how many went in.
fn insert(subject: &dyn TableSubject, keys: &[keys::BenchKey], plan: &TablesPlan) -> Result<usize> {
    let inserted = measure::on_threads(&plan.processors, 1, |_, pinned| {
        pinned?;
        let mut hands = subject.hands(1, 0)?;
        let mut count = 0;
        for keys in keys.chunks(BURST) {
            let inserted = hands.insert(keys);
            count += inserted;
            if inserted < keys.len() {
                break;
            }
        }
        Ok(count)
    })?;
    Ok(inserted.into_iter().sum())
}
