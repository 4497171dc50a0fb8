//! The cache, what is published, and what threads and handlers do to them.
//!
//! For:     `torture mem`.
//! State:   slots with addresses of objects; each object is full of its stamp.
//! Context: control; `handler` in a signal.
//! Keeps:   every error is counted, the first is kept in words.
//! Checked: `tests/broken_mem.rs`.

use super::options::Options;
use crate::rng::Rng;
use objcache::{Index, ObjectCache, View, domain};
use percpu::RseqOffset;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

pub const PAUSE: u32 = 0;
pub const RUN: u32 = 1;
const STOP: u32 = 2;

const SLOTS: usize = 32;
const SIGUSR1: i32 = 10;

#[derive(Default)]
pub struct Counts {
    pub allocs: AtomicU64,
    pub failed: AtomicU64,
    pub retired: AtomicU64,
    pub reads: AtomicU64,
    pub handlers: AtomicU64,
    pub audits: AtomicU64,
    pub destroyed: AtomicU64,
    pub errors: AtomicU64,
    pub peak_bytes: AtomicU64,
}

pub struct World {
    pub options: Options,
    pub started: Instant,
    pub counts: Counts,
    pub phase: AtomicU32,
    /// Threads and handlers that are not paused.
    busy: AtomicU32,
    cache: ObjectCache,
    /// The cache for threads without rseq.
    slow: View<'static>,
    slots: [AtomicUsize; SLOTS],
    /// Of caches that will be destroyed.
    pub mortal: [AtomicUsize; SLOTS],
    tids: Mutex<Vec<u32>>,
    first_error: Mutex<Option<String>>,
}

impl World {
    pub fn new(options: Options) -> Result<World, objcache::Error> {
        let broken = options.broken.map(|(_, broken)| broken);
        let cache = ObjectCache::builder(options.size).rseq(options.rseq).broken(broken).build()?;
        // SAFETY: the cache lies there, and the world that keeps it is never dropped; without rseq.
        let slow = unsafe { View::at(cache.arena().base(), cache.offset(), RseqOffset::NONE) };
        Ok(World {
            options,
            started: Instant::now(),
            counts: Counts::default(),
            phase: AtomicU32::new(PAUSE),
            busy: AtomicU32::new(0),
            cache,
            slow,
            slots: [const { AtomicUsize::new(0) }; SLOTS],
            mortal: [const { AtomicUsize::new(0) }; SLOTS],
            tids: Mutex::new(Vec::new()),
            first_error: Mutex::new(None),
        })
    }

    pub fn error(&self, what: &str) {
        if self.counts.errors.fetch_add(1, Relaxed) == 0 {
            *self.first_error.lock().expect("not poisoned") = Some(what.to_string());
        }
    }

    pub fn has_error(&self) -> bool {
        self.counts.errors.load(Relaxed) > 0
    }

    pub fn first_error(&self) -> Option<String> {
        self.first_error.lock().expect("not poisoned").clone()
    }

