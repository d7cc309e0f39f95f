//! HTTP and TLS services: real clients, real servers, and both misbehaving.

mod agreed;
mod bodies;
mod browser;
mod disguised;
mod failing;
mod hostile;
mod listed;
mod loss;
mod messages;
mod routes;
mod servers;
mod stage;
mod tls;
mod told;

use libtest_mimic::Trial;
use stage::{Stages, Which};
use std::sync::Arc;

pub(crate) fn trials() -> Vec<Trial> {
    let stages = Arc::new(Stages::default());
    let mut trials = Vec::new();
    trials.extend(messages::trials(&stages, Which::Dpdk));
    trials.extend(bodies::trials(&stages, Which::Dpdk));
    trials.extend(loss::trials(&stages, Which::Dpdk));
    for which in [Which::Software, Which::Wire, Which::Gso] {
        trials.extend(messages::trials(&stages, which));
        trials.extend(bodies::trials(&stages, which));
        trials.extend(loss::trials(&stages, which));
        trials.extend(browser::trials(&stages, which));
    }
    // What has little to do with how packets are carried: on the last stage.
    trials.extend(routes::trials(&stages));
    trials.extend(disguised::trials(&stages));
    trials.extend(hostile::trials(&stages));
    trials.extend(servers::trials(&stages));
    // It counts on there being no connection for TLS yet.
    trials.extend(listed::trials(&stages));
    trials.extend(tls::trials(&stages));
    trials.extend(told::trials(&stages));
    trials.extend(failing::trials());
    trials.extend(agreed::trials());
    trials
}
