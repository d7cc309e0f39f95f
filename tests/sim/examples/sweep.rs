//! Runs seeds and says of each that fails what is wrong with it, without stopping at the first:
//! `sweep (http|streams) (direct|nat|full-nat|layer7) FIRST COUNT`.

use hairpin_core::config::Forwarding;
use hairpin_sim::scenario::{Between, RunSummary, streams};
use hairpin_sim::{http, scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, between, first, count] = &arguments[..] else {
        eprintln!("usage: sweep (http|streams) (direct|nat|full-nat|layer7) FIRST COUNT");
        std::process::exit(2);
    };
    let between = match between.as_str() {
        "nat" => Between::Layer4(Forwarding::Nat),
        "full-nat" => Between::Layer4(Forwarding::FullNat),
        "layer7" => Between::Layer7,
        _ => Between::Nothing,
    };
    let run = |seed| -> Result<RunSummary, scenario::RunFailure> {
        if what == "http" { http::run(seed, between, None) } else { streams(seed, between, None) }
    };
    let first: u64 = first.parse().unwrap_or(0);
    let count: u64 = count.parse().unwrap_or(100);
    let (mut failed, mut all) = (0, RunSummary::default());
    for seed in first..first + count {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(summary)) => all += summary,
            Ok(Err(failure)) => {
                failed += 1;
                let wrong: String = failure.wrong.join(" | ").chars().take(2000).collect();
                println!("seed {seed}: {wrong}");
            }
            Err(_) => {
                failed += 1;
                println!("seed {seed}: panicked");
            }
        }
    }
    println!("{failed} of {count} failed; {all:?}");
    std::process::exit(i32::from(failed > 0));
}
