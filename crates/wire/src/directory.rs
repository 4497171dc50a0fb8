//! What is in an arena, and where.
//!
//! For:     the controller, which lays an arena out and reads it; whoever finds one that somebody else laid out.
//! State:   a value of its owner's; a copy of it stands in the arena's head and is believed by nobody who has the value.
//! Context: control. The target needs none of it.
//! Keeps:   D1 objects lie behind the head, inside the arena, in order, and do not overlap.
//!          D2 who has made a directory never reads it back: where something is cannot be changed by a target.
//! Checked: tests below; arena.rs's tests (a directory as part of a header).

use crate::ARENA_HEAD;

/// Objects that one arena can have.
pub const OBJECTS_MAX: usize = 32;

/// What an object is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`crate::SiteDesc`]s, one for each hook of the general path.
    Sites = 1,
    /// [`crate::ConsumerDesc`]s.
    Consumers = 2,
    /// The table of open calls, a `map::Frames`.
    Calls = 3,
    /// Rings of [`crate::Event`]s, a `map::Ring` for each CPU.
    Rings = 4,
    /// Cells: `map::Copies` of all of them.
    Counts = 5,
    /// [`crate::ProgramDesc`]s: of each program one for each region.
    Programs = 6,
    /// [`crate::Workspace`]s, each with its scratch memory, for each CPU in a row.
    Workspaces = 7,
    /// The maps of programs, as their maker has laid them out.
    Maps = 8,
    /// A [`crate::WalkDesc`], working memory and unwind tables.
    Walks = 9,
    /// Stacks that were seen, a `map::Stacks`.
    Stacks = 10,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Sites,
        Kind::Consumers,
        Kind::Calls,
        Kind::Rings,
        Kind::Counts,
        Kind::Programs,
        Kind::Workspaces,
        Kind::Maps,
        Kind::Walks,
        Kind::Stacks,
    ];
}

/// One object: `len` bytes at `offset`, in parts of `each`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// A [`Kind`].
    pub kind: u32,
    /// How often the place was given to another object.
    pub generation: u32,
    /// From the arena's start, in bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// Bytes of a part; `len` is a multiple of it.
    pub each: u64,
}

impl Entry {
    /// How many parts.
    pub fn count(&self) -> u64 {
        self.len.checked_div(self.each).unwrap_or(0)
    }

    /// The offset of a part from the arena's start; `None` if there is none of that number.
    pub fn part(&self, number: usize) -> Option<usize> {
        let number = number as u64;
        (number < self.count()).then(|| (self.offset + number * self.each) as usize)
    }

    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    fn is_sound(&self) -> bool {
        Kind::ALL.iter().any(|kind| *kind as u32 == self.kind)
            && self.offset.is_multiple_of(64)
            && self.each > 0
            && self.len.is_multiple_of(self.each)
    }
}

/// The objects of one arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    entries: [Entry; OBJECTS_MAX],
    len: usize,
}

impl Directory {
    /// Of an arena in which there is nothing yet.
    pub fn new() -> Directory {
        Directory::default()
    }

    /// Places `count` parts of `each` bytes behind all that is there, at a multiple of `align`.
    ///
    /// # Panics
    /// With more than [`OBJECTS_MAX`] objects.
    pub fn place(&mut self, kind: Kind, each: usize, count: usize, align: usize) -> Entry {
        let offset = (self.end() as usize).next_multiple_of(align);
        let (len, each) = ((each * count) as u64, each as u64);
        let entry = Entry { kind: kind as u32, generation: 0, offset: offset as u64, len, each };
        self.entries[self.len] = entry;
        self.len += 1;
        entry
    }

    /// The directory that these entries are, for an arena of `len` bytes; `None` if they contradict each other.
    pub fn parse(found: &[Entry], len: u64) -> Option<Directory> {
        let mut directory = Directory::new();
        let mut end = ARENA_HEAD as u64;
        for (to, entry) in directory.entries.get_mut(..found.len())?.iter_mut().zip(found) {
            if !entry.is_sound() || entry.offset < end {
                return None;
            }
            end = entry.end().filter(|end| *end <= len)?;
            *to = *entry;
        }
        directory.len = found.len();
        Some(directory)
    }

    /// The objects, by offset.
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// The first object of this kind.
    pub fn find(&self, kind: Kind) -> Option<Entry> {
        self.entries().iter().find(|entry| entry.kind == kind as u32).copied()
    }

    /// Where the last object ends: the bytes of the arena.
    pub fn end(&self) -> u64 {
        self.entries().last().and_then(Entry::end).unwrap_or(ARENA_HEAD as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out() -> Directory {
        let mut directory = Directory::new();
        directory.place(Kind::Sites, 64, 3, 64);
        directory.place(Kind::Consumers, 64, 5, 64);
        directory.place(Kind::Counts, 4096, 4, 4096);
        directory
    }

    #[test]
    fn objects_lie_one_behind_the_other_and_are_read_back() {
        let directory = laid_out();
        let places: [(u64, u64); 3] =
            core::array::from_fn(|i| (directory.entries()[i].offset, directory.entries()[i].count()));
        assert_eq!(places, [(12288, 3), (12480, 5), (16384, 4)]);
        assert_eq!(directory.end(), 32768);
        assert_eq!(Directory::parse(directory.entries(), 32768), Some(directory));
        let counts = directory.find(Kind::Counts).unwrap();
        assert_eq!((counts.part(3), counts.part(4)), (Some(16384 + 3 * 4096), None));
        assert_eq!(directory.find(Kind::Rings), None);
    }

    #[test]
    fn objects_that_cannot_be_are_no_directory() {
        let directory = laid_out();
        let good = directory.entries();
        assert!(Directory::parse(good, 32767).is_none(), "beyond the end");
        let wrong = [
            Entry { kind: 0, ..good[1] },
            Entry { kind: 77, ..good[1] },
            Entry { offset: 12416, ..good[1] },
            Entry { offset: 12481, ..good[1] },
            Entry { offset: !63, ..good[1] },
            Entry { each: 0, ..good[1] },
            Entry { len: 63, ..good[1] },
            Entry { len: u64::MAX, each: 1, ..good[1] },
            Entry { len: 8192, each: 64, ..good[1] },
        ];
        for entry in wrong {
            assert!(Directory::parse(&[good[0], entry, good[2]], 32768).is_none(), "{entry:?}");
        }
        assert!(Directory::parse(&[good[0]; OBJECTS_MAX + 1], 32768).is_none(), "too many");
    }
}
