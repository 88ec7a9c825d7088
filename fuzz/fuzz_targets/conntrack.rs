#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softnet_core::fuzz::conntrack(data));
