//! What the roles share, and the verdict.
//!
//! For:     `uprobe_main`.
//! State:   the registry, ten consumers that stay, counters.
//! Context: control.
//! Keeps:   W1 a consumer that stays is called exactly as often as its function, or the run fails.
//!          W2 the last line begins with PASS or FAIL and agrees with the exit status.
//! Checked: `tests/uprobe.rs`.

use super::options::Options;
use probe::fake::{FakeFile, FakeSpace};
use probe::{Config, Consumer, File, Registered, Registry, Regs, SpaceId, Verdict};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub const FILE: u64 = 1;
pub const ROOT: SpaceId = 1;
/// Functions, as in uprobe-stress.
pub const FUNCTIONS: u64 = 100;
/// Functions with a consumer that stays.
pub const STAY: u64 = 10;
pub const CODE: u64 = FUNCTIONS * 16;

/// How many freed uprobes and consumers stay to be caught in use.
const QUARANTINE: usize = 4096;

#[derive(Default)]
pub struct Counters {
    pub calls: AtomicU64,
    pub hits: AtomicU64,
    pub returns: AtomicU64,
    pub links: AtomicU64,
    pub probes: AtomicU64,
    pub applied: AtomicU64,
    pub maps: AtomicU64,
    pub forks: AtomicU64,
    /// Errors: hits that a registered consumer did not get.
    pub lost: AtomicU64,
    /// Errors: handlers that ran after `unregister_sync`.
    pub late: AtomicU64,
    /// Errors: entries that are not returns, unwound or skipped.
    pub unbalanced: AtomicU64,
}

pub struct World {
    pub options: Options,
    pub registry: Registry,
    pub file: Arc<dyn File>,
    pub root: Arc<FakeSpace>,
    pub stop: AtomicBool,
    pub counters: Arc<Counters>,
    /// Calls of each function with a consumer that stays.
    pub calls: Vec<AtomicU64>,
    staying: Mutex<Vec<(Registered, Arc<Watch>)>>,
}

/// A consumer that knows whether it may run.
pub struct Watch {
    pub counters: Arc<Counters>,
    pub dead: AtomicBool,
    pub seen: AtomicU64,
    pub has_handler: bool,
    pub has_ret: bool,
    /// Wanted in every space; else in the root alone.
    pub everywhere: AtomicBool,
}

impl Watch {
    fn check(&self) {
        if self.dead.load(SeqCst) {
            self.counters.late.fetch_add(1, Relaxed);
        }
    }

    /// Stays inside for a while, now and then, so that somebody may forget to wait.
    fn linger(&self, n: u64) {
        self.check();
        if n.is_multiple_of(64) {
            std::thread::yield_now();
            self.check();
        }
    }
}

impl Consumer for Watch {
    fn has_handler(&self) -> bool {
        self.has_handler
    }
    fn has_ret_handler(&self) -> bool {
        self.has_ret
    }
    fn has_filter(&self) -> bool {
        true
    }
    fn handler(&self, _: &mut Regs, cookie: &mut u64) -> Verdict {
        *cookie = 42;
        let n = self.seen.fetch_add(1, Relaxed);
        self.counters.hits.fetch_add(1, Relaxed);
        self.linger(n);
        Verdict::Continue
    }
    fn ret_handler(&self, _: u64, _: &mut Regs, cookie: Option<&mut u64>) {
        if self.has_handler && cookie.is_none_or(|c| *c != 42) {
            self.counters.unbalanced.fetch_add(1, Relaxed);
        }
        let n = self.counters.returns.fetch_add(1, Relaxed);
        self.linger(n);
    }
    fn filter(&self, space: SpaceId) -> bool {
        space == ROOT || self.everywhere.load(Relaxed)
    }
}

