//! What stands between clients and servers.

use super::super::load::{self, Variant};
use super::super::results;
use crate::l7::peers::{BenchNetwork, Intermediary, RunningIntermediary};
use anyhow::Result;
use std::net::SocketAddr;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7) enum Subject {
    /// Hairpin's splice; every body goes to the engine.
    Offloaded,
    /// Hairpin's splice; every body stays with the worker.
    Software,
    UserStack,
    Nginx,
    Haproxy,
}

impl Subject {
    pub(in crate::l7) const ALL: [Subject; 5] =
        [Subject::Offloaded, Subject::Software, Subject::UserStack, Subject::Nginx, Subject::Haproxy];

    /// Its name in results.
    pub(in crate::l7) fn name(self) -> &'static str {
        match self {
            Subject::Offloaded => Variant::Offloaded.name(),
            Subject::Software => Variant::Software.name(),
            Subject::UserStack => results::USER_STACK,
            Subject::Nginx => Variant::Nginx.name(),
            Subject::Haproxy => "HAProxy",
        }
    }

    /// The variant of Hairpin, if it is one.
    fn variant(self) -> Option<Variant> {
        match self {
            Subject::Offloaded => Some(Variant::Offloaded),
            Subject::Software => Some(Variant::Software),
            Subject::UserStack | Subject::Nginx | Subject::Haproxy => None,
        }
    }

    /// The process, if it is not Hairpin.
    pub(super) fn peer(self) -> Option<Intermediary> {
        match self {
            Subject::Offloaded | Subject::Software => None,
            Subject::UserStack => Some(Intermediary::UserStack),
            Subject::Nginx => Some(Intermediary::Nginx),
            Subject::Haproxy => Some(Intermediary::Haproxy),
        }
    }

    /// The address that clients connect to.
    pub(super) fn target(self) -> SocketAddr {
        match (self.variant(), self.peer()) {
            (Some(variant), _) => variant.target(),
            (None, peer) => peer.unwrap_or(Intermediary::Direct).target(),
        }
    }

    /// Starts it, with room for so many connections.
    pub(super) fn start(self, net: &BenchNetwork, connections: usize) -> Result<RunningIntermediary> {
        match (self.variant(), self.peer()) {
            (Some(variant), _) => load::start(net, variant),
            (None, peer) => net.start_for(peer.unwrap_or(Intermediary::Direct), connections, &[]),
        }
    }
}
