//! Any bytes as the begin of a TLS client's stream. See `hairpin_fuzz::client_hello::client_hello`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::client_hello::client_hello(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::client_hello::client_hello);
}
