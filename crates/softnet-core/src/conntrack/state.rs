//! The states of a connection, how packets move it from one to the other, and how long it stays in
//! each without a packet.
//!
//! Of TCP only what a translator needs (RFC 5382 section 5, RFC 7857 section 2): whether it is
//! open. Sequence numbers are not looked at, and a reset is believed only until the connection goes
//! on.

use super::Direction;
use crate::ip::v4::header::protocol;
use crate::ip::v6::header::next;

/// TCP's FIN flag.
const FIN: u8 = 1;
/// TCP's SYN flag.
const SYN: u8 = 2;
/// TCP's RST flag.
const RST: u8 = 4;

/// What a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// There is none: its entry is free.
    Dead = 0,
    /// UDP without a reply so far.
    UdpNew,
    /// UDP that was answered.
    Udp,
    /// A query of ICMP.
    Icmp,
    /// TCP that one side wants to open.
    SynSent,
    /// TCP that the other side answered.
    SynRecv,
    /// TCP that is open.
    Established,
    /// TCP that the side which opened it is done with.
    FinOriginal,
    /// TCP that the other side is done with.
    FinReply,
    /// TCP that both sides are done with.
    Closing,
    /// TCP that was reset.
    Reset,
}

/// How many there are.
const STATES: usize = 11;
/// States by their numbers; a power of two of them, so that a number needs no check.
const ALL: [State; 16] = {
    use State::*;
    [
        Dead,
        UdpNew,
        Udp,
        Icmp,
        SynSent,
        SynRecv,
        Established,
        FinOriginal,
        FinReply,
        Closing,
        Reset,
        Dead,
        Dead,
        Dead,
        Dead,
        Dead,
    ]
};

/// The state after a packet without SYN, FIN and RST: by state, then direction.
static PLAIN: [[u8; 2]; 16] = {
    let mut next = [[0; 2]; 16];
    let mut state = 0;
    while state < STATES {
        next[state] = [state as u8; 2];
        state += 1;
    }
    next[State::UdpNew as usize][1] = State::Udp as u8;
    next[State::SynSent as usize][1] = State::SynRecv as u8;
    next[State::SynRecv as usize][0] = State::Established as u8;
    // It was not: RFC 7857 section 2.2.
    next[State::Reset as usize] = [State::Established as u8; 2];
    next
};

impl State {
    #[inline(always)]
    pub(super) fn from_number(number: u8) -> State {
        ALL[usize::from(number & 15)]
    }

    /// The name that tables and `--json` print.
    pub fn name(self) -> &'static str {
        match self {
            State::Dead => "none",
            State::UdpNew => "unreplied",
            State::Udp => "assured",
            State::Icmp => "query",
            State::SynSent => "syn-sent",
            State::SynRecv => "syn-recv",
            State::Established => "established",
            State::FinOriginal | State::FinReply => "fin-wait",
            State::Closing => "time-wait",
            State::Reset => "close",
        }
    }

    /// Whether both sides are known to want it, so that it is not dropped early for another (the
    /// kernel's `IPS_ASSURED`). One that was reset is: a reset may be forged.
    pub fn is_assured(self) -> bool {
        match self {
            State::Udp | State::Established | State::FinOriginal | State::FinReply | State::Reset => true,
            State::Dead | State::UdpNew | State::Icmp | State::SynSent | State::SynRecv | State::Closing => {
                false
            }
        }
    }

    /// That of a connection whose first packet is of `protocol`; with `tcp_flags`, if it is TCP.
    /// `None` if the packet opens none.
    pub fn first(number: u8, tcp_flags: u8) -> Option<State> {
        match number {
            protocol::UDP => Some(State::UdpNew),
            protocol::ICMP | next::ICMPV6 => Some(State::Icmp),
            // One that was open before the table was made is taken up, too.
            protocol::TCP if tcp_flags & RST == 0 => Some(State::SynSent),
            _ => None,
        }
    }

    /// The state after a packet in `direction`; with `tcp_flags`, 0 if it is not TCP.
    #[inline(always)]
    pub(super) fn next(number: u8, direction: Direction, tcp_flags: u8) -> u8 {
        if tcp_flags & (SYN | FIN | RST) != 0 {
            return Self::from_number(number).after(direction, tcp_flags) as u8;
        }
        PLAIN[usize::from(number & 15)][direction as usize]
    }

    #[cold]
    fn after(self, direction: Direction, flags: u8) -> State {
        use Direction::{Original, Reply};
        // As long as there was no answer, only one moves it on: or the opener, which rules may have
        // refused, could have it pass for established or assured by itself.
        if self == State::SynSent && (direction == Original || flags & RST != 0) {
            return self;
        }
        if flags & RST != 0 {
            return State::Reset;
        }
        if flags & SYN != 0 {
            return match (self, direction) {
                // Its ports are used again.
                (State::Closing | State::Reset, Original) => State::SynSent,
                (State::SynSent, Reply) => State::SynRecv,
                _ => self,
            };
        }
        match (self, direction) {
            (State::FinReply, Original) | (State::FinOriginal, Reply) => State::Closing,
            (State::Closing, _) => self,
            (_, Original) => State::FinOriginal,
            (_, Reply) => State::FinReply,
        }
    }
}

