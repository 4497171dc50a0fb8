//! The kernel's programs and tables, through bpf(2).
//!
//! For:     probes where no jump fits, values at watchpoints, and benches that put the kernel beside us.
//! State:   none; the caller owns the descriptors.
//! Context: control.
//! Keeps:   B1 each attribute is passed with its own size, so older kernels see zeros or refuse.
//! Checked: tests below; `bench --vs kernel` (its counts = calls); testkit `kernel`, `watching`.

pub mod tables;

use crate::{Errno, check, nr, syscall};

const MAP_CREATE: usize = 0;
const MAP_LOOKUP_ELEM: usize = 1;
const MAP_UPDATE_ELEM: usize = 2;
const MAP_GET_NEXT_KEY: usize = 4;
const PROG_LOAD: usize = 5;
const PROG_TEST_RUN: usize = 10;
const OBJ_PIN: usize = 6;
const LINK_CREATE: usize = 28;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const MAP_TYPE_RING: u32 = 27;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_KPROBE: u32 = 2;
const TRACE_UPROBE_MULTI: u32 = 48;
const UPROBE_MULTI_RETURN: u32 = 1;
const PROG_TYPE_PERF_EVENT: u32 = 7;
const PATH_IS_OF_FD: u32 = 1 << 14;
/// What the verifier says, without each instruction that it has seen.
const LOG_WORDS: u32 = 4;
const FSOPEN_CLOEXEC: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const FSMOUNT_CLOEXEC: usize = 1;

/// Numbers of the helpers that programs call, as the kernel has them (table).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod helper {
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    pub const MAP_UPDATE_ELEM: i32 = 2;
    pub const MAP_DELETE_ELEM: i32 = 3;
    pub const KTIME_GET_NS: i32 = 5;
    pub const GET_CURRENT_PID_TGID: i32 = 14;
    pub const GET_STACK: i32 = 67;
    pub const PROBE_READ_USER: i32 = 112;
    pub const RINGBUF_OUTPUT: i32 = 130;
    pub const RINGBUF_RESERVE: i32 = 131;
    pub const RINGBUF_SUBMIT: i32 = 132;
    pub const GET_ATTACH_COOKIE: i32 = 174;
}

#[repr(C)]
struct MapAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct LookupAttr {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    types: u32,
    function_bytes: u32,
    functions: u64,
    function_count: u32,
    line_bytes: u32,
}

#[repr(C)]
struct UprobeLinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    uprobe_flags: u32,
    pid: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    program: u32,
    result: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    reserved: u32,
}

#[repr(C)]
struct PinAttr {
    path: u64,
    object: u32,
    flags: u32,
    directory: u32,
}

/// One instruction, as the kernel takes it.
pub const fn instruction(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let registers = (to | from << 4) as u64;
    opcode as u64 | registers << 8 | (offset as u16 as u64) << 16 | (immediate as u32 as u64) << 32
}

