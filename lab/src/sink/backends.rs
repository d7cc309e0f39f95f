//! The backends that packets have come to, and how many to each.

use hairpin_core::flow::Endpoint;
use std::collections::HashMap;

/// Backends told apart at most; the others count as one.
pub const BACKENDS_MAX: usize = 16_384;
/// The number of all others.
const OTHERS: u16 = u16::MAX;
/// Places of the cache before the map; a power of two.
const CACHE: usize = 256;

/// Backends by address and port.
pub struct Backends {
    known: Vec<(Endpoint, u64)>,
    others: u64,
    numbers: HashMap<Endpoint, u16>,
    /// Numbers by the low bits of address and port, to be checked.
    cache: [u16; CACHE],
}

impl Default for Backends {
    fn default() -> Backends {
        Backends { known: Vec::new(), others: 0, numbers: HashMap::new(), cache: [OTHERS; CACHE] }
    }
}

impl Backends {
    /// Counts a packet to `end` and gives its number.
    #[inline]
    pub fn count(&mut self, end: &Endpoint) -> u16 {
        let [.., c, d] = end.address.0;
        let place = (usize::from(d) ^ usize::from(c) << 3 ^ usize::from(end.port)) % CACHE;
        let number = self.cache[place];
        if let Some((known, count)) = self.known.get_mut(usize::from(number))
            && known == end
        {
            *count += 1;
            return number;
        }
        let number = self.number(end);
        self.cache[place] = number;
        self.add(number, 1);
        number
    }

    fn add(&mut self, number: u16, packets: u64) {
        match self.known.get_mut(usize::from(number)) {
            Some((_, count)) => *count += packets,
            None => self.others += packets,
        }
    }

    fn number(&mut self, end: &Endpoint) -> u16 {
        if let Some(&number) = self.numbers.get(end) {
            return number;
        }
        if self.known.len() >= BACKENDS_MAX {
            return OTHERS;
        }
        let number = self.known.len() as u16;
        self.known.push((*end, 0));
        self.numbers.insert(*end, number);
        number
    }

    /// Each backend with its packets, by address.
    pub fn packets(&self) -> Vec<(String, u64)> {
        let mut all = self.known.clone();
        all.sort_unstable_by_key(|&(end, _)| end);
        let mut named: Vec<(String, u64)> = all.iter().map(|(end, count)| (end.to_string(), *count)).collect();
        if self.others > 0 {
            named.push(("others".to_owned(), self.others));
        }
        named
    }

    /// The busiest one's packets over the mean of all; 1 is even, 0 if there is none.
    pub fn spread(&self) -> f64 {
        let counts = || self.known.iter().map(|&(_, count)| count);
        let sum: u64 = counts().sum();
        let most = counts().max().unwrap_or(0);
        if sum == 0 { 0.0 } else { most as f64 * self.known.len() as f64 / sum as f64 }
    }

    /// Adds another's counts.
    pub(super) fn merge(&mut self, other: &Backends) {
        for (end, count) in &other.known {
            let number = self.number(end);
            self.add(number, *count);
        }
        self.others += other.others;
    }
}
