//! Tables of any shape, and programs that are run once: what scripts need of bpf(2).
//!
//! For:     programs of scripts that the kernel runs.
//! State:   none; the caller owns the descriptors.
//! Context: control.
//! Keeps:   T1 a buffer that the kernel writes to is as long as the table's keys or values: it is taken from the same [`Shape`].
//! Checked: tests below; testkit `backends`.

use super::{LookupAttr, MAP_GET_NEXT_KEY, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MapAttr, TestRunAttr, test_run};
use crate::{Errno, check, nr, syscall};

const MAP_DELETE_ELEM: usize = 3;
const BTF_LOAD: usize = 18;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const MAY_WAIT: u32 = 1 << 4;
/// Memory for elements is taken when they are made.
const NO_PREALLOC: u32 = 1;

/// How a table keeps its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// By key.
    Hash = 1,
    /// By number.
    Array = 2,
    /// By key; those that were not used lately go first.
    LruHash = 9,
}

/// What a table is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How.
    pub keeping: Keeping,
    /// Bytes of a key; of an array 4.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// The most elements.
    pub entries: u32,
    /// Memory for elements is taken when they are made.
    pub is_lazy: bool,
}

#[repr(C)]
struct TypesAttr {
    table: u64,
    log: u64,
    bytes: u32,
    log_bytes: u32,
}

/// A table of the kernel's.
#[derive(Debug)]
pub struct Table {
    fd: i32,
    shape: Shape,
}

impl Table {
    /// Makes one. It ends with its last descriptor, which is the caller's.
    ///
    /// # Errors
    /// `EPERM` not allowed (it takes CAP_BPF), `E2BIG`, `EINVAL` or `ENOMEM` too large.
    pub fn create(shape: Shape) -> Result<Table, Errno> {
        let attr = MapAttr {
            kind: shape.keeping as u32,
            key_bytes: shape.key,
            value_bytes: shape.value,
            entries: shape.entries,
            flags: if shape.is_lazy { NO_PREALLOC } else { 0 },
        };
        Ok(Table { fd: super::create(attr)?, shape })
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// What it was made as.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Copies the value of a key.
    ///
    /// # Errors
    /// `ENOENT` there is none, `EINVAL` key or value have another length.
    pub fn value(&self, key: &[u8], value: &mut [u8]) -> Result<(), Errno> {
        if value.len() != self.shape.value as usize {
            return Err(Errno::EINVAL);
        }
        self.call(MAP_LOOKUP_ELEM, key, value.as_mut_ptr() as u64)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `E2BIG` the table is full, `ENOMEM`, `EINVAL` the key or the value has another length.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.shape.value as usize {
            return Err(Errno::EINVAL);
        }
        self.call(MAP_UPDATE_ELEM, key, value.as_ptr() as u64)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// `ENOENT` there is none, `EINVAL` the key has another length.
    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        self.call(MAP_DELETE_ELEM, key, 0)
    }

    /// Copies the key behind this one, or the first; false if there is none.
    pub fn next(&self, key: Option<&[u8]>, next: &mut [u8]) -> bool {
        let is_key = |len: usize| len == self.shape.key as usize;
        if !is_key(next.len()) || !key.is_none_or(|key| is_key(key.len())) {
            return false;
        }
        let attr = LookupAttr {
            map: self.fd as u32,
            reserved: 0,
            key: key.map_or(0, |key| key.as_ptr() as u64),
            value: next.as_mut_ptr() as u64,
            flags: 0,
        };
        let args = [MAP_GET_NEXT_KEY, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0];
        // SAFETY: the kernel reads `attr` and a key and writes one to `next`, both as long as keys are (T1); all are borrowed
        // for the call.
        check(unsafe { syscall(nr::BPF, args) }).is_ok()
    }

    fn call(&self, command: usize, key: &[u8], value: u64) -> Result<(), Errno> {
        if key.len() != self.shape.key as usize {
            return Err(Errno::EINVAL);
        }
        let attr = LookupAttr { map: self.fd as u32, reserved: 0, key: key.as_ptr() as u64, value, flags: 0 };
        let args = [command, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0];
        // SAFETY: the kernel reads `attr` and the key, and reads or writes one value, which is as long as values are (T1, the
        // callers); all are borrowed for the call.
        check(unsafe { syscall(nr::BPF, args) }).map(drop)
    }
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At places of files: for [`link_uprobes`](super::link_uprobes). It may wait, for memory that is not there.
    AtHits,
    /// When [`run_once`] says.
    Once,
}

/// A program with functions that others are given the addresses of.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Its instructions.
    pub words: &'a [u64],
    /// Where each function begins; the first is the program.
    pub functions: &'a [[u32; 2]],
    /// Descriptor of [`function_types`], whose number [`FUNCTION`] stands beside each place.
    pub types: i32,
}

