//! Any text as a model of the policy `decision-tree`. See `hairpin_fuzz::model::model`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::model::model(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::model::model);
}
