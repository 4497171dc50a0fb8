//! What a seccomp filter says to a system call, found out by reading it and not by trying.
//!
//! For:     attach: whether helpers of programs may ask the kernel in a process that has filters, as in every container.
//! State:   none.
//! Context: control.
//! Keeps:   F1 "allowed" is said only of a call that is let through with whatever arguments stand where ours are not known, by every way
//!             through the filter; one that is not understood, or has too many ways, allows nothing.
//! Checked: tests below (F1: every filter of a few instructions beside an interpreter that knows the arguments); testkit `signals`.
//! Source:  seccomp(2); linux/filter.h.

use sys::nr;

/// An instruction of classic BPF, as the kernel gives it out.
pub(crate) use sys::ptrace::SockFilter;

/// What a filter sees of a call: as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    number: usize,
    arguments: [Option<u64>; 6],
}

const ARCH: u32 = crate::arch::AUDIT_ARCH;
const ALLOW: u32 = 0x7fff_0000;
const ACTION: u32 = 0xffff_0000;
/// Instructions that are looked at before a filter is taken for one that has too many ways.
const STEPS: usize = 100_000;

/// The calls that helpers make, with those that signal and change a process or without: all of them are to be allowed.
pub(crate) fn of_helpers(with_changes: bool) -> Vec<Call> {
    const PR_GET_NAME: u64 = 16;
    let plain = |number| Call { number, arguments: [None; 6] };
    let mut name = plain(nr::PRCTL);
    name.arguments[0] = Some(PR_GET_NAME);
    let mut read = plain(nr::PROCESS_VM_READV);
    (read.arguments[2], read.arguments[4], read.arguments[5]) = (Some(1), Some(1), Some(0));
    let numbers = [nr::CLOCK_GETTIME, nr::GETTID, nr::GETPID, nr::GETPPID, nr::GETUID, nr::GETGID];
    let changes = [nr::KILL, nr::TGKILL, nr::PROCESS_VM_WRITEV].into_iter().filter(|_| with_changes);
    [read, name].into_iter().chain(numbers.into_iter().chain(changes).map(plain)).collect()
}

/// Whether a filter lets a call through, whatever of it is not known.
pub(crate) fn allows(filter: &[SockFilter], call: &Call) -> bool {
    let mut ways = vec![Way { at: 0, a: Some(0), x: Some(0), memory: [Some(0); 16] }];
    let mut steps = 0;
    while let Some(mut way) = ways.pop() {
        loop {
            steps += 1;
            let Some(insn) = filter.get(way.at).filter(|_| steps <= STEPS) else { return false };
            match way.step(insn, call) {
                Step::On => {}
                Step::Either(other) => ways.push(Way { at: other, ..way }),
                Step::Ends(Some(said)) if said & ACTION == ALLOW => break,
                Step::Ends(_) => return false,
            }
        }
    }
    true
}

/// A way through a filter: where it is, and what the registers hold as far as that is known.
#[derive(Clone, Copy)]
struct Way {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

enum Step {
    On,
    /// It also goes on there.
    Either(usize),
    /// With what the filter says; `None` if that is not known.
    Ends(Option<u32>),
}

impl Way {
    fn step(&mut self, insn: &SockFilter, call: &Call) -> Step {
        let (code, k) = (insn.code, insn.k);
        self.at += 1;
        let slot = k as usize % 16;
        match code {
            // Loads: of the call, a constant, its length, scratch memory.
            0x20 => self.a = seen(call, k),
            0x00 => self.a = Some(k),
            0x80 => self.a = Some(64),
            0x60 => self.a = self.memory[slot],
            0x01 => self.x = Some(k),
            0x81 => self.x = Some(64),
            0x61 => self.x = self.memory[slot],
            0x02 => self.memory[slot] = self.a,
            0x03 => self.memory[slot] = self.x,
            0x07 => self.x = self.a,
            0x87 => self.a = self.x,
            0x06 => return Step::Ends(Some(k)),
            0x16 => return Step::Ends(self.a),
            0x05 => self.at = self.at.saturating_add(k as usize),
            _ if code & 7 == 5 => return self.jump(insn),
            _ if code & 7 == 4 => return self.compute(insn),
            _ => return Step::Ends(None),
        }
        Step::On
    }

    fn operand(&self, insn: &SockFilter) -> Option<u32> {
        if insn.code & 8 == 0 { Some(insn.k) } else { self.x }
    }

    fn compute(&mut self, insn: &SockFilter) -> Step {
        let pair = self.a.zip(self.operand(insn));
        let of = |with: fn(u32, u32) -> Option<u32>| pair.and_then(|(a, b)| with(a, b));
        self.a = match insn.code & 0xf0 {
            0x00 => of(|a, b| Some(a.wrapping_add(b))),
            0x10 => of(|a, b| Some(a.wrapping_sub(b))),
            0x20 => of(|a, b| Some(a.wrapping_mul(b))),
            // By 0 ends a filter, and what it says then is 0: to kill.
            0x30 if self.operand(insn) == Some(0) => return Step::Ends(Some(0)),
            0x30 if self.operand(insn).is_none() => return Step::Ends(None),
            0x30 => of(u32::checked_div),
            0x40 => of(|a, b| Some(a | b)),
            0x50 => of(|a, b| Some(a & b)),
            0x60 => of(u32::checked_shl),
            0x70 => of(u32::checked_shr),
            0x80 => self.a.map(u32::wrapping_neg),
            0xa0 => of(|a, b| Some(a ^ b)),
            _ => return Step::Ends(None),
        };
        Step::On
    }

