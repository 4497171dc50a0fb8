//! ptrace(2), one function a request.
//!
//! For:     entering a process and holding its threads still.
//! State:   none here; the kernel ties a traced thread to the calling thread.
//! Context: control. Every call about a thread must come from the OS thread that seized it.
//! Keeps:   T1 no request is retried, no signal is swallowed.
//! Checked: session's tests against live targets.

use crate::{Errno, check, nr, syscall};

const CONT: usize = 7;
const SINGLESTEP: usize = 9;
const DETACH: usize = 17;
const SYSCALL: usize = 24;
const GETEVENTMSG: usize = 0x4201;
const GETSIGINFO: usize = 0x4202;
const SETOPTIONS: usize = 0x4200;
const GETREGSET: usize = 0x4204;
#[cfg(target_arch = "aarch64")]
const SETREGSET: usize = 0x4205;
const SEIZE: usize = 0x4206;
const INTERRUPT: usize = 0x4207;
const LISTEN: usize = 0x4208;
#[cfg(target_arch = "x86_64")]
const PEEKUSER: usize = 3;
const PEEKSIGINFO: usize = 0x4209;
const GETSIGMASK: usize = 0x420a;
const SETSIGMASK: usize = 0x420b;
const SECCOMP_GET_FILTER: usize = 0x420c;
const GET_SYSCALL_INFO: usize = 0x420e;
const GET_RSEQ_CONFIGURATION: usize = 0x420f;

/// Marks syscall stops with bit 7 of the signal.
pub const O_TRACESYSGOOD: usize = 1;
/// Threads born while we trace are traced too, and start stopped.
pub const O_TRACECLONE: usize = 1 << 3;
/// Processes forked while we trace are traced too, and start stopped.
pub const O_TRACEFORK: usize = 1 << 1;
/// The same for vfork.
pub const O_TRACEVFORK: usize = 1 << 2;
/// A stop after a successful exec.
pub const O_TRACEEXEC: usize = 1 << 4;
/// The traced process is killed if its tracer dies.
pub const O_EXITKILL: usize = 1 << 20;
/// The thread's seccomp filters do not apply while it is traced.
pub const O_SUSPEND_SECCOMP: usize = 1 << 21;

/// Event numbers in bits 16 and up of a wait status.
pub mod event {
    /// A thread was cloned.
    pub const CLONE: i32 = 3;
    /// An exec succeeded.
    pub const EXEC: i32 = 4;
    /// Stopped by interrupt, at birth, or by job control.
    pub const STOP: i32 = 128;
}

pub use crate::arch::Regs;

/// Where a thread registered its rseq area; all zero if it did not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqConfig {
    /// Address of the area in the traced process.
    pub area: u64,
    /// Its size in bytes.
    pub size_bytes: u32,
    /// The bytes that must stand before an abort address.
    pub signature: u32,
    flags: u32,
    pad: u32,
}

#[repr(C)]
struct PeekArgs {
    off: u64,
    flags: u32,
    nr: i32,
}

pub(crate) fn request(request: usize, tid: i32, addr: usize, data: usize) -> Result<usize, Errno> {
    // SAFETY: the callers below pass in `addr` and `data` either plain numbers or pointers to
    // values that they borrow for the length of the call, of the size that the request transfers.
    check(unsafe { syscall(nr::PTRACE, [request, tid as usize, addr, data, 0, 0]) })
}

/// An instruction of classic BPF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SockFilter {
    /// What it does.
    pub code: u16,
    /// How many instructions are left out if it is so.
    pub jt: u8,
    /// The same if not.
    pub jf: u8,
    /// Its constant.
    pub k: u32,
}

/// The most instructions that a filter has.
pub const FILTER_MAX: usize = 4096;

/// Reads a seccomp filter of a stopped thread, the first that it took having number 0; how many instructions it has.
///
/// # Errors
/// `ENOENT` no filter has that number, `EACCES` not allowed or we have filters of our own, `EINVAL` it has none, `EIO` not in this kernel.
pub fn seccomp_filter(tid: i32, number: usize, to: &mut [SockFilter; FILTER_MAX]) -> Result<usize, Errno> {
    request(SECCOMP_GET_FILTER, tid, number, to.as_mut_ptr() as usize)
}

