//! What sets connections up, where the BPF programs are attached, and how packets reach servers: every combination that the
//! suites of crashes and leaks go through.

use crate::encapsulated::{GUE, Tunnel, prepared};
use crate::lane::skip;
use crate::network::{ATTACH_XDP, test};
use anyhow::Result;
use hairpin_e2e::process::Process;
use hairpin_e2e::topology::{Cards, Topology, TopologyOptions};
use libtest_mimic::Trial;

/// How packets reach servers.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// By NAT and full NAT.
    Nat,
    /// By direct server return, wrapped or not.
    Direct(Option<Tunnel>),
}

#[derive(Clone, Copy)]
pub(crate) struct Combination {
    /// The BPF programs set connections up, not the worker.
    pub(crate) set_up: bool,
    pub(crate) cards: Cards,
    pub(crate) way: Way,
}

impl Combination {
    /// NAT, with the programs at tc ingress.
    pub(crate) fn usual(set_up: bool) -> Combination {
        Combination { set_up, cards: Cards::Gso, way: Way::Nat }
    }

    /// The tests of all but the usual ones. They are skipped unless `variable` is in the environment, which a target of the
    /// Makefile sets, or `HAIRPIN_COMBINATIONS`, which guests have.
    pub(crate) fn tests(suite: &str, variable: &'static str, play: fn(Combination) -> Result<()>) -> Vec<Trial> {
        let mut tests = Vec::new();
        for (place, cards) in [("gso", Cards::Gso), ("xdp", Cards::Xdp)] {
            for (by, set_up) in [("by workers", false), ("in the engine", true)] {
                let mixed = Way::Direct(Some(GUE.mixed()));
                for (to, way) in [("nat", Way::Nat), ("direct", Way::Direct(None)), ("mixed gue", mixed)] {
                    if !(cards == Cards::Gso && matches!(way, Way::Nat)) {
                        let combination = Combination { set_up, cards, way };
                        let name = format!("{suite}, set up {by}, {to} ({place})");
                        tests.push(test(&name, move || {
                            if [variable, "HAIRPIN_COMBINATIONS"].iter().all(|name| std::env::var_os(name).is_none()) {
                                skip(format!("{variable} is not set"));
                                return Ok(());
                            }
                            play(combination)
                        }));
                    }
                }
            }
        }
        tests
    }

    /// The tables of the configuration.
    pub(crate) fn tables(self) -> String {
        let set_up = if self.set_up { "[offload]\nset_up = \"engine\"\n" } else { "" };
        let attach = if self.cards == Cards::Xdp { ATTACH_XDP } else { "" };
        format!("{attach}{set_up}")
    }

    /// The network, the processes that unwrap packets in its servers, and the lines of its services' configuration.
    pub(crate) fn network(self) -> Result<(Topology, Vec<Process>, String)> {
        match self.way {
            Way::Nat => {
                let topology = Topology::create(TopologyOptions { cards: self.cards, ..TopologyOptions::default() })?;
                Ok((topology, Vec::new(), String::new()))
            }
            Way::Direct(tunnel) => prepared(self.cards, tunnel),
        }
    }
}