/// Seconds without a packet after which a connection expires, by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Of UDP that was not answered: RFC 4787 REQ-5 wants two minutes.
    pub udp: u32,
    /// Of UDP that was: RFC 4787 REQ-5c.
    pub udp_stream: u32,
    /// Of a query of ICMP: RFC 5508 REQ-2.
    pub icmp: u32,
    /// Of TCP that is open: RFC 5382 REQ-5 wants two hours and four minutes.
    pub tcp_established: u32,
    /// Of TCP that is not yet, or not any more: RFC 5382 REQ-5.
    pub tcp_transitory: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { udp: 120, udp_stream: 300, icmp: 60, tcp_established: 7440, tcp_transitory: 240 }
    }
}

impl Timeouts {
    /// By the numbers of states.
    pub(super) fn table(&self) -> [u32; 16] {
        let mut table = [self.tcp_transitory; 16];
        table[State::UdpNew as usize] = self.udp;
        table[State::Udp as usize] = self.udp_stream;
        table[State::Icmp as usize] = self.icmp;
        table[State::Established as usize] = self.tcp_established;
        table
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use Direction::{Original, Reply};

    const ACK: u8 = 16;

    /// The states of TCP after each of `packets`, the first of which opens it.
    fn states(packets: &[(Direction, u8)]) -> Vec<State> {
        let first = State::first(protocol::TCP, packets[0].1).unwrap();
        let next = |state: &mut State, &(direction, flags): &(Direction, u8)| {
            *state = State::from_number(State::next(*state as u8, direction, flags));
            Some(*state)
        };
        std::iter::once(first).chain(packets[1..].iter().scan(first, next)).collect()
    }

    #[test]
    fn a_tcp_connection_opens_and_closes() {
        let packets = [
            (Original, SYN),
            (Original, SYN),
            (Reply, SYN | ACK),
            (Original, ACK),
            (Reply, ACK),
            (Reply, FIN | ACK),
            (Original, ACK),
            (Original, FIN | ACK),
            (Reply, ACK),
            (Original, SYN),
        ];
        use State::*;
        let expected = [
            SynSent,
            SynSent,
            SynRecv,
            Established,
            Established,
            FinReply,
            FinReply,
            Closing,
            Closing,
            SynSent,
        ];
        assert_eq!(states(&packets), expected);
    }

    #[test]
    fn a_reset_is_believed_until_the_connection_goes_on() {
        use State::*;
        let open = [(Original, SYN), (Reply, SYN | ACK), (Original, ACK)];
        let forged = [&open[..], &[(Reply, RST), (Reply, RST), (Original, ACK)]].concat();
        assert_eq!(states(&forged)[3..], [Reset, Reset, Established]);
        let refused = [(Original, SYN), (Reply, RST | ACK), (Original, SYN)];
        assert_eq!(states(&refused), [SynSent; 3]);
    }

    /// What the opener says by itself neither opens nor assures anything, see `is_assured`.
    #[test]
    fn only_an_answer_moves_it_on() {
        let alone: Vec<_> = [SYN, FIN, FIN | ACK, RST, ACK, SYN].map(|flags| (Original, flags)).into();
        assert_eq!(states(&alone), [State::SynSent; 6]);
    }

    /// A SYN of either side does not close what is open, nor open what is not answered.
    #[test]
    fn what_is_open_stays_open() {
        use State::*;
        let strays = [(Original, SYN), (Reply, SYN | ACK), (Original, ACK), (Original, SYN), (Reply, SYN)];
        assert_eq!(states(&strays)[2..], [Established; 3]);
        // Taken up in the middle.
        assert_eq!(states(&[(Original, ACK), (Original, ACK), (Reply, ACK)]), [SynSent, SynSent, SynRecv]);
        assert_eq!(State::first(protocol::TCP, RST), None);
        assert_eq!(State::first(47, 0), None);
    }

    #[test]
    fn udp_is_assured_by_a_reply() {
        let next = |state: State, direction| State::from_number(State::next(state as u8, direction, 0));
        assert_eq!(next(State::UdpNew, Original), State::UdpNew);
        assert_eq!(next(State::UdpNew, Reply), State::Udp);
        assert_eq!(next(State::Udp, Original), State::Udp);
        assert_eq!(next(State::Icmp, Reply), State::Icmp);
    }
}
