//! Forked children that have our jumps and our mappings in their copy of the memory.
//!
//! For:     leaving all of them, not only the process that we attached to.
//! State:   none.
//! Context: control.
//! Keeps:   H1 the search ends when a look at all processes finds none that was not freed: a child may fork while we
//!             are on our way to it. Who has been caught stands still until those that it forked are caught as well.
//!          H2 who could not be freed is named in the receipt, and so is a search that failed.
//!          H3 it ends after `PATIENCE`, whatever they do.
//!          H4 a process that we are starting is none: until it executes its program it runs in our memory, arenas and
//!             all, or in a copy of it, which has no arenas ([`SharedMapping::keep_from_children`]).
//! Checked: testkit `endings`; session's `a_process_that_we_are_starting_is_no_child_of_the_target`.

use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::find::process;
use crate::hold::world::World;
use crate::leave::leaving::Leaving;
use crate::leave::receipt::{Receipt, Residue};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

/// How long we go after children of children before we say that they fork faster than we can free them.
const PATIENCE: Duration = Duration::from_secs(20);
/// So many are held at a time.
const HELD_MAX: usize = 64;

/// Frees all processes that map the arena with this inode, but for those that share the parent's memory.
pub(crate) fn free(parent: &Leaving<'_>, inode: u64, receipt: &mut Receipt) {
    let mut hunt = Hunt {
        parent,
        inode,
        end: Instant::now() + PATIENCE,
        clean: BTreeSet::new(),
        not_freed: BTreeMap::new(),
    };
    let outcome = hunt.run(receipt);
    hunt.not_freed.retain(|pid, _| !process::is_ending(*pid));
    receipt.residues.extend(hunt.not_freed.into_iter().map(|(pid, why)| Residue::Child { pid, why }));
    if let Err(broken) = outcome {
        receipt.residues.push(Residue::Unsearched { why: broken.to_string() });
    }
}

struct Hunt<'a> {
    parent: &'a Leaving<'a>,
    inode: u64,
    end: Instant,
    /// Seen to have none of our memory; a number may be given anew, so that the last look is at these too.
    clean: BTreeSet<i32>,
    not_freed: BTreeMap<i32, String>,
}

