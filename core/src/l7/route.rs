//! Which route a request takes, who may pass.

/// When a route is taken.
#[derive(Clone, Debug, Default)]
pub struct Conditions {}

/// Who may pass.
#[derive(Clone, Debug)]
pub struct Access {}
