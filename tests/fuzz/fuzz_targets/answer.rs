//! Any frame into an answer to its sender. See `hairpin_fuzz::wire::answer`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::wire::answer(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::wire::answer);
}
