//! A device that takes rules, through one of rte_flow's two interfaces. Not yet run on hardware.
//!
//! Both interfaces look the same from here: requests are begun, pushed, and answered by a later [`RuleDevice::pull`]. The
//! synchronous one has performed a request before it returns (some 300 us on a BlueField-2, Laconic), the other
//! hands batches to the device.

use super::description::{Description, Does, Match};
use super::raw::{self, RawCount, RawError, RawFlow, RawResult, RawTable};
use hairpin_core::engine::Refusal;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::fmt;

/// A rule in a device. Not used again once its removal has been asked for without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRule(*mut RawFlow);

// SAFETY: a handle is only ever handed back to DPDK, whose calls for one port may come from any one thread at a time.
unsafe impl Send for DeviceRule {}

/// A device's error when it refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// errno.
    pub code: i32,
    /// The kind of object that caused it, as `enum rte_flow_error_type` numbers it.
    pub kind: i32,
    /// The driver's words; may be empty.
    pub message: String,
}

impl FlowError {
    fn of(code: i32, error: &RawError) -> Result<(), FlowError> {
        if code == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&error.message).unwrap_or_default().to_string_lossy().into_owned();
        Err(FlowError { code: error.code, kind: error.kind, message })
    }

    /// The worker's view of it.
    pub(crate) fn refusal(&self) -> Refusal {
        match self.code {
            libc::ENOSPC | libc::ENOMEM | libc::E2BIG => Refusal::Full,
            libc::ENOTSUP | libc::ENOSYS | libc::EINVAL => Refusal::Unsupported,
            _ => Refusal::Failed,
        }
    }

    /// The object that caused the refusal.
    pub fn about(&self) -> &'static str {
        const KINDS: [&str; 18] = [
            "",
            "",
            "the rule",
            "the group",
            "the priority",
            "ingress",
            "egress",
            "transfer",
            "the attributes",
            "the number of items",
            "what an item asks",
            "a range",
            "an item's mask",
            "an item",
            "the number of actions",
            "an action's values",
            "an action",
            "the device's state",
        ];
        usize::try_from(self.kind).ok().and_then(|kind| KINDS.get(kind)).copied().unwrap_or_default()
    }
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = crate::error::describe(self.code);
        f.write_str(&text)?;
        if !self.about().is_empty() {
            write!(f, ", {}", self.about())?;
        }
        if self.message.is_empty() || self.message == text { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl std::error::Error for FlowError {}

impl RawError {
    pub(super) const EMPTY: RawError = RawError { code: 0, kind: 0, message: [0; 128] };
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeviceOutcome {
    /// The rule is in force.
    Created(u64, DeviceRule),
    /// It is not.
    NotCreated(u64, Refusal),
    /// It is gone.
    Destroyed(u64),
    /// It is not known whether it is gone, and there is no handle to it any more.
    Lost(u64),
}

/// Something rules can be put into. `port` is DPDK's number; tickets are the caller's, one for each request under way.
pub(crate) trait RuleDevice: Send {
    /// Requests that may be begun now.
    fn room(&self) -> usize;
    /// Begins to put a rule in. An error is the answer.
    fn create(&mut self, port: u16, rule: &Description, ticket: u64) -> Result<(), FlowError>;
    /// Begins to take a rule out. After an error it is still there.
    fn destroy(&mut self, port: u16, flow: DeviceRule, ticket: u64) -> Result<(), FlowError>;
    /// Whether answers are awaited.
    fn is_waiting(&self) -> bool;
    /// Hands over what was begun.
    fn push(&mut self);
    /// The next answer that is there.
    fn pull(&mut self) -> Option<DeviceOutcome>;
    /// The counters of a rule.
    fn query(&mut self, port: u16, flow: DeviceRule, does: u32) -> Option<RawCount>;
    /// Removes all rules, ours or not: nothing of ours has been begun yet.
    fn clear(&mut self, ports: &[u16]) {
        flush(ports);
    }
    /// Takes everything out and ends: nothing of ours is left on these ports.
    fn close(&mut self, ports: &[u16]);
}

/// rte_flow_create() and rte_flow_destroy(), one at a time.
#[derive(Debug, Default)]
pub(crate) struct Synchronous {
    answers: VecDeque<DeviceOutcome>,
}

/// Answers kept until they are pulled, at most.
const ANSWERS_MAX: usize = 64;

/// Puts a rule in at once.
pub(crate) fn create(port: u16, rule: &Description) -> Result<DeviceRule, FlowError> {
    let (mut flow, mut error) = (std::ptr::null_mut(), RawError::EMPTY);
    // SAFETY: the description is as C has it; the rest is written.
    let code = unsafe { raw::hairpin_flow_create(port, rule, &raw mut flow, &raw mut error) };
    FlowError::of(code, &error).map(|()| DeviceRule(flow))
}

/// Takes a rule out at once. After an error it is still there.
pub(crate) fn destroy(port: u16, flow: DeviceRule) -> Result<(), FlowError> {
    let mut error = RawError::EMPTY;
    // SAFETY: the handle is one that the port gave and that was not handed back yet.
    let code = unsafe { raw::hairpin_flow_destroy(port, flow.0, &raw mut error) };
    FlowError::of(code, &error)
}

/// Whether the device says that it would take a rule. It may say so and not take it.
pub(crate) fn validate(port: u16, rule: &Description) -> Result<(), FlowError> {
    let mut error = RawError::EMPTY;
    // SAFETY: the description is as C has it.
    let code = unsafe { raw::hairpin_flow_validate(port, rule, &raw mut error) };
    FlowError::of(code, &error)
}

pub(crate) fn query(port: u16, flow: DeviceRule, does: u32) -> Option<RawCount> {
    let mut count = RawCount::default();
    // SAFETY: the handle is of a rule in force.
    let code = unsafe { raw::hairpin_flow_query(port, flow.0, does, &raw mut count) };
    (code == 0).then_some(count)
}

/// Hairpin queues that a port may have at most, and descriptors of each; none where its driver does not know them.
pub(crate) fn hairpin_queues(port: u16) -> (u16, u16) {
    let mut found = raw::RawHairpin::default();
    // SAFETY: writes what it was given.
    match unsafe { raw::hairpin_flow_hairpin_capability(port, &raw mut found) } {
        0 => (found.queues, found.descriptors),
        _ => (0, 0),
    }
}

fn flush(ports: &[u16]) {
    for port in ports {
        // SAFETY: a number; an error changes nothing, since the port is given up next.
        unsafe { raw::hairpin_flow_flush(*port, std::ptr::null_mut()) };
    }
}

impl RuleDevice for Synchronous {
    fn room(&self) -> usize {
        ANSWERS_MAX.saturating_sub(self.answers.len())
    }

    fn create(&mut self, port: u16, rule: &Description, ticket: u64) -> Result<(), FlowError> {
        let flow = create(port, rule)?;
        self.answers.push_back(DeviceOutcome::Created(ticket, flow));
        Ok(())
    }

    fn destroy(&mut self, port: u16, flow: DeviceRule, ticket: u64) -> Result<(), FlowError> {
        destroy(port, flow)?;
        self.answers.push_back(DeviceOutcome::Destroyed(ticket));
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        !self.answers.is_empty()
    }

    fn push(&mut self) {}

    fn pull(&mut self) -> Option<DeviceOutcome> {
        self.answers.pop_front()
    }

    fn query(&mut self, port: u16, flow: DeviceRule, does: u32) -> Option<RawCount> {
        query(port, flow, does)
    }

    fn close(&mut self, ports: &[u16]) {
        flush(ports);
    }
}

/// A template table for rules of one shape on one port.
#[derive(Debug)]
struct TemplateTable {
    port: u16,
    shape: Description,
    table: RawTable,
}

/// rte_flow_async_create() and rte_flow_async_destroy(), by batches; one queue.
#[derive(Debug)]
pub(crate) struct Templates {
    tables: Vec<TemplateTable>,
    ports: Vec<u16>,
    queue_size: u32,
    in_flight: u32,
    rules_max: u32,
    /// The purpose of each request under way, by place: at most as many as the queues take.
    requests: Vec<Option<DeviceRequest>>,
    free: Vec<u32>,
    answers: VecDeque<DeviceOutcome>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct DeviceRequest {
    ticket: u64,
    /// The handle that creating has given.
    flow: Option<DeviceRule>,
}

// SAFETY: templates are only ever handed back to DPDK, one thread at a time.
unsafe impl Send for Templates {}

const QUEUE: u32 = 0;
/// Rules of a shape that are not flows'.
const STANDING_MAX: u32 = 16;
/// Requests under way that a queue is asked to hold.
const QUEUE_SIZE: u32 = 1024;

/// Asks for the queue, and for what rules by template count with: there is nothing else for them.
fn configure(port: u16, (counters, ages): (u32, u32), queue_size: u32) -> Result<(), FlowError> {
    let mut error = RawError::EMPTY;
    // SAFETY: numbers.
    let code = unsafe { raw::hairpin_flow_configure(port, counters, ages, 1, queue_size, &raw mut error) };
    FlowError::of(code, &error)
}

impl Templates {
    /// Prepares ports for rules by template; each flow's rule does what of [`Does::COUNT`] and [`Does::AGE`] is said.
    pub(crate) fn open(ports: &[u16], rules_max: u32, counts: Does) -> Result<Templates, FlowError> {
        let mut queue_size = QUEUE_SIZE;
        for port in ports {
            let (mut queues, mut size, mut error) = (0, 0, RawError::EMPTY);
            // SAFETY: writes what it was given.
            let code = unsafe { raw::hairpin_flow_queue_info(*port, &raw mut queues, &raw mut size, &raw mut error) };
            FlowError::of(code, &error)?;
            if queues == 0 || size == 0 {
                let message = "the device has no queues for rules".into();
                return Err(FlowError { code: libc::ENOTSUP, kind: 0, message });
            }
            queue_size = queue_size.min(size);
            // All flows may come in by one port.
            let [counters, ages] = [Does::COUNT, Does::AGE].map(|what| if counts.has(what) { rules_max } else { 0 });
            configure(*port, (counters, ages), queue_size).or_else(|error| match (counters, ages) {
                // Some drivers age by counters, which have to be asked for as well.
                (0, 1..) => configure(*port, (rules_max, ages), queue_size),
                _ => Err(error),
            })?;
        }
        Ok(Templates {
            tables: Vec::new(),
            ports: ports.to_vec(),
            queue_size,
            in_flight: 0,
            rules_max,
            requests: vec![None; queue_size as usize],
            free: (0..queue_size).rev().collect(),
            answers: VecDeque::with_capacity(ANSWERS_MAX),
            next: 0,
        })
    }

    /// The table of a rule's shape, made at the first of them.
    fn table(&mut self, port: u16, rule: &Description) -> Result<usize, FlowError> {
        let shape = rule.shape();
        if let Some(found) = self.tables.iter().position(|table| table.port == port && table.shape == shape) {
            return Ok(found);
        }
        // Of the others there are a few.
        let rules = if rule.matches.has(Match::FLOW) { self.rules_max } else { STANDING_MAX };
        let (mut table, mut error) = (RawTable([std::ptr::null_mut(); 3]), RawError::EMPTY);
        // SAFETY: the description is as C has it; the rest is written.
        let code =
            unsafe { raw::hairpin_flow_table_create(port, &raw const shape, rules, &raw mut table, &raw mut error) };
        FlowError::of(code, &error)?;
        self.tables.push(TemplateTable { port, shape, table });
        Ok(self.tables.len() - 1)
    }

    /// A place for a request.
    fn take(&mut self, ticket: u64) -> Result<u32, FlowError> {
        let full = || FlowError { code: libc::EAGAIN, kind: 0, message: String::new() };
        let place = self.free.pop().ok_or_else(full)?;
        self.requests[place as usize] = Some(DeviceRequest { ticket, flow: None });
        self.in_flight += 1;
        Ok(place)
    }

    fn give_back(&mut self, place: u32) -> Option<DeviceRequest> {
        let request = self.requests.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.in_flight -= 1;
        Some(request)
    }

    /// Fetches answers from one port after the other.
    fn fetch(&mut self) {
        for _ in 0..self.ports.len() {
            let port = self.ports[self.next % self.ports.len()];
            self.next = self.next.wrapping_add(1);
            let (mut results, mut pulled) = ([RawResult::default(); ANSWERS_MAX], 0);
            let most = ANSWERS_MAX as u16;
            // SAFETY: room for as many as is said.
            let code = unsafe {
                raw::hairpin_flow_pull(port, QUEUE, results.as_mut_ptr(), most, &raw mut pulled, std::ptr::null_mut())
            };
            let pulled = if code == 0 { usize::from(pulled) } else { 0 };
            for result in results.iter().take(pulled) {
                let Some(request) = u32::try_from(result.ticket).ok().and_then(|place| self.give_back(place)) else {
                    continue;
                };
                self.answers.push_back(match (request.flow, result.succeeded != 0) {
                    (Some(flow), true) => DeviceOutcome::Created(request.ticket, flow),
                    (Some(_), false) => DeviceOutcome::NotCreated(request.ticket, Refusal::Failed),
                    (None, true) => DeviceOutcome::Destroyed(request.ticket),
                    (None, false) => DeviceOutcome::Lost(request.ticket),
                });
            }
            if !self.answers.is_empty() {
                return;
            }
        }
    }
}

impl RuleDevice for Templates {
    fn room(&self) -> usize {
        (self.queue_size - self.in_flight) as usize
    }

    fn create(&mut self, port: u16, rule: &Description, ticket: u64) -> Result<(), FlowError> {
        let table = self.table(port, rule)?;
        let place = self.take(ticket)?;
        let (mut flow, mut error) = (std::ptr::null_mut(), RawError::EMPTY);
        let table = &raw const self.tables[table].table;
        // SAFETY: the table is of this rule's shape and stays until the device is closed; the rest is written.
        let code = unsafe {
            raw::hairpin_flow_async_create(port, QUEUE, table, rule, u64::from(place), &raw mut flow, &raw mut error)
        };
        match FlowError::of(code, &error) {
            Ok(()) => {
                if let Some(request) = &mut self.requests[place as usize] {
                    request.flow = Some(DeviceRule(flow));
                }
                Ok(())
            }
            Err(error) => {
                self.give_back(place);
                Err(error)
            }
        }
    }

    fn destroy(&mut self, port: u16, flow: DeviceRule, ticket: u64) -> Result<(), FlowError> {
        let place = self.take(ticket)?;
        let mut error = RawError::EMPTY;
        // SAFETY: the handle is of a rule in force, and is not used again unless this fails.
        let code = unsafe { raw::hairpin_flow_async_destroy(port, QUEUE, flow.0, u64::from(place), &raw mut error) };
        FlowError::of(code, &error).inspect_err(|_| {
            self.give_back(place);
        })
    }

    fn is_waiting(&self) -> bool {
        self.in_flight > 0 || !self.answers.is_empty()
    }

    fn push(&mut self) {
        for port in &self.ports {
            // SAFETY: numbers. What is not pushed now is at the next time.
            unsafe { raw::hairpin_flow_push(*port, QUEUE, std::ptr::null_mut()) };
        }
    }

    fn pull(&mut self) -> Option<DeviceOutcome> {
        if self.answers.is_empty() && self.in_flight > 0 {
            self.fetch();
        }
        self.answers.pop_front()
    }

    fn query(&mut self, port: u16, flow: DeviceRule, does: u32) -> Option<RawCount> {
        query(port, flow, does)
    }

    fn close(&mut self, ports: &[u16]) {
        flush(ports);
        for mut template in self.tables.drain(..) {
            // SAFETY: made by the port, and no rule of it is left.
            unsafe { raw::hairpin_flow_table_destroy(template.port, &raw mut template.table, std::ptr::null_mut()) };
        }
    }
}
