//! The next hops of packets, as far as rules need to know it: the link layer's part of a rule.

use hairpin_core::flow::Address;
use hairpin_core::link::{self, LinkPlan, Neighbours};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The next hop towards an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHop {
    /// The port that leads there, as the plane counts them
    /// ([`Meta::port`](hairpin_core::frame::Meta::port)).
    pub port: u16,
    /// That port's Ethernet address.
    pub source: [u8; 6],
    /// The next hop's.
    pub destination: [u8; 6],
}

/// Says what the next hop is. It is asked on the engine's thread, for each rule, and must not wait.
pub trait Hops: Send {
    /// The next hop towards `address`; `None` if there is no route, or the neighbour's address is not known now: the
    /// packets go to the worker then, which finds it out.
    fn hop(&self, address: &Address) -> Option<RouteHop>;

    /// Changes whenever an answer of [`Hops::hop`] may have: rules are then checked again.
    fn generation(&self) -> u64;
}

/// Next hops as the workers' link layer knows them. Clones are the same.
#[derive(Clone)]
pub struct LinkHops(Arc<Inner>);

struct Inner {
    plan: Mutex<Arc<LinkPlan>>,
    plans: AtomicU64,
    neighbours: Arc<Neighbours>,
}

impl LinkHops {
    /// By the plan and the neighbours that the workers' [`Link`](hairpin_core::link::Link)s have.
    pub fn new(plan: Arc<LinkPlan>, neighbours: Arc<Neighbours>) -> LinkHops {
        LinkHops(Arc::new(Inner { plan: Mutex::new(plan), plans: AtomicU64::new(0), neighbours }))
    }

    /// Goes by another plan from now on.
    pub fn set_plan(&self, plan: Arc<LinkPlan>) {
        *self.0.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
        self.0.plans.fetch_add(1, Ordering::Release);
    }
}

impl Hops for LinkHops {
    fn hop(&self, address: &Address) -> Option<RouteHop> {
        let plan = Arc::clone(&self.0.plan.lock().unwrap_or_else(PoisonError::into_inner));
        let found = link::hop(&plan, &self.0.neighbours, address)?;
        Some(RouteHop { port: found.port, source: found.own, destination: found.mac })
    }

    fn generation(&self) -> u64 {
        // Both only grow, and neither by much: two changes do not cancel each other out.
        let plans = self.0.plans.load(Ordering::Acquire);
        link::hops_version(&self.0.neighbours).wrapping_add(plans << 32)
    }
}
