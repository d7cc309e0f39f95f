//! The counters of an engine.

/// Counts since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatistics {
    /// Rules that it holds now, in the device or waiting to go in again.
    pub rules: u64,
    /// Rules that the device put in, also again.
    pub created: u64,
    /// Rules that it took out.
    pub destroyed: u64,
    /// Rules that it refused.
    pub refused: u64,
    /// How often it refused to take one out; it is asked again every second.
    pub stuck: u64,
    /// Rules that the device may still have: their ids are not used again.
    pub lost: u64,
    /// 1 if the engine has failed: there is no rule in the device, and none will be put in.
    pub failed: u64,
}