/// Becomes the tracer of one thread, which runs on.
///
/// # Errors
/// `EPERM` not allowed or traced by another, `ESRCH` no such thread.
pub fn seize(tid: i32, options: usize) -> Result<(), Errno> {
    request(SEIZE, tid, 0, options).map(drop)
}

/// Replaces the options given at [`seize`].
pub fn set_options(tid: i32, options: usize) -> Result<(), Errno> {
    request(SETOPTIONS, tid, 0, options).map(drop)
}

/// Asks a seized thread to stop; it reports [`event::STOP`] or another stop first.
pub fn interrupt(tid: i32) -> Result<(), Errno> {
    request(INTERRUPT, tid, 0, 0).map(drop)
}

/// Lets a stopped thread run on, with `signal` delivered (0: none).
pub fn cont(tid: i32, signal: i32) -> Result<(), Errno> {
    request(CONT, tid, 0, signal as usize).map(drop)
}

/// Lets a stopped thread run to the next entry to or exit from a system call.
pub fn cont_to_syscall(tid: i32, signal: i32) -> Result<(), Errno> {
    request(SYSCALL, tid, 0, signal as usize).map(drop)
}

/// Ends tracing of a stopped thread, with `signal` delivered (0: none).
pub fn detach(tid: i32, signal: i32) -> Result<(), Errno> {
    request(DETACH, tid, 0, signal as usize).map(drop)
}

/// The general registers of a stopped thread.
pub fn regs(tid: i32) -> Result<Regs, Errno> {
    Regs::of(tid)
}

/// Sets the general registers of a stopped thread.
pub fn set_regs(tid: i32, regs: &Regs) -> Result<(), Errno> {
    regs.set(tid)
}

/// A set of registers of a stopped thread, by the number of its note; the length that the kernel wrote.
///
/// # Errors
/// `ENODEV` or `EINVAL` there is none of this number, `ESRCH` the thread does not stand.
pub fn register_set(tid: i32, note: usize, into: &mut [u8]) -> Result<usize, Errno> {
    let mut iovec = [into.as_mut_ptr() as usize, into.len()];
    request(GETREGSET, tid, note, iovec.as_mut_ptr() as usize)?;
    Ok(iovec[1].min(into.len()))
}

/// Sets a set of registers of a stopped thread.
///
/// # Errors
/// As for [`register_set`]; `EINVAL` what they would be is not allowed.
#[cfg(target_arch = "aarch64")]
pub(crate) fn set_register_set(tid: i32, note: usize, bytes: &[u8]) -> Result<(), Errno> {
    let iovec = [bytes.as_ptr() as usize, bytes.len()];
    request(SETREGSET, tid, note, iovec.as_ptr() as usize).map(drop)
}

/// The extended state of a stopped thread as XSAVE lays it out, not compacted; the length that the kernel wrote.
///
/// # Errors
/// `ENODEV` the processor has no XSAVE, `ESRCH` the thread does not stand.
#[cfg(target_arch = "x86_64")]
pub fn xstate(tid: i32, into: &mut [u8]) -> Result<usize, Errno> {
    const NT_X86_XSTATE: usize = 0x202;
    register_set(tid, NT_X86_XSTATE, into)
}

/// Lets a stopped thread execute one instruction, with `signal` delivered first (0: none).
pub fn step(tid: i32, signal: i32) -> Result<(), Errno> {
    request(SINGLESTEP, tid, 0, signal as usize).map(drop)
}

/// Leaves a thread in its group stop, and lets us hear when that ends.
pub fn listen(tid: i32) -> Result<(), Errno> {
    request(LISTEN, tid, 0, 0).map(drop)
}

/// Why a signal is being delivered: si_code and si_addr.
pub fn signal_cause(tid: i32) -> Result<(i32, u64), Errno> {
    let mut info = [0u64; 16];
    request(GETSIGINFO, tid, 0, info.as_mut_ptr() as usize)?;
    // signo and errno, then the code; the address stands at byte 16.
    Ok((info[1] as i32, info[2]))
}

