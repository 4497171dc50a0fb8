#![doc = include_str!("../README.md")]
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("the agent is built for a target without an operating system and runs inside other processes");
    std::process::exit(1);
}

#[cfg(target_os = "none")]
mod blob {
    use super::whole::stacks;
    use runtime::{
        Adder, Function, Locked, PtRegs, Rseq, count, counts, enter, enter_go, helpers, leave, leave_go,
        log2_histogram, log2_histograms, program_in_space_locked, program_in_space_rseq, program_locked,
        program_rseq, ring, ring_before_exec, trace_enter, trace_leave,
    };
    use wire::{AgentExports, AgentTable, ConsumerDesc, HANDLERS_LEN, SiteDesc, VERSION};

    pub(super) type Handler = unsafe extern "C" fn(&PtRegs, &SiteDesc, &ConsumerDesc, u64);

    #[repr(C)]
    struct Table {
        handlers: [Option<Handler>; HANDLERS_LEN],
        helpers: [Function; wire::HELPERS_LEN],
    }

    #[repr(C)]
    pub struct Exports {
        version: u64,
        rseq: Table,
        locked: Table,
    }

    const _: () = assert!(size_of::<Exports>() == size_of::<AgentExports>());
    const _: () = assert!(size_of::<Table>() == size_of::<AgentTable>());

    /// In the order of [`wire::HandlerKind`].
    const fn handlers<A: Adder>(programs: [Option<Handler>; 2]) -> [Option<Handler>; HANDLERS_LEN] {
        [
            Some(count::<A>),
            Some(log2_histogram::<A>),
            Some(enter::<A>),
            Some(leave::<A>),
            Some(enter_go::<A>),
            Some(leave_go::<A>),
            Some(ring::<A>),
            Some(trace_enter::<A>),
            Some(trace_leave::<A>),
            Some(ring_before_exec::<A>),
            programs[0],
            programs[1],
            stacks::<A>()[0],
            stacks::<A>()[1],
            Some(log2_histograms::<A>),
            Some(counts::<A>),
        ]
    }

    const fn table<A: Adder>(programs: [Option<Handler>; 2]) -> Table {
        Table { handlers: handlers::<A>(programs), helpers: helpers::<A>() }
    }

    /// What the controller looks up by name.
    // SAFETY: the symbol is ours alone; the blob is linked with nothing that could define it too.
    #[unsafe(no_mangle)]
    #[used]
    pub static NANOPROBE_EXPORTS: Exports = Exports {
        version: VERSION as u64,
        rseq: table::<Rseq>([Some(program_rseq), Some(program_in_space_rseq)]),
        locked: table::<Locked>([Some(program_locked), Some(program_in_space_locked)]),
    };

    /// Never run: the blob is entered through its exports.
    // SAFETY: the linker wants the symbol; nothing else defines it.
    #[unsafe(no_mangle)]
    pub extern "C" fn _start() -> ! {
        loop {}
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}

/// What walks stacks.
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod whole {
    use super::blob::Handler;
    use runtime::{Adder, count_stack, trace_enter_stack};

    pub const fn stacks<A: Adder>() -> [Option<Handler>; 2] {
        [Some(count_stack::<A>), Some(trace_enter_stack::<A>)]
    }
}

/// Nothing does: the session refuses by name what would want it.
#[cfg(all(target_os = "none", not(target_arch = "x86_64")))]
mod whole {
    use super::blob::Handler;
    use runtime::Adder;

    pub const fn stacks<A: Adder>() -> [Option<Handler>; 2] {
        [None; 2]
    }
}
