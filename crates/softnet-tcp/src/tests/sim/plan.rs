//! What a seed means: two ends, what their applications do, and the network between them.

use softnet_netem::{Chance, Loss, Params, Random};

use crate::conn::{ConnOptions, SockOpt};
use crate::{Config, config::CongestionControl};

/// Random numbers (xorshift over a mixed seed), the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        // Neighbouring seeds have nothing in common.
        let mixed = (seed ^ 0x5bd1_e995_7b93_1d2f).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Dice((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    /// One time in `n`.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Up to `most`, small values as likely as large ones of each magnitude.
    pub(super) fn magnitude(&mut self, most: u64) -> u64 {
        let bits = u64::from(64 - most.leading_zeros());
        let magnitude = self.below(bits + 1);
        self.below(1 << magnitude).min(most)
    }
}

/// How an application ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It ends sending behind its last byte, reads to the end, and closes.
    Shutdown,
    /// It closes behind its last byte, whatever comes yet.
    Close,
    /// It closes with `SO_LINGER` 0 after so many microseconds, wherever it is.
    Abort(u64),
}

/// What an application does.
#[derive(Clone, Copy, Debug)]
pub(super) struct App {
    /// Bytes that it sends.
    pub(super) send: u64,
    /// Bytes of a write.
    pub(super) chunk: u32,
    /// Microseconds between writes; 0: as long as there is room.
    pub(super) write_every: u64,
    /// Of eight writes so many have `MSG_MORE`; the last one never has.
    pub(super) more: u64,
    /// Bytes of a read.
    pub(super) read_max: u32,
    /// Microseconds between reads; 0: at once.
    pub(super) read_every: u64,
    pub(super) ending: Ending,
}

/// An end.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) cfg: Config,
    pub(super) options: ConnOptions,
    pub(super) path_mss: u16,
    pub(super) app: App,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The client, and the server.
    pub(super) sides: [Side; 2],
    /// The network to the server, and to the client.
    pub(super) links: [Params; 2],
    /// Packets in a link's queue from which on those that are ECT are marked.
    pub(super) mark_from: usize,
    /// Whether neighbours that arrive at once are one segment to the receiver.
    pub(super) gro: bool,
    /// One time in so many steps the host has no memory to send with; 0: never.
    pub(super) refuse: u64,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let dice = &mut Dice::new(seed);
        let path_mss = dice.of(&[100, 216, 536, 1220, 1448, 1460, 1460, 1460, 8948]);
        let links = links(dice, path_mss);
        let mut sides = [side(dice, path_mss), side(dice, path_mss)];
        let calm = sides.iter().all(|side| side.app.ending == Ending::Shutdown);
        for side in &mut sides {
            // Without keepalive an end that only reads never learns of a reset that was lost.
            let keepalive = !calm || dice.one_in(3);
            set(&mut side.options, SockOpt::KeepAlive(keepalive));
            set(&mut side.options, SockOpt::KeepIdle(20 + dice.below(200) as u32));
            set(&mut side.options, SockOpt::KeepIntvl(1 + dice.below(20) as u32));
        }
        let refuse = if dice.one_in(12) { 2 + dice.magnitude(200) } else { 0 };
        Plan { seed, sides, links, mark_from: 4 << dice.below(6), gro: dice.one_in(2), refuse }
    }

    /// Whether every byte has to arrive: neither end leaves before it has seen the other's.
    pub(super) fn is_graceful(&self, from: usize) -> bool {
        match (self.sides[from].app.ending, self.sides[1 - from].app.ending) {
            (Ending::Shutdown, Ending::Shutdown) => true,
            (Ending::Close, Ending::Shutdown) => self.sides[1 - from].app.send == 0,
            (Ending::Shutdown, Ending::Close) | (Ending::Close, Ending::Close) => false,
            (Ending::Abort(_), _) | (_, Ending::Abort(_)) => false,
        }
    }
}

fn set(options: &mut ConnOptions, option: SockOpt) {
    options.set(option).expect("an option in range");
}

