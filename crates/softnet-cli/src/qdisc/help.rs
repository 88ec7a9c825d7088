//! What `softnet qdisc --help` teaches. Lines of at most 98 columns, for longer ones are broken when they are printed.

pub(super) const USAGE: &str = "\
softnet qdisc [OPTIONS] [show [dev DEV]]
       softnet qdisc [OPTIONS] add|replace dev DEV [root | parent :N]
                     KIND [PARAMETERS]
       softnet qdisc [OPTIONS] del dev DEV [root | parent :N]";

pub(super) const MORE: &str = "\
`softnet qdisc --help` has the disciplines, their parameters and units, and examples.";

pub(super) const HELP: &str = "\
A discipline decides which packets wait before a TX queue, how many, in which order they leave,
and when. Packets wait in it whenever the device's ring has no room.

Disciplines:
  pfifo_fast  Three bands in strict priority, by the type of service of the IP header; in each,
              first in, first out, up to tx_queue_len packets. The default, unless default_qdisc
              of the configuration says otherwise.
  pfifo [limit PACKETS]
              First in, first out. Without limit: tx_queue_len packets.
  bfifo [limit SIZE]
              The same in bytes. Without limit: tx_queue_len frames of the longest kind.
  tbf rate RATE burst SIZE {latency TIME | limit SIZE} [peakrate RATE mtu SIZE]
              A token bucket: sends at `rate` in the long run, and `burst` bytes at once. What comes
              faster waits, up to `limit` bytes or as many as leave within `latency`; the rest is
              dropped. A frame (MTU and 14 bytes) longer than `burst`, or `mtu`, is dropped, for it
              never could leave. peakrate and mtu say how fast a burst leaves.
  netem [limit PACKETS] [delay TIME [JITTER [CORR]]] [loss [random] PERCENT [CORR]]
        [loss gemodel P [R [1-H [1-K]]]] [reorder PERCENT [CORR]] [gap N]
        [corrupt PERCENT [CORR]] [rate RATE] [seed N]
              A bad network, for tests: what is lost (qdisc_loss), late, ahead of others, damaged,
              as tc-netem(8) has it. limit (1000) counts what is merely late, too. The same seed
              does the same to the same packets. Each segment has a fate of its own.
  mq          As root only: a discipline for each TX queue. The default of a device with several.
  noqueue     Nothing waits: what finds the ring full is dropped (full_ring).

Units, as in tc, in any case, with decimals:
  RATE  bit (or no unit), kbit, mbit, gbit, tbit in steps of 1000; kibit, mibit, … of 1024;
        bps, kbps, mbps, … are bytes
  SIZE  b (or no unit), kb, mb, gb: bytes in steps of 1024; kbit, mbit, gbit
  TIME  us (or no unit), ns, ms, s

Places: `root` (also if none is said) is the device's. `parent :N` is, under mq, that of TX queue
N - 1, N in hexadecimal: `parent :1` is TX queue 0, `parent :a` is TX queue 9. There are no
handles; `parent 8001:1` means `parent :1`.

One root on several TX queues: any root but mq and noqueue leads all packets of the device through
TX queue 0, and the others lie idle. That is what one limit for the whole device costs; mq with a
tbf for each queue does not.

A change is made while packets pass. `replace` with the same kind keeps what is queued and changes
the parameters (a tbf's buckets are full again). Another kind drops what the old one held
(qdisc_drop, counted against the device), and its counters start at 0. Setting the root forgets
what was set for TX queues. What is set holds until softnet ends, also while the interface is
away; `qdisc` of a [[device]] in the configuration is as if set at the start.

Statistics (-s), as tc has them; of the time since the discipline is there:
  Sent        what left it, Ethernet headers included (with noqueue nothing is counted)
  overlimits  times a packet had to wait for its rate
  requeues    packets that the ring gave back; they stay first in line
  backlog     bytes and packets that wait now
  drops       by reason: qdisc_overlimit is no room, qdisc_drop is too long for a tbf,
              qdisc_loss is what a netem is told to lose
and of the TX queue, for as long as the device is open:
  owned       times a thread had the queue to itself, to queue packets and to send
  handed over packets that came while another thread had it, and were left to that one: their
              senders went on at once
  parked      times a thread was left so many that it left the rest to the next, to come to an end
  held back   senders of this process that had to wait, since qdisc_max_burst packets were pending
              (forwarded packets are dropped then: qdisc_burst_drop in `softnet show drops`)
  ring        bytes in the device's ring, and how many byte queue limits allow there: learnt, just
              enough to keep the device busy, so that packets wait where their order is decided

Examples:
  softnet qdisc                          every discipline, a line each
  softnet qdisc -s show dev eth1         with what it sent, holds and dropped
  softnet qdisc show dev eth1 --watch    the same each second, with rates
  softnet qdisc replace dev eth1 root tbf rate 10mbit burst 15kb latency 50ms
  softnet qdisc replace dev eth1 root pfifo limit 100
  softnet qdisc replace dev eth1 root mq
  softnet qdisc add dev eth1 parent :2 tbf rate 1gbit burst 128kb limit 1mb
  softnet qdisc del dev eth1 parent :2   the default for TX queue 1
  softnet qdisc del dev eth1             all as by default
  softnet qdisc show --json | jq '.[] | select(.drops > 0)'";
