//! Options: well-formed or not, recorded in, echoed.

use proptest::prelude::*;

use super::*;

const ADDR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const TIME: u32 = 0x0102_0304;

fn header(options: &[u8]) -> Vec<u8> {
    let mut header = [&[0; MIN_LEN][..], options].concat();
    header.resize(header.len().next_multiple_of(4), 0);
    header
}

fn own(addr: Ipv4Addr) -> bool {
    addr == ADDR
}

fn what() -> Record<'static> {
    Record { addr: ADDR, time: TIME, is_own: &own }
}

/// `options` as a router passes them on.
fn recorded(options: &[u8]) -> Vec<u8> {
    let mut header = header(options);
    parse(&header).unwrap().record(&mut header, &what());
    header[MIN_LEN..][..options.len()].to_vec()
}

fn echoed(options: &[u8]) -> Vec<u8> {
    let header = header(options);
    EchoOptions::of(&header, &parse(&header).unwrap(), &what()).as_slice().to_vec()
}

/// The pointers are the kernel's, from the first byte of the IPv4 header.
#[test]
fn each_fault_has_its_place() {
    for (options, pointer) in [
        // Lengths: none, too small for anything, beyond the header; and in front of it a
        // no-operation.
        (&[7, 0, 4, 0][..], 20),
        (&[7, 1, 4, 0], 20),
        (&[7, 9, 4, 0], 20),
        (&[1, 1, 1, 7], 23),
        (&[1, 200, 40, 0], 21),
        // Record route: without a pointer, with one before its data, and with room for part of an
        // address.
        (&[7, 2, 0, 0], 21),
        (&[7, 7, 3, 0, 0, 0, 0], 22),
        (&[7, 7, 5, 0, 0, 0, 0], 22),
        (&[1, 7, 7, 7, 0, 0, 0, 0], 23),
        (&[131, 2, 0, 0], 21),
        (&[137, 7, 3, 0, 0, 0, 0], 22),
        // Timestamp: too short, a pointer before its data, room for part of an entry, and one
        // failure too many.
        (&[68, 3, 5, 0], 21),
        (&[68, 8, 4, 0, 0, 0, 0, 0], 22),
        (&[68, 8, 6, 0, 0, 0, 0, 0], 22),
        (&[68, 8, 5, 1, 0, 0, 0, 0], 22),
        (&[68, 8, 5, 3, 0, 0, 0, 0], 22),
        (&[68, 8, 9, 0xf0, 0, 0, 0, 0], 23),
        (&[68, 8, 9, 0xf1, 0, 0, 0, 0], 23),
        (&[148, 2, 0, 0], 21),
        // A second of what there may be one of.
        (&[7, 7, 8, 1, 1, 1, 1, 7, 7, 8, 1, 1, 1, 1], 27),
        (&[68, 4, 5, 0, 68, 4, 5, 0], 24),
        (&[131, 3, 4, 137, 3, 4], 23),
    ] {
        assert_eq!(parse(&header(options)), Err(pointer), "{options:?}");
    }
    for options in [
        &[][..],
        &[1, 1, 1, 1],
        // Behind the end of the list stands whatever.
        &[0, 7, 0, 0],
        &[7, 3, 4, 0],
        &[7, 7, 8, 1, 1, 1, 1],
        &[68, 8, 9, 0xf3, 0, 0, 0, 0],
        &[68, 8, 5, 9, 0, 0, 0, 0],
        &[148, 4, 0, 0],
        // Security, stream identifier, and one that is unknown.
        &[130, 4, 0, 0, 136, 4, 0, 0, 222, 3, 9],
    ] {
        assert!(parse(&header(options)).is_ok(), "{options:?}");
    }
    assert!(parse(&header(&[1, 131, 3, 4])).unwrap().has_source_route());
    assert!(parse(&header(&[137, 3, 4])).unwrap().has_source_route());
    assert!(!parse(&header(&[0, 131, 3, 4])).unwrap().has_source_route());
}

