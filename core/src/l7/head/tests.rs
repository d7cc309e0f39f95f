//! Heads as they come.
