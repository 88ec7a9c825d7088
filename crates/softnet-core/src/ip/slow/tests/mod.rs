//! The slow path behind the fast one, of both families.
//!
//! What both have to do alike is one test, generic over the [`TestFamily`], and is run for each ([`for_each_family`]); what
//! only one of them does is in `v4` and `v6`.

mod any;
mod dad;
mod echo;
mod errors;
mod frags;
mod hooks;
mod neighbours;
mod snoop;
mod sources;
mod v4;
mod v6;

use super::world::*;

/// The generic tests of these names, as tests of each family.
macro_rules! for_each_family {
    ($($test:ident),* $(,)?) => {
        mod v4 {
            $(#[test]
            fn $test() {
                super::$test::<std::net::Ipv4Addr>();
            })*
        }
        mod v6 {
            $(#[test]
            fn $test() {
                super::$test::<std::net::Ipv6Addr>();
            })*
        }
    };
}
use for_each_family;
