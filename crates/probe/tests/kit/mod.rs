//! A registry with one file, one space and consumers that count.
#![allow(dead_code)]

use probe::fake::{FakeFile, FakeSpace};
use probe::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub const FILE: FileId = 1;
pub const SPACE: SpaceId = 10;
pub const BASE: u64 = 0x10_0000;

pub struct World {
    pub registry: Registry,
    pub file: Arc<dyn File>,
    pub space: Arc<FakeSpace>,
}

pub fn world(config: Config) -> World {
    let world = unmapped(config);
    world.space.map(FILE, 0..1 << 20, BASE);
    world
}

pub fn unmapped(config: Config) -> World {
    let registry = Registry::new(config).unwrap();
    let space = FakeSpace::new(SPACE);
    registry.add_space(space.clone());
    World { registry, file: FakeFile::nops(FILE, 1 << 20).shared(), space }
}

impl World {
    pub fn register(&self, offset: u64, consumer: &Arc<Count>) -> Registered {
        self.registry.register(&self.file, offset, None, consumer.clone()).unwrap()
    }

    pub fn hit(&self, offset: u64) -> Hit {
        self.registry.hit(SPACE, FILE, offset, &mut Regs::default())
    }

    pub fn drop_nosync(&self, registered: Registered) {
        assert_eq!(self.registry.unregister_nosync(registered), Left::default());
    }
}

/// A consumer that counts and does as it is told.
#[derive(Default)]
pub struct Count {
    pub hits: AtomicU64,
    pub returns: AtomicU64,
    /// The last cookie of a return; `u64::MAX` if there was none.
    pub cookie: AtomicU64,
    pub verdict: Verdict,
    pub is_ret_only: bool,
    pub has_ret: bool,
    pub has_filter: bool,
    /// What the filter says, and only for this space if not 0.
    pub wanted: AtomicBool,
    pub only: AtomicU64,
}

impl Count {
    pub fn new() -> Arc<Count> {
        Arc::default()
    }
    pub fn session() -> Arc<Count> {
        Arc::new(Count { has_ret: true, ..Count::default() })
    }
    pub fn ret_only() -> Arc<Count> {
        Arc::new(Count { has_ret: true, is_ret_only: true, ..Count::default() })
    }
    pub fn saying(verdict: Verdict) -> Arc<Count> {
        Arc::new(Count { verdict, has_ret: true, ..Count::default() })
    }
    pub fn filtered(wanted: bool) -> Arc<Count> {
        Arc::new(Count { has_filter: true, wanted: wanted.into(), ..Count::default() })
    }
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }
    pub fn returns(&self) -> u64 {
        self.returns.load(Relaxed)
    }
}

impl Consumer for Count {
    fn has_handler(&self) -> bool {
        !self.is_ret_only
    }
    fn has_ret_handler(&self) -> bool {
        self.has_ret
    }
    fn has_filter(&self) -> bool {
        self.has_filter
    }
    fn handler(&self, regs: &mut Regs, cookie: &mut u64) -> Verdict {
        assert_eq!(*cookie, 0, "a cookie is 0 at first");
        self.hits.fetch_add(1, Relaxed);
        *cookie = regs.rdi;
        self.verdict
    }
    fn ret_handler(&self, _: u64, _: &mut Regs, cookie: Option<&mut u64>) {
        self.returns.fetch_add(1, Relaxed);
        self.cookie.store(cookie.map_or(u64::MAX, |c| *c), Relaxed);
    }
    fn filter(&self, space: SpaceId) -> bool {
        let only = self.only.load(Relaxed);
        self.wanted.load(Relaxed) && (only == 0 || only == space)
    }
}
