//! Stages of a connection's life. A stage calls no stage that calls it back (`scripts/check-stages`); what leads back is
//! returned as `Next`.

pub(super) mod close;
pub(super) mod conclude;
pub(super) mod connect;
pub(super) mod delivery;
pub(super) mod downward;
pub(super) mod first;
pub(super) mod last;
pub(super) mod lost;
pub(super) mod read;
pub(super) mod remove;
pub(super) mod reply;
pub(super) mod request;
pub(super) mod reset;
pub(super) mod response;
pub(super) mod taking;
pub(super) mod upward;
