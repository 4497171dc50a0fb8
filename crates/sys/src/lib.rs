#![doc = include_str!("../README.md")]
#![no_std]

mod arch;
pub mod bpf;
mod clock;
mod cpu;
mod errno;
mod fanotify;
mod futex;
mod handover;
mod id;
pub mod mapping;
mod memfd;
pub mod perf;
mod pidfd;
pub mod ptrace;
mod raw;
pub mod remote;
pub mod ringbuf;
mod samples;
pub mod sched;
pub mod signal;
mod sigstack;
pub mod wait;

pub use clock::{BOOTTIME, MONOTONIC, TAI, clock_ns, monotonic_ns, thread_cpu_ns};
pub use cpu::{cpu_and_node, getcpu, membarrier, membarrier_cmd};
pub use errno::Errno;
pub use fanotify::{Fanotify, Opened};
pub use futex::{futex_wait, futex_wait_shared, futex_wake, futex_wake_shared};
pub use handover::send_descriptor;
pub use id::{exit, getgid, getpid, getppid, gettid, getuid, process_group, set_process_group, thread_name};
pub use memfd::{close, memfd, memfd_inheritable, seal_length};
pub use pidfd::PidFd;
pub use raw::{check, nr, syscall};
pub use remote::read_process;
pub use samples::{Record, Samples};
pub use sigstack::on_signal_stack;
