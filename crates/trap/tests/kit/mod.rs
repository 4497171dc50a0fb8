//! Code to be probed, and consumers that count.
#![allow(dead_code)]

use probe::{Consumer, Regs, Verdict};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use sys::mapping as mm;
use trap::{Config, Engine};

/// The engine, for one test at a time.
pub fn engine(config: Config) -> (Engine, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let engine = *ENGINE.get_or_init(|| Engine::start(config).expect("starts"));
    engine.configure(config);
    (engine, alone)
}

/// Puts code into private text of its own, as a program's file would be mapped.
pub fn text(bytes: &[u8]) -> u64 {
    let len = bytes.len().next_multiple_of(4096);
    let fd = sys::memfd(c"probed", len).unwrap();
    let view = mm::SharedMapping::of_file(fd, len).unwrap();
    // SAFETY: the view is `len` bytes, and nobody else has the file.
    unsafe { view.base().copy_from(bytes.as_ptr(), bytes.len()) };
    // SAFETY: a free address.
    let at = unsafe { mm::map(0, len, mm::PROT_READ | mm::PROT_EXEC, mm::MAP_PRIVATE, fd) }.unwrap();
    sys::close(fd);
    at
}

/// Calls a function of two arguments.
pub fn call(at: u64, a: u64, b: u64) -> u64 {
    // SAFETY: each test's code keeps to the C calling convention.
    let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(at) };
    function(a, b)
}

pub fn bytes_at(at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    sys::remote::read_process(sys::getpid() as i32, at, &mut bytes).unwrap();
    bytes
}

/// Counts hits.
#[derive(Default)]
pub struct Count(pub AtomicU64);

impl Count {
    pub fn new() -> Arc<Count> {
        Arc::default()
    }

    pub fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.fetch_add(1, SeqCst);
        Verdict::Continue
    }
}

/// A handler from a closure.
pub struct Does<F>(pub F);

impl<F: Fn(&mut Regs) -> Verdict + Send + Sync> Consumer for Does<F> {
    fn handler(&self, regs: &mut Regs, _: &mut u64) -> Verdict {
        (self.0)(regs)
    }
}

/// A function with most classes of instructions: (a + b) * 3 + 1, and where its instructions start.
pub fn mixed() -> (Vec<u8>, Vec<usize>) {
    let insns: &[&[u8]] = &[
        &[0xf3, 0x0f, 0x1e, 0xfa],         // endbr64
        &[0x55],                           // push rbp
        &[0x48, 0x89, 0xe5],               // mov rbp,rsp
        &[0x41, 0x54],                     // push r12
        &[0x9c],                           // pushf
        &[0x48, 0x8d, 0x04, 0x37],         // lea rax,[rdi+rsi]
        &[0x48, 0x89, 0x44, 0x24, 0xf0],   // mov [rsp-16],rax: in the red zone
        &[0x90],                           // nop
        &[0x48, 0x03, 0x44, 0x24, 0xf0],   // add rax,[rsp-16]
        &[0x74, 0x03],                     // je +3
        &[0xeb, 0x01],                     // jmp +1
        &[0xcc],                           // (not come to)
        &[0x48, 0x03, 0x44, 0x24, 0xf0],   // add rax,[rsp-16]
        &[0x9d],                           // popf
        &[0xe8, 0x13, 0, 0, 0],            // call inc
        &[0x4c, 0x8d, 0x25, 0xc, 0, 0, 0], // lea r12,[rip+inc]
        &[0x41, 0xff, 0xd4],               // call r12
        &[0x48, 0xff, 0xc8],               // dec rax
        &[0x41, 0x5c],                     // pop r12
        &[0xc9],                           // leave
        &[0xc3],                           // ret
        &[0xcc, 0xcc],                     // (not come to)
        &[0x48, 0xff, 0xc0],               // inc: inc rax
        &[0xc2, 0, 0],                     // ret 0
    ];
    let mut bytes = Vec::new();
    let mut starts = Vec::new();
    for insn in insns {
        if insn[0] != 0xcc {
            starts.push(bytes.len());
        }
        bytes.extend_from_slice(insn);
    }
    (bytes, starts)
}
