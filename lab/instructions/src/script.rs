//! The frames that arrive at a worker, burst by burst.
//!
//! A [`ScriptedWorker`] plays a case once: the ends react to what the worker sends, and what they send is recorded. Then the
//! recording is given to a second worker, which was made like the first and so does the same. That one is counted: what
//! reads and writes the ends' packets stands outside of the loop.

use crate::plane::CountedPlane;
use crate::worker::CountedWorker;
use hairpin_core::engine::{Completion, Completions, Counters, RuleOp, Samples};
use hairpin_core::frame::{BATCH_MAX, Batch, FrameIo};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::SampledRules;

/// From a burst to the next.
const STEP: Duration = Duration::from_micros(50);
/// After the last burst, so long, connections that have ended expire.
const REST: Duration = Duration::from_secs(40);
/// From one of the worker's timeouts to the next in that time; its own granularity.
const TICK: Duration = Duration::from_millis(50);
/// When the time begins: it is not 0 on any machine.
const BEGINNING: Time = Time::from_nanos(1_000_000_000_000);

/// Frames that arrive at once.
type Burst = Vec<Vec<u8>>;

/// All that arrives in a case.
#[derive(Default)]
pub(crate) struct CaseRecording {
    bursts: Vec<Burst>,
    /// How many bursts there are before each round, and in all.
    marks: Vec<usize>,
    /// How many frames the worker has sent by then.
    sent: Vec<u64>,
}

/// A worker, driven by hand as its event loop does it.
pub(crate) struct Hand {
    /// `None`: frames go back as they came, which is what the plane costs.
    worker: Option<CountedWorker>,
    plane: CountedPlane,
    received: Batch<<CountedPlane as FrameIo>::Frame>,
    to_send: Batch<<CountedPlane as FrameIo>::Frame>,
    answers: Completions,
    asked: SampledRules,
    now: Time,
    sent: u64,
}

impl Hand {
    pub(crate) fn new(worker: Option<CountedWorker>) -> Hand {
        let plane = CountedPlane::new(8 * BATCH_MAX);
        let (received, to_send) = (Batch::new(), Batch::new());
        let (answers, asked) = (Completions::new(), SampledRules::new());
        Hand { worker, plane, received, to_send, answers, asked, now: BEGINNING, sent: 0 }
    }

    /// Hands a burst to the worker; what it sends is in the plane afterwards.
    #[inline(never)]
    fn burst(&mut self, burst: &Burst) {
        self.plane.sent.clear();
        self.now = self.now + STEP;
        for bytes in burst {
            let frame = self.plane.frame(bytes);
            self.received.push(frame);
        }
        match &mut self.worker {
            Some(worker) => worker.handle_batch(self.now, &mut self.plane, &mut self.received, &mut self.to_send),
            None => self.to_send.extend(self.received.drain(..)),
        }
        self.plane.transmit(&mut self.to_send);
        self.timeouts();
        self.rules();
        self.sent += self.plane.sent.len() as u64;
    }

    fn timeouts(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        if worker.poll_timeout(self.now).is_some_and(|due| due <= self.now) {
            worker.handle_timeout(self.now);
            worker.handle_splices(self.now, &mut self.plane, &mut self.to_send);
            self.plane.transmit(&mut self.to_send);
        }
    }

    /// Is the engine: does at once what it is asked for, and has never seen a packet.
    #[inline(never)]
    fn rules(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        while let Some(op) = worker.poll_op() {
            self.answers.push(match op {
                RuleOp::Install(rule) => Completion::Installed(rule.id),
                RuleOp::Remove { id, .. } => Completion::Removed(id, Some(Counters::default())),
            });
            if self.answers.is_full() {
                break;
            }
        }
        self.answers.drain(..).for_each(|answer| worker.handle_completion(self.now, &answer));
        worker.poll_samples(&mut self.asked);
        if !self.asked.is_empty() {
            let samples: Samples = self.asked.iter().map(|_| Some(Counters::default())).collect();
            worker.handle_samples(self.now, &self.asked, &samples);
            self.asked.clear();
        }
    }

    /// Lets what has ended expire.
    fn rest(&mut self) {
        let end = self.now + REST;
        while self.now < end {
            self.plane.sent.clear();
            self.now = self.now + TICK;
            self.timeouts();
            self.rules();
        }
    }

    /// Plays the beginning of a recording and so many of its rounds.
    ///
    /// # Panics
    /// When the worker does not send as many frames as the one did that the recording was made with.
    pub(crate) fn play(&mut self, recording: &CaseRecording, rounds: usize) {
        self.play_bursts(recording, 0, rounds);
        self.rest();
    }

    /// Plays the rounds `from` to `to`; with both 0, the beginning of a recording.
    pub(crate) fn play_rounds(&mut self, recording: &CaseRecording, from: usize, to: usize) {
        let first = if to == 0 { 0 } else { recording.marks[from] };
        self.play_bursts(recording, first, to);
    }

    fn play_bursts(&mut self, recording: &CaseRecording, first: usize, rounds: usize) {
        for burst in &recording.bursts[first..recording.marks[rounds]] {
            self.burst(burst);
        }
        assert!(
            self.worker.is_none() || self.sent == recording.sent[rounds],
            "{} frames were sent, and {} when they were recorded",
            self.sent,
            recording.sent[rounds]
        );
    }

    /// Connections that there still are.
    pub(crate) fn connections(&self) -> usize {
        self.worker.as_ref().map_or(0, |worker| worker.connections().count() + worker.splices().0 as usize)
    }
}

/// A worker, and ends that react to what it sends.
pub(crate) struct ScriptedWorker {
    hand: Hand,
    recording: CaseRecording,
}

impl ScriptedWorker {
    pub(crate) fn new(worker: CountedWorker) -> ScriptedWorker {
        ScriptedWorker { hand: Hand::new(Some(worker)), recording: CaseRecording::default() }
    }

    /// These frames arrive at once: what the worker sends for them.
    pub(crate) fn arrive(&mut self, frames: Burst) -> Vec<Vec<u8>> {
        use hairpin_core::frame::Frame;
        assert!(frames.len() <= BATCH_MAX, "{} frames are more than a burst", frames.len());
        self.hand.burst(&frames);
        self.recording.bursts.push(frames);
        self.hand.plane.sent.iter().map(|frame| frame.bytes().to_vec()).collect()
    }

    /// Frames that have arrived so far go before the next round.
    pub(crate) fn mark(&mut self) {
        self.recording.marks.push(self.recording.bursts.len());
        self.recording.sent.push(self.hand.sent);
    }

    pub(crate) fn into_recording(self) -> CaseRecording {
        self.recording
    }
}
