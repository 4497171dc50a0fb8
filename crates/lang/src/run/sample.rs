//! Who ran when a sample was taken: what a program that runs for it finds around it.
//!
//! For:     the memory of a script, which asks for its own process where there is no sample.
//! State:   one sample.
//! Context: control. The thread runs on meanwhile: its memory is as it is by now, its registers as they were.
//! Keeps:   S1 memory is read by the kernel, which says EFAULT for what is not there. S2 a sample of no process changes and reads none.
//! Checked: tests/samples.rs; testkit `sampled`.

use super::os;
use bpf::Fault;
use bpf::helper::About;

/// `struct pt_regs`, in words.
pub const REGISTERS: usize = 21;

/// A sample of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The process; 0: the CPU was idle.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name then, empty if it is not known.
    pub comm: String,
    /// By the monotonic clock, in nanoseconds.
    pub time: u64,
    /// Where it ran.
    pub cpu: u32,
    /// Not in the kernel.
    pub is_user: bool,
    /// Its registers of user mode, as `struct pt_regs` has them.
    pub registers: [u64; REGISTERS],
    /// Its frames, innermost first.
    pub frames: Vec<u64>,
}

impl Sample {
    /// The name of the thread.
    pub fn comm(&self) -> String {
        match self.pid {
            0 => format!("swapper/{}", self.cpu),
            _ if !self.comm.is_empty() => self.comm.clone(),
            pid => os::comm(&format!("{pid}/task/{}", self.tid)),
        }
    }

    /// Another clock's time of the sample.
    pub fn time_of(&self, clock: libc::clockid_t) -> u64 {
        match clock {
            os::MONOTONIC => self.time,
            other => self.time.wrapping_add(os::clock(other).wrapping_sub(os::clock(os::MONOTONIC))),
        }
    }

    /// Bytes of the registers.
    pub fn context(&self) -> Vec<u8> {
        self.registers.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Memory of the process.
    pub fn read(&self, addr: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let mut to = vec![0; len];
        let is_read = self.pid > 0 && os::read_process(self.pid, addr, &mut to);
        if is_read { Ok(to) } else { Err(Fault::Access { addr, len }) }
    }

    /// Changes memory of the process; whether that was done.
    pub fn write(&self, addr: u64, from: &[u8]) -> bool {
        self.pid > 0 && os::write_process(self.pid, addr, from)
    }

    /// A signal for the process, or for the thread alone; whether it was sent.
    pub fn signal(&self, signal: i32, to_thread: bool) -> bool {
        self.pid > 0 && os::send_signal(self.pid, to_thread.then_some(self.tid), signal)
    }

    /// A number about the process; `None`: a program cannot ask that.
    pub fn about(&self, kind: u64) -> Option<u64> {
        let is = |about: About| kind == about as u64;
        let pid = self.pid.to_string();
        match kind {
            _ if is(About::Ppid) => Some(os::status_word(&pid, "PPid")),
            _ if is(About::LeaderTid) => Some(u64::from(self.pid)),
            _ if is(About::Cgroup) => Some(os::cgroup_id(&pid)),
            _ if is(About::InitPidTgid) => Some(u64::from(self.pid) << 32 | u64::from(self.tid)),
            _ if is(About::Usermode) => Some(u64::from(self.is_user)),
            _ => None,
        }
    }
}
