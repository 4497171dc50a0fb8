//! Why a probe stands on a lower rung than it could, or nowhere.
//!
//! For:     `explain`, and every refusal: facts, no advice.
//! State:   plain values.
//! Context: control.
//! Keeps:   G1 every refusal names an address or a length that can be looked up in a disassembly.
//! Checked: place tests.

use std::fmt;

/// A step of the ladder; lower numbers are cheaper and safer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// 1: a jump over one existing nop of five bytes or more.
    Nop = 1,
    /// 2: a jump over one instruction of five bytes or more.
    Jump = 2,
    /// 3: a jump over several instructions, or over a short last one and the padding behind it.
    Window = 3,
    /// 4: a two-byte jump to a five-byte jump in padding near by.
    Island = 4,
    /// 5: a jump whose last displacement bytes are the next instructions, unchanged.
    Punned = 5,
    /// 6: int3.
    Trap = 6,
    /// 7: a kernel uprobe.
    Kernel = 7,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rung::Nop => "nop",
            Rung::Jump => "jump",
            Rung::Window => "window",
            Rung::Island => "island",
            Rung::Punned => "punned",
            Rung::Trap => "trap",
            Rung::Kernel => "kernel",
        })
    }
}

/// What makes one instruction impossible to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// The bytes are no instruction: data inside text, or the end of the segment.
    Undecodable,
    /// int3, int1, int N, into: someone waits for that very address.
    Trap,
    /// ud0, ud1, ud2.
    Undefined,
    /// hlt, in, out, cli, sti and all that user space may not execute.
    Privileged,
    /// mov ss, pop ss: they mask exceptions for one instruction.
    StackSegment,
    /// A jump, call or return that names a segment, or iret.
    FarBranch,
    /// A branch with an operand-size prefix, on which Intel and AMD disagree.
    SixteenBitBranch,
    /// A memory operand relative to EIP.
    AddressSize,
    /// A call whose target is the stack pointer itself.
    CallOfStackPointer,
    /// xbegin, whose abort address would leave the copy.
    Transaction,
    /// The signal return code that unwinders recognise by its bytes.
    SignalReturn,
    /// AArch64: an address that is no multiple of four.
    Misaligned,
    /// AArch64: svc, hvc, smc, hlt, dcps.
    Exception,
    /// AArch64: msr, and mrs of what belongs to the kernel.
    SystemRegister,
    /// AArch64: a hint outside the kernel's list: wfe, yield, the checking half of pointer authentication.
    Hint,
    /// AArch64: an exclusive load or store.
    Exclusive,
    /// AArch64: an instruction between an exclusive load and its store.
    InExclusive,
    /// AArch64: one of the three instructions of a memory copy or set, which belong together.
    MemoryCopy,
    /// AArch64: a pointer is signed or checked with the instruction's own address.
    OwnAddress,
    /// AArch64: a call by the link register, which a copy would have overwritten.
    CallOfLinkRegister,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forbidden::Undecodable => "bytes that are no instruction",
            Forbidden::Trap => "a software interrupt",
            Forbidden::Undefined => "an undefined instruction",
            Forbidden::Privileged => "a privileged instruction",
            Forbidden::StackSegment => "a load of the stack segment",
            Forbidden::FarBranch => "a far branch",
            Forbidden::SixteenBitBranch => "a branch with an operand-size prefix",
            Forbidden::AddressSize => "an operand relative to eip",
            Forbidden::CallOfStackPointer => "a call of the stack pointer",
            Forbidden::Transaction => "the start of a transaction",
            Forbidden::SignalReturn => "the signal return code",
            Forbidden::Misaligned => "no instruction: its address is no multiple of four",
            Forbidden::Exception => "an instruction that raises an exception",
            Forbidden::SystemRegister => "an access to a system register",
            Forbidden::Hint => "a hint that may not be stepped over",
            Forbidden::Exclusive => "an exclusive load or store",
            Forbidden::InExclusive => "an instruction between an exclusive load and its store",
            Forbidden::MemoryCopy => "a part of a memory copy or set",
            Forbidden::OwnAddress => "a pointer authentication with its own address",
            Forbidden::CallOfLinkRegister => "a call by the link register",
        })
    }
}

