//! Frames and time into a link layer. See `hairpin_fuzz::link::link`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::link::link(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::link::link);
}
