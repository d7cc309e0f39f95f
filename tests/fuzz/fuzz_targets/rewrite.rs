//! Any frame under any rewrite. See `hairpin_fuzz::wire::rewrite`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::wire::rewrite(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::wire::rewrite);
}
