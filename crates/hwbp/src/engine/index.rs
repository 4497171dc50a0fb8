//! Finding the breakpoints of a task: by walking all, or by the task.
//!
//! For:     the engines.
//! State:   the breakpoints that have a task.
//! Context: target. The list is used under a mutex; the table by itself.
//! Keeps:   X1 both count the same.
//! Checked: `tests/agree.rs`.

use super::Token;
use crate::{ALL_CPUS, Machine, Refused, Request};
use coll::{Fold, Options, RhlTable};

/// A breakpoint with a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) task: u64,
    pub(super) cpu: u32,
    pub(super) pool: u32,
}

impl Entry {
    pub(super) fn of(machine: &Machine, request: Request) -> Option<Entry> {
        let task = request.place.task()?;
        Some(Entry { task, cpu: request.place.cpu(), pool: machine.pool(request.kind) as u32 })
    }

    fn is_on(&self, cpu: u32, pool: u32) -> bool {
        self.pool == pool && (self.cpu == ALL_CPUS || self.cpu == cpu)
    }
}

pub(super) trait Index: Default + Send {
    fn insert(&mut self, entry: Entry) -> Result<Token, Refused>;
    fn remove(&mut self, token: Token);
    /// Gives, for each CPU, how many breakpoints of the task are on it.
    fn each_cpu(&self, task: u64, pool: u32, cpus: core::ops::Range<u32>, give: impl FnMut(u32, u32));
}

const END: u32 = u32::MAX;

struct Node {
    entry: Entry,
    before: u32,
    after: u32,
}

/// A doubly linked list of all breakpoints, walked once for each CPU, as Linux had it.
pub(super) struct List {
    nodes: Vec<Node>,
    free: Vec<u32>,
    first: u32,
}

impl Default for List {
    fn default() -> List {
        List { nodes: Vec::new(), free: Vec::new(), first: END }
    }
}

impl Index for List {
    fn insert(&mut self, entry: Entry) -> Result<Token, Refused> {
        let node = Node { entry, before: END, after: self.first };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        if self.first != END {
            self.nodes[self.first as usize].before = at;
        }
        self.first = at;
        Ok(Token::Listed(at))
    }

    fn remove(&mut self, token: Token) {
        let Token::Listed(at) = token else { return };
        let Node { before, after, .. } = self.nodes[at as usize];
        match before {
            END => self.first = after,
            before => self.nodes[before as usize].after = after,
        }
        if after != END {
            self.nodes[after as usize].before = before;
        }
        self.free.push(at);
    }

    fn each_cpu(&self, task: u64, pool: u32, cpus: core::ops::Range<u32>, mut give: impl FnMut(u32, u32)) {
        for cpu in cpus {
            let (mut at, mut count) = (self.first, 0);
            while at != END {
                let node = &self.nodes[at as usize];
                count += u32::from(node.entry.task == task && node.entry.is_on(cpu, pool));
                at = node.after;
            }
            give(cpu, count);
        }
    }
}

/// A table by task. One lookup serves all CPUs.
pub(super) struct Hash {
    table: RhlTable<u64, Entry, Fold>,
}

/// Buckets from the start, 32 KiB of them: with few, tasks of different threads share cache lines.
const BUCKETS: usize = 4096;

impl Default for Hash {
    fn default() -> Hash {
        let options = Options { initial_buckets: BUCKETS, ..Options::default() };
        match RhlTable::with_options(options, Fold::default()) {
            Ok(table) => Hash { table },
            Err(error) => panic!("{error}"),
        }
    }
}

impl Hash {
    pub(super) fn insert_shared(&self, entry: Entry) -> Result<Token, Refused> {
        let inserted = self.table.insert(entry.task, entry);
        inserted.map(Token::Hashed).map_err(|_| Refused::NoMemory)
    }

    pub(super) fn remove_shared(&self, token: Token) {
        if let Token::Hashed(handle) = token {
            let was_there = self.table.remove(handle);
            debug_assert!(was_there, "a token is given back once");
        }
    }

    /// Breakpoints of the task on this CPU; `None` for all CPUs if it depends on the CPU.
    #[inline]
    pub(super) fn count(&self, task: u64, pool: u32, cpu: u32) -> Option<u32> {
        let mut count = 0;
        for entry in self.table.read().get(&task).filter(|e| e.pool == pool) {
            match (entry.cpu, cpu) {
                (ALL_CPUS, _) => count += 1,
                (_, ALL_CPUS) => return None,
                (a, b) => count += u32::from(a == b),
            }
        }
        Some(count)
    }

    pub(super) fn each(
        &self,
        task: u64,
        pool: u32,
        cpus: core::ops::Range<u32>,
        mut give: impl FnMut(u32, u32),
    ) {
        let reader = self.table.read();
        let entries = reader.get(&task);
        for cpu in cpus {
            give(cpu, entries.clone().filter(|e| e.is_on(cpu, pool)).count() as u32);
        }
    }
}

impl Index for Hash {
    fn insert(&mut self, entry: Entry) -> Result<Token, Refused> {
        self.insert_shared(entry)
    }

    fn remove(&mut self, token: Token) {
        self.remove_shared(token);
    }

    fn each_cpu(&self, task: u64, pool: u32, cpus: core::ops::Range<u32>, give: impl FnMut(u32, u32)) {
        self.each(task, pool, cpus, give);
    }
}
