//! Sets of sequence numbers, as few ranges as can be. Numbers wrap; all of a set lie within half their space.

/// Whether `a` comes before `b`.
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Ranges, each from its first number to one past its last, in order and apart from each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds a range.
    pub(super) fn insert(&mut self, mut from: u32, mut to: u32) {
        if !before(from, to) {
            return;
        }
        let at = self.0.iter().position(|&(_, end)| !before(end, from)).unwrap_or(self.0.len());
        while let Some(&(start, end)) = self.0.get(at) {
            if before(to, start) {
                break;
            }
            (from, to) = (if before(start, from) { start } else { from }, if before(to, end) { end } else { to });
            self.0.remove(at);
        }
        self.0.insert(at, (from, to));
    }

    /// Forgets what comes before `number`.
    pub(super) fn forget_before(&mut self, number: u32) {
        self.0.retain(|&(_, end)| before(number, end));
        if let Some((start, _)) = self.0.first_mut().filter(|(start, _)| before(*start, number)) {
            *start = number;
        }
    }

    /// Takes out the range that begins at `number`, or before; returns its end.
    pub(super) fn take_from(&mut self, number: u32) -> Option<u32> {
        let &(start, end) = self.0.first()?;
        if before(number, start) {
            return None;
        }
        self.0.remove(0);
        before(number, end).then_some(end)
    }

    /// One past the highest number.
    pub(super) fn end(&self) -> Option<u32> {
        self.0.last().map(|&(_, end)| end)
    }

    /// The first number from `number` on that is missing, and where what is missing ends. `None`: nothing is, below
    /// [`Ranges::end`].
    pub(super) fn gap(&self, number: u32) -> Option<(u32, u32)> {
        let mut from = number;
        for &(start, end) in &self.0 {
            if before(from, start) {
                return Some((from, start));
            }
            if before(from, end) {
                from = end;
            }
        }
        None
    }

    /// How many numbers between `from` and `to` are missing.
    pub(super) fn missing(&self, from: u32, to: u32) -> u32 {
        if !before(from, to) {
            return 0;
        }
        let inside = |&(start, end): &(u32, u32)| {
            let (start, end) = (if before(start, from) { from } else { start }, if before(to, end) { to } else { end });
            if before(start, end) { end.wrapping_sub(start) } else { 0 }
        };
        to.wrapping_sub(from) - self.0.iter().map(inside).sum::<u32>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The ranges, the one with `number` first.
    pub(super) fn from(&self, number: u32) -> impl Iterator<Item = (u32, u32)> {
        let holds = move |&&(start, end): &&(u32, u32)| !before(number, start) && before(number, end);
        let others = self.0.iter().rev().filter(move |range| !holds(range));
        self.0.iter().find(holds).into_iter().chain(others).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_a_set_also_where_numbers_wrap() {
        let base = u32::MAX - 40;
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let (mut ranges, mut numbers) = (Ranges::default(), BTreeSet::new());
            for _ in 0..random.u32(1..12) {
                let from = random.u32(0..90);
                let to = from + random.u32(0..12);
                ranges.insert(base.wrapping_add(from), base.wrapping_add(to));
                numbers.extend(from..to);
            }
            let low = random.u32(0..90);
            let missing = (low..100).filter(|number| !numbers.contains(number)).count() as u32;
            assert_eq!(ranges.missing(base.wrapping_add(low), base.wrapping_add(100)), missing);
            let end = numbers.last().map(|last| base.wrapping_add(last + 1));
            assert_eq!(ranges.end(), end);
            let gap =
                (low..).find(|number| !numbers.contains(number)).filter(|gap| numbers.range(gap..).next().is_some());
            assert_eq!(ranges.gap(base.wrapping_add(low)).map(|(from, _)| from), gap.map(|gap| base.wrapping_add(gap)));
            ranges.forget_before(base.wrapping_add(low));
            let kept = numbers.range(low..).next().copied();
            if let Some(first) = kept {
                let taken = (first..).find(|number| !numbers.contains(number));
                assert_eq!(ranges.take_from(base.wrapping_add(first)), taken.map(|taken| base.wrapping_add(taken)));
            }
        }
    }
}
