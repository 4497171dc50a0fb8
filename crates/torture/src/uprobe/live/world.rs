//! What the threads that attach share, and the verdict.
//!
//! For:     `live::run`.
//! State:   counters; which functions have probes now.
//! Context: control.
//! Keeps:   W1 the last line begins with PASS or FAIL and agrees with the exit status.
//!          W2 text of a function that nobody has a probe on is compared with the file's after each detach.
//! Checked: `tests/uprobe_live.rs`.

use super::library::Library;
use super::link::Placer;
use super::process::Footprint;
use crate::rng::Rng;
use crate::uprobe::options::Options;
use crate::uprobe::stressed::Orders;
use crate::uprobe::stressed::shared::{FUNCTIONS, STAY, Shared};
use image::{ElfImage, ImageAddr};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

#[derive(Default)]
pub struct Counters {
    /// Hits of links that came and went.
    pub hits: AtomicU64,
    pub returns: AtomicU64,
    /// Hits of what stayed, in the end.
    pub stay: AtomicU64,
    pub links: AtomicU64,
    pub probes: AtomicU64,
    /// Links and probes that are in now.
    pub links_in: AtomicU64,
    pub probes_in: AtomicU64,
    pub missed: AtomicU64,
    pub in_children: AtomicU64,
    pub in_library: AtomicU64,
    pub gone: AtomicU64,
    pub busy: AtomicU64,
    pub looks: AtomicU64,
    /// How often a broken variant has done what is wrong.
    pub acts: AtomicU64,
    /// Errors: hits that are not calls, calls that are not hits.
    pub lost: AtomicU64,
    /// Errors: hits after a detach.
    pub late: AtomicU64,
    /// Errors: detaches that left something.
    pub lost_detach: AtomicU64,
    /// Errors: attaches that failed for no reason that there is.
    pub broken: AtomicU64,
    /// Errors: mappings, descriptors, threads.
    pub left: AtomicU64,
}

/// One function's text in the target.
struct Text {
    at: u64,
    bytes: Vec<u8>,
    begun: AtomicU64,
    ended: AtomicU64,
}

pub struct World {
    pub options: Options,
    pub orders: Orders,
    pub shared: &'static Shared,
    pub placer: Box<dyn Placer>,
    pub pid: i32,
    pub before: Footprint,
    pub counters: Counters,
    pub stop: AtomicBool,
    texts: Vec<Text>,
    memory: File,
    _library: Option<Library>,
}

impl World {
    pub fn new(
        options: Options,
        orders: Orders,
        shared: &'static Shared,
        placer: Box<dyn Placer>,
        library: Option<Library>,
        pid: i32,
    ) -> Result<World, String> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        Ok(World {
            options,
            orders,
            shared,
            placer,
            pid,
            before: Footprint::of(pid)?,
            counters: Counters::default(),
            stop: AtomicBool::new(false),
            texts: texts(pid)?,
            memory: memory.map_err(|e| e.to_string())?,
            _library: library,
        })
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Says what is wrong.
    pub fn complain(&self, why: &str) {
        println!("uprobe-torture: {why}");
    }

    /// A link on this function begins.
    pub fn begins(&self, function: usize) {
        self.texts[function].begun.fetch_add(1, SeqCst);
    }

    /// A link on this function is over. If nobody has another, its text must be the file's.
    pub fn ends(&self, function: usize) {
        let text = &self.texts[function];
        let ended = text.ended.fetch_add(1, SeqCst) + 1;
        if function < STAY || text.begun.load(SeqCst) != ended {
            return;
        }
        let mut is = vec![0; text.bytes.len()];
        let read = self.memory.read_exact_at(&mut is, text.at);
        if read.is_err() || text.begun.load(SeqCst) != ended {
            return;
        }
        self.counters.looks.fetch_add(1, Relaxed);
        if is != text.bytes {
            self.complain(&format!("function {function}: {is:02x?} and not {:02x?}", text.bytes));
            self.counters.lost_detach.fetch_add(1, Relaxed);
        }
    }

    /// Whether to do now what the variant of that name does wrong: of those who ask the first, and one in 20.
    pub fn acts(&self, broken: &str, rng: &mut Rng) -> bool {
        let acts = &self.counters.acts;
        let is_now = self.options.is_broken(broken) && (acts.load(Relaxed) == 0 || rng.one_in(20));
        acts.fetch_add(is_now.into(), Relaxed);
        is_now
    }

    /// Leaves a byte of the function's text changed, as a broken detach would.
    pub fn spoil(&self, function: usize) {
        let text = &self.texts[function];
        let last = text.bytes.len() - 1;
        // The last byte of its `ret` or jump; what follows it is a trap.
        let _ = self.memory.write_all_at(&[!text.bytes[last]], text.at + last as u64);
    }

    /// Errors that are known while the run goes on.
    pub fn errors(&self) -> u64 {
        let (c, s) = (&self.counters, self.shared);
        let ours = [&c.lost, &c.late, &c.lost_detach, &c.broken, &c.left];
        let theirs = [&s.wrong, &s.lost_children, &s.refused];
        ours.iter().chain(&theirs).map(|n| n.load(Relaxed)).sum()
    }

