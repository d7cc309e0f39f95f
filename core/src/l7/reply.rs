//! Responses of our own.
