#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softnet_dev::netlink::fuzz::fpm(data));
