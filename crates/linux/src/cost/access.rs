//! The cost of access rules for a packet that would begin a connection, in `hairpin_ingress`.
//!
//! The policer admits nothing, so the packet is dropped in any case, and what the look-up adds is the difference. It is the
//! same packet each time: the nodes that it needs stay in the cache.

use super::{on_a_plane, run};
use crate::programs::LoadedPlane;
use anyhow::{Context, Result, ensure};
use hairpin_core::access::{AccessAction, AccessList, NETWORKS_MAX};
use hairpin_core::config::{Pool, Service, ServiceState, Snapshot};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::l7::config::Network;
use hairpin_core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Runs of one measurement.
const PACKETS: usize = 2_000_000;
/// Of linux/pkt_cls.h.
const TC_ACT_SHOT: u32 = 2;

/// Nanoseconds a packet costs, for each repetition.
#[derive(Clone, Debug, Default)]
pub struct AccessCost {
    /// To a service without access rules.
    pub without_ns: Vec<f64>,
    /// To a service with rules that let the client pass.
    pub allowed_ns: Vec<f64>,
    /// To a service with rules that refuse the client.
    pub denied_ns: Vec<f64>,
    /// How long it took to put the rules in place of others, in milliseconds.
    pub change_ms: Vec<f64>,
}

/// Measures with `networks` networks of 256 addresses, 1 to [`NETWORKS_MAX`], `repetitions` times. Needs root.
pub fn measure_access(networks: usize, repetitions: usize) -> Result<AccessCost> {
    ensure!((1..=NETWORKS_MAX).contains(&networks), "{networks} networks: 1 to {NETWORKS_MAX} can be measured");
    on_a_plane(1, |plane| {
        plane.control().set_client_rate(0, 0);
        let networks: Vec<Network> = (0..networks).map(network).collect();
        let client = networks[networks.len() / 2].address;
        // An entry that changes nothing is not in the trie, so what is allowed is an exception.
        let [allowed, denied] = [AccessAction::Allow, AccessAction::Deny].map(|action| {
            let all = vec![Network { address: Address::default(), prefix: 0 }];
            let others = if action == AccessAction::Allow { AccessAction::Deny } else { AccessAction::Allow };
            Arc::new(AccessList::new(&[(action, networks.clone()), (others, all)]))
        });
        let key =
            FlowKey { source: Endpoint { address: client, port: 1024 }, destination: vip(), protocol: Protocol::Udp };
        let mut cost = AccessCost::default();
        for _ in 0..repetitions {
            cost.without_ns.push(with(plane, None, &key)?.0);
            let (ns, change_ms) = with(plane, Some(&allowed), &key)?;
            cost.allowed_ns.push(ns);
            cost.change_ms.push(change_ms);
            cost.denied_ns.push(with(plane, Some(&denied), &key)?.0);
        }
        Ok(cost)
    })
}

fn vip() -> Endpoint {
    Endpoint { address: Address::from_ipv4([192, 0, 2, 1]), port: 53 }
}

/// Every other /24 from 64.0.0.0 on.
fn network(number: usize) -> Network {
    let address = 0x4000_0000 + number as u32 * 512;
    Network { address: Address::from_ipv4(address.to_be_bytes()), prefix: 96 + 24 }
}

/// The cost of a packet under these rules, and how long the change to them took, in milliseconds.
fn with(plane: &LoadedPlane, access: Option<&Arc<AccessList>>, key: &FlowKey) -> Result<(f64, f64)> {
    let service = Service {
        state: ServiceState::Active,
        endpoint: vip(),
        protocol: Protocol::Udp,
        access: access.cloned(),
        ..Service::vacant()
    };
    let pool = Pool { addresses: Box::default(), port_first: 1024, port_last: 2048, time_wait: Duration::ZERO };
    let begun = Instant::now();
    plane.configure(&Snapshot::new([service].into(), pool)).context("cannot change the rules")?;
    let change_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok((run(plane.ingress_program(), key, PACKETS, TC_ACT_SHOT)?, change_ms))
}
