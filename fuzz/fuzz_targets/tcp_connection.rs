#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softnet_tcp::fuzz::connection(data));
