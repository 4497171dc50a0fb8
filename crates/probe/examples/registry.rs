//! Two consumers on one uprobe of a pretended process, and what it costs to take them off.

use probe::fake::{FakeFile, FakeSpace};
use probe::{Config, Consumer, Hit, Registry, Regs, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const FILE: u64 = 1;
const PROCESS: u64 = 7;

/// Sums the first argument.
#[derive(Default)]
struct Sum(AtomicU64);

impl Consumer for Sum {
    fn handler(&self, regs: &mut Regs, _: &mut u64) -> Verdict {
        self.0.fetch_add(regs.rdi, Relaxed);
        Verdict::Continue
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry = Registry::new(Config::default())?;
    let process = FakeSpace::new(PROCESS);
    process.map(FILE, 0..4096, 0x10_0000);
    registry.add_space(process.clone());

    let (file, sum) = (FakeFile::nops(FILE, 4096).shared(), Arc::new(Sum::default()));
    let first = registry.register(&file, 0x40, None, sum.clone())?;
    let second = registry.register(&file, 0x40, None, sum.clone())?;
    println!("breakpoints: {:x?}", process.breakpoints());

    for rdi in 1..=10 {
        assert_eq!(registry.hit(PROCESS, FILE, 0x40, &mut Regs { rdi, ..Regs::default() }), Hit::Handled);
    }
    for registered in [first, second] {
        assert_eq!(registry.unregister_nosync(registered).breakpoints, 0);
    }
    registry.unregister_sync(); // one grace period a side, for both
    assert_eq!(sum.0.load(Relaxed), 110);
    println!("{:?}", registry.stats());
    Ok(())
}
