use super::super::{Alu, Cond, Size, helper};
use super::*;
use softnet_testkit::net_allowed;

/// Counts IPv4 frames in entry 0 of `map` and drops them; passes all else.
fn counting(map: &Map) -> Assembler {
    let mut asm = Assembler::new();
    let pass = asm.label();
    asm.load(Size::U32, Reg::R6, Reg::R1, 0);
    asm.load(Size::U32, Reg::R7, Reg::R1, 4);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu(Alu::Add, Reg::R2, 14);
    asm.jump_if(Cond::Gt, Reg::R2, Reg::R7, pass);
    asm.load(Size::U16, Reg::R2, Reg::R6, 12);
    asm.to_be(Reg::R2, 16);
    asm.jump_if(Cond::Ne, Reg::R2, 0x0800, pass);
    asm.store(Size::U32, Reg::R10, -4, 0);
    asm.load_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::R10);
    asm.alu(Alu::Add, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if(Cond::Eq, Reg::R0, 0, pass);
    asm.mov(Reg::R1, 1);
    asm.atomic_add(Size::U64, Reg::R0, 0, Reg::R1);
    asm.mov(Reg::R0, XdpAction::Drop as i32);
    asm.exit();
    asm.bind(pass);
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    asm
}

#[test]
fn a_program_runs_and_counts() {
    if !net_allowed() {
        return;
    }
    for map in [Map::array("test_shared", 8, 2).unwrap(), Map::percpu_counters("test_percpu", 2).unwrap()] {
        let program = counting(&map).load_xdp("softnet_test", 0).unwrap();
        let mut frame = [0u8; 64];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(program.test_run(&frame).unwrap(), (XdpAction::Drop as u32, frame.to_vec()));
        frame[13] = 0x06;
        assert_eq!(program.test_run(&frame).unwrap().0, XdpAction::Pass as u32);
        assert_eq!(map.sum(0).unwrap(), 1);
        assert_eq!(map.sum(1).unwrap(), 0);
        assert!(map.sum(2).is_err());
    }
}

#[test]
fn map_values_are_written_and_read_back() {
    if !net_allowed() {
        return;
    }
    let map = Map::array("test values!", 8, 4).unwrap();
    map.update(3, &7u64.to_ne_bytes()).unwrap();
    assert_eq!(map.lookup(3).unwrap(), 7u64.to_ne_bytes());
    assert!(map.update(3, &[1]).is_err(), "a value of the wrong length reached the kernel");
}

#[test]
fn a_set_has_what_was_put_in_and_not_taken_out() {
    if !net_allowed() {
        return;
    }
    let set = Set::new("test_set", 2).unwrap();
    let keys = [[1; 16], [2; 16], [3; 16]];
    for key in [&keys[0], &keys[1], &keys[1]] {
        set.insert(key).unwrap();
    }
    assert_eq!(set.insert(&keys[2]).unwrap_err().errno(), Some(libc::E2BIG));
    set.remove(&keys[0]).unwrap();
    assert_eq!(set.remove(&keys[0]).unwrap_err().errno(), Some(libc::ENOENT));
    set.insert(&keys[2]).unwrap();
}

/// The kernel gives a program whole pages, and moves it when it outgrows them.
#[test]
fn a_program_with_room_is_not_moved() {
    const PAGE: usize = 4096;
    /// Offset of the instructions in `struct bpf_prog`, at the most.
    const BEFORE: usize = 128;
    if !net_allowed() {
        return;
    }
    let pages = |len: usize, before: usize| (before + len * size_of::<Insn>()).div_ceil(PAGE);
    let map = Map::array("test_room", 8, 1).unwrap();
    for lookups in [1, 2, 40, 90, 500] {
        let mut asm = Assembler::new();
        asm.mov(Reg::R6, Reg::R1);
        for _ in 0..lookups {
            asm.store(Size::U32, Reg::R10, -4, 0);
            asm.load_map(Reg::R1, &map);
            asm.mov(Reg::R2, Reg::R10);
            asm.alu(Alu::Add, Reg::R2, -4);
            asm.call(helper::MAP_LOOKUP_ELEM);
            asm.load(Size::U32, Reg::R2, Reg::R6, 16);
        }
        asm.mov(Reg::R0, XdpAction::Pass as i32);
        asm.exit();
        let [bare, roomy] = [asm.finish(), asm.finish_with_room()].map(Result::unwrap);
        let [bare_now, roomy_now] =
            [&bare, &roomy].map(|insns| Program::load_xdp(insns, "test", 0).unwrap().len().unwrap());
        assert!(bare_now > bare.len(), "nothing is patched");
        if lookups >= 90 {
            assert!(pages(bare_now, 0) > pages(bare.len(), BEFORE), "a bare one stays: {lookups}");
        }
        assert!(roomy_now <= roomy.len(), "{lookups}: {roomy_now} of {}", roomy.len());
        assert_eq!(pages(roomy_now.max(roomy.len()), 0), pages(roomy.len(), 0));
        // What makes the room is gone, but for a constant.
        assert!(roomy_now - bare_now <= roomy.len().div_ceil(16_000), "{roomy_now}, bare {bare_now}");
    }
}

#[test]
fn a_refused_program_brings_the_verifiers_reason() {
    if !net_allowed() {
        return;
    }
    let mut asm = Assembler::new();
    asm.exit();
    let text = asm.load_xdp("softnet_bad", 0).unwrap_err().to_string();
    assert!(text.contains("R0 !read_ok"), "{text}");
}