    /// The counters; `stay` are the hits of the probes that stay.
    pub fn line(&self, stay: u64) -> String {
        let (c, s) = (&self.counters, self.shared);
        let get = |n: &AtomicU64| n.load(Relaxed);
        let forked: u64 = s.forked.calls.iter().map(get).sum();
        let parts = [
            ("calls", s.calls()),
            ("forked-calls", forked),
            ("exec-calls", get(&s.exec_calls)),
            ("lib-calls", s.library.iter().map(get).sum()),
            ("hits", get(&c.hits) + stay),
            ("rets", get(&c.returns)),
            ("links", get(&c.links)),
            ("probes", get(&c.probes)),
            ("in", get(&c.links_in)),
            ("probes-in", get(&c.probes_in)),
            ("child-links", get(&c.in_children)),
            ("lib-links", get(&c.in_library)),
            ("missed", get(&c.missed)),
            ("gone", get(&c.gone)),
            ("busy", get(&c.busy)),
            ("looks", get(&c.looks)),
            ("mmaps", get(&s.maps)),
            ("forks", get(&s.forks)),
            ("execs", get(&s.execs)),
            ("dlopens", get(&s.loads)),
            ("signals", get(&s.signals)),
            ("handled", get(&s.handled)),
            ("lost", get(&c.lost)),
            ("late", get(&c.late)),
            ("lost-detach", get(&c.lost_detach)),
            ("broken-attach", get(&c.broken)),
            ("wrong", get(&s.wrong)),
            ("lost-children", get(&s.lost_children)),
            ("refused", get(&s.refused)),
            ("left", get(&c.left)),
        ];
        let words: Vec<String> = parts.iter().map(|(name, n)| format!("{name}={n}")).collect();
        words.join(" ")
    }

    /// The roles that have done nothing yet.
    pub fn idle(&self) -> Vec<&'static str> {
        let (c, s, o, t) = (&self.counters, self.shared, &self.options, &self.orders);
        let parts = [
            ("calls", &s.rows[0].calls[0], t.calls),
            ("hits", &c.stay, 1),
            ("links", &c.links, o.attach),
            ("rets", &c.returns, o.attach),
            ("looks", &c.looks, o.attach),
            ("broken", &c.acts, usize::from(o.is_broken("kept-link") || o.is_broken("forgotten-byte"))),
            ("mmap", &s.maps, t.mmap),
            ("fork", &s.forks, t.fork + t.exec),
            ("exec", &s.exec_calls, t.exec),
            ("dlopen", &s.library[0], t.dlopen),
            ("signals", &s.handled, t.signals),
        ];
        parts.iter().filter(|p| p.1.load(Relaxed) == 0 && p.2 > 0).map(|p| p.0).collect()
    }

    /// The last line; the exit status.
    pub fn end(&self, verdict: Result<(), String>) -> i32 {
        let (c, o, idle) = (&self.counters, &self.options, self.idle());
        let good = verdict.is_ok() && self.errors() == 0 && idle.is_empty();
        println!(
            "{} backend={} broken={} seed={} {} idle={}{}",
            if good { "PASS" } else { "FAIL" },
            o.backend,
            o.broken.as_deref().unwrap_or("none"),
            o.seed,
            self.line(c.stay.load(Relaxed)),
            if idle.is_empty() { "none".to_string() } else { idle.join(",") },
            verdict.err().map(|why| format!(": {why}")).unwrap_or_default()
        );
        i32::from(!good)
    }
}

/// The functions' text, as the file has it; the target must have the same now.
fn texts(pid: i32) -> Result<Vec<Text>, String> {
    let mut found: Vec<Option<Text>> = (0..FUNCTIONS).map(|_| None).collect();
    let spec = image::Spec::parse("u::stress_fn_*").map_err(|e| e.to_string())?;
    let listed = session::list(Some(pid), &[spec]).map_err(|e| e.to_string())?;
    let process = image::Process::read(pid as u32).map_err(|e| e.to_string())?;
    let module = process.main_executable().ok_or("no program")?;
    let image: ElfImage = module.open(pid as u32).map_err(|e| e.to_string())?;
    for function in &listed {
        let number = function.name.strip_prefix("stress_fn_").and_then(|n| n.parse::<usize>().ok());
        let Some(slot) = number.and_then(|n| found.get_mut(n)) else { continue };
        let bytes = image.bytes(ImageAddr(function.addr), function.size_bytes as usize);
        let bytes = bytes.ok_or("a function without text")?.to_vec();
        let at = function.addr.wrapping_add(module.bias.0);
        *slot = Some(Text { at, bytes, begun: AtomicU64::new(0), ended: AtomicU64::new(0) });
    }
    let found: Option<Vec<Text>> = found.into_iter().collect();
    found.ok_or_else(|| "not all functions are in the program's symbols".into())
}
