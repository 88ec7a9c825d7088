//! Congestion control: how the window grows and by how much it shrinks. When it does either is
//! loss recovery's.
//!
//! State lies on the heap, and only once it is needed: an idle connection has none.

mod cubic;
mod cubic_linux;
mod dctcp;
mod hystart;
mod newreno;

pub use cubic::CubicParams;
pub use hystart::Hystart;

use super::Cx;
use super::cwnd::Window;
use crate::config::CongestionControl;
use crate::{Instant, Seq, Span};
use cubic::Cubic;
use dctcp::Dctcp;

/// Windows below this are not watched for the end of slow start (Linux `hystart_low_window`).
const LOW_WINDOW: u32 = 16;

/// Why the window shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Loss,
    Ecn,
}

/// A congestion control and its state.
#[derive(Debug)]
pub(super) enum Cc {
    Reno,
    Cubic(CubicParams, Option<Box<Cubic>>),
    Dctcp(Box<Dctcp>),
}

/// What growth may depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    /// Packets delivered by the ACK.
    pub(super) acked: u32,
    pub(super) srtt: Option<Span>,
    pub(super) now: Instant,
}

impl Cc {
    pub(super) fn new(congestion: CongestionControl, cubic: CubicParams) -> Cc {
        match congestion {
            CongestionControl::Reno => Cc::Reno,
            CongestionControl::Cubic => Cc::Cubic(cubic, None),
            CongestionControl::Dctcp => Cc::Dctcp(Box::default()),
        }
    }

    /// Which it is.
    pub(super) fn kind(&self) -> CongestionControl {
        match self {
            Cc::Reno => CongestionControl::Reno,
            Cc::Cubic(..) => CongestionControl::Cubic,
            Cc::Dctcp(_) => CongestionControl::Dctcp,
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        match self {
            Cc::Reno | Cc::Cubic(_, None) => 0,
            Cc::Cubic(_, Some(_)) => size_of::<Cubic>(),
            Cc::Dctcp(_) => size_of::<Dctcp>(),
        }
    }

    /// The threshold after a congestion event, packets; at least two.
    pub(super) fn ssthresh(&mut self, cwnd: u32, cause: Cause) -> u32 {
        match self {
            Cc::Reno => newreno::ssthresh(cwnd),
            Cc::Cubic(params, state) => cubic_state(*params, state).ssthresh(cwnd),
            Cc::Dctcp(dctcp) => dctcp.ssthresh(cwnd, cause),
        }
    }

    /// A packet is sent after nothing was in flight since some time after `last_send`.
    pub(super) fn on_tx_start(&mut self, last_send: Instant, now: Instant) {
        if let Cc::Cubic(_, Some(cubic)) = self {
            cubic.on_idle(now.since(last_send), now);
        }
    }

    /// Every ACK that arrives while something is in flight.
    pub(super) fn on_ack(&mut self, ece: bool, una: Seq, nxt: Seq, delivered: u32) {
        if let Cc::Dctcp(dctcp) = self {
            dctcp.on_ack(ece, una, nxt, delivered);
        }
    }

    /// An ACK gave an RTT, that of the last packet it delivers; `least` is that of the connection.
    pub(super) fn on_rtt(
        &mut self,
        cx: &mut Cx<'_>,
        window: &mut Window,
        (rtt, least): (Span, Span),
        una: Seq,
        nxt: Seq,
    ) {
        if let Cc::Cubic(params, state) = self
            && (state.is_some() || window.cwnd >= LOW_WINDOW)
        {
            if state.is_none() {
                // What came before there was a state counts too.
                cubic_state(*params, state).seed(least);
            }
            cubic_state(*params, state).on_rtt(cx, window, rtt, una, nxt);
        }
    }

    /// The window may grow: it was full, and `growth.acked` packets were delivered.
    pub(super) fn on_growth(&mut self, window: &mut Window, growth: Growth) {
        let mut acked = growth.acked;
        if window.in_slow_start() {
            acked = match self {
                Cc::Cubic(_, Some(cubic)) => cubic.slow_start(window, acked),
                _ => window.slow_start(acked),
            };
            if acked == 0 {
                return;
            }
        }
        match self {
            Cc::Reno | Cc::Dctcp(_) => newreno::avoid(window, acked),
            Cc::Cubic(params, state) => {
                cubic_state(*params, state).avoid(window, Growth { acked, ..growth });
            }
        }
    }

    /// A time-out; the threshold was asked for before.
    pub(super) fn on_timeout(&mut self) {
        if let Cc::Cubic(params, state) = self {
            cubic_state(*params, state).on_timeout();
        }
    }

    /// The last congestion event was none.
    pub(super) fn on_undo(&mut self) {
        if let Cc::Cubic(_, Some(cubic)) = self {
            cubic.on_undo();
        }
    }
}

/// Bytes of the largest state.
#[cfg(test)]
pub(super) const LARGEST: usize = size_of::<Cubic>();

fn cubic_state(params: CubicParams, state: &mut Option<Box<Cubic>>) -> &mut Cubic {
    state.get_or_insert_with(|| Box::new(Cubic::new(params)))
}
