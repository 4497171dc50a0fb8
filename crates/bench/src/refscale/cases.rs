//! What refscale measures: one case per kind of reader (table).
//!
//! For:     `refscale`.
//! State:   each case makes its own lock, counter or domain per run.
//! Context: control.
//! Keeps:   C1 the loop of a case holds its operation inlined, as a user's would.
//! Checked: `every_case_runs_with_two_readers_and_a_delay`.

use rcu::{Domain, Fast, Flavour, Lite, Normal, Reader, Sigsafe, UpDown, tasks};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// The loop of one reader.
pub trait Pass: Sync {
    /// Enters and exits `loops` times, with `delay_ns` inside.
    fn pass(&self, loops: u64, delay_ns: u64);
}

impl<F: Fn(u64, u64) + Sync> Pass for F {
    fn pass(&self, loops: u64, delay_ns: u64) {
        self(loops, delay_ns);
    }
}

/// One kind of reader.
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// Makes what its readers share.
    pub make: fn() -> Box<dyn Pass>,
}

/// Stays inside for about that long.
#[inline(never)]
fn delay(ns: u64) {
    let start = Instant::now();
    while (start.elapsed().as_nanos() as u64) < ns {
        std::hint::spin_loop();
    }
}

/// The loop around an enter, whose value's end is the exit.
macro_rules! pass {
    ($enter:expr) => {
        Box::new(move |loops: u64, delay_ns: u64| {
            if delay_ns == 0 {
                for _ in 0..loops {
                    let _inside = $enter;
                }
            } else {
                for _ in 0..loops {
                    let _inside = $enter;
                    delay(delay_ns);
                }
            }
        })
    };
}

fn domain(flavour: Flavour) -> Domain {
    Domain::builder("refscale").flavour(flavour).checked(false).build().expect("a domain")
}

/// One flavour by its guard.
fn guards<F: Reader>() -> Box<dyn Pass> {
    let domain = domain(F::FLAVOUR);
    pass!(domain.read::<F>())
}

/// A section whose end is a closure.
struct Inside<F: FnMut()>(F);

impl<F: FnMut()> Drop for Inside<F> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Lite readers of two domains in turn: what a pair costs where it does not wait for the pair before.
///
/// On CPUs that take long to load what was just stored, back-to-back pairs wait for each other's
/// counts, as no program does that works between them.
fn alternating() -> Box<dyn Pass> {
    let domains = [domain(Flavour::Lite), domain(Flavour::Lite)];
    Box::new(move |loops: u64, delay_ns: u64| {
        let read = |domain: &Domain| {
            let _inside = domain.lite();
            if delay_ns != 0 {
                delay(delay_ns);
            }
        };
        for _ in 0..loops / 2 {
            domains.iter().for_each(read);
        }
        domains.iter().take(loops as usize % 2).for_each(read);
    })
}

/// Fast readers by raw calls, with the pointer cookie.
fn fast_raw() -> Box<dyn Pass> {
    let domain = domain(Flavour::Fast);
    pass!({
        let cookie = domain.block().lock_fast::<Fast>().expect("the domain is declared fast");
        let block = domain.block();
        // SAFETY: the cookie comes from the same block, and the drop runs once.
        Inside(move || unsafe { block.unlock_fast::<Fast>(cookie) })
    })
}

/// Every case, cheapest kinds first.
pub fn all() -> Vec<Case> {
    vec![
        Case { name: "empty", make: || pass!(black_box(())) },
        Case {
            name: "percpuinc",
            make: || {
                let counter = percpu::Counter::new();
                pass!(counter.inc())
            },
        },
        Case {
            name: "percpuinc-locked",
            make: || {
                let counter = percpu::Counter::with_offset(percpu::RseqOffset::NONE);
                pass!(counter.inc())
            },
        },
        Case { name: "lite", make: guards::<Lite> },
        Case { name: "lite-alternating", make: alternating },
        Case { name: "fast", make: guards::<Fast> },
        Case { name: "fast-cookie", make: fast_raw },
        Case {
            name: "updown",
            make: || {
                let domain = domain(UpDown::FLAVOUR);
                pass!(domain.down())
            },
        },
        Case { name: "tasks-holdout", make: || pass!(tasks::holdout::read()) },
        Case { name: "tasks-fast", make: || pass!(tasks::on_fast::read()) },
        Case { name: "normal", make: guards::<Normal> },
        Case { name: "sigsafe", make: guards::<Sigsafe> },
        Case {
            name: "lite-no-rseq",
            make: || {
                let builder = Domain::builder("refscale").flavour(Flavour::Lite).checked(false).rseq(false);
                let domain = builder.build().expect("a domain");
                pass!(domain.lite())
            },
        },
        Case {
            name: "lite-checked",
            make: || {
                let builder = Domain::builder("refscale").flavour(Flavour::Lite).checked(true);
                let domain = builder.build().expect("a domain");
                pass!(domain.lite())
            },
        },
        Case {
            name: "atomic-load",
            make: || {
                let word = AtomicU64::new(0);
                pass!(black_box(word.load(Acquire)))
            },
        },
        Case {
            name: "refcnt",
            make: || {
                let word: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
                pass!({
                    word.fetch_add(1, Relaxed);
                    Inside(|| {
                        word.fetch_sub(1, Relaxed);
                    })
                })
            },
        },
        Case {
            name: "arc-clone",
            make: || {
                let arc = Arc::new(0u64);
                pass!(black_box(arc.clone()))
            },
        },
        Case {
            name: "rwlock",
            make: || {
                let lock = RwLock::new(0u64);
                pass!(lock.read().expect("not poisoned"))
            },
        },
        Case {
            name: "mutex",
            make: || {
                let lock = Mutex::new(0u64);
                pass!(lock.lock().expect("not poisoned"))
            },
        },
        Case { name: "crossbeam-epoch", make: || pass!(crossbeam_epoch::pin()) },
    ]
}
