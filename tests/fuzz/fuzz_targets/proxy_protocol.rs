//! Any bytes as the begin of a proxy's connection. See `hairpin_fuzz::proxy_protocol::proxy_protocol`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hairpin_fuzz::proxy_protocol::proxy_protocol(input);
});

#[cfg(not(fuzzing))]
fn main() {
    hairpin_fuzz::replay(hairpin_fuzz::proxy_protocol::proxy_protocol);
}
