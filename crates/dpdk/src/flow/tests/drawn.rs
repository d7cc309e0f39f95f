//! Lives drawn by lot: connections come, change and go on a device with every fault at once.

use super::fake::{self, FakeOptions, Held};
use super::fixture::{BOTH_SUBMISSIONS, EngineFixture, connection, remove};
use crate::flow::Submission;
use crate::flow::machine::RETRY;
use crate::flow::request::DeviceRuleRequest;
use hairpin_core::engine::{Completion, Rule};
use hairpin_core::time::Duration;
use std::collections::{HashMap, VecDeque};

const CONNECTIONS: usize = 12;
const STEPS: usize = 1500;

/// A worker's knowledge of one connection's rules.
#[derive(Clone, Copy, Debug)]
struct Known {
    rules: [Rule; 2],
    held: [bool; 2],
    /// Answers it waits for, by rule.
    due: [bool; 2],
}

/// A worker that keeps to what [`hairpin_core::worker`] does: it asks about a connection only when it is owed nothing.
struct Worker {
    connections: Vec<Known>,
    asked: VecDeque<DeviceRuleRequest>,
    by_id: HashMap<u64, (usize, usize)>,
}

impl Worker {
    fn new() -> Worker {
        let connections: Vec<Known> = (0..CONNECTIONS)
            .map(|number| Known { rules: connection(number as u16), held: [false; 2], due: [false; 2] })
            .collect();
        let mut by_id = HashMap::new();
        for (at, known) in connections.iter().enumerate() {
            by_id.extend(known.rules.iter().enumerate().map(|(half, rule)| (rule.id.0, (at, half))));
        }
        Worker { connections, asked: VecDeque::new(), by_id }
    }

    fn ask_something(&mut self, random: &mut fastrand::Rng) {
        let at = random.usize(..CONNECTIONS);
        let known = &mut self.connections[at];
        if known.due != [false; 2] {
            return;
        }
        match known.held {
            [false, false] => {
                self.asked.push_back(DeviceRuleRequest::Pair(known.rules));
                known.due = [true; 2];
            }
            [true, true] if random.u8(..4) == 0 => {
                // Another backend's port, under the same id.
                known.rules[0].rewrite.destination.port ^= 1;
                self.asked.push_back(DeviceRuleRequest::Install(known.rules[0]));
                known.due[0] = true;
            }
            held => {
                for half in (0..2).filter(|half| held[*half]) {
                    self.asked.push_back(remove(&known.rules[half]));
                    known.due[half] = true;
                }
            }
        }
    }

    fn hear(&mut self, completion: &Completion) {
        let id = match completion {
            Completion::Installed(id) | Completion::Rejected(id, _) | Completion::Removed(id, _) => id.0,
        };
        let (at, half) = self.by_id[&id];
        let known = &mut self.connections[at];
        assert!(std::mem::replace(&mut known.due[half], false), "{completion:?} answers nothing");
        match completion {
            Completion::Installed(_) => known.held[half] = true,
            // A refused change.
            Completion::Rejected(..) if known.held[half] => known.rules[half].rewrite.destination.port ^= 1,
            Completion::Rejected(..) => {}
            Completion::Removed(_, counters) => {
                assert!(counters.is_some() && std::mem::replace(&mut known.held[half], false));
            }
        }
    }

    /// Takes what was told at once; a new pair is told as one.
    fn hear_all(&mut self, told: &[Completion]) {
        for completion in told {
            self.hear(completion);
        }
        for completion in told {
            let Completion::Installed(id) = completion else { continue };
            let (at, _) = self.by_id[&id.0];
            assert_eq!(self.connections[at].held, [true; 2], "half a pair was told");
        }
    }

    fn hand_over(&mut self, fixture: &mut EngineFixture) {
        while let Some(request) = self.asked.pop_front() {
            if let Some(request) = fixture.machine.request(fixture.now, 0, request, &fixture.hops, &mut fixture.heard) {
                self.asked.push_front(request);
                return;
            }
        }
    }

