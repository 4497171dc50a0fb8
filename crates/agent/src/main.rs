#![doc = include_str!("../README.md")]
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("the agent is built for x86_64-unknown-none and runs inside other processes");
    std::process::exit(1);
}

#[cfg(target_os = "none")]
mod blob {
    use runtime::{
        Adder, Function, Locked, PtRegs, Rseq, count, count_stack, enter, enter_go, helpers, leave, leave_go,
        log2_histogram, program_in_space_locked, program_in_space_rseq, program_locked, program_rseq, ring,
        ring_before_exec, trace_enter, trace_enter_stack, trace_leave,
    };
    use wire::{AgentExports, AgentTable, ConsumerDesc, HANDLERS_LEN, HELPERS_LEN, SiteDesc, VERSION};

    type Handler = unsafe extern "C" fn(&PtRegs, &SiteDesc, &ConsumerDesc, u64);

    #[repr(C)]
    struct Table {
        handlers: [Handler; HANDLERS_LEN],
        helpers: [Function; HELPERS_LEN],
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
    const fn handlers<A: Adder>(programs: [Handler; 2]) -> [Handler; HANDLERS_LEN] {
        [
            count::<A>,
            log2_histogram::<A>,
            enter::<A>,
            leave::<A>,
            enter_go::<A>,
            leave_go::<A>,
            ring::<A>,
            trace_enter::<A>,
            trace_leave::<A>,
            ring_before_exec::<A>,
            programs[0],
            programs[1],
            count_stack::<A>,
            trace_enter_stack::<A>,
        ]
    }

    const fn table<A: Adder>(programs: [Handler; 2]) -> Table {
        Table { handlers: handlers::<A>(programs), helpers: helpers::<A>() }
    }

    /// What the controller looks up by name.
    // SAFETY: the symbol is ours alone; the blob is linked with nothing that could define it too.
    #[unsafe(no_mangle)]
    #[used]
    pub static NANOPROBE_EXPORTS: Exports = Exports {
        version: VERSION as u64,
        rseq: table::<Rseq>([program_rseq, program_in_space_rseq]),
        locked: table::<Locked>([program_locked, program_in_space_locked]),
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
