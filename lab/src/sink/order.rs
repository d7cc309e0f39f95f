//! Which packets of a generator have come: the last so many of their numbers as a map of bits.

/// Numbers kept; a power of two.
pub const WINDOW: u64 = 1 << 17;

/// The verdict on a packet's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketArrival {
    /// It has come for the first time.
    First,
    /// It has come before.
    Twice,
    /// It is [`WINDOW`] or more behind the newest: whether it has come before is not known.
    Late,
}

/// The numbers of one generator.
#[derive(Clone, Debug)]
pub struct PacketOrder {
    bits: Box<[u64]>,
    /// One more than the highest number so far.
    next: u64,
    received: u64,
}

impl Default for PacketOrder {
    fn default() -> PacketOrder {
        PacketOrder::new()
    }
}

impl PacketOrder {
    /// Nothing has come.
    pub fn new() -> PacketOrder {
        PacketOrder { bits: vec![0; (WINDOW / 64) as usize].into(), next: 0, received: 0 }
    }

    /// The packet of this number has come.
    #[inline]
    pub fn arrived(&mut self, number: u64) -> PacketArrival {
        if number >= self.next {
            self.forget(self.next, number + 1);
            self.next = number + 1;
        } else if number + WINDOW < self.next {
            return PacketArrival::Late;
        }
        let (word, bit) = place(number);
        if self.bits[word] & bit != 0 {
            return PacketArrival::Twice;
        }
        self.bits[word] |= bit;
        self.received += 1;
        PacketArrival::First
    }

    /// The numbers from `from` to below `to` are new: what stood at their places was long ago.
    #[inline]
    fn forget(&mut self, from: u64, to: u64) {
        if to - from >= WINDOW {
            return self.bits.fill(0);
        }
        let mut number = from;
        while number < to {
            let (word, bit) = place(number);
            if bit == 1 && to - number >= 64 {
                self.bits[word] = 0;
                number += 64;
            } else {
                self.bits[word] &= !bit;
                number += 1;
            }
        }
    }

    /// Adds the counts of what another sink has had of the same generator's, other packets. What comes from now on is told
    /// by this one's own.
    pub(super) fn merge(&mut self, other: &PacketOrder) {
        self.next = self.next.max(other.next);
        self.received += other.received;
    }

    /// Numbers up to the highest.
    pub fn numbered(&self) -> u64 {
        self.next
    }

    /// Numbers up to the highest that have not come, or came too late to tell.
    pub fn missing(&self) -> u64 {
        self.next.saturating_sub(self.received)
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0..3u8, 0..200_000u64), 0..300)) {
            let (mut order, mut seen, mut highest) = (PacketOrder::new(), BTreeSet::new(), 0u64);
            for (kind, amount) in steps {
                let number = match kind {
                    0 => highest + amount % 200,
                    1 => highest + amount,
                    _ => highest.saturating_sub(amount),
                };
                let expected = match highest.max(number + 1).saturating_sub(number) > WINDOW {
                    true => PacketArrival::Late,
                    false if !seen.insert(number) => PacketArrival::Twice,
                    false => PacketArrival::First,
                };
                prop_assert_eq!(order.arrived(number), expected);
                highest = highest.max(number + 1);
            }
            prop_assert_eq!(order.missing(), highest - seen.len() as u64);
        }
    }
}
