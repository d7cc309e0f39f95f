//! Where packets go next, as far as rules need to know it: the link layer's part of a rule.

use hairpin_core::flow::Address;

/// The next hop towards an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
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
    fn hop(&self, address: &Address) -> Option<Hop>;

    /// Changes whenever an answer of [`Hops::hop`] may have: rules are then looked at again.
    fn generation(&self) -> u64;
}
