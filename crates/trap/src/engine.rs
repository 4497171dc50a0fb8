//! The engine: one for a process, from its start on.
//!
//! For:     embedders, benches, torture.
//! State:   the registry, the sites by address, areas of slots, the handlers in the kernel.
//! Context: target, unless said otherwise. Not in a hit.
//! Keeps:   E1 there is one engine, and what its handlers can reach is never freed while they may be inside.
//!          E2 a hit is handled once, or counted as nested or skipped.
//!          E3 after `remove`, no handler of the probe runs and the text is as it was.
//! Checked: `tests/engine.rs`, `torture xol`, `bench xol` (hits = calls x probes).

use crate::blocks::Blocks;
use crate::error::ProbeError;
use crate::handler::Busy;
use crate::module::{Module, Modules, OwnFile};
use crate::site::{Site, prepare};
use crate::space::OwnSpace;
use crate::{Scheme, Sync, Vectors, Way, actions, handler};
use coll::Tree;
use percpu::Counter;
use probe::{Consumer, File, MAX_INSN, Protection, Registered, Registry};
use rcu::Flavour;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard};
use text::xol::Area;

/// How a hit finds its uprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lookup {
    /// By address: the site knows its uprobe.
    #[default]
    Site,
    /// By address to the mapping, by the mapping's file and offset to the uprobe, as the kernel does.
    Mapping,
}

/// How probes that are placed from now on are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How slots are given to instructions.
    pub scheme: Scheme,
    /// What follows a write to a slot.
    pub sync: Sync,
    /// How a hit finds its uprobe.
    pub lookup: Lookup,
    /// Use a slot also for what could be emulated.
    pub always_slot: bool,
    /// The most slots that are used, for tests; 0 is all 31 of a page.
    pub slot_limit: usize,
    /// Probes are jumps where that is proven to be safe; else breakpoints.
    pub jumps: bool,
    /// Which vector registers jumps save around consumers.
    pub vectors: Vectors,
    /// The readers of sites and consumers; what is set when the engine is started counts.
    pub readers: Protection,
    /// Breaks the slots.
    #[cfg(feature = "broken")]
    pub broken: Option<crate::Broken>,
    /// Breaks the writing of jumps.
    #[cfg(feature = "broken")]
    pub broken_poke: Option<crate::BrokenPoke>,
}

impl Default for Config {
    /// Jumps, fast readers, cached slots.
    fn default() -> Config {
        Config {
            scheme: Scheme::default(),
            sync: Sync::default(),
            lookup: Lookup::default(),
            always_slot: false,
            slot_limit: 0,
            jumps: true,
            vectors: Vectors::default(),
            readers: Protection::Fast,
            #[cfg(feature = "broken")]
            broken: None,
            #[cfg(feature = "broken")]
            broken_poke: None,
        }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Consumers were called.
    pub handled: u64,
    /// A consumer hit a probe: the instruction was run, no consumer called.
    pub nested: u64,
    /// The reader could not be entered, or the probe was just going.
    pub skipped: u64,
    /// The breakpoint was gone when its trap came.
    pub raced: u64,
    /// Traps handed to the program.
    pub foreign: u64,
    /// Threads taken out of a slot by a signal.
    pub settled: u64,
    /// Slots written.
    pub written: u64,
    /// Times that a thread slept for a slot.
    pub slept: u64,
}

/// Each on lines of every CPU's own: hits write nothing that another CPU does.
#[derive(Default)]
pub(crate) struct Counters {
    pub handled: Counter,
    pub nested: Counter,
    pub skipped: Counter,
    pub raced: Counter,
    pub foreign: Counter,
    pub settled: Counter,
}

/// The most areas of slots.
const AREAS: usize = 64;

pub(crate) struct Inner {
    pub registry: Registry,
    pub domain: rcu::Domain,
    /// What the domain's readers are.
    pub flavour: Flavour,
    pub sites: Tree<Site>,
    /// Instructions under jumps that stand, and their copies.
    pub inside: Tree<u64>,
    pub blocks: Blocks,
    pub modules: Modules,
    pub counters: Counters,
    areas: [AtomicPtr<(Area, Config)>; AREAS],
    pub config: Mutex<Config>,
    pub space: Arc<OwnSpace>,
}

/// The handle.
#[derive(Clone, Copy)]
pub struct Engine(pub(crate) &'static Inner);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.counts())
    }
}