    fn jump(&mut self, insn: &SockFilter) -> Step {
        let to = |by: u8| self.at + usize::from(by);
        let (yes, no) = (to(insn.jt), to(insn.jf));
        let pair = self.a.zip(self.operand(insn));
        let is = match insn.code & 0xf0 {
            0x10 => pair.map(|(a, b)| a == b),
            0x20 => pair.map(|(a, b)| a > b),
            0x30 => pair.map(|(a, b)| a >= b),
            0x40 => pair.map(|(a, b)| a & b != 0),
            _ => return Step::Ends(None),
        };
        self.at = if is == Some(false) { no } else { yes };
        if is.is_none() && yes != no { Step::Either(no) } else { Step::On }
    }
}

/// The word at an offset of `struct seccomp_data`.
fn seen(call: &Call, offset: u32) -> Option<u32> {
    let half = |word: u64| (word >> (8 * (offset & 4))) as u32;
    match offset {
        0 => Some(call.number as u32),
        4 => Some(ARCH),
        // Where the call stands is not known, and arguments come behind.
        16..64 if offset.is_multiple_of(4) => call.arguments[(offset as usize - 16) / 8].map(half),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> SockFilter {
        SockFilter { code, jt, jf, k }
    }

    fn call(number: usize, first: Option<u64>) -> Call {
        Call { number, arguments: [first, None, None, None, None, None] }
    }

    #[test]
    fn a_filter_of_numbers_is_read_as_the_kernel_runs_it() {
        // Another architecture is killed, 39 and 310 are allowed, 157 with 16 as its first argument, the rest fails.
        let filter = [
            insn(0x20, 0, 0, 4),
            insn(0x15, 1, 0, ARCH),
            insn(0x06, 0, 0, 0),
            insn(0x20, 0, 0, 0),
            insn(0x15, 6, 0, 39),
            insn(0x15, 5, 0, 310),
            insn(0x15, 0, 3, 157),
            insn(0x20, 0, 0, 16),
            insn(0x15, 2, 0, 16),
            insn(0x06, 0, 0, 0x7ffc_0000),
            insn(0x06, 0, 0, 0x0005_0001),
            insn(0x06, 0, 0, ALLOW),
        ];
        let allowed = |number, first| allows(&filter, &call(number, first));
        assert!(allowed(39, None) && allowed(310, None) && allowed(157, Some(16)));
        assert!(!allowed(40, None) && !allowed(157, None) && !allowed(157, Some(22)));
        assert!(!allows(&[], &call(39, None)));
        assert!(!allows(&filter[..4], &call(39, None)));
    }

    #[test]
    fn a_filter_with_too_many_ways_allows_nothing() {
        let mut filter: Vec<_> =
            (0..60).flat_map(|_| [insn(0x20, 0, 0, 24), insn(0x45, 0, 1, 1), insn(0x07, 0, 0, 0)]).collect();
        filter.push(insn(0x06, 0, 0, ALLOW));
        assert!(!allows(&filter, &call(39, None)));
        let few = [&filter[..9], &filter[180..]].concat();
        assert!(allows(&few, &call(39, None)));
    }

    /// A filter that says yes here says so to every call of that number that an interpreter is given; one that says so to all of them
    /// is believed nearly always.
    #[test]
    fn what_is_allowed_is_allowed_with_every_argument() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let codes = [
            0x20, 0x20, 0x00, 0x15, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x05, 0x54, 0x44, 0x04, 0x74, 0x07, 0x02,
            0x61, 0x34,
        ];
        let (mut believed, mut doubted) = (0, 0);
        for _ in 0..40_000 {
            let len = 2 + random(9);
            let mut filter: Vec<SockFilter> = (0..len)
                .map(|at| {
                    let code = codes[random(codes.len() as u64) as usize];
                    let left = len - at;
                    let k = match code {
                        0x20 => [0, 4, 16, 20, 24][random(5) as usize],
                        0x05 => random(left),
                        0x02 | 0x61 => random(16),
                        _ => [0, 1, 39, u64::from(ARCH), 7][random(5) as usize],
                    };
                    insn(code, random(left) as u8, random(left) as u8, k as u32)
                })
                .collect();
            filter.push(insn(0x06, 0, 0, [ALLOW, ALLOW, ALLOW, 0][random(4) as usize]));
            let is_allowed = allows(&filter, &call(39, None));
            let words = [0, 1, 7, 39, u64::from(ARCH), 1 << 32, u64::MAX];
            let every = words.iter().flat_map(|a| words.iter().map(move |b| (*a, *b)));
            let mut all = every.map(|(a, b)| {
                let known =
                    Call { number: 39, arguments: [Some(a), Some(b), Some(0), Some(0), Some(0), Some(0)] };
                allows(&filter, &known)
            });
            let is_allowed_with_all = all.all(|is| is);
            assert!(!is_allowed || is_allowed_with_all, "{filter:x?}");
            believed += u32::from(is_allowed);
            doubted += u32::from(!is_allowed && is_allowed_with_all);
        }
        assert!(believed > 5_000 && doubted < believed / 5, "{believed} {doubted}");
    }
}