/// Why one rung does not do at one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The instruction is no nop.
    NotANop,
    /// The instruction is shorter than the jump.
    Short {
        /// Its length.
        len_bytes: u8,
    },
    /// Something is known to jump to, or point at, a byte that the jump would cover.
    Target {
        /// The byte.
        at: u64,
        /// One instruction that does so, where it was looked up ([`crate::Flow::name_sources`]).
        from: Option<u64>,
    },
    /// Another function starts under the jump.
    FunctionStart {
        /// Where.
        at: u64,
    },
    /// The function ends before the jump does, and its last instruction falls through.
    EndOfFunction {
        /// The address behind its last byte.
        at: u64,
    },
    /// Code ends before the jump does.
    EndOfCode {
        /// The address behind the last byte.
        at: u64,
    },
    /// A call would return to a byte that the jump covers.
    CallInside {
        /// The call.
        at: u64,
    },
    /// A thread may be blocked in this system call for ever, with its pc under the jump.
    SyscallInside {
        /// The system call.
        at: u64,
    },
    /// An instruction that cannot be moved would be covered.
    Immovable {
        /// Where it stands.
        at: u64,
        /// What it is.
        what: Forbidden,
    },
    /// Behind the last instruction stands something that is not padding.
    FollowedByCode {
        /// Where.
        at: u64,
    },
    /// Another probe or an island of one uses these bytes.
    Taken {
        /// First byte of the jump.
        at: u64,
        /// Length of the jump.
        len_bytes: u8,
    },
    /// No five free bytes of padding within reach of a two-byte jump.
    NoIsland,
    /// The process has no room at any of the addresses that the bytes behind the site leave to a jump.
    NoRoom {
        /// How many addresses there are.
        count: u64,
    },
    /// A goroutine may be parked at this instruction under the jump, and go on there.
    Parked {
        /// The instruction.
        at: u64,
    },
    /// This instruction under the jump may fault, and the program has to see where.
    MayFault {
        /// The instruction.
        at: u64,
    },
    /// A thread on an island would be where Go's tables know of no function.
    UnknownPadding,
    /// A page ends after the jump's first byte: its two parts could not be written at one moment.
    PageEnd,
    /// A jump whose places are not known may lead here, under the jump.
    ComputedJump {
        /// The instruction that it may lead to.
        at: u64,
        /// The jump.
        from: u64,
    },
    /// The site lies outside the ranges that were analysed.
    NotAnalysed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::NotANop => write!(f, "the instruction is not a nop"),
            Reason::Short { len_bytes: 1 } => write!(f, "the instruction is 1 byte long"),
            Reason::Short { len_bytes } => write!(f, "the instruction is {len_bytes} bytes long"),
            Reason::Target { at, from: Some(from) } => write!(f, "{at:#x} is referred to from {from:#x}"),
            Reason::Target { at, from: None } => write!(f, "{at:#x} is a branch target"),
            Reason::FunctionStart { at } => write!(f, "a function starts at {at:#x}"),
            Reason::EndOfFunction { at } => write!(f, "the function falls through its end at {at:#x}"),
            Reason::EndOfCode { at } => write!(f, "code ends at {at:#x}"),
            Reason::CallInside { at } => write!(f, "the call at {at:#x} returns into the window"),
            Reason::SyscallInside { at } => write!(f, "the system call at {at:#x} may block in the window"),
            Reason::Immovable { at, what } => write!(f, "at {at:#x} stands {what}"),
            Reason::FollowedByCode { at } => write!(f, "what stands at {at:#x} is not padding"),
            Reason::Taken { at, len_bytes } => {
                write!(f, "another probe uses bytes in {at:#x}..{:#x}", at + u64::from(len_bytes))
            }
            Reason::NoIsland => write!(f, "no free padding within reach of a 2-byte jump"),
            Reason::NoRoom { count } => {
                write!(f, "no room at the {count} addresses that the bytes behind it leave to a jump")
            }
            Reason::Parked { at } => write!(f, "a goroutine may be parked at {at:#x}"),
            Reason::MayFault { at } => write!(f, "the instruction at {at:#x} may fault"),
            Reason::UnknownPadding => write!(f, "Go does not know the padding between its functions"),
            Reason::PageEnd => write!(f, "a page ends after its first byte"),
            Reason::ComputedJump { at, from } => {
                write!(f, "the jump at {from:#x} is not understood and may lead to {at:#x}")
            }
            Reason::NotAnalysed => write!(f, "the code around it was not analysed"),
        }
    }
}

/// Why no jump can stand at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The address is in no executable segment.
    OutsideCode {
        /// The address.
        site: u64,
    },
    /// The address is in the middle of an instruction.
    MidInstruction {
        /// The address asked for.
        asked: u64,
        /// The address of the instruction that covers it.
        start: u64,
    },
    /// The function does not decode up to the address, so that instruction boundaries are unknown.
    Undecodable {
        /// The address asked for.
        asked: u64,
        /// The first byte that is no instruction.
        at: u64,
    },
    /// No function is known at the address, and it cannot be told whether an instruction starts there.
    UnknownBoundary {
        /// The address asked for.
        asked: u64,
        /// Where reading from different places disagrees.
        at: u64,
    },
    /// No rung at all may stand here.
    Forbidden {
        /// The address.
        site: u64,
        /// What stands there.
        what: Forbidden,
    },
    /// Rungs 1 to 5 do not fit; `needs` is the highest that might.
    NoRung {
        /// The address.
        site: u64,
        /// One reason for each of rungs 1 to 5.
        why_not: Vec<(Rung, Reason)>,
        /// Trap.
        needs: Rung,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OutsideCode { site } => write!(f, "{site:#x} is not in code"),
            Refusal::MidInstruction { asked, start } => {
                write!(f, "{asked:#x} is inside the instruction that starts at {start:#x}")
            }
            Refusal::Undecodable { asked, at } => {
                write!(f, "the function of {asked:#x} does not decode at {at:#x}")
            }
            Refusal::UnknownBoundary { asked, at } => write!(
                f,
                "no function is known at {asked:#x}, and what stands at {at:#x} does not tell whether an instruction starts \
                 there"
            ),
            Refusal::Forbidden { site, what } => write!(f, "at {site:#x} stands {what}"),
            Refusal::NoRung { site, why_not, needs } => {
                write!(f, "no jump fits at {site:#x}, it needs a {needs} probe")?;
                why_not.iter().try_for_each(|(rung, reason)| write!(f, "; {rung}: {reason}"))
            }
        }
    }
}

impl std::error::Error for Refusal {}