/// A probe on one address; given to [`Engine::remove`].
pub struct Probe {
    /// Until it is taken out.
    registered: Option<Registered>,
    at: u64,
}

impl Drop for Probe {
    /// Takes the probe out, and does not wait for consumers that run.
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            // A handler that ran on this thread meanwhile could wait for what this thread is changing.
            let _busy = Busy::begin();
            actions::with_all_blocked(|| drop(registered));
        }
    }
}

impl Probe {
    /// How it stands: by which rung of the ladder, and if it is a breakpoint, why.
    pub fn way(&self) -> Option<Way> {
        running()?.with_site(self.at, |node| node.value.way())
    }

    /// Where it stands.
    pub fn addr(&self) -> u64 {
        self.at
    }
}

static ENGINE: AtomicPtr<Inner> = AtomicPtr::new(std::ptr::null_mut());

/// The engine, for handlers.
pub(crate) fn running() -> Option<&'static Inner> {
    // [TRAP-4] Orders the pointer before what it leads to. Pairs with [TRAP-5].
    // SAFETY: null, or leaked by `start`.
    unsafe { ENGINE.load(Acquire).as_ref() }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Engine {
    /// Starts the engine: from now on this process's signals go through it. It stays for good.
    ///
    /// # Errors
    /// It runs already, or the system refused.
    pub fn start(config: Config) -> Result<Engine, ProbeError> {
        static STARTED: Mutex<bool> = Mutex::new(false);
        let mut started = lock(&STARTED);
        if *started {
            return Err(ProbeError::Running);
        }
        let system = |error: rcu::BuildError| ProbeError::System(std::io::Error::other(error.to_string()));
        let registry = Registry::new(probe::Config::new(config.readers, config.readers)).map_err(system)?;
        let flavour = config.readers.flavour().unwrap_or(Flavour::Fast);
        let domain = rcu::Domain::builder("traps").flavour(flavour).checked(false).build();
        let space = Arc::new(OwnSpace::open()?);
        registry.add_space(space.clone());
        let inner: &'static Inner = Box::leak(Box::new(Inner {
            registry,
            domain: domain.map_err(system)?,
            flavour,
            sites: Tree::new(0x7a9),
            inside: Tree::new(0x7a9),
            blocks: Blocks::new(),
            modules: Modules::new(),
            counters: Counters::default(),
            areas: [const { AtomicPtr::new(std::ptr::null_mut()) }; AREAS],
            config: Mutex::new(config),
            space,
        }));
        // [TRAP-5] Orders the engine before the pointer to it. Pairs with [TRAP-4].
        ENGINE.store(std::ptr::from_ref(inner).cast_mut(), Release);
        handler::prepare_thread();
        actions::take_over();
        handler::watch_forks();
        *started = true;
        Ok(Engine(inner))
    }

    /// The engine that was started, if one was.
    pub fn running() -> Option<Engine> {
        running().map(Engine)
    }

    /// How probes are placed from now on; those that stand are not changed.
    pub fn configure(&self, config: Config) {
        *lock(&self.0.config) = config;
    }

    /// Puts a probe on the instruction at an address of this process.
    ///
    /// ```compile_fail,E0133
    /// use probe::{Consumer, Regs, Verdict};
    /// struct Nothing;
    /// impl Consumer for Nothing {}
    /// let engine = trap::Engine::start(trap::Config::default())?;
    /// let probe = engine.probe(main as *const () as u64, std::sync::Arc::new(Nothing))?; // not without `unsafe`
    /// # Ok::<(), trap::ProbeError>(())
    /// ```
    ///
    /// Probes that are hit while the thread is in a consumer, or changes probes itself, run their instruction, and are
    /// counted as nested.
    ///
    /// # Safety
    /// * An instruction must begin at `at`, and no jump lead behind its first byte.
    /// * The program must not read the byte there, nor write it.
    /// * The consumer runs as a signal handler at that instruction, each time that any thread comes there: what it
    ///   calls must be async-signal-safe there. It must not take a lock that the interrupted code may hold: so it
    ///   must not allocate if the probe is inside an allocator, or is hit where one is called from.
    /// * With [`Vectors::Low`], the consumer and what it calls must keep to the registers that this names.
    /// * The thread's stack there must have some room, as for a signal handler: 4 KiB and what the consumer needs.
    /// * What the consumer leaves in the registers, `rip` and `rsp` among them, must be what the probed code can go on
    ///   with.
    ///
    /// # Errors
    /// Nothing was changed.
    pub unsafe fn probe(&self, at: u64, consumer: Arc<dyn Consumer>) -> Result<Probe, ProbeError> {
        let _busy = Busy::begin();
        let module = self.module(at)?;
        let offset = module.offset_of(at);
        let file: Arc<dyn File> = Arc::new(OwnFile(module));
        // Files are read before signals are blocked.
        self.0.space.read_ground(at, &lock(&self.0.config).clone());
        if self.0.registry.find(file.id(), offset).is_none() {
            let mut bytes = [0; MAX_INSN];
            let len = file.read(offset, &mut bytes);
            let (_, code) = prepare(&bytes[..len], at).map_err(|why| ProbeError::Refused(at, why))?;
            let area = self.0.area_for(at, code.as_ref()).map_err(ProbeError::Area)?;
            code.map_or(Ok(()), |code| area.reaches(&code)).map_err(ProbeError::Unreachable)?;
        }
        // A handler that ran on this thread now could wait for what this thread is changing.
        let registered =
            actions::with_all_blocked(|| self.0.registry.register(&file, offset, None, consumer))?;
        Ok(Probe { registered: Some(registered), at })
    }

    /// The mapping of an address; all mappings of its file are put into the table.
    fn module(&self, at: u64) -> Result<Module, ProbeError> {
        let all = crate::module::all()?;
        let found = all.iter().find(|module| module.range.contains(&at));
        let module = found.filter(|m| m.is_private && m.is_text).ok_or(ProbeError::NotText(at))?.clone();
        self.add_modules(all.into_iter().filter(|other| other.file == module.file));
        Ok(module)
    }

    fn add_modules(&self, new: impl IntoIterator<Item = Module>) {
        let _writing = lock(&self.0.space.writing);
        // SAFETY: `writing` makes us the only writer.
        let mut table = unsafe { self.0.modules.copy() };
        let mut is_changed = false;
        for module in new {
            if !table.contains(&module) {
                table
                    .retain(|old| old.range.end <= module.range.start || module.range.end <= old.range.start);
                table.push(module);
                is_changed = true;
            }
        }
        if is_changed {
            let old = self.0.modules.replace(table);
            self.0.domain.synchronize();
            drop(old);
        }
    }

    /// Reads the mappings of this process again: what is looked through by [`Lookup::Mapping`]. How many there are.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn read_mappings(&self) -> Result<usize, ProbeError> {
        let _busy = Busy::begin();
        let all = crate::module::all()?;
        let count = all.len();
        let _writing = lock(&self.0.space.writing);
        let old = self.0.modules.replace(all);
        self.0.domain.synchronize();
        drop(old);
        Ok(count)
    }

    /// Takes probes out. When it returns, no consumer of theirs runs any more.
    ///
    /// # Panics
    /// Called by a consumer: it would wait for itself.
    pub fn remove(&self, probes: impl IntoIterator<Item = Probe>) {
        let _busy = Busy::begin();
        actions::with_all_blocked(|| {
            for mut probe in probes {
                if let Some(registered) = probe.registered.take() {
                    let _ = self.0.registry.unregister_nosync(registered);
                }
            }
        });
        self.0.registry.unregister_sync();
        self.collect();
    }

    /// Takes out what all consumers said they want removed. How many breakpoints that were.
    pub fn tend(&self) -> usize {
        let _busy = Busy::begin();
        let unwanted = self.0.space.unwanted();
        let gone = actions::with_all_blocked(|| {
            unwanted.into_iter().filter(|uprobe| uprobe.unhook(crate::space::ID)).count()
        });
        self.collect();
        gone
    }

    fn collect(&self) {
        let dead = self.0.space.take_dead();
        if !dead.is_empty() {
            self.0.domain.synchronize();
            drop(dead);
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let c = &self.0.counters;
        let mut counts = Counts {
            handled: c.handled.sum(),
            nested: c.nested.sum(),
            skipped: c.skipped.sum(),
            raced: c.raced.sum(),
            foreign: c.foreign.sum(),
            settled: c.settled.sum(),
            ..Counts::default()
        };
        for area in self.0.areas() {
            let (written, slept) = area.counts();
            counts.written += written;
            counts.slept += slept;
        }
        counts
    }

    /// Whether an address is in a slot. Any context.
    pub fn is_slot(&self, addr: u64) -> bool {
        self.0.areas().any(|area| area.holds(addr))
    }

    /// Whether an address is in the code that a jump leads to. Any context.
    pub fn is_gate(&self, addr: u64) -> bool {
        self.0.blocks.jump_at(addr).is_some()
    }

    /// Threads in slots now.
    pub fn in_slots(&self) -> u32 {
        self.0.areas().map(Area::users).sum()
    }
}

