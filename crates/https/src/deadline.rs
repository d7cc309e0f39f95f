//! One timer for a connection, set anew for each thing that it waits for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// A moment after which waiting ends. Setting a later moment costs nothing: the timer looks again when it has fired.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    until: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Waiting ends so long from now.
    pub(crate) fn set(&mut self, after: Duration) {
        let until = Instant::now() + after;
        self.until = Some(until);
        if let Some(sleep) = self.sleep.as_mut().filter(|sleep| sleep.deadline() > until) {
            sleep.as_mut().reset(until);
        }
    }

    /// Ready when the moment has come. One that was never set never comes.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.until else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(until)));
        loop {
            ready!(sleep.as_mut().poll(cx));
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(until);
        }
    }
}
