//! This process, as the registry's address space.
//!
//! For:     the registry, which places and removes breakpoints.
//! State:   the text; sites that were taken out and wait for their readers.
//! Context: target, under the registry's locks, with all signals blocked.
//! Keeps:   P1 the breakpoint is written after its site can be found, and gone before the site is.
//! Checked: `tests/engine.rs`.

use crate::engine::{Config, Inner, lock, running};
use crate::jump::{Jump, NoJump, Planner};
use crate::poke::{self, INT3};
use crate::site::{Site, prepare};
use coll::{Key, TreeNode};
use probe::{FileId, Insn, Space, SpaceError, SpaceId, UprobeRef};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::Release};
use text::OwnText;

/// There is one.
pub(crate) const ID: SpaceId = 1;
const EFAULT: i32 = 14;
const ENOTSUPP: i32 = 524;

/// Out of a tree; dropping frees it.
pub(crate) struct Dead<T>(NonNull<TreeNode<T>>);

// SAFETY: what is in a node may be dropped by any thread.
unsafe impl<T: Send> Send for Dead<T> {}

impl<T> Drop for Dead<T> {
    fn drop(&mut self) {
        // SAFETY: made by `into_raw`, out of the tree, and the owner has waited for its readers.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// What waits for a grace period.
#[derive(Default)]
pub(crate) struct Remains {
    sites: Vec<Dead<Site>>,
    inside: Vec<Dead<u64>>,
}

impl Remains {
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.inside.is_empty()
    }
}

/// The addresses that probes use: start, end, and the jump if it is one.
#[derive(Default)]
pub(crate) struct Standing(BTreeMap<u64, (u64, Option<&'static Jump>)>);

impl Standing {
    /// The probe that uses a byte of a range.
    fn in_range(&self, range: &Range<u64>) -> Option<(u64, Option<&'static Jump>)> {
        let (at, (end, jump)) = self.0.range(..range.end).next_back()?;
        (*end > range.start).then_some((*at, *jump))
    }
}

pub(crate) struct OwnSpace {
    text: Mutex<OwnText>,
    /// Held to change a tree, the table of modules, or the text.
    pub writing: Mutex<Standing>,
    planner: Mutex<Planner>,
    dead: Mutex<Remains>,
}

impl OwnSpace {
    pub fn open() -> std::io::Result<OwnSpace> {
        Ok(OwnSpace {
            text: Mutex::new(OwnText::open()?),
            writing: Mutex::default(),
            planner: Mutex::default(),
            dead: Mutex::default(),
        })
    }

    /// /proc/self/mem of the child of a fork leads to its parent until it is opened again.
    pub fn reopen(&self) -> bool {
        match OwnText::open() {
            Ok(text) => *lock(&self.text) = text,
            Err(_) => return false,
        }
        true
    }

    pub fn take_dead(&self) -> Remains {
        std::mem::take(&mut lock(&self.dead))
    }

    /// Reads what a plan for a probe at `at` needs, so that it is known when signals are blocked.
    pub fn read_ground(&self, at: u64, config: &Config) {
        if config.jumps {
            lock(&self.planner).read_ground(at);
        }
    }

    /// The uprobes of sites that all consumers want gone.
    pub fn unwanted(&self) -> Vec<UprobeRef> {
        let Some(inner) = running() else { return Vec::new() };
        let _writing = lock(&self.writing);
        let (mut from, mut found) = (Key(0, 0), Vec::new());
        // SAFETY: `writing` keeps writers out.
        while let Some(node) = unsafe { inner.sites.at_or_after(from) } {
            from = Key(node.key().0 + 1, 0);
            if node.value.is_unwanted.swap(false, Relaxed) {
                let (file, offset) = node.value.uprobe.place();
                found.extend(inner.registry.find(file, offset));
            }
        }
        found
    }

    /// What the file has, in the place of our breakpoints and jumps, in bytes read at `at`.
    pub fn without_probes(&self, at: u64, bytes: &mut [u8]) {
        let Some(inner) = running() else { return };
        let standing = lock(&self.writing);
        let range = at..at + bytes.len() as u64;
        let mut put = |from: u64, original: &[u8]| {
            for (i, byte) in original.iter().enumerate() {
                let here = (from + i as u64).checked_sub(at).and_then(|i| bytes.get_mut(i as usize));
                here.into_iter().for_each(|here| *here = *byte);
            }
        };
        let first = standing.in_range(&(at..at + 1)).map_or(at, |(first, _)| first);
        for (site, (_, jump)) in standing.0.range(first..range.end) {
            // SAFETY: `writing` keeps writers out.
            match (jump, unsafe { inner.sites.find(Key(*site, 0)) }) {
                (Some(jump), _) => put(*site, &jump.original),
                (None, Some(node)) => put(*site, &[node.value.first]),
                _ => {}
            }
        }
    }

    fn make_site(
        &self,
        at: u64,
        insn: &Insn,
        gate: Result<&'static Jump, NoJump>,
    ) -> Result<Site, SpaceError> {
        let inner = running().ok_or(SpaceError(EFAULT))?;
        let bytes = &insn.bytes[..usize::from(insn.len)];
        let (emulation, code) = prepare(bytes, at).map_err(|why| SpaceError(why.errno()))?;
        let area = inner.area_for(at, code.as_ref()).map_err(|_| SpaceError(ENOTSUPP))?;
        let module = crate::module::of(at).ok_or(SpaceError(EFAULT))?;
        let uprobe = inner.registry.find(module.file, module.offset_of(at)).ok_or(SpaceError(EFAULT))?;
        let config = *lock(&inner.config);
        Ok(Site {
            emulation: if config.always_slot && code.is_some() { None } else { emulation },
            code,
            area,
            binding: text::xol::Binding::new(),
            lookup: config.lookup,
            uprobe,
            first: insn.bytes[0],
            is_unwanted: AtomicBool::new(false),
            gate: gate.as_ref().ok().copied(),
            is_jump: AtomicBool::new(gate.is_ok()),
            no_jump: Mutex::new(gate.err()),
        })
    }

    /// The jump for a site, ready to be written.
    fn plan(&self, at: u64, standing: &Standing) -> Result<&'static Jump, NoJump> {
        let inner = running().ok_or(NoJump::NotAsked)?;
        let config = *lock(&inner.config);
        let is_taken = |range: Range<u64>| standing.in_range(&range).is_some();
        lock(&self.planner).plan(at, &config, &inner.blocks, &lock(&self.text), &is_taken)
    }

    /// Writes a jump. False: it could not be, and what stands there is the file's or int3 of ours.
    fn arm(&self, inner: &Inner, jump: &'static Jump) -> bool {
        for (at, copy) in jump.inside() {
            let node = NonNull::from(Box::leak(Box::new(TreeNode::new(Key(at, 0), copy))));
            // SAFETY: the only writer; the node is fresh and freed as one of the dead alone.
            if !unsafe { inner.inside.insert(node) } {
                lock(&self.dead).inside.push(Dead(node));
            }
        }
        poke::arm(&lock(&self.text), jump).is_ok()
    }

    /// Takes a jump away; the site's first byte becomes `first`.
    fn disarm(&self, inner: &Inner, jump: &Jump, first: u8) -> std::io::Result<()> {
        poke::disarm(&lock(&self.text), jump, first)?;
        for (at, _) in jump.inside() {
            // SAFETY: the only writer.
            let Some(node) = (unsafe { inner.inside.find(Key(at, 0)) }) else { continue };
            let node = NonNull::from(node);
            // SAFETY: the only writer; freed after a grace period, by `Engine::collect`.
            unsafe { inner.inside.erase(node) };
            lock(&self.dead).inside.push(Dead(node));
        }
        Ok(())
    }

    /// Makes a jump a breakpoint: another probe was asked for in what it displaces.
    fn lower(
        &self,
        inner: &Inner,
        standing: &mut Standing,
        at: u64,
        jump: &Jump,
        why: NoJump,
    ) -> std::io::Result<()> {
        self.disarm(inner, jump, INT3)?;
        // SAFETY: `writing` makes us the only writer.
        if let Some(node) = unsafe { inner.sites.find(Key(at, 0)) } {
            node.value.is_jump.store(false, Relaxed);
            *lock(&node.value.no_jump) = Some(why);
        }
        standing.0.insert(at, (at + 1, None));
        Ok(())
    }

    fn failed(error: &std::io::Error) -> SpaceError {
        SpaceError(error.raw_os_error().unwrap_or(EFAULT))
    }
}

impl Space for OwnSpace {
    fn id(&self) -> SpaceId {
        ID
    }

    fn addresses(&self, file: FileId, offset: u64, _: bool) -> Vec<u64> {
        let all = crate::module::all().unwrap_or_default();
        let here = all.iter().filter(|module| module.file == file && module.is_private && module.is_text);
        here.filter_map(|module| module.addr_of(offset)).collect()
    }

    fn has_breakpoint(&self, at: u64) -> Result<bool, SpaceError> {
        let standing = lock(&self.writing);
        if let Some((site, jump)) = standing.in_range(&(at..at + 1)) {
            // An int3 under a jump is none of a probe's.
            return Ok(site == at || jump.is_none());
        }
        let byte = lock(&self.text).byte(at);
        byte.map(|byte| byte == INT3).map_err(|error| Self::failed(&error))
    }

    fn install(&self, at: u64, insn: &Insn) -> Result<(), SpaceError> {
        let Some(inner) = running() else { return Err(SpaceError(EFAULT)) };
        let mut standing = lock(&self.writing);
        if let Some((other, Some(jump))) = standing.in_range(&(at..at + 1)) {
            let lowered = self.lower(inner, &mut standing, other, jump, NoJump::Shared);
            lowered.map_err(|error| Self::failed(&error))?;
        }
        let gate = self.plan(at, &standing);
        let site = self.make_site(at, insn, gate)?;
        let (first, gate) = (site.first, site.gate);
        let node = NonNull::from(Box::leak(Box::new(TreeNode::new(Key(at, 0), site))));
        // SAFETY: the only writer; the node is fresh and freed as one of the dead alone.
        unsafe { inner.sites.insert(node) };
        if let Some(jump) = gate {
            // [TRAP-17] Orders the site before the pointer to it. Pairs with [TRAP-16].
            jump.site.store(node.as_ptr(), Release);
            standing.0.insert(at, (jump.range().end, gate));
            if self.arm(inner, jump) || self.lower(inner, &mut standing, at, jump, NoJump::NotWritten).is_ok()
            {
                return Ok(());
            }
            jump.site.store(std::ptr::null_mut(), Relaxed);
        }
        let written = lock(&self.text).replace(at, first, INT3);
        if let Err(error) = written {
            standing.0.remove(&at);
            // SAFETY: as above.
            unsafe { inner.sites.erase(node) };
            lock(&self.dead).sites.push(Dead(node));
            return Err(Self::failed(&error));
        }
        standing.0.insert(at, (at + 1, None));
        Ok(())
    }

    fn remove(&self, at: u64, _: &Insn) -> Result<(), SpaceError> {
        let Some(inner) = running() else { return Err(SpaceError(EFAULT)) };
        let mut standing = lock(&self.writing);
        // SAFETY: the only writer.
        let Some(node) = (unsafe { inner.sites.find(Key(at, 0)) }) else { return Ok(()) };
        let first = node.value.first;
        let gone = match node.value.jump() {
            Some(jump) => self.disarm(inner, jump, first),
            None => lock(&self.text).replace(at, INT3, first),
        };
        gone.map_err(|error| Self::failed(&error))?;
        standing.0.remove(&at);
        if let Some(jump) = node.value.gate {
            jump.site.store(std::ptr::null_mut(), Relaxed);
        }
        let node = NonNull::from(node);
        // SAFETY: the only writer; freed after a grace period, by `Engine::collect`.
        unsafe { inner.sites.erase(node) };
        lock(&self.dead).sites.push(Dead(node));
        Ok(())
    }

    fn change_ref_ctr(
        &self,
        _: FileId,
        _: u64,
        _: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<bool, SpaceError> {
        Ok(false)
    }
}