impl Inner {
    /// Every area. In any context.
    pub fn areas(&self) -> impl Iterator<Item = &'static Area> + '_ {
        self.areas.iter().map_while(|area| {
            // [TRAP-6] Orders the pointer before the area. Pairs with [TRAP-7].
            // SAFETY: null, or leaked by `area_for`.
            unsafe { area.load(Acquire).as_ref() }.map(|pair| &pair.0)
        })
    }

    /// An area for a probe at `at` as the configuration wants it; a new one if none reaches.
    pub fn area_for(
        &self,
        at: u64,
        code: Option<&insn::SlotCode>,
    ) -> Result<&'static Area, text::xol::AreaError> {
        static MAKING: Mutex<()> = Mutex::new(());
        let _making = lock(&MAKING);
        let config = *lock(&self.config);
        let fits = |pair: &(Area, Config)| {
            pair.1.areas_as(&config) && code.is_none_or(|code| pair.0.reaches(code).is_ok())
        };
        for place in &self.areas {
            // [TRAP-11] Orders the pointer before the area. Pairs with [TRAP-7].
            // SAFETY: as in `areas`.
            match unsafe { place.load(Acquire).as_ref() } {
                Some(pair) if fits(pair) => return Ok(&pair.0),
                Some(_) => {}
                None => {
                    let pair = Box::leak(Box::new((Area::near(at, config.slots())?, config)));
                    // [TRAP-7] Orders the area before the pointer to it. Pairs with [TRAP-6], [TRAP-11].
                    place.store(pair, Release);
                    return Ok(&pair.0);
                }
            }
        }
        Err(text::xol::AreaError::NoRoom(at))
    }
}

impl Config {
    fn areas_as(&self, other: &Config) -> bool {
        let plain = |c: &Config| Config {
            lookup: Lookup::Site,
            always_slot: false,
            jumps: true,
            vectors: Vectors::All,
            readers: Protection::Fast,
            #[cfg(feature = "broken")]
            broken_poke: None,
            ..*c
        };
        plain(self) == plain(other)
    }

    fn slots(&self) -> text::xol::Options {
        text::xol::Options {
            scheme: self.scheme,
            sync: self.sync,
            limit: self.slot_limit,
            #[cfg(feature = "broken")]
            broken: self.broken,
            ..text::xol::Options::default()
        }
    }
}