#[test]
fn a_router_writes_itself_down() {
    for (options, want) in [
        (&[7, 7, 4, 0, 0, 0, 0][..], &[7, 7, 8, 10, 1, 0, 1][..]),
        (&[1, 7, 11, 8, 9, 9, 9, 9, 0, 0, 0, 0], &[1, 7, 11, 12, 9, 9, 9, 9, 10, 1, 0, 1]),
        // It is full.
        (&[7, 7, 8, 9, 9, 9, 9], &[7, 7, 8, 9, 9, 9, 9]),
        (&[68, 8, 5, 0, 0, 0, 0, 0], &[68, 8, 9, 0, 1, 2, 3, 4]),
        (&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[68, 12, 13, 1, 10, 1, 0, 1, 1, 2, 3, 4]),
        (&[68, 12, 5, 3, 10, 1, 0, 1, 0, 0, 0, 0], &[68, 12, 13, 3, 10, 1, 0, 1, 1, 2, 3, 4]),
        // Another is asked.
        (&[68, 12, 5, 3, 10, 1, 0, 2, 0, 0, 0, 0], &[68, 12, 5, 3, 10, 1, 0, 2, 0, 0, 0, 0]),
        // Full: how many more came by is counted, unless they are listed.
        (&[68, 8, 9, 0x10, 7, 7, 7, 7], &[68, 8, 9, 0x20, 7, 7, 7, 7]),
        (&[68, 8, 9, 0x13, 7, 7, 7, 7], &[68, 8, 9, 0x13, 7, 7, 7, 7]),
        (&[68, 8, 5, 9, 0, 0, 0, 0], &[68, 8, 5, 9, 0, 0, 0, 0]),
        // What stands behind the end passes as zeros.
        (&[148, 4, 0, 0, 0, 131, 3, 4], &[148, 4, 0, 0, 0, 0, 0, 0]),
        (&[222, 4, 1, 2], &[222, 4, 1, 2]),
    ] {
        assert_eq!(recorded(options), want, "{options:?}");
    }
}

/// A host answers with the options of the request, itself written down twice if there is room: it
/// came in, it goes out.
#[test]
fn an_echo_brings_the_record_back() {
    let me = ADDR.octets();
    let route = [&[7, 15, 8, 9, 9, 9, 9][..], &me, &me].concat();
    let mut asked = route.clone();
    asked[7..].fill(0);
    assert_eq!(echoed(&asked), [&[7, 15, 16], &route[3..], &[0]].concat());
    assert_eq!(echoed(&[7, 7, 4, 0, 0, 0, 0]), [&[7, 7, 8][..], &me, &[0]].concat());
    assert_eq!(echoed(&[7, 7, 8, 9, 9, 9, 9, 1]), [7, 7, 8, 9, 9, 9, 9, 0]);
    // Options in any order, and others left out.
    let both = [&[148, 4, 0, 0, 68, 8, 5, 0, 0, 0, 0, 0, 1][..], &[7, 7, 4, 0, 0, 0, 0]].concat();
    assert_eq!(echoed(&both), [&[7, 7, 8][..], &me, &[68, 8, 9, 0, 1, 2, 3, 4, 0]].concat());
    let twice = [68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(echoed(&twice), [68, 12, 13, 0, 1, 2, 3, 4, 1, 2, 3, 4]);
    // That there was no room is noted once.
    assert_eq!(echoed(&[68, 8, 9, 0x10, 7, 7, 7, 7]), [68, 8, 9, 0x20, 7, 7, 7, 7]);
    assert_eq!(echoed(&[130, 4, 0, 0]), []);
    assert_eq!(EchoOptions::NONE.as_slice(), []);
}

#[test]
fn the_time_is_that_of_the_day_or_marked() {
    assert_eq!(timestamp(Some(1_500_000_000), 7), 1500);
    assert_eq!(timestamp(Some(86_400_000_000_000 + 5_000_000), 7), 5);
    assert_eq!(timestamp(None, 9_000_000), 0x8000_0009);
}

proptest! {
    /// No bytes panic; what is well-formed stays so however often it is recorded in, and no other
    /// byte changes.
    #[test]
    fn any_options(options in prop::collection::vec(prop_oneof![
        3 => prop::sample::select(vec![0u8, 1, 3, 4, 5, 7, 8, 11, 68, 131]), 1 => any::<u8>()
    ], 0..=40)) {
        let mut header = header(&options);
        let before = parse(&header);
        prop_assert!(before.is_ok_and(|_| true) || before.is_err_and(|at| (20..60).contains(&at)));
        if let Ok(options) = before {
            let echo = EchoOptions::of(&header, &options, &what());
            prop_assert!(echo.as_slice().len() <= header.len() - MIN_LEN);
            prop_assert!(echo.as_slice().len().is_multiple_of(4));
            for _ in 0..3 {
                let len = header.len();
                options.record(&mut header, &what());
                prop_assert_eq!(header.len(), len);
                match parse(&header) {
                    Ok(now) => prop_assert_eq!(now, options),
                    // All failures are counted; or a pointer that was not between two entries has left room for a part
                    // of one, which the next router refuses.
                    Err(at) => {
                        let (len, pointer) = (header[usize::from(at) - 1], header[usize::from(at)]);
                        prop_assert!(pointer >> 4 == 15 || (pointer <= len && pointer + 7 > len));
                    }
                }
                if parse(&header).is_err() { break; }
            }
        }
    }
}