    /// The worker's belief equals the device's state: no rule of an ended connection, and both or none of a pair.
    fn check(&self, fixture: &EngineFixture, strictly: bool) {
        for known in &self.connections {
            if known.due != [false; 2] {
                continue;
            }
            assert_eq!(known.held[0], known.held[1], "a pair is whole or not there");
            for (rule, held) in known.rules.iter().zip(known.held) {
                let there = fixture.holds(rule);
                match held {
                    false => assert_eq!(there, Held::No, "{rule:?} is over"),
                    true if strictly => assert_eq!(there, Held::Yes, "{rule:?}"),
                    // It may be out while it is tried again, or the way it was if the device does not remove it, but
                    // not be another.
                    true => assert!(there != Held::Other || fixture.holds_as_it_was(rule) == Held::Yes, "{rule:?}"),
                }
            }
        }
    }
}

fn faults(random: &mut fastrand::Rng) -> FakeOptions {
    let sometimes = |random: &mut fastrand::Rng, most| if random.bool() { random.u32(2..most) } else { 0 };
    FakeOptions {
        capacity: random.u32(2..30),
        queue_size: 8,
        delay: random.u32(..4),
        seed: random.u32(..),
        refuse_create_every: sometimes(random, 9),
        refuse_destroy_every: sometimes(random, 9),
        refuse_late: random.u8(..2),
        ..FakeOptions::default()
    }
}

fn live(submission: Submission, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let quiet = FakeOptions { queue_size: 8, ..FakeOptions::default() };
    let mut fixture = EngineFixture::new(submission, &quiet, random.u32(6..40));
    let mut worker = Worker::new();
    for step in 0..STEPS {
        if step % 50 == 0 {
            for port in fake::PORTS {
                fake::change_port(port, &faults(&mut random));
            }
        }
        if random.u8(..40) == 0 {
            // Whatever is on its way in was placed by the old way.
            fixture.hops.backend ^= 1;
            fixture.hops.generation += 1;
        }
        worker.ask_something(&mut random);
        worker.hand_over(&mut fixture);
        fixture.settle();
        if random.bool() {
            fixture.machine.tend(fixture.now, &fixture.hops, &mut fixture.heard);
        }
        fixture.now = fixture.now + Duration::from_millis(random.u64(..200));
        worker.hear_all(&fixture.told());
        if fixture.machine.device.is_waiting() || fixture.machine.is_following(&fixture.hops) {
            continue;
        }
        worker.check(&fixture, false);
    }
    // Without faults everything comes to rest, and is then taken away.
    fake::change(&FakeOptions { queue_size: 8, ..FakeOptions::default() });
    let rest = |fixture: &mut EngineFixture, worker: &mut Worker| {
        for _ in 0..40 {
            worker.hand_over(fixture);
            fixture.after(RETRY);
            worker.hear_all(&fixture.told());
        }
    };
    rest(&mut fixture, &mut worker);
    assert!(worker.connections.iter().all(|known| known.due == [false; 2]), "every request is answered");
    worker.check(&fixture, true);
    for known in &mut worker.connections {
        for half in (0..2).filter(|half| known.held[*half]) {
            worker.asked.push_back(remove(&known.rules[half]));
            known.due[half] = true;
        }
    }
    rest(&mut fixture, &mut worker);
    assert_eq!((fixture.fake().live, fixture.fake().pending, fixture.machine.rules()), (0, 0, 0), "nothing is left");
    let statistics = fixture.machine.statistics;
    assert_eq!(statistics.created, statistics.destroyed);
}

#[test]
fn lives_by_lot() {
    let seeds = std::env::var("HAIRPIN_FLOW_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    let first = std::env::var("HAIRPIN_FLOW_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        for submission in BOTH_SUBMISSIONS {
            println!("{submission:?}, seed {seed}");
            live(submission, seed);
        }
    }
}
