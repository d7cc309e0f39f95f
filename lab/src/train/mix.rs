//! Made-up connections: TCP, one request, one transfer of a given size, as a balancer beside the servers sees them.
//!
//! A size alone says nothing of first packets, so a model can learn from these only what any of them gives away: whether
//! the first packets are full, whether the transfer is still going on, and how many of those go on for long. What is drawn
//! besides (round trips, the server's time, the request) has nothing to do with the size.

use super::TrainingFlow;
use fastrand::Rng;
use hairpin_core::flow::{Direction, Protocol};
use std::time::Duration;

/// Bytes that a full packet carries: of 1,500, IPv4's and TCP's headers, with time stamps.
const SEGMENT: u64 = 1448;
/// Those headers.
const HEADERS: u32 = 52;
/// Segments that are sent at once at first (RFC 6928).
const WINDOW: u64 = 10;
/// How many of a hundred connections send, instead of being sent to.
const UPLOADS: u32 = 20;

/// A connection that carries so many bytes.
pub fn connection(bytes: u64, random: &mut Rng) -> TrainingFlow {
    let mut flow = TrainingFlow::new(Protocol::Tcp, 443);
    // Microseconds: 0.1 to 100 ms both.
    let mut drawn = || (100.0 * 1000f64.powf(random.f64())) as u64;
    let (round_trip, thinking) = (drawn(), drawn());
    let is_upload = random.u32(..100) < UPLOADS;
    flow.before = 2;
    let mut script = MixScript { flow, now: round_trip };
    script.send(HEADERS, Direction::FromClient, 0);
    script.send(HEADERS + random.u32(60..1000), Direction::FromClient, random.u64(1..200));
    script.send(HEADERS, Direction::FromBackend, random.u64(10..100));
    let (from, to) = match is_upload {
        true => (Direction::FromClient, Direction::FromBackend),
        false => (Direction::FromBackend, Direction::FromClient),
    };
    script.now += if is_upload { 0 } else { thinking };
    // From here to the client and back, or to the backend and back.
    let answer = if is_upload { random.u64(20..200) } else { round_trip };
    let segments = bytes.div_ceil(SEGMENT).max(1);
    let (mut sent, mut window) = (0, WINDOW);
    while sent < segments {
        let now = window.min(segments - sent);
        // Packets that the policy does not consider are only counted.
        if script.is_watched() {
            (sent..sent + now).for_each(|number| {
                let length = SEGMENT.min(bytes.saturating_sub(number * SEGMENT).max(1));
                script.send(HEADERS + length as u32, from, random.u64(1..20));
            });
            script.now += answer;
            (0..now.div_ceil(2)).for_each(|_| script.send(HEADERS, to, random.u64(1..40)));
        } else {
            script.flow.seen += now + now.div_ceil(2);
        }
        (sent, window) = (sent + now, window.saturating_mul(2));
    }
    script.flow
}

struct MixScript {
    flow: TrainingFlow,
    /// Microseconds since the connection began.
    now: u64,
}

impl MixScript {
    fn send(&mut self, length: u32, direction: Direction, after_us: u64) {
        self.now += after_us;
        self.flow.first.add(length, direction, Duration::from_micros(self.now));
        self.flow.seen += 1;
    }

    fn is_watched(&self) -> bool {
        self.flow.seen <= hairpin_core::offload::tree::PACKETS_MAX as u64
    }
}
