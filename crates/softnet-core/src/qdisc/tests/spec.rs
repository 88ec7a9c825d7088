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
        ("netem", "netem limit 1000"),
        ("netem loss 1% delay 20ms", "netem limit 1000 delay 20ms loss 1%"),
        (
            "netem seed 7 rate 10mbit corrupt .1% reorder 25% 50% gap 5 loss random 0.3% 25% delay 20ms 2ms 30% limit 50",
            "netem limit 50 delay 20ms 2ms 30% loss 0.3% 25% reorder 25% 50% gap 5 corrupt 0.1% rate 10Mbit seed 7",
        ),
        ("netem loss gemodel 1%", "netem limit 1000 loss gemodel 1% 99% 100% 0%"),
        ("netem loss gemodel 1 10 70 .1", "netem limit 1000 loss gemodel 1% 10% 70% 0.1%"),
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse(), Ok(spec));
    }
}

#[test]
fn refuses_with_what_was_expected() {
    for (text, why) in [
        ("", "expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got nothing"),
        ("fifo", "expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got `fifo`"),
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
        (
            "netem speed 1",
            "netem: expected limit, delay, loss, reorder, gap, corrupt, rate or seed, got `speed`",
        ),
        ("netem loss", "netem: loss: expected one value, got none"),
        ("netem loss 1% loss 2%", "netem: loss: expected one value, got two"),
        ("netem loss 101%", "netem: loss: expected a percentage up to 100%, got `101%`"),
        ("netem delay 5parsec", "netem: delay: expected a time, such as 50ms or 200us, got `5parsec`"),
        ("netem limit 1.5", "netem: limit: expected a number, got `1.5`"),
        (
            "netem rate 1mbit 2mbit",
            "netem: expected limit, delay, loss, reorder, gap, corrupt, rate or seed, got `2mbit`",
        ),
        ("netem reorder 25%", "netem: reorder: expected a delay too, which those that are ahead do not have"),
        ("netem duplicate 1%", "netem: duplicate: a TX queue has no memory to copy into"),
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