/// The signals that a stopped thread blocks, bit n-1 for signal n.
pub fn sigmask(tid: i32) -> Result<u64, Errno> {
    let mut mask = 0u64;
    request(GETSIGMASK, tid, 8, &raw mut mask as usize)?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub fn set_sigmask(tid: i32, mask: u64) -> Result<(), Errno> {
    request(SETSIGMASK, tid, 8, &raw const mask as usize).map(drop)
}

/// The message of the last event stop: the new thread's id after a clone.
pub fn event_message(tid: i32) -> Result<u64, Errno> {
    let mut message = 0u64;
    request(GETEVENTMSG, tid, 0, &raw mut message as usize)?;
    Ok(message)
}

/// True if the thread stands at the entry to a system call, which it has not begun.
///
/// # Errors
/// `ESRCH` it does not stand, `EIO` the kernel is older than 5.3.
pub fn is_at_entry(tid: i32) -> Result<bool, Errno> {
    const AT_ENTRY: u8 = 1;
    let mut info = [0u8; 88];
    request(GET_SYSCALL_INFO, tid, info.len(), info.as_mut_ptr() as usize)?;
    Ok(info[0] == AT_ENTRY)
}

/// Where the stopped thread registered its rseq area.
pub fn rseq_config(tid: i32) -> Result<RseqConfig, Errno> {
    let mut config = RseqConfig::default();
    let size = size_of::<RseqConfig>();
    request(GET_RSEQ_CONFIGURATION, tid, size, &raw mut config as usize)?;
    Ok(config)
}

/// The addresses in the stopped thread's debug registers that a debugger has set through ptrace, 0 where it has not; they stay when the
/// debugger goes. Registers that perf events have are not seen here.
#[cfg(target_arch = "x86_64")]
pub fn debugger_addresses(tid: i32) -> Result<[u64; 4], Errno> {
    /// `u_debugreg` in `struct user`.
    const DEBUG_REGISTERS: usize = 848;
    let mut addresses = [0u64; 4];
    for (i, address) in addresses.iter_mut().enumerate() {
        request(PEEKUSER, tid, DEBUG_REGISTERS + 8 * i, &raw mut *address as usize)?;
    }
    Ok(addresses)
}

/// True if a signal that `mask` does not block waits for the stopped thread or its process.
pub fn has_deliverable_signal(tid: i32, mask: u64) -> Result<bool, Errno> {
    let is_deliverable = |signal: i32, _| mask & (1u64 << (signal - 1)) == 0;
    Ok(any_waiting(tid, OWN, is_deliverable)? || any_waiting(tid, SHARED, is_deliverable)?)
}

/// True if one of `signals`, bit n-1 for signal n, that the kernel raised and nobody sent waits for the stopped thread: for
/// an instruction that it has run.
pub fn has_raised_signal(tid: i32, signals: u64) -> Result<bool, Errno> {
    any_waiting(tid, OWN, |signal, code| code > 0 && signals & (1u64 << (signal - 1)) != 0)
}

/// The signals that wait for a thread alone, and for its process.
const OWN: u32 = 0;
const SHARED: u32 = 1;

/// Whether one of the signals that wait, with its si_code, is what is wanted.
fn any_waiting(tid: i32, flags: u32, is_it: impl Fn(i32, i32) -> bool) -> Result<bool, Errno> {
    let mut infos = [[0u8; 128]; 16];
    let word = |info: &[u8; 128], at: usize| {
        i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
    };
    let mut off = 0;
    loop {
        let args = PeekArgs { off, flags, nr: 16 };
        let got = request(PEEKSIGINFO, tid, &raw const args as usize, infos.as_mut_ptr() as usize)?;
        let is_there =
            |info: &[u8; 128]| (1..=64).contains(&word(info, 0)) && is_it(word(info, 0), word(info, 8));
        if infos[..got].iter().any(is_there) {
            return Ok(true);
        }
        if got < 16 {
            return Ok(false);
        }
        off += 16;
    }
}

/// Asks to be traced by our parent, from the next exec on.
pub fn trace_me() -> Result<(), Errno> {
    request(0, 0, 0, 0).map(drop)
}
