//! What the page asks for beside the status: what carries connections, and the newest events.
//!
//! Looking at every connection costs time: the table of TCP and UDP services is read, workers copy the connections of HTTP and
//! TLS services between packets, some places at a time, and the cores' runtimes those of HTTPS services. So an answer is as good
//! as a new one for a while, the longer the more it cost. Events are read on from where the file was read last.

use super::MakeOffload;
use crate::events::{Event, EventReader};
use crate::json;
use crate::status::Status;
use bytes::Bytes;
use serde::Serialize;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Events in an answer at most, the newest.
pub(crate) const EVENTS_MAX: usize = 100;
/// How long what carries connections is as good as new, and longer where it took longer to make: [`SHARE`].
pub(crate) const OFFLOAD_FRESH: Duration = Duration::from_secs(2);
/// How often an answer may be made: for as many times as long as that took it is as good as new, so that workers copy
/// connections for a tenth of the time at most.
const SHARE: u32 = 10;
/// How long events are as good as new.
const EVENTS_FRESH: Duration = Duration::from_millis(500);

/// Makes both, each once at a time.
pub(super) struct Recent {
    offload: Arc<Mutex<Box<MakeOffload>>>,
    offload_told: SharedAnswer,
    events: Arc<Mutex<NewestEvents>>,
    events_told: SharedAnswer,
}

impl Recent {
    pub(super) fn new(offload: Box<MakeOffload>, events: Option<PathBuf>) -> Recent {
        let events = NewestEvents { reader: events.map(EventReader::new), newest: VecDeque::new() };
        Recent {
            offload: Arc::new(Mutex::new(offload)),
            offload_told: SharedAnswer::new(OFFLOAD_FRESH),
            events: Arc::new(Mutex::new(events)),
            events_told: SharedAnswer::new(EVENTS_FRESH),
        }
    }

    /// What `hairpin offload -o json` prints; the error says why that is not known.
    pub(super) async fn offload(&self, status: Arc<Status>) -> Result<Bytes, String> {
        let offload = Arc::clone(&self.offload);
        let make = move || {
            let view = offload.lock().unwrap_or_else(PoisonError::into_inner)(&status)?;
            json::line(&view).map_err(|error| error.to_string())
        };
        self.offload_told.get(make).await
    }

    /// The newest events, the newest last; the error says why they cannot be read.
    pub(super) async fn events(&self) -> Result<Bytes, String> {
        let events = Arc::clone(&self.events);
        self.events_told.get(move || events.lock().unwrap_or_else(PoisonError::into_inner).write()).await
    }
}

/// The newest events that were read so far.
struct NewestEvents {
    reader: Option<EventReader>,
    newest: VecDeque<Event>,
}

/// What every user of the machine may know of an event: the first line of its text. The lines behind may quote files, such as a
/// configuration that was refused; the file of events has mode 0600.
fn public(event: Event) -> Event {
    let line = event.message.lines().next().unwrap_or_default().to_owned();
    Event { message: line, ..event }
}

/// The answer to a question for events.
#[derive(Serialize)]
struct EventsAnswer<'a> {
    events: &'a VecDeque<Event>,
}

impl NewestEvents {
    fn write(&mut self) -> Result<String, String> {
        if let Some(reader) = &mut self.reader {
            let read = reader.read().map_err(|error| format!("its file cannot be read: {error}"))?;
            let beyond = read.len().saturating_sub(EVENTS_MAX);
            self.newest.extend(read.into_iter().skip(beyond).map(public));
            let beyond = self.newest.len().saturating_sub(EVENTS_MAX);
            self.newest.drain(..beyond);
        }
        json::line(&EventsAnswer { events: &self.newest }).map_err(|error| error.to_string())
    }
}

/// Until when it is as good as new, and what came out.
type Told = Option<(Instant, Result<Bytes, String>)>;

/// How long an answer is as good as new that has taken so long to make, if it is for `least` at least.
fn fresh_for(least: Duration, took: Duration) -> Duration {
    least.max(SHARE * took)
}

/// An answer that all clients share who ask at about the same time.
struct SharedAnswer {
    told: Arc<tokio::sync::Mutex<Told>>,
    fresh: Duration,
}

impl SharedAnswer {
    fn new(fresh: Duration) -> SharedAnswer {
        SharedAnswer { told: Arc::default(), fresh }
    }

    async fn get(&self, make: impl FnOnce() -> Result<String, String> + Send + 'static) -> Result<Bytes, String> {
        let (told, fresh) = (Arc::clone(&self.told), self.fresh);
        // A task of its own: it is made even if the client that asked has given up, and never by two at once.
        let task = tokio::spawn(async move {
            let mut told = told.lock().await;
            if let Some((until, answer)) = &*told
                && Instant::now() < *until
            {
                return answer.clone();
            }
            let began = Instant::now();
            let made = tokio::task::spawn_blocking(make).await;
            let answer = made.unwrap_or_else(|_| Err("making it failed".to_string())).map(Bytes::from);
            *told = Some((Instant::now() + fresh_for(fresh, began.elapsed()), answer.clone()));
            answer
        });
        task.await.unwrap_or_else(|_| Err("the server is stopping".to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_take_long_stay_fresh_for_longer() {
        let fresh = |millis| fresh_for(OFFLOAD_FRESH, Duration::from_millis(millis)).as_millis();
        assert_eq!([fresh(0), fresh(200), fresh(300), fresh(1500)], [2000, 2000, 3000, 15_000]);
    }
}
