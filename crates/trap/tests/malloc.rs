//! A probe of an allocator, alone in its process: whatever allocates would hit it.

mod kit;

use kit::{Count, engine, text};
use probe::{Regs, Verdict};
use std::sync::Arc;
use trap::Config;

/// What a consumer must not do where it may be inside an allocator, it may do at an allocator's first instruction: hits
/// of its own allocations, and of those that place and remove the probe, are nested.
#[test]
fn a_probe_of_malloc_is_not_hit_by_consumers_and_not_by_the_engine() {
    #[derive(Default)]
    struct Keeps(std::sync::Mutex<Vec<u64>>);
    impl probe::Consumer for Keeps {
        fn handler(&self, regs: &mut Regs, _: &mut u64) -> Verdict {
            self.0.lock().unwrap().push(regs.rdi);
            Verdict::Continue
        }
    }
    let (engine, _alone) = engine(Config::default());
    let keeps = Arc::new(Keeps::default());
    let before = engine.counts();
    // SAFETY: a function begins there, and at its first instruction no lock is held: the consumer may allocate.
    let probe = unsafe { engine.probe(libc::malloc as *const () as u64, keeps.clone()) }.unwrap();
    let other = Count::new();
    for size in 0..2000usize {
        std::hint::black_box(vec![1u8; 1 + size % 97]);
        if size % 500 == 0 {
            // SAFETY: the code is the test's own.
            let more = unsafe { engine.probe(text(&[0x90, 0xc3]), other.clone()) }.unwrap();
            engine.remove([more]);
        }
    }
    engine.remove([probe]);
    let (after, kept) = (engine.counts(), keeps.0.lock().unwrap().len() as u64);
    assert!(kept >= 2000, "{kept}");
    assert!(after.nested > before.nested, "{after:?}");
}