/// Part of a program: adds one to the CPU's value of the entry whose number is in r0, of the per-CPU array `map`.
///
/// Changes r0 to r5 and the four bytes below r10.
pub const fn add_one(map: i32) -> [u64; 9] {
    [
        instruction(0x63, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = r0
        instruction(0xbf, 2, 10, 0, 0),  // r2 = r10
        instruction(0x07, 2, 0, 0, -4),  // r2 += -4
        instruction(0x18, 1, 1, 0, map), // r1 = map, two instructions
        0,
        instruction(0x85, 0, 0, 0, helper::MAP_LOOKUP_ELEM),
        instruction(0x15, 0, 0, 2, 0), // if r0 == 0, skip two
        instruction(0xb7, 1, 0, 0, 1), // r1 = 1
        instruction(0xdb, 0, 1, 0, 0), // lock *(u64 *)r0 += r1: a task may be moved in between
    ]
}

/// A descriptor of a new array of 64-bit values, one copy per CPU.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF).
pub fn create_percpu_array(entries: u32) -> Result<i32, Errno> {
    create(MapAttr { kind: MAP_TYPE_PERCPU_ARRAY, key_bytes: 4, value_bytes: 8, entries, flags: 0 })
}

/// A descriptor of a new array of 64-bit values.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF).
pub fn create_array(entries: u32) -> Result<i32, Errno> {
    create(MapAttr { kind: MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: 8, entries, flags: 0 })
}

/// A descriptor of a new table of 64-bit values by 64-bit keys; room for all is taken now.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF), `ENOMEM`.
pub fn create_hash(entries: u32) -> Result<i32, Errno> {
    create(MapAttr { kind: MAP_TYPE_HASH, key_bytes: 8, value_bytes: 8, entries, flags: 0 })
}

/// How many keys a table has, `most` at most.
///
/// # Safety
/// `map` must be a descriptor of [`create_hash`].
pub unsafe fn count_keys(map: i32, most: usize) -> usize {
    let (mut key, mut next, mut count) = (0u64, 0u64, 0);
    while count < most {
        let attr = LookupAttr {
            map: map as u32,
            reserved: 0,
            key: if count == 0 { 0 } else { (&raw const key) as u64 },
            value: (&raw mut next) as u64,
            flags: 0,
        };
        let args = [MAP_GET_NEXT_KEY, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0];
        // SAFETY: the kernel reads `attr` and `key` and writes one key, of eight bytes (this function's
        // contract), to `next`; all are borrowed for the call.
        if check(unsafe { syscall(nr::BPF, args) }).is_err() {
            break;
        }
        key = next;
        count += 1;
    }
    count
}

/// A descriptor of a new ring of `len` bytes, a power of two and whole pages; read it with
/// [`Ring`](crate::ringbuf::Ring).
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF), `EINVAL` no such length, or the kernel is older than 5.8.
pub fn create_ring(len: u32) -> Result<i32, Errno> {
    create(MapAttr { kind: MAP_TYPE_RING, key_bytes: 0, value_bytes: 0, entries: len, flags: 0 })
}

