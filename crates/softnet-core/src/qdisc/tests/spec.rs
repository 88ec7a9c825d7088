//! Disciplines in words.

use super::*;

#[test]
fn reads_tcs_words_and_writes_what_it_can_read_again() {
    for (text, written) in [
        ("noqueue", "noqueue"),
        ("mq", "mq"),
        ("pfifo_fast", "pfifo_fast"),
        ("pfifo", "pfifo"),
        ("pfifo limit 100", "pfifo limit 100p"),
        ("bfifo limit 15kb", "bfifo limit 15Kb"),
        ("tbf rate 10mbit burst 15kb latency 50ms", "tbf rate 10Mbit burst 15Kb lat 50ms"),
        ("tbf rate 10Mbit burst 15Kb lat 50ms", "tbf rate 10Mbit burst 15Kb lat 50ms"),
        (
            " tbf  limit 1mb mtu 1600 burst 32000 peakrate 2gbit rate 1.5gbit",
            "tbf rate 1500Mbit burst 32000b peakrate 2Gbit mtu 1600b limit 1Mb",
        ),
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse(), Ok(spec));
    }
}

#[test]
fn refuses_with_what_was_expected() {
    for (text, why) in [
        ("", "expected noqueue, mq, pfifo_fast, pfifo, bfifo or tbf, got nothing"),
        ("fifo", "expected noqueue, mq, pfifo_fast, pfifo, bfifo or tbf, got `fifo`"),
        ("pfifo_fast limit 5", "pfifo_fast: expected no parameters, got `limit`"),
        ("pfifo length 5", "pfifo: expected limit, got `length`"),
        ("pfifo limit", "pfifo: limit: expected one value, got none"),
        ("pfifo limit 5 limit 6", "pfifo: limit: expected one value, got two"),
        ("tbf latency 1ms lat 1ms", "tbf: latency: expected one value, got two"),
        ("pfifo limit 5kb", "pfifo: limit: expected a number of packets, got `5kb`"),
        ("bfifo limit 5p", "bfifo: limit: expected a size below 4gb, such as 1600 or 15kb, got `5p`"),
        ("tbf rate 1mbit limit 1mb", "tbf: expected a burst, such as `burst 15kb`"),
        ("tbf burst 1kb limit 1mb", "tbf: expected a rate, such as `rate 10mbit`"),
        ("tbf rate 1mbit burst 1kb", "tbf: expected a limit or a latency, such as `latency 50ms`"),
        ("tbf rate 1mbit burst 1kb limit 1mb latency 1ms", "tbf: expected either limit or latency, got both"),
        (
            "tbf rate 1mbit burst 1kb limit 1mb mtu 1kb",
            "tbf: expected a peakrate with mtu, such as `peakrate 20mbit`",
        ),
        (
            "tbf rate 1mbit burst 1kb limit 1mb peakrate 2mbit",
            "tbf: expected an mtu with peakrate, such as `mtu 1600`",
        ),
        ("tbf rate 1mbit burst 1kb limit 1mb mtu 1kb peakrate 1mbit", "tbf: expected a peakrate above rate"),
        ("tbf rate 1mbit burst 1kb limit 1mb mtu 0 peakrate 2mbit", "tbf: expected an mtu above 0"),
        ("tbf rate 0 burst 1kb limit 1mb", "tbf: expected a rate above 0"),
        ("tbf rate 1mbit burst 0 limit 1mb", "tbf: expected a burst above 0"),
        (
            "tbf rate fast burst 1kb limit 1mb",
            "tbf: rate: expected a rate, such as 10mbit or 1.5gbit, got `fast`",
        ),
        ("tbf speed 1", "tbf: expected rate, burst, limit, latency, peakrate or mtu, got `speed`"),
    ] {
        let got = text.parse::<Spec>().unwrap_err().to_string();
        assert_eq!(got, why);
    }
    let queue = Spec::Mq.build(&DEV).err().expect("no queue's").to_string();
    assert_eq!(queue, "mq is for devices, not for one of their TX queues");
    assert!(Spec::Noqueue.build(&DEV).unwrap().is_none());
}

#[test]
fn says_which_limit_it_gets() {
    let resolved =
        ["pfifo", "bfifo", "pfifo limit 5"].map(|text| text.parse::<Spec>().unwrap().resolved(&DEV));
    assert_eq!(resolved[0], Spec::Pfifo { limit: Some(DEV.tx_queue_len) });
    assert_eq!(resolved[1], Spec::Bfifo { limit: Some(DEV.tx_queue_len * (DEV.mtu + 14)) });
    assert_eq!(resolved[2], Spec::Pfifo { limit: Some(5) });
}
