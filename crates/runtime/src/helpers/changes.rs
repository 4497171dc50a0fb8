//! What a program changes of its target: signals, and its memory.
//!
//! For:     programs of who said `--unsafe`.
//! State:   none.
//! Context: hit. One system call each. A signal for the thread itself comes before the call returns: its handler runs above our frames,
//!          as one does that comes from elsewhere at that instruction.
//! Keeps:   C1 nothing of ours is written: not the arena, not the program's memory, not our frames.
//!          C2 what the process may not write itself is refused, by the kernel.
//! Checked: tests/helpers; testkit `changes`.

use crate::around::{Around, Piece, errno};
use wire::maps::HelperError::{BadArgument, Call};

impl Around<'_> {
    /// (signal, to the thread only) -> 0 or an error.
    pub fn send_signal(&self, signal: u64, to_thread: u64) -> u64 {
        if !self.may_call() {
            return errno::EFAULT;
        }
        // Numbers of the process's own pid namespace, which those that are written down may not be.
        let (process, signal) = (sys::getpid().cast_signed(), signal as i32);
        let sent = match to_thread {
            0 => sys::sched::kill(process, signal),
            _ => sys::sched::tgkill(process, (sys::gettid() as u32).cast_signed(), signal),
        };
        if sent.is_ok() { 0 } else { self.refused(Call, errno::EINVAL) }
    }

    /// (address, from, length) -> 0 or an error: memory of the target.
    pub fn write_user(&self, to: u64, from: u64, len: u64) -> u64 {
        let Some(bytes) = self.bytes(from, len).filter(|_| !self.is_ours(to, len)) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        if !self.may_call() {
            return errno::EFAULT;
        }
        // SAFETY: none of it is ours (checked), so no Rust code relies on it; that the target's own code does is what `--unsafe` is for.
        let written = unsafe { sys::remote::write_process(sys::getpid().cast_signed(), to, bytes) };
        match written {
            Ok(n) if n as u64 == len => 0,
            _ => self.refused(Call, errno::EFAULT),
        }
    }

    /// Whether some of these bytes are the tracing's own.
    fn is_ours(&self, to: u64, len: u64) -> bool {
        let head = core::ptr::from_ref(self.maps) as u64;
        let maps = Piece { start: head, end: head + self.maps.len };
        let pieces = [self.stack, self.given, self.scratch, self.context, maps];
        let end = to.saturating_add(len);
        pieces.iter().any(|piece| to < piece.end && piece.start < end)
    }
}