impl Hunt<'_> {
    fn run(&mut self, receipt: &mut Receipt) -> Result<(), Broken> {
        loop {
            let is_whole = self.clean.is_empty();
            let found = self.look()?;
            if found.is_empty() && is_whole {
                return Ok(());
            }
            if Instant::now() > self.end {
                let late = |pid| (pid, "children were forked faster than they could be freed".to_owned());
                self.not_freed.extend(found.into_iter().map(late));
                return Ok(());
            }
            if found.is_empty() {
                self.clean.clear();
            }
            for pid in found {
                for world in self.catch(pid) {
                    self.leave(world, receipt);
                }
            }
        }
    }

    /// Processes with our memory, the youngest first.
    fn look(&mut self) -> Result<Vec<i32>, Broken> {
        let mut pids = process::all()?;
        pids.sort_unstable_by(|a, b| b.cmp(a));
        let ours = sys::getpid().cast_signed();
        let mut found = Vec::new();
        for pid in pids {
            let is_known = self.clean.contains(&pid) || self.not_freed.contains_key(&pid);
            if is_known || pid == ours || pid == self.parent.memory.pid {
                continue;
            }
            if self.is_heir(pid)? {
                found.push(pid);
            } else {
                self.clean.insert(pid);
            }
        }
        Ok(found)
    }

    /// Whether a process maps the arena in a memory of its own.
    fn is_heir(&mut self, pid: i32) -> Result<bool, Broken> {
        let parent = self.parent.memory.pid;
        let ours = sys::getpid().cast_signed();
        let runs_in = |other| process::share_memory(process::living(other), process::living(pid));
        match maps(pid) {
            Ok(maps) => Ok(is_mapped(&maps, self.inode) && !runs_in(parent) && !runs_in(ours)),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                if descends_from(pid, parent) {
                    self.not_freed.insert(pid, "we may not look into it".into());
                }
                Ok(false)
            }
            Err(_) if process::is_over(pid) => Ok(false),
            Err(e) => Err(Broken::unreadable(format!("/proc/{pid}/maps"), &e)),
        }
    }

    /// Stops a child, and those that it has forked meanwhile, and so on.
    fn catch(&mut self, first: i32) -> Vec<World> {
        let mut line: Vec<World> = Vec::new();
        let mut next = vec![first];
        while let Some(pid) = next.pop() {
            if line.len() >= HELD_MAX || line.iter().any(|world| world.pid == pid) {
                continue;
            }
            let left = self.end.saturating_duration_since(Instant::now());
            match World::stop_to_leave(pid, left) {
                // It has executed a program since it was found.
                Ok(_) if self.is_heir(pid).is_ok_and(|is_heir| !is_heir) => drop(self.clean.insert(pid)),
                Ok(world) => {
                    line.push(world);
                    let children = process::children(pid).into_iter();
                    next.extend(children.filter(|child| self.is_heir(*child).unwrap_or(false)));
                }
                Err(_) if process::is_over(pid) => {}
                Err(broken) => drop(self.not_freed.insert(pid, broken.to_string())),
            }
        }
        line
    }

    /// Frees one that stands.
    fn leave(&mut self, world: World, receipt: &mut Receipt) {
        let pid = world.pid;
        let mut own = Receipt::default();
        let left = Memory::open(pid).and_then(|memory| {
            let leaving = Leaving { memory: &memory, ..*self.parent };
            leaving.leave(Some(world), &mut own)
        });
        receipt.longest_stall = receipt.longest_stall.max(own.longest_stall);
        let is_verified = own.is_verified();
        let is_raised = own.residues.iter().any(|r| matches!(r, Residue::Raised { .. }));
        let why = if is_raised {
            "the count of a mark is one too high"
        } else {
            "its code differs from the file's"
        };
        receipt.children += usize::from(left.is_ok() && is_verified);
        // Foreign sites are the parent's too, and named there.
        receipt.residues.extend(own.residues.into_iter().filter(|r| matches!(r, Residue::Held { .. })));
        match left {
            // What is held was said; it is not gone after again.
            Ok(()) if is_verified => drop(self.clean.insert(pid)),
            Ok(()) => drop(self.not_freed.insert(pid, why.into())),
            Err(_) if process::is_over(pid) => {}
            // It has executed a program meanwhile.
            Err(Broken::Replaced { .. }) => drop(self.clean.insert(pid)),
            Err(broken) => drop(self.not_freed.insert(pid, broken.to_string())),
        }
    }
}

/// By a thread that has not ended.
fn maps(pid: i32) -> std::io::Result<Vec<u8>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    match process::living(pid) {
        living if maps.is_empty() && living != pid => fs::read(format!("/proc/{living}/maps")),
        _ => Ok(maps),
    }
}

fn is_mapped(maps: &[u8], inode: u64) -> bool {
    let marker = format!("/memfd:{} (deleted)", wire::ARENA_NAME);
    let inode = format!(" {inode} ");
    let is_part = |line: &[u8], part: &[u8]| line.windows(part.len()).any(|w| w == part);
    maps.split(|b| *b == b'\n').any(|l| l.ends_with(marker.as_bytes()) && is_part(l, inode.as_bytes()))
}

fn descends_from(pid: i32, ancestor: i32) -> bool {
    const DEEPEST: usize = 64;
    let parents = std::iter::successors(Some(pid), |pid| process::parent(*pid).filter(|p| *p > 1));
    parents.take(DEEPEST).skip(1).any(|p| p == ancestor)
}

#[cfg(test)]
mod tests {
    use super::is_mapped;

    #[test]
    fn an_arena_is_known_by_its_inode_among_lines_of_any_bytes() {
        let maps = b"1000-2000 r-xp 0 08:01 7 /tmp/\xff\xfe\n3000-4000 rw-s 00000000 00:01 99   /memfd:nanoprobe (deleted)\n";
        assert!(is_mapped(maps, 99) && !is_mapped(maps, 9) && !is_mapped(b"", 99));
    }
}
