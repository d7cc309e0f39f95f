//! A process that adopts damaged memory of spliced connections. See `hairpin_fuzz::adoption::adoption`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::adoption::adoption(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::adoption::adoption);
}
