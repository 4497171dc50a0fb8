//! This process, as the registry's address space.
//!
//! For:     the registry, which places and removes breakpoints.
//! State:   the text; sites that were taken out and wait for their readers.
//! Context: target, under the registry's locks, with all signals blocked.
//! Keeps:   P1 the breakpoint is written after its site can be found, and gone before the site is.
//! Checked: `tests/engine.rs`.

use crate::engine::{lock, running};
use crate::site::{Site, prepare};
use coll::{Key, TreeNode};
use probe::{FileId, Insn, Space, SpaceError, SpaceId, UprobeRef};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use text::OwnText;

/// There is one.
pub(crate) const ID: SpaceId = 1;
const INT3: u8 = 0xcc;
const EFAULT: i32 = 14;
const ENOTSUPP: i32 = 524;

/// A site out of the tree; dropping frees it.
pub(crate) struct DeadSite(NonNull<TreeNode<Site>>);

// SAFETY: what is in a site may be dropped by any thread.
unsafe impl Send for DeadSite {}

impl Drop for DeadSite {
    fn drop(&mut self) {
        // SAFETY: made by `into_raw`, out of the tree, and the owner has waited for its readers.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

pub(crate) struct OwnSpace {
    text: Mutex<OwnText>,
    /// Held to change the tree of sites or the table of modules.
    pub writing: Mutex<()>,
    dead: Mutex<Vec<DeadSite>>,
}

impl OwnSpace {
    pub fn open() -> std::io::Result<OwnSpace> {
        Ok(OwnSpace { text: Mutex::new(OwnText::open()?), writing: Mutex::new(()), dead: Mutex::default() })
    }

    /// /proc/self/mem of the child of a fork leads to its parent until it is opened again.
    pub fn reopen(&self) -> bool {
        match OwnText::open() {
            Ok(text) => *lock(&self.text) = text,
            Err(_) => return false,
        }
        true
    }

    pub fn take_dead(&self) -> Vec<DeadSite> {
        std::mem::take(&mut lock(&self.dead))
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

    fn make_site(&self, at: u64, insn: &Insn) -> Result<Site, SpaceError> {
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
        })
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
        let byte = lock(&self.text).byte(at);
        byte.map(|byte| byte == INT3).map_err(|error| Self::failed(&error))
    }

    fn install(&self, at: u64, insn: &Insn) -> Result<(), SpaceError> {
        let Some(inner) = running() else { return Err(SpaceError(EFAULT)) };
        let _writing = lock(&self.writing);
        let site = self.make_site(at, insn)?;
        let first = site.first;
        let node = NonNull::from(Box::leak(Box::new(TreeNode::new(Key(at, 0), site))));
        // SAFETY: the only writer; the node is fresh and freed as a `DeadSite` alone.
        unsafe { inner.sites.insert(node) };
        let written = lock(&self.text).replace(at, first, INT3);
        if let Err(error) = written {
            // SAFETY: as above.
            unsafe { inner.sites.erase(node) };
            lock(&self.dead).push(DeadSite(node));
            return Err(Self::failed(&error));
        }
        Ok(())
    }

    fn remove(&self, at: u64, _: &Insn) -> Result<(), SpaceError> {
        let Some(inner) = running() else { return Err(SpaceError(EFAULT)) };
        let _writing = lock(&self.writing);
        // SAFETY: the only writer.
        let Some(node) = (unsafe { inner.sites.find(Key(at, 0)) }) else { return Ok(()) };
        lock(&self.text).replace(at, INT3, node.value.first).map_err(|error| Self::failed(&error))?;
        let node = NonNull::from(node);
        // SAFETY: the only writer; freed after a grace period, by `Engine::collect`.
        unsafe { inner.sites.erase(node) };
        lock(&self.dead).push(DeadSite(node));
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
