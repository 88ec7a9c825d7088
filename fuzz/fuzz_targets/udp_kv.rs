#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| udp_kv::fuzz::udp_kv(data));
