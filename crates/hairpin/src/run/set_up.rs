//! Connections that the engine sets up: which backends it gives them, and those that a process finds at its start.

use super::supervisor::Supervisor;
use crate::config::SetUpChoice;
use hairpin_core::balance::{Balancer, EffectiveWeights, Loads, Tables};
use hairpin_core::config::{Backend, Forwarding, Service, Snapshot};
use hairpin_core::engine::{NotSetUp, ScheduleKind, SetUp, set_up_services};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_linux::programs::InstalledRule;
use std::collections::{HashMap, HashSet};

impl Supervisor {
    /// Tells an engine that sets connections up which backends they get now.
    pub(super) fn schedule(&mut self) {
        if self.config.settings.set_up == SetUpChoice::Engine {
            self.tables = Tables::new(&self.snapshot, &self.tables);
            let weights = &self.parameters.effective_weights;
            let schedules = schedules(&self.snapshot, &self.tables, weights, self.parameters.seeds[3]);
            self.plane.schedule(&schedules);
            self.schedules = numbers(&self.snapshot);
        }
    }

    /// First packets of a service that the engine has sent on by itself, and those of UDP that were answered.
    pub(super) fn begun_in_engine(&self, service: usize) -> (u64, u64) {
        let schedule = self.schedules.get(service).copied().flatten();
        let (begun, answered) = schedule.map_or((0, 0), |schedule| self.plane.set_up_begun(schedule));
        (begun.into(), answered.into())
    }
}

/// The schedules of a snapshot's services, in the order of their numbers.
fn schedules(
    snapshot: &Snapshot,
    tables: &Tables,
    weights: &EffectiveWeights,
    seed: u64,
) -> Vec<(ScheduleKind, Vec<u16>)> {
    let judged = (0..).zip(&snapshot.services).zip(set_up_services(snapshot));
    let there = judged.filter(|(_, schedule)| schedule.is_ok()).map(|(service, _)| service);
    let of = |(number, service): (u16, &_)| {
        let mut balancer = Balancer::with_table(service, (tables, number), Loads::default(), (0, 1), seed);
        balancer.refresh(weights);
        Some((ScheduleKind::of(service.algorithm)?, balancer.schedule()))
    };
    there.filter_map(of).collect()
}

/// By service number, the number of its schedule.
fn numbers(snapshot: &Snapshot) -> Vec<Option<u16>> {
    set_up_services(snapshot).into_iter().map(Result::ok).collect()
}

/// Sentences about the services of a snapshot whose connections workers set up, although the engine might.
pub(crate) fn exceptions(snapshot: &Snapshot) -> Vec<String> {
    let judged = snapshot.services.iter().zip(set_up_services(snapshot));
    let refused = judged.filter_map(|(service, schedule)| Some((service, schedule.err()?)));
    let layer4 = refused.filter(|(_, why)| *why != NotSetUp::Kind);
    layer4.map(|(service, why)| format!("workers those of {}: {}", service.name, why.words())).collect()
}

/// What is to become of rules that no connection of a worker has: `first` were met when the rules were listed, `again` when they
/// were listed once more. The pairs that the engine has made, and those rules that are to go. Both rules of a pair are made at
/// once, so that one of which both listings have only a half is no pair; of direct server return there is one alone.
pub(crate) fn orphans(first: Vec<FlowKey>, again: &[InstalledRule], snapshot: &Snapshot) -> (Vec<SetUp>, Vec<FlowKey>) {
    let (pairs, rest) = pairs(again, snapshot);
    let rest: HashSet<FlowKey> = rest.into_iter().collect();
    (pairs, first.into_iter().filter(|key| rest.contains(key)).collect())
}

