//! What a packet over an offloaded rule costs beside the reference, and how fast rules go in: a table for the numbers
//! of rules given as arguments, or the usual ones.

use hairpin_linux::cost::{measure, median};

fn main() -> anyhow::Result<()> {
    let mut counts = Vec::new();
    for argument in std::env::args().skip(1) {
        counts.push(argument.parse()?);
    }
    if counts.is_empty() {
        counts = vec![1, 1_000, 100_000, 1_000_000];
    }
    println!("{:>9} {:>16} {:>16} {:>6} {:>12}", "rules", "hairpin ns", "reference ns", "ratio", "installs/s");
    for rules in counts {
        let cost = measure(rules, 5)?;
        let (ours, reference) = (median(&cost.ours_ns), median(&cost.reference_ns));
        println!(
            "{rules:>9} {:>16} {:>16} {:>6.2} {:>12.0}",
            spread(&cost.ours_ns),
            spread(&cost.reference_ns),
            ours / reference,
            median(&cost.installs_per_s)
        );
    }
    Ok(())
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, 0f64), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{:.0} ({least:.0}-{most:.0})", median(values))
}
