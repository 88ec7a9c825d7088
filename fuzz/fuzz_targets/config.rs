#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softnet::fuzz::config(data));
