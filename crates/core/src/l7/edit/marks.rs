//! The fields by which a request is found again: `traceparent` and `tracestate` (W3C Trace Context), and its id.

use super::super::config::Http;
use super::super::head::Request;
use super::super::trace::TraceContext;
use super::plan::{EditPlan, is_same};
use super::{Facts, Out};

const PARENT: &[u8] = b"traceparent";
const STATE: &[u8] = b"tracestate";

/// The treatment of these fields in one request.
pub(super) struct Marks<'a> {
    trace: &'a TraceContext,
    /// The name of the field with the request's id, where one is made here.
    id: Option<&'a [u8]>,
    /// It goes on as its client wrote it.
    keeps_id: bool,
}

impl<'a> Marks<'a> {
    /// `None`: neither is asked for.
    pub(super) fn new(http: &'a Http, request: &Request<'_>, facts: &Facts<'a>) -> Option<Marks<'a>> {
        let trace = facts.trace?;
        let id = http.request_id.as_ref();
        let keeps_id = id.is_some_and(|id| id.given(http, request, &facts.client.address).is_some());
        Some(Marks { trace, id: id.map(|id| &*id.name), keeps_id })
    }

    /// Whether the field `name` of the client does not go on as it is.
    pub(super) fn drops(&self, name: &[u8]) -> bool {
        let is_id = |id: &[u8]| is_same(id, name) && !(self.keeps_id && name.eq_ignore_ascii_case(id));
        let is_parent = || name.eq_ignore_ascii_case(PARENT);
        // What vendors say of a trace holds for that trace only (3.3.1.1 of the standard).
        let is_state = || !self.trace.has_parent() && name.eq_ignore_ascii_case(STATE);
        self.id.is_some_and(is_id) || self.trace.is_traced() && (is_parent() || is_state())
    }

    /// Writes the fields of a request, unless `plan` drops them.
    pub(super) fn write(&self, out: &mut Out<'_>, plan: &EditPlan<'_>) {
        let stays = |name: &[u8]| plan.is_empty() || !plan.drops(name);
        let TraceContext { trace, span, .. } = self.trace;
        if self.trace.is_traced() && stays(PARENT) {
            out.put(PARENT);
            out.put(b": 00-");
            out.octets(trace);
            out.put(b"-");
            out.octets(span);
            out.put(if self.trace.is_sampled() { b"-01\r\n" } else { b"-00\r\n" });
        }
        if let Some(id) = self.id.filter(|id| !self.keeps_id && stays(id)) {
            out.put(id);
            out.put(b": ");
            out.octets(trace);
            out.put(b"\r\n");
        }
    }
}
