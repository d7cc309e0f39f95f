//! Entries by position, each with a generation, so that a name of one that has gone is not taken for its successor's.

use alloc::vec::Vec;

/// A bounded set of entries. Memory is reserved when it is made and touched as it is first used.
pub(in crate::l7::splice) struct Slots<T> {
    entries: Vec<Slot<T>>,
    /// The first free slot among `entries`, which leads to the next.
    free: Option<u32>,
    count: u32,
    capacity: u32,
}

struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

enum Content<T> {
    Entry(T),
    Free(Option<u32>),
}

impl<T> Slots<T> {
    /// Room for `capacity` entries.
    pub(in crate::l7::splice) fn new(capacity: u32) -> Slots<T> {
        Slots { entries: Vec::with_capacity(capacity as usize), free: None, count: 0, capacity }
    }

    /// How many there are.
    pub(in crate::l7::splice) fn len(&self) -> u32 {
        self.count
    }

    /// Adds an entry; given back if there is no room.
    pub(in crate::l7::splice) fn insert(&mut self, entry: T) -> Result<u32, T> {
        let position = match self.free {
            Some(position) => position,
            None if (self.entries.len() as u32) < self.capacity => {
                self.entries.push(Slot { generation: 0, content: Content::Free(None) });
                self.entries.len() as u32 - 1
            }
            None => return Err(entry),
        };
        let slot = &mut self.entries[position as usize];
        if let Content::Free(next) = slot.content {
            self.free = next;
        }
        slot.content = Content::Entry(entry);
        self.count += 1;
        Ok(position)
    }

    /// Takes an entry out.
    pub(in crate::l7::splice) fn remove(&mut self, position: u32) -> Option<T> {
        let slot = self.entries.get_mut(position as usize)?;
        if matches!(slot.content, Content::Free(_)) {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        let content = core::mem::replace(&mut slot.content, Content::Free(self.free));
        self.free = Some(position);
        self.count -= 1;
        match content {
            Content::Entry(entry) => Some(entry),
            Content::Free(_) => None,
        }
    }

    /// The entry there, if there is one.
    #[inline]
    pub(in crate::l7::splice) fn get(&self, position: u32) -> Option<&T> {
        match self.entries.get(position as usize) {
            Some(Slot { content: Content::Entry(entry), .. }) => Some(entry),
            _ => None,
        }
    }

    /// The entry there, if there is one, to be changed.
    #[inline]
    pub(in crate::l7::splice) fn get_mut(&mut self, position: u32) -> Option<&mut T> {
        match self.entries.get_mut(position as usize) {
            Some(Slot { content: Content::Entry(entry), .. }) => Some(entry),
            _ => None,
        }
    }

    /// How many entries have come and gone there.
    pub(in crate::l7::splice) fn generation(&self, position: u32) -> u32 {
        self.entries.get(position as usize).map_or(0, |slot| slot.generation)
    }

    /// Entries, if there are any, lie at positions below this one.
    pub(in crate::l7::splice) fn reach(&self) -> u32 {
        self.entries.len() as u32
    }

    /// All entries, by position.
    pub(in crate::l7::splice) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(position, slot)| match &slot.content {
            Content::Entry(entry) => Some((position, entry)),
            Content::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_outlive_its_entry() {
        let mut slots = Slots::new(2);
        let (a, b) = (slots.insert('a').unwrap(), slots.insert('b').unwrap());
        assert_eq!(slots.insert('c'), Err('c'), "full");
        let generation = slots.generation(a);
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!((slots.remove(a), slots.get(a), slots.len()), (None, None, 1));
        assert_eq!(slots.insert('d'), Ok(a));
        assert_ne!(slots.generation(a), generation);
        assert_eq!(slots.iter().map(|(position, &entry)| (position, entry)).collect::<Vec<_>>(), [(a, 'd'), (b, 'b')]);
        assert_eq!(slots.get(7), None);
    }
}
