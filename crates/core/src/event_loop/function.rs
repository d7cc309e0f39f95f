//! What an event loop runs.

use crate::engine::{Completion, RuleOp, Samples, SetsUp};
use crate::flow::FlowKey;
use crate::frame::{Batch, FrameIo};
use crate::l7::date::Date;
use crate::l7::threshold::Threshold;
use crate::offload::{Costs, OffloadPolicy};
use crate::table::Table;
use crate::time::Time;
use crate::worker::{SampledRules, Worker};
use alloc::boxed::Box;

/// A function over flows: the balancer's [`Worker`], or another one on the same plane and engine.
///
/// It does no I/O and reads no clock. An iteration of its event loop calls these methods in their order here. Only the first
/// four are every function's; the others' defaults do nothing.
pub trait FlowFunction {
    /// Handles a burst: moves each frame of `received` that goes on to `to_send`, changed as it is to be and with its
    /// [`Egress`](crate::frame::Egress), and drops the others. `received` is empty afterwards; `to_send`, which is empty
    /// before, has room for as many.
    fn handle_batch<I: FrameIo>(
        &mut self,
        now: Time,
        io: &mut I,
        received: &mut Batch<I::Frame>,
        to_send: &mut Batch<I::Frame>,
    );

    /// The next request to the engine, if there is one.
    fn poll_op(&mut self) -> Option<RuleOp>;

    /// Takes back a request that the engine had no room for; it is the next one again.
    fn return_op(&mut self, op: RuleOp);

    /// Takes an answer of the engine. Answers come in any order.
    fn handle_completion(&mut self, now: Time, completion: &Completion);

    /// When [`FlowFunction::handle_timeout`] is next to be called; `None`: it need not be.
    fn poll_timeout(&self, _now: Time) -> Option<Time> {
        None
    }

    /// Does what is due, a bounded amount.
    fn handle_timeout(&mut self, _now: Time) {}

    /// Adds frames of its own that are due.
    fn send_due<I: FrameIo>(&mut self, _now: Time, _io: &mut I, _to_send: &mut Batch<I::Frame>) {}

    /// Adds the rules whose counters it wants to know.
    fn poll_samples(&mut self, _asked: &mut SampledRules) {}

    /// Takes the counters of these rules, in the same order; `None` for a rule that the engine does not hold.
    fn handle_samples(&mut self, _now: Time, _asked: &SampledRules, _samples: &Samples) {}

    /// Takes over the engine's part that sets connections up, once, before anything else.
    fn set_up_by(&mut self, _engine: Box<dyn SetsUp>) {}

    /// Follows what that part has done, a bounded amount; whether there was anything.
    fn take_set_up(&mut self, _now: Time) -> bool {
        false
    }

    /// Whether it wants to know what frames and rules cost. Else no clock is read for that.
    fn wants_costs(&self) -> bool {
        false
    }

    /// Takes what they cost, and the size of a body from which on a pair of rules is cheaper.
    fn take_costs(&mut self, _threshold: Threshold, _costs: Costs) {}

    /// Takes the time of day, once a second.
    fn set_date(&mut self, _date: Date) {}
}

impl<P: OffloadPolicy, T: Table<FlowKey>> FlowFunction for Worker<P, T> {
    #[inline]
    fn handle_batch<I: FrameIo>(
        &mut self,
        now: Time,
        io: &mut I,
        received: &mut Batch<I::Frame>,
        to_send: &mut Batch<I::Frame>,
    ) {
        Worker::handle_batch(self, now, io, received, to_send);
    }

    #[inline]
    fn poll_op(&mut self) -> Option<RuleOp> {
        Worker::poll_op(self)
    }

    #[inline]
    fn return_op(&mut self, op: RuleOp) {
        Worker::return_op(self, op);
    }

    #[inline]
    fn handle_completion(&mut self, now: Time, completion: &Completion) {
        Worker::handle_completion(self, now, completion);
    }

    #[inline]
    fn poll_timeout(&self, now: Time) -> Option<Time> {
        Worker::poll_timeout(self, now)
    }

    #[inline]
    fn handle_timeout(&mut self, now: Time) {
        Worker::handle_timeout(self, now);
    }

    #[inline]
    fn send_due<I: FrameIo>(&mut self, now: Time, io: &mut I, to_send: &mut Batch<I::Frame>) {
        self.handle_splices(now, io, to_send);
    }

    #[inline]
    fn poll_samples(&mut self, asked: &mut SampledRules) {
        Worker::poll_samples(self, asked);
    }

    #[inline]
    fn handle_samples(&mut self, now: Time, asked: &SampledRules, samples: &Samples) {
        Worker::handle_samples(self, now, asked, samples);
    }

    fn set_up_by(&mut self, engine: Box<dyn SetsUp>) {
        Worker::set_up_by(self, engine);
    }

    #[inline]
    fn take_set_up(&mut self, now: Time) -> bool {
        Worker::take_set_up(self, now)
    }

    #[inline]
    fn wants_costs(&self) -> bool {
        self.has_engine()
    }

    fn take_costs(&mut self, threshold: Threshold, costs: Costs) {
        self.set_threshold(threshold);
        self.set_costs(costs);
    }

    fn set_date(&mut self, date: Date) {
        Worker::set_date(self, date);
    }
}
