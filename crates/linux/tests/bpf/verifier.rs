//! Every program loads and is attached, in every configuration: what `make test-kernels` also asks of other kernels.

use crate::rig::{Rig, attach_modes, in_namespace};
use hairpin_linux::programs::{Absent, SetUpRoom};

#[test]
fn every_program_loads_in_every_configuration() {
    for mode in attach_modes() {
        for sparse in [false, true] {
            in_namespace(move || {
                let Rig { plane, .. } = Rig::new(2, |options| {
                    options.attach = mode;
                    options.rules_v4_sparse = sparse;
                    options.rules_v6_sparse = sparse;
                    options.when_absent = if sparse { Absent::Drop } else { Absent::Pass };
                    options.keep_ttl = sparse;
                    options.set_up = sparse.then_some(SetUpRoom { pending: 4096, workers: 2 });
                });
                plane.detach().unwrap();
            });
        }
    }
}
