//! Layer 7 without a TCP stack (Laconic, section 3): HTTP/1.1 heads are parsed and edited, everything else of two TCP
//! connections is joined by translating sequence and acknowledgement numbers. Reliability and congestion control stay
//! with the two ends; what Hairpin itself has put into a stream, it keeps until it is acknowledged.
//!
//! Nothing here knows a plane. The pieces:
//!
//! | module | what it is | source |
//! |---|---|---|
//! | [`choice`] | the backend a request goes to | |
//! | [`config`] | what a service does at layer 7, as the data plane sees it | |
//! | [`cookie`] | SYN cookies: a connection without state until its first valid data | KAIST 2018; RFC 4987, 3.6 |
//! | [`date`] | the time of day, as HTTP writes it | RFC 9110, 5.6.7 |
//! | [`decision`] | what becomes of a request | |
//! | [`head`] | request and response heads, read strictly | RFC 9112, 2 to 5 |
//! | [`body`] | how long a message is: framing, chunks | RFC 9112, 6 and 7 |
//! | [`route`] | which route a request takes, who may pass | |
//! | [`edit`] | the head to forward, made from the head received | RFC 9110, 7.6; RFC 7239 |
//! | [`trace`] | traces and ids that requests belong to | W3C Trace Context |
//! | [`reply`] | responses of our own: refusals, redirects | RFC 9110, 15 |
//! | [`proxy_protocol`] | the client's address in front of a backend's stream | PROXY protocol, versions 1 and 2 |
//! | [`client_hello`] | the server's name a TLS client asks for | RFC 8446, 4.1.2; RFC 6066, 3; RFC 7301 |
//! | [`splice`] | the connections themselves, joined exchange by exchange | Laconic, 3.3 |
//! | [`sequence`] | where bytes were put in or taken out of a stream, and what that does to numbers and SACK blocks | Laconic, 3.3.3 |
//! | [`threshold`] | from how many bytes on a body is worth a pair of rules | Laconic, 3.5.2 |

pub mod body;
pub mod choice;
pub mod client_hello;
pub mod config;
pub mod cookie;
pub mod date;
pub mod decision;
pub mod edit;
pub mod head;
pub mod proxy_protocol;
pub mod reply;
pub mod route;
pub mod sequence;
pub mod splice;
pub mod threshold;
pub mod trace;
