//! The routines of a region that trampolines call where a thread has no CPU's copy: locked adds to a copy of all.
//!
//! For:     threads without rseq, in a forked child, or interrupted in a count.
//! State:   the shared copy, or the children's where the table was wiped by a fork.
//! Context: built in control; run in a hit.
//! Keeps:   S1 a count changes rax and nothing else, flags included.
//!          S2 a reader leaves the rank that it entered, whichever is that of now.
//!          S3 a thread that entered in the parent and leaves in a child that was forked since (by a signal's handler) is
//!             counted by its parent alone: the parent's thread leaves too.
//! Checked: tests (what is emitted; `a_hit_whose_rank_changes_inside_leaves_the_rank_that_it_entered`,
//!          `a_reader_that_is_forked_inside_is_counted_by_its_parent_alone` run it).

use crate::assemble::{Code, RAX};
use insn::Unreachable;
use wire::{cell, table};

/// Bytes of [`slow_routines`].
pub const SLOW_LEN: usize = 192;
/// Where the routine of a reader that enters stands, from the first.
pub(super) const ENTER: u64 = 64;
/// Where that of one that leaves stands.
pub(super) const LEAVE: u64 = 128;

/// The region's routines: add one to the cell at offset rcx of the copy; enter; leave.
///
/// Entering and leaving clobber rax, rcx and the flags. Entering adds to rbx, which is [`wire::COPY_UNKNOWN`] or
/// [`wire::COPY_NONE`], the rank that it entered and whether in a child; leaving takes it from there.
///
/// # Errors
/// The table is too far from `at`.
pub fn slow_routines(at: u64, table: u64, children: u64) -> Result<Vec<u8>, Unreachable> {
    if cfg!(target_arch = "aarch64") {
        return Ok(crate::arch::aarch64::trampoline::slow_constants(children));
    }
    let mut code = Code::new(at);
    count(&mut code, table, children)?;
    code.pad_to(ENTER as usize);
    enter(&mut code, table, children)?;
    code.pad_to(LEAVE as usize);
    leave(&mut code, table, children)?;
    code.pad_to(SLOW_LEN);
    Ok(code.bytes)
}

fn count(code: &mut Code, table: u64, children: u64) -> Result<(), Unreachable> {
    code.flags_to_ax();
    code.push(RAX);
    code.load_rip(RAX, table + table::ALIVE as u64)?;
    code.test_rax();
    code.short(0x75, code.pos() + 2 + 10);
    code.set_rax(children);
    code.put(&[0xf0, 0x48, 0xff, 0x04, 0x08]); // lock inc qword [rax + rcx]
    code.pop(RAX);
    code.flags_from_ax();
    code.put(&[0xc3]);
    Ok(())
}

fn enter(code: &mut Code, table: u64, children: u64) -> Result<(), Unreachable> {
    code.load_rip(RAX, table + table::ALIVE as u64)?;
    code.test_rax();
    code.short(0x75, code.pos() + 2 + 10 + 3);
    code.set_rax(children);
    code.put(&[0x80, 0xcb, table::CHILD as u8]); // or bl, CHILD
    code.put(&[0x8b, 0x48, cell::RANK as u8]); // mov ecx, [rax + RANK]
    code.put(&[0x83, 0xe1, table::RANK as u8]); // and ecx, RANK: whatever stands there
    code.put(&[0x09, 0xcb]); // or ebx, ecx
    code.put(&[0xf0, 0x48, 0xff, 0x44, 0x08, cell::READERS_ENTERED as u8]); // lock inc qword [rax + rcx + entered]
    code.put(&[0xc3]);
    Ok(())
}

fn leave(code: &mut Code, table: u64, children: u64) -> Result<(), Unreachable> {
    code.load_rip(RAX, table + table::ALIVE as u64)?;
    code.put(&[0x89, 0xd9]); // mov ecx, ebx
    code.put(&[0x83, 0xe1, table::RANK as u8]); // and ecx, RANK
    code.test_rax();
    code.short(0x75, code.pos() + 2 + 3 + 2 + 10);
    code.put(&[0xf6, 0xc3, table::CHILD as u8]); // test bl, CHILD
    code.short(0x74, code.pos() + 2 + 10 + 6); // jz: entered in the parent
    code.set_rax(children);
    code.put(&[0xf0, 0x48, 0xff, 0x44, 0x08, cell::READERS_LEFT as u8]); // lock inc qword [rax + rcx + left]
    code.put(&[0xc3]);
    Ok(())
}

const _: () = assert!(cell::RANK < 128 && table::RANK < 64 && table::CHILD < 64);