impl World {
    pub fn new(options: Options) -> Result<World, Box<dyn std::error::Error>> {
        let mut config = Config::new(options.entry, options.returns);
        config.quarantine = QUARANTINE;
        config.broken = options.broken_registry();
        let registry = Registry::new(config)?;
        let root = FakeSpace::new(ROOT);
        root.map(FILE, 0..CODE, 0x1000);
        registry.add_space(root.clone());
        let world = World {
            options,
            registry,
            file: FakeFile::nops(FILE, CODE).shared(),
            root,
            stop: AtomicBool::new(false),
            counters: Arc::default(),
            calls: (0..STAY).map(|_| AtomicU64::new(0)).collect(),
            staying: Mutex::default(),
        };
        for function in 0..STAY {
            let watch = world.watch(true, false, true);
            let registered = world.registry.register(&world.file, function * 16, None, watch.clone())?;
            world.staying.lock().expect("not poisoned").push((registered, watch));
        }
        Ok(world)
    }

    pub fn watch(&self, has_handler: bool, has_ret: bool, everywhere: bool) -> Arc<Watch> {
        Arc::new(Watch {
            counters: self.counters.clone(),
            dead: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            has_handler,
            has_ret,
            everywhere: everywhere.into(),
        })
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Errors that are known while the run goes on.
    pub fn errors(&self) -> u64 {
        let c = &self.counters;
        let own: u64 = [&c.lost, &c.late, &c.unbalanced].iter().map(|n| n.load(Relaxed)).sum();
        own + self.registry.stats().freed_hits
    }

    pub fn line(&self) -> String {
        let c = &self.counters;
        let get = |n: &AtomicU64| n.load(Relaxed);
        let stats = self.registry.stats();
        format!(
            "calls={} hits={} rets={} links={} probes={} applied={} maps={} forks={} made={} freed={} revived={} \
             lost={} late={} unbalanced={} freed-hits={}",
            get(&c.calls),
            get(&c.hits),
            get(&c.returns),
            get(&c.links),
            get(&c.probes),
            get(&c.applied),
            get(&c.maps),
            get(&c.forks),
            stats.made,
            stats.freed,
            stats.revived,
            get(&c.lost),
            get(&c.late),
            get(&c.unbalanced),
            stats.freed_hits
        )
    }

    /// The roles that have done nothing yet.
    pub fn idle(&self) -> Vec<&'static str> {
        let (c, stats) = (&self.counters, self.registry.stats());
        let parts = [
            ("calls", c.calls.load(Relaxed), self.options.calls),
            ("returns", c.returns.load(Relaxed), self.options.calls * self.options.attach),
            ("links", c.links.load(Relaxed), self.options.attach),
            ("revived", stats.revived, self.options.attach),
            ("maps", c.maps.load(Relaxed), self.options.mmap),
            ("forks", c.forks.load(Relaxed), self.options.fork),
        ];
        parts.iter().filter(|p| p.1 == 0 && p.2 > 0).map(|p| p.0).collect()
    }

    /// The last line; the exit status.
    pub fn end(&self) -> i32 {
        let staying = std::mem::take(&mut *self.staying.lock().expect("not poisoned"));
        let mut left = 0;
        for (function, (registered, watch)) in staying.into_iter().enumerate() {
            let missing = self.calls[function].load(Relaxed).abs_diff(watch.seen.load(Relaxed));
            self.counters.lost.fetch_add(missing, Relaxed);
            left += self.registry.unregister_nosync(registered).breakpoints;
        }
        self.registry.unregister_sync();
        let stats = self.registry.stats();
        left += self.root.breakpoints().len() + (stats.made - stats.freed) as usize + stats.retired as usize;
        let idle = self.idle();
        let good = self.errors() == 0 && left == 0 && idle.is_empty();
        let broken = self.options.broken.as_deref().unwrap_or("none");
        println!(
            "{} backend=registry broken={broken} seed={} entry={} returns={} {} left={left} idle={}",
            if good { "PASS" } else { "FAIL" },
            self.options.seed,
            self.options.entry,
            self.options.returns,
            self.line(),
            if idle.is_empty() { "none".to_string() } else { idle.join(",") }
        );
        i32::from(!good)
    }
}