/// Among rules that no connection of a worker has, the pairs that the engine has made of which no worker has heard; and the
/// rest.
fn pairs(orphans: &[InstalledRule], snapshot: &Snapshot) -> (Vec<SetUp>, Vec<FlowKey>) {
    let mut ends: HashMap<(Endpoint, Protocol), (Endpoint, u16)> = HashMap::new();
    let mut direct: HashMap<(Endpoint, Protocol), &Service> = HashMap::new();
    for (service, schedule) in snapshot.services.iter().zip(set_up_services(snapshot)) {
        if schedule.is_ok() && service.forwarding == Forwarding::Direct {
            direct.insert((service.endpoint, service.protocol), service);
        } else if schedule.is_ok() {
            let of = |backend: &Backend| ((backend.endpoint, service.protocol), (service.endpoint, backend.number));
            ends.extend(service.backends.iter().map(of));
        }
    }
    let mut left: HashSet<FlowKey> = orphans.iter().map(|rule| rule.key).collect();
    let mut pairs = Vec::new();
    for rule in orphans {
        let (back, backend) = (&rule.key, rule.total / 2);
        if rule.direct {
            let to = direct.get(&(back.destination, back.protocol));
            let is_its = to.is_some_and(|service| service.backends.iter().any(|known| known.number == backend));
            if is_its && left.remove(back) {
                pairs.push(SetUp { key: *back, backend, answered: true });
            }
            continue;
        }
        let Some(&(vip, backend)) = ends.get(&(back.source, back.protocol)) else { continue };
        let key = FlowKey { source: back.destination, destination: vip, protocol: back.protocol };
        if left.contains(&key) && left.remove(back) {
            left.remove(&key);
            pairs.push(SetUp { key, backend, answered: true });
        }
    }
    (pairs, left.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::registry::Registry;

    fn snapshot() -> Snapshot {
        let text = "interfaces = [\"a\"]\n[[service]]\nname = \"w\"\nlisten = \"192.0.2.1:80/tcp\"\nbalance = \"maglev\"\n\
                    backends = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n[[service]]\nname = \"l\"\nlisten = \"192.0.2.1:81/tcp\"\n\
                    balance = \"least-connections\"\nbackends = [\"10.0.0.3:80\"]\n";
        let config = parse("t", text).unwrap_or_else(|problems| panic!("{problems}"));
        Registry::default().merge(&config, &|_| 1, 0).unwrap().snapshot
    }

    fn flow(from: (&str, u16), to: (&str, u16)) -> FlowKey {
        let end = |(address, port): (&str, u16)| Endpoint::new(address.parse::<std::net::IpAddr>().unwrap(), port);
        FlowKey { source: end(from), destination: end(to), protocol: Protocol::Tcp }
    }

    fn installed(key: FlowKey) -> InstalledRule {
        InstalledRule { key, pass: false, direct: false, worker: 0, total: 2 }
    }

    #[test]
    fn whole_pairs_of_the_engine_are_connections() {
        let client = ("198.51.100.7", 40_000);
        let there = flow(client, ("192.0.2.1", 80));
        let back = flow(("10.0.0.2", 80), client);
        // Half a pair, and a pair of a service that workers set up.
        let half = flow(("10.0.0.1", 80), ("198.51.100.8", 1));
        let other = [flow(client, ("192.0.2.1", 81)), flow(("10.0.0.3", 80), client)];
        let (pairs, rest) = pairs(&[there, back, half, other[0], other[1]].map(installed), &snapshot());
        assert_eq!(pairs, [SetUp { key: there, backend: 1, answered: true }]);
        assert_eq!(rest.len(), 3);
        assert!([half, other[0], other[1]].iter().all(|key| rest.contains(key)));
    }

    #[test]
    fn pair_that_is_being_made_is_no_half() {
        let flows = |client: &'static str| {
            let client = (client, 40_000);
            [flow(client, ("192.0.2.1", 80)), flow(("10.0.0.2", 80), client)]
        };
        let [[there, back], [half, _], [_, fresh]] = ["198.51.100.7", "198.51.100.8", "198.51.100.9"].map(flows);
        // Of one the first listing has missed a rule, another is half a pair for good, the third is being made now.
        let again = [there, back, half, fresh].map(installed);
        let (pairs, gone) = orphans(vec![there, half], &again, &snapshot());
        assert_eq!(pairs, [SetUp { key: there, backend: 1, answered: true }]);
        assert_eq!(gone, [half]);
    }

    #[test]
    fn rule_of_direct_server_return_is_a_connection() {
        let text = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nmode = \"dsr\"\n\
                    backends = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n";
        let config = parse("t", text).unwrap_or_else(|problems| panic!("{problems}"));
        let snapshot = Registry::default().merge(&config, &|_| 1, 0).unwrap().snapshot;
        let rule = |host| flow((host, 40_000), ("192.0.2.1", 80));
        let (ours, strange) = (rule("198.51.100.7"), rule("198.51.100.8"));
        // The total is that of the second backend; and of one that the service does not have.
        let [of_ours, of_strange] =
            [(ours, 2), (strange, 14)].map(|(key, total)| InstalledRule { direct: true, total, ..installed(key) });
        let (made, gone) = orphans(vec![ours, strange], &[of_ours, of_strange], &snapshot);
        assert_eq!(made, [SetUp { key: ours, backend: 1, answered: true }]);
        assert_eq!(gone, [strange]);
        // One that changes addresses was made when the service was another.
        let (made, gone) = orphans(vec![ours], &[InstalledRule { direct: false, ..of_ours }], &snapshot);
        assert_eq!((made.len(), gone), (0, vec![ours]));
    }

    #[test]
    fn the_least_connections_are_counted_by_workers() {
        let snapshot = snapshot();
        assert_eq!(exceptions(&snapshot), ["workers those of l: its algorithm counts connections"]);
        let tables = Tables::new(&snapshot, &Tables::default());
        let made = schedules(&snapshot, &tables, &EffectiveWeights::default(), 1);
        assert_eq!(
            made.iter().map(|(kind, list)| (*kind, list.len())).collect::<Vec<_>>(),
            [(ScheduleKind::Flow, 65_537)]
        );
        assert_eq!(numbers(&snapshot), [Some(0), None]);
    }
}