    pub fn stop(&self) {
        self.phase.store(STOP, Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.phase.load(Relaxed) == STOP
    }

    /// Stops every thread between two actions, and handlers with them.
    pub fn pause(&self) {
        self.phase.store(PAUSE, Relaxed);
        while self.busy.load(Acquire) != 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Enters an action; false if there is to be none.
    pub fn enter(&self) -> bool {
        // SeqCst: the count must be seen by `pause` before the phase is looked at.
        self.busy.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if self.phase.load(std::sync::atomic::Ordering::SeqCst) == RUN {
            return true;
        }
        self.leave();
        false
    }

    pub fn leave(&self) {
        self.busy.fetch_sub(1, AcqRel);
    }

    /// Looks whether every object is where it should be; all threads are paused.
    pub fn check(&self) {
        if !self.cache.drain(Duration::from_secs(20)) {
            return self.error("retired objects did not come back in 20 s, without a reader");
        }
        let published = self.slots.iter().filter(|slot| slot.load(Relaxed) != 0).count() as i64;
        // SAFETY: nobody takes or gives now.
        match unsafe { self.cache.audit() } {
            Err(what) => self.error(&what),
            Ok(census) if census.misuse != 0 => {
                self.error(&format!("objects that were not live: {census:?}"))
            }
            Ok(census) if census.live() != published => {
                self.error(&format!(
                    "{published} objects are published, {} are live: {census:?}",
                    census.live()
                ));
            }
            Ok(census) if census.on_cpus > 2 * 96 * u64::from(percpu::possible_cpus()) => {
                self.error(&format!("more on CPUs than the high watermark: {census:?}"));
            }
            Ok(census) if census.bytes > 256 << 20 => self.error(&format!("memory grows: {census:?}")),
            Ok(census) => {
                self.counts.failed.store(census.failed, Relaxed);
                self.counts.peak_bytes.fetch_max(census.bytes, Relaxed);
                self.counts.audits.fetch_add(1, Relaxed);
            }
        }
    }

    fn view(&self, rng: &mut Rng) -> View<'_> {
        if rng.one_in(4) { self.slow } else { self.cache.view() }
    }

    fn words(&self) -> usize {
        self.options.size / 8
    }

    /// Takes an object and fills it with a stamp.
    fn take(&self, view: View<'_>, stamp: u64) -> Option<Index> {
        let index = view.alloc()?;
        self.counts.allocs.fetch_add(1, Relaxed);
        fill(view.payload(index), self.words(), stamp);
        Some(index)
    }

    /// Gives an object back that must still be ours alone.
    fn give(&self, view: View<'_>, index: Index, stamp: u64) {
        if !is_full_of(view.payload(index), self.words(), stamp) {
            self.error("an object that one thread has was written by another");
        }
        // SAFETY: taken by `take`, given once.
        unsafe { view.free(index) };
    }

    /// Takes some objects, holds them a little, gives them back.
    fn hold(&self, view: View<'_>, rng: &mut Rng, most: u64) {
        let mut held = [None; 150];
        let stamp = rng.next();
        let count = 1 + rng.below(most) as usize;
        held.iter_mut().take(count).for_each(|slot| *slot = self.take(view, stamp));
        held.into_iter().flatten().for_each(|index| self.give(view, index, stamp));
    }

    /// Publishes a new object and retires the old one.
    fn publish(&self, view: View<'_>, rng: &mut Rng) {
        let Some(index) = self.take(view, rng.next()) else { return };
        let slot = &self.slots[rng.below(SLOTS as u64) as usize];
        let old = slot.swap(view.payload(index).as_ptr() as usize, AcqRel);
        if let Some(old) = NonNull::new(old as *mut u8) {
            self.counts.retired.fetch_add(1, Relaxed);
            // SAFETY: unpublished just now, by this thread alone; readers are in the cache's domain.
            unsafe { view.free_rcu(view.index_of(old)) };
        }
    }

    /// Looks at a published object for a while: it must stay what it was.
    fn read(&self, rng: &mut Rng) {
        let guard = domain().fast();
        let slots = if rng.one_in(2) { &self.mortal } else { &self.slots };
        let at = slots[rng.below(SLOTS as u64) as usize].load(Acquire);
        let Some(object) = NonNull::new(at as *mut u8) else { return };
        // SAFETY: not reused before this reader ends; that is what is being tested.
        let stamp = unsafe { object.cast::<u64>().read_volatile() };
        for _ in 0..1 + rng.below(4) {
            if !is_full_of(object, self.words(), stamp) || stamp == 0 {
                self.error("an object was reused or returned under a reader");
                break;
            }
            match rng.below(64) {
                0 => std::thread::sleep(Duration::from_micros(rng.below(300))),
                1..=4 => std::thread::yield_now(),
                n => (0..n * 8).for_each(|_| std::hint::spin_loop()),
            }
        }
        self.counts.reads.fetch_add(1, Relaxed);
        drop(guard);
    }
}

pub fn fill(object: NonNull<u8>, words: usize, stamp: u64) {
    for n in 0..words {
        let word = object.as_ptr().cast::<u64>().wrapping_add(n);
        // SAFETY: the object has so many words, and is the caller's.
        unsafe { word.write_volatile(stamp | 1) };
    }
}

fn is_full_of(object: NonNull<u8>, words: usize, stamp: u64) -> bool {
    (0..words).all(|n| {
        let word = object.as_ptr().cast::<u64>().wrapping_add(n);
        // SAFETY: the object has so many words; they are written meanwhile only if the cache is broken.
        let seen = unsafe { word.read_volatile() };
        seen == stamp | 1
    })
}

/// A thread's life.
pub fn churn(world: &'static World, me: u64) {
    let mut rng = Rng::new(world.options.seed, me);
    world.tids.lock().expect("not poisoned").push(sys::gettid());
    while !world.is_stopped() {
        if !world.enter() {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let view = world.view(&mut rng);
        match rng.below(8) {
            0..=1 => world.hold(view, &mut rng, 150),
            2..=4 => world.publish(view, &mut rng),
            5 => _ = sys::sched::pin_to_cpu(rng.below(2) as usize),
            _ => world.read(&mut rng),
        }
        world.leave();
    }
    world.tids.lock().expect("not poisoned").retain(|tid| *tid != sys::gettid());
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn handler(_: i32) {
    // SAFETY: null, or the world that `install` was given, which is never freed.
    let Some(world) = (unsafe { WORLD.load(Acquire).as_ref() }) else { return };
    if !world.enter() {
        return;
    }
    let n = world.counts.handlers.fetch_add(1, Relaxed);
    let mut rng = Rng::new(world.options.seed ^ n, 1 << 20);
    let view = world.view(&mut rng);
    world.hold(view, &mut rng, 20);
    world.publish(view, &mut rng);
    world.leave();
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
}

/// Makes the handler act on this world.
pub fn install(world: &'static World) {
    WORLD.store(std::ptr::from_ref(world).cast_mut(), Release);
    // SAFETY: the handler uses atomics and what is made for handlers.
    unsafe { signal(SIGUSR1, handler as *const () as usize) };
}

/// Interrupts the threads again and again.
pub fn send_signals(world: &'static World) {
    let mut rng = Rng::new(world.options.seed, 1 << 21);
    while !world.is_stopped() {
        {
            // Held while the signal is sent, so that the thread is there.
            let tids = world.tids.lock().expect("not poisoned");
            if !tids.is_empty() {
                let tid = tids[rng.below(tids.len() as u64) as usize];
                let args = [sys::getpid() as usize, tid as usize, SIGUSR1 as usize, 0, 0, 0];
                // SAFETY: tgkill takes numbers.
                let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
            }
        }
        std::thread::sleep(Duration::from_micros(rng.below(100)));
    }
}
