//! The engine's requests and its reactions to the answers, on the fake device.

mod drawn;
mod fake;
mod fixture;
mod golden;
mod life;
mod probing;
mod steering;
mod thread;
