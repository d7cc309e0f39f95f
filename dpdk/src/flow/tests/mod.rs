//! What the engine asks for and what it makes of the answers, on the fake device.
