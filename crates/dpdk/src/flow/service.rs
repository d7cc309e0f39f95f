//! The engine's thread: takes requests from workers' queues, and brings answers back.

use super::device::RuleDevice;
use super::hops::Hops;
use super::machine::RuleMachine;
use super::request::{AnswerSink, DeviceRuleRequest, RequestAnswer};
use super::shared::SharedRules;
use hairpin_core::engine::{Completion, Counters, Refusal};
use hairpin_core::time::Time;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

/// Requests of one worker begun before the next worker's turn.
const TURN: usize = 64;
/// How long the thread rests when there is nothing to do, and when the device owes answers.
const IDLE: Duration = Duration::from_millis(1);
pub(super) const AWAITING: Duration = Duration::from_micros(20);

/// The thread's end of one worker's queues.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) requests: Receiver<DeviceRuleRequest>,
    /// The oldest, which has to wait.
    pub(super) waiting: Option<DeviceRuleRequest>,
    pub(super) answers: SyncSender<RequestAnswer>,
}

/// Everything that the thread has.
pub(super) struct RuleService<D> {
    pub(super) machine: RuleMachine<D>,
    pub(super) inboxes: Vec<Inbox>,
    /// The request that is being begun, and whose it is.
    pub(super) current: Option<(u16, DeviceRuleRequest)>,
    pub(super) hops: Box<dyn Hops>,
    pub(super) shared: Arc<SharedRules>,
    pub(super) clock: fn() -> Time,
}

/// The destination of the machine's answers.
struct Outboxes<'a> {
    inboxes: Vec<SyncSender<RequestAnswer>>,
    shared: &'a SharedRules,
}

impl AnswerSink for Outboxes<'_> {
    fn tell(&mut self, worker: u16, told: RequestAnswer) {
        self.shared.told(&told);
        if let Some(answers) = self.inboxes.get(usize::from(worker)) {
            // It is never full; a worker that is gone needs no answer.
            let _ = answers.try_send(told);
        }
    }

    fn counted(&mut self, place: (u32, u32), counters: &Counters) {
        self.shared.counted(place, counters);
    }

    fn forwarded(&mut self, total: u32, packets: u64, bytes: u64) {
        self.shared.forwarded(total, packets, bytes);
    }
}

impl<D: RuleDevice> RuleService<D> {
    /// Serves until it is told to stop; then no rule is left in the device.
    ///
    /// Should the engine fail in an unforeseen way, it takes its rules out, refuses what was asked for, and everything
    /// asked for from then on: packets go to the workers, which can forward every one (invariant 1).
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let inboxes = self.inboxes.iter().map(|inbox| inbox.answers.clone()).collect();
        let mut outboxes = Outboxes { inboxes, shared: &shared };
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&mut outboxes)));
        let closed = {
            let mut flushes = shared.flushes.lock();
            *flushes += 1;
            catch_unwind(AssertUnwindSafe(|| self.machine.close()))
        };
        shared.forget();
        if served.is_err() || closed.is_err() {
            let mut statistics = shared.statistics();
            (statistics.failed, statistics.rules) = (statistics.failed + 1, 0);
            drop(statistics);
            // The request on which it failed may have begun: it is refused as if it had not.
            if let Some((worker, request)) = self.current.take() {
                request.keys().for_each(|key| self.machine.forget(&key));
                refusals(&request, |told| outboxes.tell(worker, told));
            }
            self.machine.give_up(&mut outboxes);
            self.refuse(&mut outboxes);
        }
    }

    fn serve(&mut self, out: &mut Outboxes<'_>) {
        let shared = Arc::clone(&self.shared);
        while !shared.stop.load(Ordering::Acquire) {
            let now = (self.clock)();
            let begun = self.begin(now, out);
            let answered = self.machine.settle(now, &*self.hops, out);
            let more = self.machine.tend(now, &*self.hops, out);
            self.machine.statistics.rules = self.machine.rules() as u64;
            *shared.statistics() = self.machine.statistics;
            if !(begun | answered | more) {
                std::thread::park_timeout(if self.machine.device.is_waiting() { AWAITING } else { IDLE });
            }
        }
    }

    /// Begins what workers ask for, some of each in turn.
    fn begin(&mut self, now: Time, out: &mut Outboxes<'_>) -> bool {
        let mut any = false;
        for (worker, inbox) in self.inboxes.iter_mut().enumerate() {
            for _ in 0..TURN {
                let Some(request) = inbox.waiting.take().or_else(|| inbox.requests.try_recv().ok()) else { break };
                self.current = Some((worker as u16, request));
                let left = self.machine.request(now, worker as u16, request, &*self.hops, out);
                self.current = None;
                if left.is_some() {
                    inbox.waiting = left;
                    break;
                }
                any = true;
            }
        }
        any
    }

    /// Refuses everything until the end.
    fn refuse(&mut self, out: &mut Outboxes<'_>) {
        while !self.shared.stop.load(Ordering::Acquire) {
            for (worker, inbox) in self.inboxes.iter_mut().enumerate() {
                while let Some(request) = inbox.waiting.take().or_else(|| inbox.requests.try_recv().ok()) {
                    refusals(&request, |told| out.tell(worker as u16, told));
                }
            }
            std::thread::park_timeout(IDLE);
        }
    }
}

/// The answers to a request when there is no engine any more.
pub(super) fn refusals(request: &DeviceRuleRequest, mut tell: impl FnMut(RequestAnswer)) {
    let mut rejected = |rule: &hairpin_core::engine::Rule| {
        let completion = Completion::Rejected(rule.id, Refusal::Failed);
        tell(RequestAnswer { completion, key: rule.key, place: (0, 0) });
    };
    match request {
        DeviceRuleRequest::Install(rule) => rejected(rule),
        DeviceRuleRequest::Pair(rules) => rules.iter().for_each(rejected),
        DeviceRuleRequest::Remove { id, key } => {
            tell(RequestAnswer { completion: Completion::Removed(*id, None), key: *key, place: (0, 0) })
        }
    }
}
