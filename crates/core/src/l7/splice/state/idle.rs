//! Connections to backends that no client connection uses now, by backend and shape, the youngest first. Links count as
//! unchanged: a process that adopts the connections makes the lists anew.

use super::entry::BackendConn;
use super::sizes::Shape;
use crate::table::numbered::NumberedSlab;
use alloc::boxed::Box;
use alloc::vec;

/// Stands for no connection.
const NONE: u32 = u32::MAX;

/// The lists' ends; the lists themselves go through the entries.
pub(in crate::l7::splice) struct Idle {
    youngest: Box<[[u32; Shape::COUNT]]>,
    oldest: Box<[[u32; Shape::COUNT]]>,
    counts: Box<[u16]>,
    total: u32,
}

impl Idle {
    /// For backends with numbers below `backends`.
    pub(in crate::l7::splice) fn new(backends: usize) -> Idle {
        let ends = || vec![[NONE; Shape::COUNT]; backends].into();
        Idle { youngest: ends(), oldest: ends(), counts: vec![0; backends].into(), total: 0 }
    }

    /// How many a backend has.
    pub(in crate::l7::splice) fn count(&self, number: u16) -> u16 {
        self.counts.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// How many all of them have.
    pub(in crate::l7::splice) fn total(&self) -> u32 {
        self.total
    }

    /// The youngest of a backend's of this shape.
    pub(in crate::l7::splice) fn youngest(&self, number: u16, shape: Shape) -> Option<u32> {
        let youngest = self.youngest.get(usize::from(number))?[shape.number()];
        (youngest != NONE).then_some(youngest)
    }

    /// One of a backend's, of whatever shape.
    pub(in crate::l7::splice) fn any(&self, number: u16) -> Option<u32> {
        self.youngest.get(usize::from(number))?.iter().copied().find(|&position| position != NONE)
    }

    /// That of a backend's which has been idle longest.
    pub(in crate::l7::splice) fn oldest(&self, backend_conns: &NumberedSlab<BackendConn>, number: u16) -> Option<u32> {
        let oldest = self.oldest.get(usize::from(number))?.iter().copied();
        oldest
            .filter(|&position| position != NONE)
            .min_by_key(|&position| backend_conns.get(position).map(|backend_conn| backend_conn.deadline))
    }

    /// Adds one.
    pub(in crate::l7::splice) fn push(&mut self, backend_conns: &mut NumberedSlab<BackendConn>, position: u32) {
        let Some(backend_conn) = backend_conns.get_mut_unnumbered(position) else { return };
        let (number, shape) = (usize::from(backend_conn.number), backend_conn.shape().number());
        let Some(youngest) = self.youngest.get_mut(number).map(|shapes| &mut shapes[shape]) else { return };
        let next = Some(*youngest).filter(|&next| next != NONE);
        (backend_conn.next_idle, backend_conn.previous_idle) = (next.into(), None.into());
        *youngest = position;
        self.counts[number] += 1;
        self.total += 1;
        match next.and_then(|next| backend_conns.get_mut_unnumbered(next)) {
            Some(next) => next.previous_idle = Some(position).into(),
            None => self.oldest[number][shape] = position,
        }
    }

    /// Takes one out that is in.
    pub(in crate::l7::splice) fn remove(&mut self, backend_conns: &mut NumberedSlab<BackendConn>, position: u32) {
        let Some(backend_conn) = backend_conns.get_mut_unnumbered(position) else { return };
        let (number, shape) = (usize::from(backend_conn.number), backend_conn.shape().number());
        let (next, previous) = (backend_conn.next_idle.take(), backend_conn.previous_idle.take());
        match previous.and_then(|previous| backend_conns.get_mut_unnumbered(previous)) {
            Some(previous) => previous.next_idle = next.into(),
            None => self.youngest.get_mut(number).into_iter().for_each(|ends| ends[shape] = next.unwrap_or(NONE)),
        }
        match next.and_then(|next| backend_conns.get_mut_unnumbered(next)) {
            Some(next) => next.previous_idle = previous.into(),
            None => self.oldest.get_mut(number).into_iter().for_each(|ends| ends[shape] = previous.unwrap_or(NONE)),
        }
        let Some(count) = self.counts.get_mut(number) else { return };
        *count = count.saturating_sub(1);
        self.total = self.total.saturating_sub(1);
    }
}
