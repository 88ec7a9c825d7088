//! Rules as they are configured: plain values.

use std::ops::RangeInclusive;

use crate::ip::IpPrefix;

/// Where rules are asked: a hook, by netfilter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Chain {
    /// What is for softnet itself.
    Input = 0,
    /// What is for others.
    Forward,
    /// What is made here.
    Output,
}

impl Chain {
    /// All of them.
    pub const ALL: [Chain; 3] = [Chain::Input, Chain::Forward, Chain::Output];

    /// Its name.
    pub const fn name(self) -> &'static str {
        ["input", "forward", "output"][self as usize]
    }

    /// The number that its policy is counted under.
    pub const fn policy_number(self) -> u16 {
        super::MAX_RULES as u16 + self as u16
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    #[default]
    Allow,
    /// It is dropped.
    Drop,
    /// It is dropped, and its sender is told.
    Reject,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 3] = [Action::Allow, Action::Drop, Action::Reject];

    /// Its name.
    pub const fn name(self) -> &'static str {
        ["allow", "drop", "reject"][self as usize]
    }
}

/// What connection tracking makes of a packet, in netfilter's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlowState {
    /// It opens a connection, or is of one without an answer so far.
    New = 0,
    /// It is of a connection that was answered, or the answer.
    Established,
    /// An ICMP error about a packet of a connection.
    Related,
    /// It is of no connection, and opens none: a reset, an answer or an error about nothing known.
    Invalid,
    /// Connections of its protocol are not tracked, or it is a fragment; rules can't ask for it.
    Untracked,
}

impl FlowState {
    /// Those that rules can ask for.
    pub const ASKED: [FlowState; 4] =
        [FlowState::New, FlowState::Established, FlowState::Related, FlowState::Invalid];

    /// How many there are.
    pub(super) const COUNT: usize = 5;

    /// Its name.
    pub const fn name(self) -> &'static str {
        ["new", "established", "related", "invalid", "untracked"][self as usize]
    }
}

/// Addresses that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of a prefix.
    Prefix(IpPrefix),
    /// Those of a set, by its place in [`Rules::sets`].
    Set(usize),
}

/// A rule: it matches a packet that meets all of its conditions. A list that is empty is no
/// condition; of one that is not, a packet meets it with any of its elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// The hooks that it is asked at; empty: none.
    pub chains: Vec<Chain>,
    /// The devices that packets came by.
    pub input: Vec<u16>,
    /// The devices that they leave by.
    pub output: Vec<u16>,
    /// Their sources.
    pub source: Vec<Addresses>,
    /// Their destinations.
    pub destination: Vec<Addresses>,
    /// Their protocols, by IANA's numbers.
    pub protocol: Vec<u8>,
    /// Source ports, of TCP, UDP, UDP-Lite, DCCP and SCTP.
    pub source_port: Vec<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// Types of ICMP and ICMPv6 messages.
    pub icmp_type: Vec<u8>,
    /// Only TCP with SYN, and without ACK, FIN and RST.
    pub tcp_syn: bool,
    /// States of their connections.
    pub state: Vec<FlowState>,
    /// What becomes of them.
    pub action: Action,
}

/// All rules, with what they refer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// In order: the first one that matches decides. No more than [`MAX_RULES`](super::MAX_RULES);
    /// others are left out.
    pub rules: Vec<Rule>,
    /// Sets of addresses.
    pub sets: Vec<Vec<IpPrefix>>,
    /// What becomes of packets that no rule matches, by [`Chain`].
    pub policies: [Action; 3],
}

impl Rules {
    /// Whether they ask for states.
    pub fn ask_for_states(&self) -> bool {
        self.rules.iter().any(|rule| !rule.state.is_empty())
    }
}