fn side(dice: &mut Dice, path_mss: u16) -> Side {
    let mut cfg = Config {
        tcp_sack: !dice.one_in(4),
        tcp_dsack: !dice.one_in(6),
        tcp_timestamps: dice.of(&[0, 2, 2, 2]),
        tcp_window_scaling: !dice.one_in(5),
        tcp_ecn: dice.of(&[0, 1, 1, 2]),
        tcp_congestion_control: dice.of(&[
            CongestionControl::Cubic,
            CongestionControl::Cubic,
            CongestionControl::Reno,
            CongestionControl::Dctcp,
        ]),
        tcp_frto: !dice.one_in(6),
        tcp_early_retrans: dice.of(&[0, 3, 3]),
        tcp_slow_start_after_idle: dice.one_in(2),
        tcp_rfc1337: dice.one_in(4),
        // An orphan is as patient as any connection: eight tries may all be lost.
        tcp_orphan_retries: 15,
        ..Config::default()
    };
    if dice.one_in(4) {
        let least = 2304 + dice.magnitude(60_000) as u32;
        cfg.tcp_rmem = [2304, least, least * (1 + dice.below(4) as u32)];
    }
    if dice.one_in(4) {
        let least = 4608 + dice.magnitude(60_000) as u32;
        cfg.tcp_wmem = [4608, least, least * (1 + dice.below(4) as u32)];
    }
    let mut options = ConnOptions::default();
    if dice.one_in(6) {
        options.rcvbuf = Some(2304 + dice.magnitude(200_000) as u32);
    }
    set(&mut options, SockOpt::NoDelay(dice.one_in(2)));
    if dice.one_in(8) {
        set(&mut options, SockOpt::MaxSeg(dice.of(&[88, 300, 536, 1200])));
    }
    Side { cfg, options, path_mss, app: app(dice, path_mss) }
}

fn app(dice: &mut Dice, path_mss: u16) -> App {
    let segments = if dice.one_in(30) { 1500 } else { 120 };
    let send = if dice.one_in(4) { 0 } else { dice.magnitude(segments * u64::from(path_mss)) };
    // Few writes and reads, whatever there is to carry: time is for the network.
    let least = (send / 300).max(1);
    let chunk = (least + dice.magnitude(65_536)) as u32;
    let write_every = if dice.one_in(3) { dice.magnitude(400_000) } else { 0 };
    let read_every = if dice.one_in(3) { dice.magnitude(900_000) } else { 0 };
    let read_max = if dice.one_in(3) { 1000 + dice.magnitude(100_000) as u32 } else { u32::MAX };
    let ending = match dice.below(12) {
        0 => Ending::Close,
        1 => Ending::Abort(dice.magnitude(20_000_000)),
        _ => Ending::Shutdown,
    };
    App { send, chunk, write_every, more: dice.below(4), read_max, read_every, ending }
}

fn percent_upto(dice: &mut Dice, most: u64) -> Random {
    Random::of(Chance(dice.magnitude(most * 1_000_000) as u32))
}

fn links(dice: &mut Dice, path_mss: u16) -> [Params; 2] {
    let rtt = 50_000 + dice.magnitude(300_000_000);
    let kinds = dice.below(64);
    let one = |dice: &mut Dice| {
        let mut params = Params { delay: rtt / 2, seed: dice.below(1 << 40), ..Params::default() };
        let is = |bit: u64| kinds & (1 << bit) != 0;
        if is(0) {
            params.loss = if dice.one_in(3) {
                Loss::Gemodel {
                    p: Chance(dice.magnitude(3_000_000) as u32),
                    r: Chance::percent(30 + dice.below(70) as u32),
                    lost_bad: Chance::percent(20 + dice.below(60) as u32),
                    lost_good: Chance(dice.magnitude(500_000) as u32),
                }
            } else {
                Loss::Random(percent_upto(dice, 15))
            };
        }
        if is(1) {
            params.jitter = dice.magnitude(rtt);
        }
        if is(2) {
            params.reorder = percent_upto(dice, 40);
            params.gap = dice.below(6) as u32;
        }
        if is(3) {
            params.duplicate = percent_upto(dice, 10);
        }
        if is(4) {
            params.corrupt = percent_upto(dice, 3);
        }
        if is(5) {
            // From two segments a second on: slower paths are the patience of users, not TCP.
            params.rate = u64::from(path_mss) * (20 + dice.magnitude(50_000));
            params.limit = 4 + dice.magnitude(300) as u32;
        }
        params
    };
    [one(dice), one(dice)]
}
