//! Maps that the programs of several processes have together.
//!
//! For:     a script on a family of processes: whoever attaches to each of them.
//! State:   a file without a name, ours, which we map for good and each of the processes maps too; whose rights the first had.
//! Context: control.
//! Keeps:   F1 its length is sealed before anybody maps it: reading it cannot fault, whatever a process does.
//!          F2 who writes there can do to the others what he could do by tracing them: only processes of the same rights come in.
//! Checked: testkit `together`.

use crate::facts::error::Broken;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use sys::Errno;
use sys::mapping::SharedMapping;
use wire::Untrusted;

const PAGE: usize = 4096;

/// Maps for all processes that are attached to with them.
#[derive(Clone, Debug)]
pub struct FamilyMaps(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    map: Arc<SharedMapping>,
    /// How many were attached to.
    members: AtomicU64,
    /// The first that was, and its rights.
    first: OnceLock<(i32, String)>,
}

impl FamilyMaps {
    /// Memory with these bytes, [`map::Maps::image`], in it.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new(image: &[u8]) -> Result<FamilyMaps, Broken> {
        let call = |what| move |errno: Errno| Broken::Call { what, errno };
        let fd = sys::memfd(wire::FAMILY_NAME, 0).map_err(call("memfd_create for the maps"))?;
        // SAFETY: opened just now, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let len = image.len().next_multiple_of(PAGE).max(PAGE);
        sys::seal_length(file.as_raw_fd(), len).map_err(call("sealing the maps"))?;
        let map = SharedMapping::of_file(file.as_raw_fd(), len).map_err(call("mmap of the maps"))?;
        let maps = FamilyMaps(Arc::new(Inner {
            file,
            map: Arc::new(map),
            members: AtomicU64::new(0),
            first: OnceLock::new(),
        }));
        let ground = maps.ground();
        let memory = map::Ground::memory(&ground);
        for (at, chunk) in (0..).step_by(8).zip(image.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // Zeros are there already. Nobody else has it yet: who maps it later is stopped meanwhile.
            if let Some(to) = memory.word(at).filter(|_| word != [0; 8]) {
                to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            }
        }
        Ok(maps)
    }

    /// The memory, for whoever uses the maps from outside.
    pub fn ground(&self) -> MapsGround {
        MapsGround { map: Arc::clone(&self.0.map), at: 0, len: self.len() }
    }

    /// Its bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        self.0.map.len_bytes()
    }

    /// The file.
    pub(crate) fn descriptor(&self) -> i32 {
        self.0.file.as_raw_fd()
    }

    /// Lets a process with these rights in, or says whose are others (F2).
    pub(crate) fn admit(&self, pid: i32, rights: String) -> Result<(), i32> {
        let (first, known) = self.0.first.get_or_init(|| (pid, rights.clone()));
        if *known == rights { Ok(()) } else { Err(*first) }
    }

    /// The next one's number: 1, 2 and so on.
    pub(crate) fn number(&self) -> u64 {
        // Orders nothing: each number is given out once.
        self.0.members.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The memory of a session's maps.
#[derive(Debug)]
pub struct MapsGround {
    pub(crate) map: Arc<SharedMapping>,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl map::Ground for MapsGround {
    fn memory(&self) -> Untrusted<'_> {
        let base = NonNull::new(self.map.base().wrapping_add(self.at)).unwrap_or(NonNull::dangling());
        // SAFETY: a place in the mapping, which is there as long as `self.map` lives (M1), page aligned, of a file whose length is
        // sealed (F1; `Arena::create`), and used as atomics alone by all of this crate.
        unsafe { Untrusted::new(base, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use map::Ground;

    #[test]
    fn the_maps_are_there_and_who_has_other_rights_stays_out() {
        let maps = FamilyMaps::new(&[7; 4100]).unwrap();
        let ground = maps.ground();
        let memory = ground.memory();
        assert_eq!((maps.len(), memory.len_bytes()), (8192, 8192));
        assert_eq!((memory.load(4088), memory.load(4096)), (Some(0x0707_0707_0707_0707), Some(0x0707_0707)));
        assert_eq!(maps.admit(5, "a".into()), Ok(()));
        assert_eq!(maps.clone().admit(6, "a".into()), Ok(()));
        assert_eq!(maps.admit(7, "b".into()), Err(5));
        assert_eq!((maps.number(), maps.number()), (1, 2));
    }
}
