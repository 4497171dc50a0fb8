//! Reads of the target's memory that cannot fault.
//!
//! For:     programs: `str`, `buf`, fields of structures.
//! State:   none.
//! Context: hit. One system call a read of what is not known to stay; it waits behind whoever changes the process's mappings.
//! Keeps:   F1 no signal is raised by a read, whatever the address, and whoever unmaps it meanwhile.
//!          F2 a read that failed is counted by cause, and its destination is zeros.
//! Checked: tests/helpers/reads.rs (10,000 reads of addresses of every kind, a thread beside that maps and unmaps).
//!
//! What is proven: the program's own memory; the page in which the probed code's stack pointer stands, above it; the stack of the
//! process's first thread up to its end, for a stack pointer in it: it grows and is never unmapped under who runs on it. All else is
//! copied by the kernel, which says EFAULT in the place of a signal. No list of mappings could prove more: the target may unmap
//! what is in it between the look and the load.

use crate::arch::USER_END;
use crate::around::{Around, Piece, errno};
use crate::bytes::{copy, copy_text, text_len, zero};
use crate::cell::Adder;
use wire::maps::HelperError::{BadArgument, ReadFault, ReadRefused};

const PAGE: u64 = 4096;
/// A text is read in pieces that grow from this.
const FIRST_PIECE: u64 = 64;

impl Around<'_> {
    /// (to, length, from) -> 0 or an error: memory of the target, or the program's own.
    pub fn probe_read<A: Adder>(&self, to: u64, len: u64, from: u64) -> u64 {
        if !self.may_write(to, len) {
            return self.refused(BadArgument, errno::EINVAL);
        }
        if self.may_read(from, len) || self.is_proven(from, len) {
            // SAFETY: written by nobody else, or the thread's own stack (`is_proven`); the destination is the program's.
            unsafe { copy(to, from, len) };
            return 0;
        }
        match self.copied::<A>(to, len, from) {
            Ok(n) if n == len => 0,
            Ok(_) => self.lost(to, len, self.refused(ReadFault, errno::EFAULT)),
            Err(error) => self.lost(to, len, error),
        }
    }

    /// (to, length, from) -> 0 or an error: a text. `to` is zeros before.
    #[inline(always)]
    pub fn probe_read_text<A: Adder>(&self, to: u64, len: u64, from: u64) -> u64 {
        if !self.may_write(to, len) {
            return self.refused(BadArgument, errno::EINVAL);
        }
        let proven = self.proven();
        let known = if proven.holds(from, 1) { len.min(proven.end - from) } else { 0 };
        // SAFETY: as in `probe_read`.
        if known > 0 && (unsafe { copy_text(to, from, known) } || known == len) {
            return 0;
        }
        self.rest_of_text::<A>(to, len, from, known)
    }

    /// What is left of a text when so many bytes are there.
    #[inline(never)]
    fn rest_of_text<A: Adder>(&self, to: u64, len: u64, from: u64, done: u64) -> u64 {
        let (mut done, mut piece) = (done, FIRST_PIECE);
        while done < len {
            let (to_here, here) = (to + done, from.wrapping_add(done));
            let known = self.known_from(here).min(len - done);
            if known > 0 {
                // SAFETY: as in `probe_read`.
                if unsafe { copy_text(to_here, here, known) } {
                    return 0;
                }
                done += known;
                continue;
            }
            let want = piece.min(len - done);
            let got = match self.copied::<A>(to_here, want, here) {
                Ok(got @ 1..) => got,
                // What came before is the text, as far as it is there.
                _ if done > 0 => return 0,
                Ok(_) => return self.lost(to, len, self.refused(ReadFault, errno::EFAULT)),
                Err(error) => return self.lost(to, len, error),
            };
            let Some(text) = self.bytes_mut(to_here, got) else { return 0 };
            let end = text_len(text);
            zero(text.get_mut(end..).unwrap_or_default());
            if (end as u64) < want {
                return 0;
            }
            (done, piece) = (done + got, piece * 4);
        }
        0
    }

    /// How many bytes from there on need no question.
    fn known_from(&self, from: u64) -> u64 {
        let proven = self.proven();
        let head = core::ptr::from_ref(self.maps) as u64;
        let values = Piece { start: head + self.maps.data, end: head + self.maps.len };
        let start = head + self.maps.constants;
        let constants = Piece { start, end: start + self.maps.constants_len };
        let pieces = [self.stack, self.given, self.scratch, self.context, proven, values, constants];
        pieces
            .into_iter()
            .filter(|piece| piece.holds(from, 1))
            .map(|piece| piece.end - from)
            .max()
            .unwrap_or(0)
    }

    /// The part of the thread's stack above the probed code's stack pointer that is there for as long as that code is.
    #[inline(always)]
    fn proven(&self) -> Piece {
        let start = self.stack_pointer;
        let (stack_low, stack_high) = (self.desc.stack_low, self.desc.stack_high);
        if (stack_low..stack_high).contains(&start) {
            return Piece { start, end: stack_high };
        }
        // The trampoline has written just below.
        Piece { start, end: (start.wrapping_sub(1) | (PAGE - 1)).wrapping_add(1).max(start) }
    }

    #[inline(always)]
    fn is_proven(&self, from: u64, len: u64) -> bool {
        self.proven().holds(from, len)
    }

    /// Has the kernel copy; how many bytes came, which may be none.
    #[inline(never)]
    fn copied<A: Adder>(&self, to: u64, len: u64, from: u64) -> Result<u64, u64> {
        if !(PAGE..USER_END).contains(&from) {
            return Ok(0);
        }
        if !self.may_call() {
            return Err(errno::EFAULT);
        }
        let Some(to) = self.bytes_mut(to, len) else { return Ok(0) };
        // Any thread of a process stands for its memory.
        let this = self.thread::<A>();
        match sys::read_process(this.cast_signed(), from, to) {
            Ok(got) => Ok(got as u64),
            Err(sys::Errno::EFAULT) => Ok(0),
            // A filter that came after the attach, or a process that took itself the right.
            Err(_) => Err(self.refused(ReadRefused, errno::EFAULT)),
        }
    }

    /// Leaves zeros where nothing could be read.
    #[cold]
    fn lost(&self, to: u64, len: u64, error: u64) -> u64 {
        if let Some(to) = self.bytes_mut(to, len) {
            zero(to);
        }
        error
    }
}
