//! Drives one worker by hand, so many rounds of one case, for callgrind: `make bench-instructions`
//! (`hairpin-bench instructions`) runs it twice, the second time with twice as many rounds, and takes the difference, so that
//! what happens before and after the rounds does not count. The same work each time: seeds are fixed, no clock is read.

#![forbid(unsafe_code)]

mod forward;
mod http;
mod packet;
mod plane;
mod script;
mod spliced;
mod worker;

use forward::Forward;
use hairpin_core::config::Forwarding;
use hairpin_core::flow::Protocol;
use http::Requests;
use packet::Family;
use script::{CaseRecording, Hand};
use std::process::ExitCode;
use worker::CountedWorker;

pub use spliced::{PreparedRequests, SplicedRequests};

/// Something to count.
enum CountedCase {
    Forward(Forward),
    Http(Requests),
}

impl CountedCase {
    fn all() -> Vec<CountedCase> {
        let mut cases = Vec::new();
        for new in [false, true] {
            for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
                for family in [Family::V4, Family::V6] {
                    for protocol in [Protocol::Tcp, Protocol::Udp] {
                        cases.push(CountedCase::Forward(Forward {
                            family,
                            protocol,
                            forwarding,
                            new,
                            offloaded: false,
                        }));
                    }
                }
            }
        }
        for forwarding in [Forwarding::Nat, Forwarding::FullNat] {
            let (family, protocol) = (Family::V4, Protocol::Tcp);
            cases.push(CountedCase::Forward(Forward { family, protocol, forwarding, new: true, offloaded: true }));
        }
        for family in [Family::V4, Family::V6] {
            for (new, reuse) in [(false, true), (true, true), (true, false)] {
                cases.push(CountedCase::Http(Requests { family, new, reuse, timestamps: false, recorded: false }));
            }
        }
        for (new, reuse) in [(false, true), (true, true), (true, false)] {
            let requests = Requests { family: Family::V4, new, reuse, timestamps: true, recorded: false };
            cases.push(CountedCase::Http(requests));
            cases.push(CountedCase::Http(Requests { recorded: true, ..requests }));
        }
        cases
    }

    fn name(&self) -> String {
        match self {
            CountedCase::Forward(forward) => forward.name(),
            CountedCase::Http(http) => http.name(),
        }
    }

    fn unit(&self) -> &'static str {
        match self {
            CountedCase::Forward(Forward { new: true, .. }) => "connection",
            CountedCase::Forward(_) => "packet",
            CountedCase::Http(_) => "request",
        }
    }

    fn per_round(&self) -> usize {
        match self {
            CountedCase::Forward(forward) => forward.per_round(),
            CountedCase::Http(http) => http.per_round(),
        }
    }

    fn worker(&self) -> CountedWorker {
        match self {
            CountedCase::Forward(forward) => forward.worker(),
            CountedCase::Http(http) => http.worker(),
        }
    }

    fn record(&self, rounds: usize) -> CaseRecording {
        match self {
            CountedCase::Forward(forward) => forward.record(rounds),
            CountedCase::Http(http) => http.record(rounds),
        }
    }
}

const USAGE: &str = "hairpin-instructions                               lists the cases: name, unit, units a round
hairpin-instructions CASE worker|plane ROUNDS OF   records OF rounds, plays ROUNDS of them to a worker, or to none";

/// The command: see the module.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            for case in CountedCase::all() {
                println!("{}\t{}\t{}", case.name(), case.unit(), case.per_round());
            }
            ExitCode::SUCCESS
        }
        [name, subject @ ("worker" | "plane"), rounds, of] => {
            let case = CountedCase::all().into_iter().find(|case| case.name() == *name);
            match (case, rounds.parse(), of.parse()) {
                (Some(case), Ok(rounds), Ok(of)) if rounds <= of => play(&case, *subject == "worker", rounds, of),
                _ => usage(),
            }
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn play(case: &CountedCase, with_worker: bool, rounds: usize, of: usize) -> ExitCode {
    let recording = case.record(of);
    let mut hand = Hand::new(with_worker.then(|| case.worker()));
    hand.play(&recording, rounds);
    println!("{} connections are left", hand.connections());
    ExitCode::SUCCESS
}
