//! Any ICMP error, translated. See `hairpin_fuzz::wire::icmp_translate`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::wire::icmp_translate(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::wire::icmp_translate);
}