/// The type of a function, in [`function_types`].
pub const FUNCTION: u32 = 3;

/// A descriptor of a table of types with one function of the program's own.
///
/// # Errors
/// `EPERM` not allowed.
pub fn function_types() -> Result<i32, Errno> {
    const NAMES: [u8; 8] = *b"\0int\0f\0\0";
    // A number of 32 bits; what gives one; a function of that kind, which no other program sees.
    const TYPES: [u32; 10] = [1, 1 << 24, 4, 1 << 24 | 32, 0, 13 << 24, 1, 5, 12 << 24, 2];
    const HEAD: usize = 24;
    let mut table = [0u8; HEAD + size_of::<[u32; 10]>() + NAMES.len()];
    let len = size_of::<[u32; 10]>() as u32;
    let head = [0x0001_eb9f, HEAD as u32, 0, len, len, NAMES.len() as u32];
    let words = head.into_iter().chain(TYPES);
    let (to, names) = table.split_at_mut(HEAD + len as usize);
    to.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
    names.copy_from_slice(&NAMES);
    let attr = TypesAttr { table: table.as_ptr() as u64, log: 0, bytes: table.len() as u32, log_bytes: 0 };
    // SAFETY: the kernel reads `attr` and the table, borrowed for the call with their lengths.
    let fd = unsafe { syscall(nr::BPF, [BTF_LOAD, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(fd).map(|fd| fd as i32)
}

/// A descriptor of a program; GPL-compatible. What the verifier says is left in `log`.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF and CAP_PERFMON), `EACCES` or `EINVAL` the verifier refuses it, `ENOSPC` the log is too
/// short.
pub fn load(when: When, code: &Code<'_>, log: &mut [u8]) -> Result<i32, Errno> {
    let (kind, attach, flags) = match when {
        When::AtHits => (super::PROG_TYPE_KPROBE, super::TRACE_UPROBE_MULTI, MAY_WAIT),
        When::Once => (PROG_TYPE_RAW_TRACEPOINT, 0, 0),
    };
    super::load_functions(kind, code.words, attach, (code.types, code.functions), flags, log)
}

/// Runs such a program once, in this thread, and gives its result.
///
/// # Errors
/// `EPERM` not allowed, `ENOTSUPP` not in this kernel.
pub fn run_once(program: i32) -> Result<u32, Errno> {
    // SAFETY: it leads to nothing.
    unsafe { test_run(TestRunAttr { program: program as u32, ..TestRunAttr::default() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_what_it_is_given_and_refuses_other_lengths() {
        let shape = Shape { keeping: Keeping::Hash, key: 3, value: 5, entries: 2, is_lazy: false };
        let table = match Table::create(shape) {
            Ok(table) => table,
            Err(why) => return assert!(matches!(why, Errno::EPERM | Errno::ENOSYS), "{why:?}"),
        };
        assert_eq!(table.set(b"abc", b"12345"), Ok(()));
        assert_eq!(table.set(b"abd", b"12346"), Ok(()));
        assert_eq!(table.set(b"abe", b"12347"), Err(Errno::E2BIG));
        assert_eq!(table.set(b"ab", b"12345"), Err(Errno::EINVAL));
        assert_eq!(table.set(b"abc", b"1234"), Err(Errno::EINVAL));
        let mut value = [0; 5];
        assert_eq!(table.value(b"abc", &mut value), Ok(()));
        assert_eq!(&value, b"12345");
        assert_eq!(table.value(b"abc", &mut value[1..]), Err(Errno::EINVAL));
        let (mut first, mut second, mut third) = ([0; 3], [0; 3], [0; 3]);
        assert!(table.next(None, &mut first) && table.next(Some(&first), &mut second));
        assert!(first != second && !table.next(Some(&second), &mut third));
        assert_eq!(table.remove(b"abc"), Ok(()));
        assert_eq!(table.value(b"abc", &mut value), Err(Errno::ENOENT));
        // SAFETY: the descriptor was made above, and nobody else has it.
        assert_eq!(unsafe { syscall(nr::CLOSE, [table.fd() as usize, 0, 0, 0, 0, 0]) }, 0);
    }
}
