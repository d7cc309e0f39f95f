//! Packets through the wire modules, the rewrite and the answers, against packets built from scratch and a second
//! implementation (etherparse).

mod answers;
mod fragments;
mod packets;
mod parsing;
mod rewriting;
mod traces;
mod translation;
