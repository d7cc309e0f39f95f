//! What the engine asks for and what it makes of the answers, on the fake device.

mod drawn;
mod fake;
mod fixture;
mod golden;
mod life;
mod probing;
mod steering;
mod thread;
