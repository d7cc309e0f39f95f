//! Clients, backends, time and an engine around an HTTP service. See `hairpin_fuzz::splice::splice`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::splice::splice(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::splice::splice);
}