fn create(attr: MapAttr) -> Result<i32, Errno> {
    // SAFETY: the kernel reads `attr`, borrowed for the call with its size.
    let fd =
        unsafe { syscall(nr::BPF, [MAP_CREATE, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(fd).map(|fd| fd as i32)
}

/// Reads entry `index` of a per-CPU array: the value of each possible CPU.
///
/// `values` must have an element for each possible CPU, or the kernel writes past it.
///
/// # Safety
/// `map` must be a descriptor of [`create_percpu_array`], and `values.len()` must be at least the number of
/// CPUs in /sys/devices/system/cpu/possible.
pub unsafe fn read_percpu_array(map: i32, index: u32, values: &mut [u64]) -> Result<(), Errno> {
    let attr = LookupAttr {
        map: map as u32,
        reserved: 0,
        key: (&raw const index) as u64,
        value: values.as_mut_ptr() as u64,
        flags: 0,
    };
    let args = [MAP_LOOKUP_ELEM, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0];
    // SAFETY: the kernel reads `attr` and `index` and writes eight bytes for each possible CPU to `values`,
    // which has room for them (this function's contract); all are borrowed for the call.
    check(unsafe { syscall(nr::BPF, args) }).map(drop)
}

/// Reads entry `index` of an array of 64-bit values.
///
/// # Safety
/// `map` must be a descriptor of [`create_array`].
pub unsafe fn read_array(map: i32, index: u32) -> Result<u64, Errno> {
    let mut value = 0u64;
    // SAFETY: such an array has one value, of eight bytes, where a per-CPU array has one for each CPU.
    unsafe { read_percpu_array(map, index, core::slice::from_mut(&mut value)) }?;
    Ok(value)
}

/// A descriptor of a new array with one value of so many bytes.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF), `E2BIG` or `ENOMEM` too many bytes.
pub fn create_value(bytes: u32) -> Result<i32, Errno> {
    create(MapAttr { kind: MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: bytes, entries: 1, flags: 0 })
}

/// Writes the value of such an array.
///
/// # Safety
/// `map` must be a descriptor of [`create_value`] for as many bytes as `value` has.
pub unsafe fn write_value(map: i32, value: &[u8]) -> Result<(), Errno> {
    value_call(MAP_UPDATE_ELEM, map, value.as_ptr() as u64)
}

/// Reads the value of such an array.
///
/// # Safety
/// As for [`write_value`].
pub unsafe fn read_value(map: i32, value: &mut [u8]) -> Result<(), Errno> {
    value_call(MAP_LOOKUP_ELEM, map, value.as_mut_ptr() as u64)
}

fn value_call(command: usize, map: i32, value: u64) -> Result<(), Errno> {
    let index = 0u32;
    let attr = LookupAttr { map: map as u32, reserved: 0, key: (&raw const index) as u64, value, flags: 0 };
    let args = [command, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0];
    // SAFETY: the kernel reads `attr` and `index`, borrowed for the call, and reads or writes one value, which is as long
    // as what the callers borrow (their contract).
    check(unsafe { syscall(nr::BPF, args) }).map(drop)
}

/// A descriptor of a program for [`run_test_program`]. What the verifier says is left in `log`.
///
/// # Errors
/// As [`load_kprobe_program`].
pub fn load_test_program(code: &[u64], log: &mut [u8]) -> Result<i32, Errno> {
    load_with(PROG_TYPE_SOCKET_FILTER, code, 0, log)
}

/// Runs such a program once, on a packet of zeros.
///
/// # Errors
/// `EPERM` not allowed, `ENOTSUPP` not in this kernel.
pub fn run_test_program(program: i32) -> Result<(), Errno> {
    let packet = [0u8; 64];
    let attr = TestRunAttr {
        program: program as u32,
        data_in_bytes: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        ..TestRunAttr::default()
    };
    // SAFETY: the packet is borrowed for the call, and nothing is to be written but the figures.
    unsafe { test_run(attr) }.map(drop)
}

/// Runs a program once; its result.
///
/// # Safety
/// What `attr` leads to must be readable, and writable where it is for data out, for the lengths that stand there.
unsafe fn test_run(mut attr: TestRunAttr) -> Result<u32, Errno> {
    let args = [PROG_TEST_RUN, (&raw mut attr) as usize, size_of_val(&attr), 0, 0, 0];
    // SAFETY: the kernel reads `attr` and what it leads to (contract), and writes the figures in `attr`.
    check(unsafe { syscall(nr::BPF, args) })?;
    Ok(attr.result)
}

/// A descriptor of a program for kprobes and uprobes; GPL-compatible, so that all helpers may be called.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_BPF and CAP_PERFMON), `EACCES` or `EINVAL` the verifier refuses the code.
pub fn load_kprobe_program(code: &[u64]) -> Result<i32, Errno> {
    load(PROG_TYPE_KPROBE, code, 0)
}

/// A descriptor of a program that runs when a perf event has counted enough; GPL-compatible.
///
/// # Errors
/// As [`load_kprobe_program`].
pub fn load_perf_program(code: &[u64]) -> Result<i32, Errno> {
    load(PROG_TYPE_PERF_EVENT, code, 0)
}

/// A descriptor of a program for [`link_uprobes`], since Linux 6.6; GPL-compatible.
///
/// # Errors
/// As [`load_kprobe_program`]; `EINVAL` also where the kernel has no such links.
pub fn load_uprobes_program(code: &[u64]) -> Result<i32, Errno> {
    load(PROG_TYPE_KPROBE, code, TRACE_UPROBE_MULTI)
}

/// Whether this kernel has [`link_uprobes`], which came with Linux 6.6. True where it cannot be told.
pub fn has_uprobe_links() -> bool {
    // A kernel that does not know these links refuses the count, before it looks at what the program is.
    let attr = UprobeLinkAttr {
        program: u32::MAX,
        target: 0,
        attach_type: TRACE_UPROBE_MULTI,
        flags: 0,
        path: 0,
        offsets: 0,
        ref_ctr_offsets: 0,
        cookies: 0,
        count: 1,
        uprobe_flags: 0,
        pid: 0,
        reserved: 0,
    };
    // SAFETY: the kernel reads `attr`, borrowed for the call, and no more: no program has that descriptor.
    let fd =
        unsafe { syscall(nr::BPF, [LINK_CREATE, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(fd) != Err(Errno::EINVAL)
}

/// Places of a file; the slices are equally long.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Where they are in the file.
    pub offsets: &'a [u64],
    /// What the program is told at each.
    pub cookies: &'a [u64],
    /// Where in the file is the count of tracers that is raised for each, 0 for none; or empty.
    pub semaphores: &'a [u64],
}

impl<'a> Places<'a> {
    /// Without counts of tracers.
    pub fn new(offsets: &'a [u64], cookies: &'a [u64]) -> Places<'a> {
        Places { offsets, cookies, semaphores: &[] }
    }
}

/// A descriptor that, as long as it is open, runs a program at hits of places of a file, or where functions that begin there
/// return: in all threads of process `pid` and in no other process, or for 0 in all. The program gets each one's cookie.
///
/// # Errors
/// `EPERM` not allowed, `ENOENT` or `EBADF` no such file, `ESRCH` no such process, `EINVAL`, `EOPNOTSUPP` or `ENOEXEC`
/// an instruction that the kernel cannot probe, or no such links in this kernel.
pub fn link_uprobes(
    program: i32,
    path: &core::ffi::CStr,
    places: &Places<'_>,
    pid: i32,
    is_return: bool,
) -> Result<i32, Errno> {
    let Places { offsets, cookies, semaphores } = *places;
    let is_long = |other: &[u64]| other.len() == offsets.len();
    if !is_long(cookies) || !(semaphores.is_empty() || is_long(semaphores)) {
        return Err(Errno::EINVAL);
    }
    let attr = UprobeLinkAttr {
        program: program as u32,
        target: 0,
        attach_type: TRACE_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        ref_ctr_offsets: if semaphores.is_empty() { 0 } else { semaphores.as_ptr() as u64 },
        cookies: cookies.as_ptr() as u64,
        count: offsets.len() as u32,
        uprobe_flags: if is_return { UPROBE_MULTI_RETURN } else { 0 },
        pid: pid as u32,
        reserved: 0,
    };
    // SAFETY: the kernel reads `attr`, the string and as many numbers as `count` says of the slices, which are equally
    // long; all are borrowed for the call.
    let fd =
        unsafe { syscall(nr::BPF, [LINK_CREATE, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(fd).map(|fd| fd as i32)
}

/// A descriptor of an empty file system for [`pin`], mounted nowhere: it ends with its last descriptor, and with it what
/// is pinned there.
///
/// # Errors
/// `EPERM` not allowed (it takes CAP_SYS_ADMIN), `ENODEV` this kernel has none.
pub fn file_system() -> Result<i32, Errno> {
    // SAFETY: the kernel reads a constant string.
    let context = unsafe { syscall(nr::FSOPEN, [c"bpf".as_ptr() as usize, FSOPEN_CLOEXEC, 0, 0, 0, 0]) };
    let context = check(context)?;
    // SAFETY: numbers only; the command takes no key and no value.
    let made = check(unsafe { syscall(nr::FSCONFIG, [context, FSCONFIG_CMD_CREATE, 0, 0, 0, 0]) });
    // SAFETY: numbers only.
    let mounted =
        made.and_then(|_| check(unsafe { syscall(nr::FSMOUNT, [context, FSMOUNT_CLOEXEC, 0, 0, 0, 0]) }));
    // SAFETY: the descriptor is the one that fsopen made above, and nobody else has it.
    let _ = unsafe { syscall(nr::CLOSE, [context, 0, 0, 0, 0, 0]) };
    mounted.map(|fd| fd as i32)
}

/// Keeps a link in [`file_system`] under this name, since Linux 6.5.
///
/// Its last descriptor may then be closed; it ends with the file system, and in a thread of the kernel's.
///
/// # Errors
/// `EEXIST` the name is taken, `EPERM` not allowed, `EINVAL` not in this kernel.
pub fn pin(link: i32, file_system: i32, name: &core::ffi::CStr) -> Result<(), Errno> {
    let (path, object, directory) = (name.as_ptr() as u64, link as u32, file_system as u32);
    let attr = PinAttr { path, object, flags: PATH_IS_OF_FD, directory };
    // SAFETY: the kernel reads `attr` and the string, borrowed for the call.
    let pinned =
        unsafe { syscall(nr::BPF, [OBJ_PIN, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(pinned).map(drop)
}

fn load(kind: u32, code: &[u64], expected_attach_type: u32) -> Result<i32, Errno> {
    load_with(kind, code, expected_attach_type, &mut [])
}

fn load_with(kind: u32, code: &[u64], expected_attach_type: u32, log: &mut [u8]) -> Result<i32, Errno> {
    load_functions(kind, code, expected_attach_type, (0, &[]), 0, log)
}

/// With the program's functions: where each begins, and its type in a table of types.
fn load_functions(
    kind: u32,
    code: &[u64],
    expected_attach_type: u32,
    (types, functions): (i32, &[[u32; 2]]),
    flags: u32,
    log: &mut [u8],
) -> Result<i32, Errno> {
    let attr = ProgramAttr {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: if log.is_empty() { 0 } else { LOG_WORDS },
        log_bytes: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags,
        name: [0; 16],
        interface: 0,
        expected_attach_type,
        types: types as u32,
        function_bytes: if functions.is_empty() { 0 } else { size_of::<[u32; 2]>() as u32 },
        functions: if functions.is_empty() { 0 } else { functions.as_ptr() as u64 },
        function_count: functions.len() as u32,
        line_bytes: 0,
    };
    // SAFETY: the kernel reads `attr`, the code and the functions with their lengths and a constant string, and writes the log; all
    // are borrowed for the call.
    let fd =
        unsafe { syscall(nr::BPF, [PROG_LOAD, (&raw const attr) as usize, size_of_val(&attr), 0, 0, 0]) };
    check(fd).map(|fd| fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_has_its_fields_where_the_kernel_reads_them() {
        // r2 += -4, and exit.
        assert_eq!(instruction(0x07, 2, 0, 0, -4).to_le_bytes(), [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff]);
        assert_eq!(instruction(0x95, 0, 0, 0, 0), 0x95);
        assert_eq!(instruction(0xdb, 0, 1, -8, 0).to_le_bytes(), [0xdb, 0x10, 0xf8, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn a_file_system_of_its_own_is_made_or_refused() {
        match file_system() {
            Ok(fd) => {
                assert!(pin(-1, fd, c"link").is_err());
                // SAFETY: the descriptor was made above, and nobody else has it.
                assert_eq!(unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) }, 0);
            }
            Err(why) => assert!(matches!(why, Errno::EPERM | Errno::ENODEV | Errno::ENOSYS), "{why:?}"),
        }
    }

    #[test]
    fn code_without_an_end_is_refused() {
        let got = load_kprobe_program(&[instruction(0xb7, 0, 0, 0, 0)]);
        assert!(matches!(got, Err(Errno::EINVAL | Errno::EACCES | Errno::EPERM | Errno::ENOSYS)), "{got:?}");
    }
}
