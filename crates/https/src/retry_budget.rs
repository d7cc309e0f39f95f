//! How many requests of a service may be sent to another backend for the status of their response.
//!
//! Where all backends are ill, retries would multiply the load that keeps them so. Each request of a service earns a share of a
//! retry, and a retry costs a whole one.

use std::cell::RefCell;

/// Retries that are there at the start, and without requests to earn them.
pub const SPARE: u32 = 10;
/// Retries that are saved at most.
pub const SAVED_MAX: u32 = 100;
/// Parts that a retry has.
const WHOLE: u32 = 100;

/// The budgets of one core, by number of the service.
#[derive(Default)]
pub(crate) struct RetryBudgets(RefCell<Vec<u32>>);

impl RetryBudgets {
    /// A request of a service comes, `percent` of which may be retried.
    pub(crate) fn earn(&self, service: u16, percent: u8) {
        self.change(service, |saved| *saved = (*saved + u32::from(percent)).min(SAVED_MAX * WHOLE));
    }

    /// Whether a request of a service may be sent again, which costs a retry then.
    pub(crate) fn spend(&self, service: u16, percent: u8) -> bool {
        percent > 0
            && self.change(service, |saved| match saved.checked_sub(WHOLE) {
                Some(left) => {
                    *saved = left;
                    true
                }
                None => false,
            })
    }

    fn change<T>(&self, service: u16, change: impl FnOnce(&mut u32) -> T) -> T {
        let mut budgets = self.0.borrow_mut();
        let service = usize::from(service);
        if budgets.len() <= service {
            budgets.resize(service + 1, SPARE * WHOLE);
        }
        change(&mut budgets[service])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests_and_a_few_more() {
        let budgets = RetryBudgets::default();
        let retried = (0..1000).filter(|_| {
            budgets.earn(3, 20);
            budgets.spend(3, 20)
        });
        assert_eq!(retried.count(), 1000 / 5 + SPARE as usize);
        // Another service has its own.
        assert!(budgets.spend(0, 20) && !budgets.spend(3, 20));
        // The savings are bounded.
        (0..10_000).for_each(|_| budgets.earn(3, 100));
        assert_eq!((0..1000).filter(|_| budgets.spend(3, 100)).count(), SAVED_MAX as usize);
        assert!(!budgets.spend(1, 0));
    }
}
