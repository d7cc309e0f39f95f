//! What is counted and recorded of an exchange.

use super::{Exchange, own};
use crate::local::Local;
use hairpin_core::config::Algorithm;
use hairpin_core::l7::body::Length;
use hairpin_core::l7::head::Method;
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_core::record::Ending;
use hairpin_core::worker::{Latency, RequestTimes, ServiceStatistics, class};

impl Exchange {
    /// Notes that Hairpin answers it by itself: with the HTTP/1.1 response that this returns.
    pub(crate) fn refused(&self, local: &Local, status: u16, why: Refused) -> Vec<u8> {
        let (head_only, challenge) = (self.method == Method::Head, self.challenge(status));
        let response = match &self.denied {
            Some(answer) => answer.clone(),
            None => own::refusal(local, self.place(), status, head_only, challenge.as_deref()),
        };
        if let Some(recording) = &self.recording {
            recording.answered(status, Some(why), response.len());
        }
        response
    }

    /// Notes by which side it is broken off, unless something else has been noted.
    pub(crate) fn broken_off(&self, ending: Ending) {
        if let Some(recording) = &self.recording {
            recording.note(|record| {
                if record.ending == Ending::Aborted as u8 {
                    record.ending = ending as u8;
                }
            });
        }
    }

    /// Notes how it ends, and how many bytes of its request's body came, and of its response went.
    pub(crate) fn ends(&self, ending: Ending, bytes: [u64; 2]) {
        if let Some(recording) = &self.recording {
            recording.note(|record| {
                record.ending = ending as u8;
                record.bytes[0] = self.head_bytes as u64 + bytes[0];
                record.bytes[1] = bytes[1];
            });
        }
    }

    /// Counts whether the backend is well by the status of its response, which may be replaced by another backend's.
    pub(super) fn health(&self, local: &Local, status: u16) {
        let Some((number, _)) = self.backend else { return };
        let group = self.setup.service(self.group);
        let us = u32::try_from(self.started.elapsed().as_micros()).unwrap_or(u32::MAX);
        let us = us.saturating_sub(self.chosen_in_us);
        if group.is_some_and(|group| group.algorithm == Algorithm::LeastLatency) {
            local.counts.measured(number, us);
        }
        local.counts.backend(number, |backend| {
            backend.server_errors += u64::from(status >= 500);
            backend.response_us += u64::from(us);
        });
        let faulty = group.is_some_and(|group| group.faulty.contains(status));
        if faulty {
            local.counts.slow(number);
        }
        local.counts.backend(number, |backend| match faulty {
            true => backend.faults[Fault::Status as usize] += 1,
            false => backend.established += 1,
        });
    }

    /// Counts a response of the backend's that goes to the client.
    pub(super) fn count(&self, local: &Local, status: u16) {
        let class = class(status);
        local.counts.change(|statistics| statistics.http.responses[class] += 1);
        if let Some((number, _)) = self.backend {
            local.counts.backend(number, |backend| backend.responses[class] += 1);
        }
    }

    /// The request has come so far now.
    pub(super) fn timed(&self, local: &Local, time: impl Fn(&mut RequestTimes) -> &mut Latency) {
        let took = self.started.elapsed();
        self.counted(local, |statistics| time(&mut statistics.times).add(took));
    }

    /// Counts something for the service, and for the group that the backend was chosen from.
    fn counted(&self, local: &Local, count: impl Fn(&mut ServiceStatistics)) {
        local.counts.service(self.client.service, &count);
        // It may be another service, whose own backends this one's routes lead to.
        let is_group = || self.setup.service(self.group).is_some_and(|group| group.kind.is_group());
        if self.group != self.client.service && is_group() {
            local.counts.service(self.group, &count);
        }
    }

    /// Counts the response that goes to the client, and how long it took until it had come.
    pub(crate) fn responded(&self, local: &Local, status: u16) {
        self.count(local, status);
        if let Some(recording) = &self.recording {
            let us = recording.so_far();
            recording.note(|record| (record.to_response_us, record.status) = (us, status));
        }
        self.timed(local, |times| &mut times.to_response);
    }

    /// Counts how long it took until all of the response had been handed to the client's connection, how many bytes of the
    /// request's body came, and how many of the response went.
    pub(crate) fn delivered(&self, local: &Local, length: Length, [request, response]: [u64; 2]) {
        if !matches!(length, Length::UntilClose | Length::Tunnel) {
            let took = self.started.elapsed();
            let bytes = [self.head_bytes as u64 + request, response];
            self.counted(local, |statistics| {
                statistics.times.in_all.add(took);
                statistics.sizes.iter_mut().zip(bytes).for_each(|(sizes, bytes)| sizes.add(bytes));
            });
        }
    }

    /// Counts a request that its backend has failed.
    pub(crate) fn failed(&self, local: &Local, fault: Fault) {
        if let Some((number, _)) = self.backend {
            local.counts.failed(number, fault);
        }
    }
}
