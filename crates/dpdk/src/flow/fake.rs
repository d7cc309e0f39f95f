//! The device that only tests have (`shim/fake_flow.c`): a table of rules that fills up, refuses, answers late and out of
//! order. It has no packets: behind a port of another kind ([`stand_in`]) it answers for the rules, and the port's packets
//! go to the workers as before. Rules must tolerate this, since software may meet any packet at any time.

use super::description::{Does, Match};
use crate::port::Port;

/// How the fake behaves: `struct hairpin_fake_flow_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeOptions {
    pub(crate) capacity: u32,
    pub(crate) queue_size: u32,
    pub(crate) delay: u32,
    pub(crate) seed: u32,
    pub(crate) refuse_create_every: u32,
    pub(crate) refuse_destroy_every: u32,
    pub(crate) lose_every: u32,
    pub(crate) healthy: u32,
    pub(crate) refuse_match: Match,
    pub(crate) refuse_does: Does,
    pub(crate) refuse_late: u8,
    pub(crate) refuse_modify: u8,
    pub(crate) refuse_names: u8,
    pub(crate) refuse_ipv6: u8,
    pub(crate) no_templates: u8,
    pub(crate) ticks: u8,
    pub(crate) hairpin_queues: u8,
    pub(crate) refuse_others: u8,
    pub(crate) ages_by_counters: u8,
}

impl Default for FakeOptions {
    /// No faults.
    fn default() -> FakeOptions {
        FakeOptions {
            capacity: 4096,
            queue_size: 64,
            delay: 0,
            seed: 0,
            refuse_create_every: 0,
            refuse_destroy_every: 0,
            lose_every: 0,
            healthy: 0,
            refuse_match: Match::NONE,
            refuse_does: Does::NONE,
            refuse_late: 0,
            refuse_modify: 0,
            refuse_names: 0,
            refuse_ipv6: 0,
            no_templates: 0,
            ticks: 0,
            hairpin_queues: 0,
            refuse_others: 0,
            ages_by_counters: 0,
        }
    }
}

unsafe extern "C" {
    fn hairpin_fake_flow_stand_in(port: u16, options: *const FakeOptions) -> i32;
}

/// Lets the fake answer for the rules of `port` from now on, one of DPDK's first 16. What it does wrong is said by words
/// with numbers, between commas: `capacity=100,delay=3,seed=1,refuse_create_every=7`.
///
/// # Errors
/// A word that means nothing, or another port.
pub fn stand_in(port: &Port, faults: &str) -> Result<(), String> {
    let options = parse(faults)?;
    // SAFETY: the options are as C has them.
    match unsafe { hairpin_fake_flow_stand_in(port.id(), &raw const options) } {
        0 => Ok(()),
        _ => Err(format!("the fake cannot stand in for port {}", port.id())),
    }
}

fn parse(faults: &str) -> Result<FakeOptions, String> {
    let mut options = FakeOptions::default();
    for word in faults.split(',').filter(|word| !word.is_empty()) {
        let (name, number) = word.split_once('=').unwrap_or((word, "1"));
        let number: u32 = number.parse().map_err(|_| format!("{word}: not a number"))?;
        let flag = u8::from(number != 0);
        match name {
            "capacity" => options.capacity = number,
            "queue_size" => options.queue_size = number,
            "delay" => options.delay = number,
            "seed" => options.seed = number,
            "refuse_create_every" => options.refuse_create_every = number,
            "refuse_destroy_every" => options.refuse_destroy_every = number,
            "lose_every" => options.lose_every = number,
            "healthy" => options.healthy = number,
            "refuse_match" => options.refuse_match = Match(number),
            "refuse_does" => options.refuse_does = Does(number),
            "refuse_late" => options.refuse_late = flag,
            "refuse_modify" => options.refuse_modify = flag,
            "refuse_names" => options.refuse_names = flag,
            "refuse_ipv6" => options.refuse_ipv6 = flag,
            "no_templates" => options.no_templates = flag,
            "hairpin_queues" => {
                options.hairpin_queues = u8::try_from(number).map_err(|_| format!("{word}: too many"))?
            }
            "refuse_others" => options.refuse_others = flag,
            "ages_by_counters" => options.ages_by_counters = flag,
            "ticks" => options.ticks = u8::try_from(number).map_err(|_| format!("{word}: too many"))?,
            _ => return Err(format!("{word}: no such fault")),
        }
    }
    Ok(options)
}
