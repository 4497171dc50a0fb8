//! The traced function and one stretch of calls to it.
//!
//! For:     `bench xol`.
//! State:   the function, in text of its own; the engine; a counter.
//! Context: control.
//! Keeps:   W1 a stretch fails unless hits = calls x probes.
//! Checked: `bench xol`'s test.

use super::published::Setting;
use crate::pin::{self, Gate};
use percpu::Counter;
use probe::{Consumer, Regs, Verdict};
use std::io::{Error, Result};
use std::sync::Arc;
use std::time::Instant;
use sys::mapping as mm;
use trap::{Config, Engine, Probe};

/// An empty loop of 1000 times eight instructions. Its counter is in a register: in memory, as an unoptimised build has
/// it, this processor runs the loop in 0.4 or 0.9 us, depending on what ran before, and that hides what is measured.
const FUNCTION: &[&[u8]] = &[
    &[0xb8, 0, 0, 0, 0],       // mov eax,0: the probed instruction, which runs out of line
    &[0x89, 0xc1],             // again: mov ecx,eax
    &[0x83, 0xc1, 0x01],       // add ecx,1
    &[0x90],                   // nop
    &[0x89, 0xca],             // mov edx,ecx
    &[0x89, 0xd0],             // mov eax,edx
    &[0x90],                   // nop
    &[0x3d, 0xe8, 0x03, 0, 0], // cmp eax,1000
    &[0x75, 0xee],             // jne again
    &[0xc3],                   // ret
];

struct Count(Counter);

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.inc();
        Verdict::Continue
    }
}

/// What one stretch took.
pub struct Stretch {
    pub wall_us: f64,
    pub cpu_us: f64,
    pub calls: u64,
    pub hits: u64,
    pub written: u64,
}

pub struct Work {
    engine: Engine,
    function: u64,
    /// A page of another file, to be mapped many times.
    file: i32,
}

impl Work {
    pub fn new() -> Result<Work> {
        let other = |error: trap::ProbeError| Error::other(error.to_string());
        let engine = match Engine::running() {
            Some(engine) => engine,
            None => Engine::start(Config::default()).map_err(other)?,
        };
        let errno = |errno: sys::Errno| Error::other(errno.to_string());
        let file = sys::memfd(c"bench-xol-more", 4096).map_err(errno)?;
        let text = sys::memfd(c"bench-xol", 4096).map_err(errno)?;
        let code = FUNCTION.concat();
        let view = mm::SharedMapping::of_file(text, 4096).map_err(errno)?;
        // SAFETY: the view is a page, longer than the code, and nobody else has the file.
        unsafe { view.base().copy_from(code.as_ptr(), code.len()) };
        // SAFETY: a free address.
        let function = unsafe { mm::map(0, 4096, mm::PROT_READ | mm::PROT_EXEC, mm::MAP_PRIVATE, text) };
        sys::close(text);
        Ok(Work { engine, function: function.map_err(errno)?, file })
    }

    /// Calls the function `calls` times in each thread of the setting.
    pub fn stretch(&self, setting: &Setting, calls: u64) -> Result<Stretch> {
        let extra = self.map_more(setting.mappings)?;
        let count = Arc::new(Count(Counter::new()));
        let probe = self.place(setting, count.clone())?;
        let written = self.engine.counts().written;
        let results = self.call(setting.threads, calls);
        let written = self.engine.counts().written - written;
        let probes = probe.iter().len() as u64;
        self.engine.remove(probe);
        for at in extra {
            // SAFETY: mapped by `map_more`, and nobody uses it.
            let _ = unsafe { mm::unmap(at, 4096) };
        }
        let (hits, calls) = (count.0.sum(), calls * setting.threads);
        if hits != calls * probes {
            return Err(Error::other(format!("hits {hits}, calls {calls}, probes {probes}")));
        }
        let n = results.len() as f64;
        let (wall_us, cpu_us) = results.iter().fold((0.0, 0.0), |sum, r| (sum.0 + r.0 / n, sum.1 + r.1 / n));
        Ok(Stretch { wall_us, cpu_us, calls, hits, written })
    }

    fn place(&self, setting: &Setting, count: Arc<Count>) -> Result<Option<Probe>> {
        let Some((scheme, sync, lookup)) = setting.probe else { return Ok(None) };
        self.engine.configure(Config { scheme, sync, lookup, ..Config::default() });
        let other = |error: trap::ProbeError| Error::other(error.to_string());
        // SAFETY: the code is made for it, an instruction begins there, and the consumer only counts.
        let probe = unsafe { self.engine.probe(self.function, count) }.map_err(other)?;
        self.engine.read_mappings().map_err(other)?;
        Ok(Some(probe))
    }

    /// Mappings that the kernel and the engine have to look through; neighbours cannot become one.
    fn map_more(&self, count: usize) -> Result<Vec<u64>> {
        let map = |n: usize| {
            let rights = if n.is_multiple_of(2) { mm::PROT_READ } else { mm::PROT_READ | mm::PROT_WRITE };
            // SAFETY: a free address.
            unsafe { mm::map(0, 4096, rights, mm::MAP_PRIVATE, self.file) }
        };
        (0..count).map(|n| map(n).map_err(|errno| Error::other(errno.to_string()))).collect()
    }

    /// Wall and processor microseconds per call of each thread.
    fn call(&self, threads: u64, calls: u64) -> Vec<(f64, f64)> {
        // SAFETY: the code keeps to the C calling convention and is mapped for ever.
        let function: extern "C" fn() = unsafe { std::mem::transmute(self.function) };
        let gate = Gate::new(threads as usize);
        std::thread::scope(|s| {
            let all: Vec<_> = (0..threads as usize)
                .map(|thread| {
                    let gate = &gate;
                    s.spawn(move || {
                        pin::pin_to(thread % pin::online());
                        gate.pass();
                        let (start, before) = (Instant::now(), sys::thread_cpu_ns());
                        (0..calls).for_each(|_| function());
                        let cpu = (sys::thread_cpu_ns() - before) as f64 / 1e3 / calls as f64;
                        (start.elapsed().as_secs_f64() * 1e6 / calls as f64, cpu)
                    })
                })
                .collect();
            all.into_iter().map(|thread| thread.join().expect("a thread does not panic")).collect()
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        sys::close(self.file);
    }
}
