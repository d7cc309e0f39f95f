//! The cost of a packet over an offloaded rule beside the reference, and how fast rules go in: a table for the numbers
//! of rules given as arguments, or the usual ones. With `sequence` as the first argument: the cost of translating TCP
//! sequence numbers, and of guarding them. With `access`: of access rules for a first packet, by numbers of networks.

use hairpin_linux::cost::{measure, measure_access, measure_sequence, median};

fn main() -> anyhow::Result<()> {
    let mut counts = Vec::new();
    let what = std::env::args().nth(1).filter(|argument| ["sequence", "access"].contains(&&**argument));
    for argument in std::env::args().skip(1 + usize::from(what.is_some())) {
        counts.push(argument.parse()?);
    }
    if what.as_deref() == Some("access") {
        return print_access(&if counts.is_empty() { vec![1, 1_000, 100_000] } else { counts });
    }
    if counts.is_empty() {
        counts = vec![1, 1_000, 100_000, 1_000_000];
    }
    if what.is_some() {
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

fn print_access(counts: &[usize]) -> anyhow::Result<()> {
    println!("{:>9} {:>16} {:>16} {:>16} {:>16}", "networks", "without ns", "allowed ns", "denied ns", "change ms");
    for &networks in counts {
        let cost = measure_access(networks, 5)?;
        let [without, allowed, denied, change] =
            [&cost.without_ns, &cost.allowed_ns, &cost.denied_ns, &cost.change_ms].map(|all| spread(all));
        println!("{networks:>9} {without:>16} {allowed:>16} {denied:>16} {change:>16}");
    }
    Ok(())
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, 0f64), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{:.0} ({least:.0}-{most:.0})", median(values))
}
