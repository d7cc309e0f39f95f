//! The cost of a packet over an offloaded rule beside the reference, and how fast rules go in: a table for the numbers
//! of rules given as arguments, or the usual ones. With `sequence` as the first argument: the cost of translating TCP
//! sequence numbers, and of guarding them.

use hairpin_linux::cost::{measure, measure_sequence, median};

fn main() -> anyhow::Result<()> {
    let mut counts = Vec::new();
    let sequence = std::env::args().nth(1).is_some_and(|argument| argument == "sequence");
    for argument in std::env::args().skip(1 + usize::from(sequence)) {
        counts.push(argument.parse()?);
    }
    if counts.is_empty() {
        counts = vec![1, 1_000, 100_000, 1_000_000];
    }
    if sequence {
        return print_sequence(&counts);
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

fn print_sequence(counts: &[usize]) -> anyhow::Result<()> {
    println!("{:>9} {:>16} {:>16} {:>16}", "rules", "plain ns", "moved ns", "guarded ns");
    for &rules in counts {
        let cost = measure_sequence(rules, 9)?;
        let [plain, moved, guarded] = [&cost.plain_ns, &cost.moved_ns, &cost.guarded_ns].map(|all| spread(all));
        println!("{rules:>9} {plain:>16} {moved:>16} {guarded:>16}");
    }
    Ok(())
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, 0f64), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{:.0} ({least:.0}-{most:.0})", median(values))
}
