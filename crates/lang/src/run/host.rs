//! What a program finds when it runs in the controller.
//!
//! For:     the machine.
//! State:   the memory of one script: constants, scratch, maps, the ring.
//! Context: control; one program at a time.
//! Keeps:   H1 an address leads to memory of the script or nowhere: never to the controller's own.
//!          H2 every length that a program gives is bounded before anything is taken.
//! Checked: tests/scripts.rs, `torture lang`.

use super::maps::Map;
use super::sample::Sample;
use super::{names, os};
use crate::program::Named as Symbols;
use bpf::helper::{self, About, CONSTANTS, FIRST_MAP, Named, RECORD_MAX, RING, SCRATCH};
use bpf::{Fault, Host, Size, Stack, Wide};

const EFAULT: u64 = (-14i64).cast_unsigned();
const E2BIG: u64 = (-7i64).cast_unsigned();
const ENOENT: u64 = (-2i64).cast_unsigned();
const ENOSPC: u64 = (-28i64).cast_unsigned();

/// Where the parts of memory begin.
const CONSTANTS_AT: u64 = 0x0100_0000_0000_0000;
const SCRATCH_AT: u64 = 0x0200_0000_0000_0000;
/// The context of programs without registers of a target: zeros.
pub const CONTEXT_AT: u64 = 0x0300_0000_0000_0000;
const CONTEXT_LEN: usize = 168;
const HANDLES_AT: u64 = 0x0400_0000_0000_0000;
const VALUES_AT: u64 = 0x1000_0000_0000_0000;
/// Bits of an address within one map.
const MAP_BITS: u32 = 40;
/// The longest piece of memory that a helper takes at once.
const PIECE_MAX: usize = 1 << 24;
/// Records that wait; more are read before.
pub const RING_MAX: usize = 1 << 26;

/// The memory of a script.
#[derive(Debug)]
pub struct Memory {
    pub constants: Vec<u8>,
    pub scratch: Vec<u8>,
    pub maps: Vec<Map>,
    /// Records one behind the other, each after its length.
    pub ring: Vec<u8>,
    /// Records that found no room.
    pub lost: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    pub began: u64,
    pub child: u32,
    pub is_unsafe: bool,
    /// Whom the program runs for, if not for the controller.
    pub sample: Option<Sample>,
    /// Who keeps stacks of samples.
    pub symbols: Option<Symbols>,
    random: u64,
}

impl Memory {
    pub fn new(constants: Vec<u8>, scratch: usize, maps: Vec<Map>) -> Memory {
        Memory {
            constants,
            scratch: vec![0; scratch],
            maps,
            ring: Vec::new(),
            lost: 0,
            failed_reads: 0,
            began: os::clock(os::BOOT),
            child: 0,
            is_unsafe: false,
            sample: None,
            symbols: None,
            random: os::clock(os::MONOTONIC) | 1,
        }
    }

    fn map(&self, handle: u64) -> Result<&Map, Fault> {
        let index = handle.wrapping_sub(HANDLES_AT);
        let map = index.checked_sub(FIRST_MAP as u64).and_then(|i| self.maps.get(i as usize));
        map.ok_or(Fault::Access { addr: handle, len: 0 })
    }

    fn value_address(map: usize, slot: u32, stride: usize) -> u64 {
        VALUES_AT + ((map as u64) << MAP_BITS) + u64::from(slot) * stride as u64
    }

    /// Memory of the script.
    fn own(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let of = |bytes: &'_ mut Vec<u8>, base: u64| {
            let from = usize::try_from(addr - base).ok()?;
            from.checked_add(len).filter(|end| *end <= bytes.len()).map(|end| (from, end))
        };
        match addr {
            CONSTANTS_AT..SCRATCH_AT => {
                of(&mut self.constants, CONSTANTS_AT).map(|(a, b)| &mut self.constants[a..b])
            }
            SCRATCH_AT..CONTEXT_AT => of(&mut self.scratch, SCRATCH_AT).map(|(a, b)| &mut self.scratch[a..b]),
            _ => None,
        }
    }

    /// A value of a map: its map, its slot, and which byte.
    fn value_at(&self, addr: u64) -> Option<(&Map, u32, usize)> {
        let at = addr.checked_sub(VALUES_AT)?;
        let map = self.maps.get((at >> MAP_BITS) as usize)?;
        let within = at & ((1 << MAP_BITS) - 1);
        let stride = map.stride() as u64;
        Some((map, u32::try_from(within / stride).ok()?, (within % stride) as usize))
    }

    fn read_own(&mut self, stack: &mut Stack, addr: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let fault = Fault::Access { addr, len };
        if len > PIECE_MAX {
            return Err(fault);
        }
        if let Some(bytes) = stack.bytes(addr, len) {
            return Ok(bytes.to_vec());
        }
        let mut to = vec![0; len];
        self.read(addr, &mut to).map(|()| to)
    }

    fn write_own(&mut self, stack: &mut Stack, addr: u64, from: &[u8]) -> Result<(), Fault> {
        match stack.bytes(addr, from.len()) {
            Some(bytes) => bytes.copy_from_slice(from),
            None => self.write(addr, from)?,
        }
        Ok(())
    }

    /// Memory of the script, or else of whom the program runs for.
    fn read_any(&mut self, stack: &mut Stack, addr: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let own = self.read_own(stack, addr, len);
        match &self.sample {
            Some(sample) if own.is_err() && len <= PIECE_MAX => sample.read(addr, len),
            _ => own,
        }
    }

    /// As many bytes as there are at an address, up to `len`.
    fn text_at(&mut self, stack: &mut Stack, addr: u64, len: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        // What can be read is found piece by piece, from large to small.
        let mut piece = 64usize;
        while text.len() < len {
            let want = piece.min(len - text.len());
            match self.read_any(stack, addr.wrapping_add(text.len() as u64), want) {
                Ok(bytes) => {
                    let end = bytes.iter().position(|b| *b == 0);
                    text.extend_from_slice(&bytes[..end.unwrap_or(want)]);
                    if end.is_some() {
                        return Some(text);
                    }
                }
                Err(_) if piece > 1 => piece /= 2,
                Err(_) if text.is_empty() => return None,
                Err(_) => return Some(text),
            }
        }
        Some(text)
    }

    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as u32
    }

    fn map_helper(&mut self, number: u32, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        if args[0] == HANDLES_AT + SCRATCH as u64 && number == helper::MAP_LOOKUP {
            return Ok(SCRATCH_AT);
        }
        let key_size = self.map(args[0])?.decl.key_size;
        if number == helper::MAP_LEN {
            return Ok(self.map(args[0])?.len() as u64);
        }
        if number == helper::MAP_NEXT {
            return self.map_next(args, stack);
        }
        let key = match number {
            helper::WORD_LOOKUP
            | helper::WORD_LOOKUP_OR_INIT
            | helper::WORD_UPDATE
            | helper::WORD_DELETE
            | helper::WORD_AGGREGATE => {
                word(args[1], key_size).ok_or(Fault::NoHelper { number: number.into() })?
            }
            _ => self.read_own(stack, args[1], key_size)?,
        };
        let index = (args[0] - HANDLES_AT - FIRST_MAP as u64) as usize;
        match number {
            helper::MAP_LOOKUP | helper::WORD_LOOKUP => {
                let map = &self.maps[index];
                let stride = map.stride();
                Ok(map.find(&key).map_or(0, |slot| Memory::value_address(index, slot, stride)))
            }
            helper::LOOKUP_OR_INIT | helper::WORD_LOOKUP_OR_INIT => {
                let map = &self.maps[index];
                let stride = map.stride();
                Ok(map.find_or_init(&key).map_or(0, |slot| Memory::value_address(index, slot, stride)))
            }
            helper::MAP_UPDATE => {
                let value = self.read_own(stack, args[2], self.maps[index].decl.value_size)?;
                Ok(self.maps[index].update(&key, &value).map_or(E2BIG, |()| 0))
            }
            helper::WORD_UPDATE => {
                let value = word(args[2], self.maps[index].decl.value_size);
                let value = value.ok_or(Fault::NoHelper { number: number.into() })?;
                Ok(self.maps[index].update(&key, &value).map_or(E2BIG, |()| 0))
            }
            helper::MAP_DELETE | helper::WORD_DELETE => {
                Ok(if self.maps[index].delete(&key) { 0 } else { ENOENT })
            }
            helper::AGGREGATE | helper::WORD_AGGREGATE => {
                Ok(self.maps[index].aggregate(&key, args[2], args[3]).map_or(E2BIG, |()| 0))
            }
            _ => {
                let map = &self.maps[index];
                Ok(map.find(&key).map_or(0, |slot| map.aggregated(slot)))
            }
        }
    }

    fn map_next(&mut self, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let [handle, cursor, key_to, value_to, _] = args;
        let from = self.read_own(stack, cursor, 8)?;
        let from = u64::from_le_bytes(from.try_into().unwrap_or_default());
        let map = self.map(handle)?;
        let Some((at, key)) = map.next(from) else { return Ok(0) };
        let value = match map.agg() {
            Some(_) => map.aggregated(at).to_le_bytes().to_vec(),
            None => map.value(at),
        };
        self.write_own(stack, cursor, &u64::from(at).to_le_bytes())?;
        self.write_own(stack, key_to, &key)?;
        self.write_own(stack, value_to, &value)?;
        Ok(1)
    }

    fn text_helper(&mut self, number: u32, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let mut read = |addr: u64, len: u64| self.read_own(stack, addr, len as usize);
        let order = |order: std::cmp::Ordering| (order as i64).cast_unsigned();
        match number {
            helper::STR_COMPARE => {
                let (a, b) = (read(args[0], args[1])?, read(args[2], args[3])?);
                Ok(order(until_nul(&a).cmp(until_nul(&b))))
            }
            helper::MEM_COMPARE => {
                let (a, b) = (read(args[0], args[2])?, read(args[1], args[2])?);
                let first = a.iter().zip(&b).find(|(a, b)| a != b);
                Ok(first.map_or(0, |(a, b)| (i64::from(*a) - i64::from(*b)).cast_unsigned()))
            }
            helper::STR_FIND => {
                let (hay, needle) = (read(args[0], args[1])?, read(args[2], args[3])?);
                Ok(find(until_nul(&hay), until_nul(&needle)).map_or(u64::MAX, |at| at as u64))
            }
            helper::STR_LEN => Ok(until_nul(&read(args[0], args[1])?).len() as u64),
            helper::STR_TIDY => {
                let mut text = read(args[0], args[1])?;
                let end = until_nul(&text).len();
                text[end..].fill(0);
                self.write_own(stack, args[0], &text)?;
                Ok(0)
            }
            _ => {
                let (mut text, more) = (read(args[0], args[1])?, read(args[2], args[3])?);
                let end = until_nul(&text).len();
                let more = until_nul(&more);
                let room = text.len() - end;
                text[end..][..room.min(more.len())].copy_from_slice(&more[..room.min(more.len())]);
                self.write_own(stack, args[0], &text)?;
                Ok(0)
            }
        }
    }

    fn reading_helper(&mut self, number: u32, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let [to, len, from, ..] = args;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // The destination is the program's own, or it faults.
        self.read_own(stack, to, len)?;
        match number {
            helper::PROBE_READ_TEXT => {
                let text = self.text_at(stack, from, len.saturating_add(1));
                let Some(mut text) = text else {
                    self.failed_reads += 1;
                    return Ok(EFAULT);
                };
                text.truncate(len);
                self.write_own(stack, to, &text)?;
                Ok(0)
            }
            helper::PROBE_READ_OWN => {
                let bytes = self.read_own(stack, from, len)?;
                self.write_own(stack, to, &bytes)?;
                Ok(0)
            }
            _ => {
                let (bytes, result) = match self.read_any(stack, from, len) {
                    Ok(bytes) => (bytes, 0),
                    Err(_) => {
                        self.failed_reads += 1;
                        (vec![0; len], EFAULT)
                    }
                };
                self.write_own(stack, to, &bytes)?;
                Ok(result)
            }
        }
    }

    fn ring_output(&mut self, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let [_, from, len, ..] = args;
        if args[0] != HANDLES_AT + RING as u64 || len as usize > RECORD_MAX + 8 {
            return Err(Fault::Access { addr: from, len: len as usize });
        }
        let record = self.read_own(stack, from, len as usize)?;
        if self.ring.len() + record.len() > RING_MAX {
            self.lost += 1;
            return Ok(ENOSPC);
        }
        self.ring.extend_from_slice(&(record.len() as u64).to_le_bytes());
        self.ring.extend_from_slice(&record);
        Ok(0)
    }

    /// Text for a place of so many bytes, with a NUL.
    fn give(&mut self, text: &str, to: u64, len: u64, stack: &mut Stack) -> Result<u64, Fault> {
        let len = len as usize;
        if len == 0 || len > PIECE_MAX {
            return Ok(0);
        }
        let mut bytes = text.as_bytes().to_vec();
        bytes.truncate(len - 1);
        bytes.resize(len, 0);
        self.write_own(stack, to, &bytes)?;
        Ok(0)
    }

    fn about(&mut self, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let [kind, to, len, ..] = args;
        let is = |about: About| kind == about as u64;
        if is(About::Began) {
            return Ok(self.began);
        }
        let pid = self.sample.as_ref().map_or(std::process::id(), |sample| sample.pid).to_string();
        let ppid = os::status_word(&pid, "PPid");
        if is(About::Pcomm) || is(About::LeaderComm) {
            let pid = if is(About::Pcomm) { ppid.to_string() } else { pid };
            return self.give(&os::comm(&pid), to, len, stack);
        }
        if let Some(known) = self.sample.as_ref().and_then(|sample| sample.about(kind)) {
            return Ok(known);
        }
        Ok(match kind {
            _ if is(About::Ppid) => ppid,
            _ if is(About::LeaderTid) => u64::from(std::process::id()),
            _ if is(About::Cgroup) => os::cgroup_id("self"),
            _ if is(About::Usermode) => 1,
            _ if is(About::InitPidTgid) => os::outermost_pid() << 32 | os::outermost_pid(),
            _ if is(About::Jiffies) => os::clock(os::MONOTONIC) / 4_000_000,
            _ => 0,
        })
    }
}

/// What is asked about whom a program runs for: of a sample, or of the controller.
impl Memory {
    fn time(&self, clock: libc::clockid_t) -> u64 {
        self.sample.as_ref().map_or_else(|| os::clock(clock), |sample| sample.time_of(clock))
    }

    fn who(&self, helper: u32) -> u64 {
        let ids = |pid: &str| os::status_word(pid, "Gid") << 32 | os::status_word(pid, "Uid");
        let Some(sample) = &self.sample else {
            let own = u64::from(std::process::id());
            return match helper {
                helper::SMP_PROCESSOR_ID => os::cpu().0,
                helper::NUMA_NODE_ID => os::cpu().1,
                helper::UID_GID => ids("self"),
                _ => own << 32 | own,
            };
        };
        match helper {
            helper::SMP_PROCESSOR_ID => u64::from(sample.cpu),
            helper::NUMA_NODE_ID => os::node_of(sample.cpu),
            helper::UID_GID => ids(&sample.pid.to_string()),
            _ => u64::from(sample.pid) << 32 | u64::from(sample.tid),
        }
    }

    /// The number of the stack, how many frames, the process.
    fn user_stack(&mut self, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let [to, limit, ..] = args;
        let mut about = [0u64; 3];
        if let (Some(sample), Some(symbols)) = (&self.sample, &self.symbols) {
            let frames = &sample.frames[..sample.frames.len().min(limit as usize)];
            if !frames.is_empty() {
                about = [symbols.0.keep(sample.pid, frames), frames.len() as u64, u64::from(sample.pid)];
            }
        }
        let bytes: Vec<u8> = about.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write_own(stack, to, &bytes).map(|()| 0)
    }

    /// Signals and writes, with `--unsafe`. Without a sample there is no target whose memory or threads could be meant.
    fn change(&mut self, helper: u32, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let Some(sample) = self.sample.clone().filter(|_| self.is_unsafe) else { return Ok(EFAULT) };
        let is_done = match helper {
            helper::SEND_SIGNAL => sample.signal(args[0] as i32, args[1] != 0),
            _ => {
                let from = self.read_own(stack, args[1], args[2] as usize)?;
                sample.write(args[0], &from)
            }
        };
        Ok(if is_done { 0 } else { EFAULT })
    }
}

impl Host for Memory {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> Result<(), Fault> {
        let len = to.len();
        if (CONTEXT_AT..CONTEXT_AT + CONTEXT_LEN as u64).contains(&addr)
            && addr as usize - CONTEXT_AT as usize + len <= CONTEXT_LEN
        {
            to.fill(0);
            if let Some(sample) = &self.sample {
                let at = (addr - CONTEXT_AT) as usize;
                to.copy_from_slice(&sample.context()[at..at + len]);
            }
            return Ok(());
        }
        let fault = Fault::Access { addr, len };
        if addr >= VALUES_AT {
            let (map, slot, offset) = self.value_at(addr).ok_or(fault)?;
            return if map.read(slot, offset, to) { Ok(()) } else { Err(fault) };
        }
        let from = self.own(addr, len).ok_or(fault)?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        let fault = Fault::Access { addr, len: from.len() };
        if (CONSTANTS_AT..SCRATCH_AT).contains(&addr) {
            return Err(fault);
        }
        if addr >= VALUES_AT {
            let (map, slot, offset) = self.value_at(addr).ok_or(fault)?;
            return if map.write(slot, offset, from) { Ok(()) } else { Err(fault) };
        }
        self.own(addr, from.len()).ok_or(fault)?.copy_from_slice(from);
        Ok(())
    }

    fn exchange(&mut self, addr: u64, size: Size, old: u64, new: u64) -> Result<bool, Fault> {
        let (old, new) = (&old.to_le_bytes()[..size.bytes()], &new.to_le_bytes()[..size.bytes()]);
        if addr < VALUES_AT {
            return self.write(addr, new).map(|()| true);
        }
        // Hits change it meanwhile.
        let fault = Fault::Access { addr, len: size.bytes() };
        let (map, slot, offset) = self.value_at(addr).ok_or(fault)?;
        map.exchange(slot, offset, old, new).ok_or(fault)
    }

    fn call(&mut self, number: u64, args: [u64; 5], stack: &mut Stack) -> Result<u64, Fault> {
        let helper = u32::try_from(number).map_err(|_| Fault::NoHelper { number })?;
        match helper {
            helper::MAP_LOOKUP | helper::MAP_UPDATE | helper::MAP_DELETE | helper::LOOKUP_OR_INIT => {
                self.map_helper(helper, args, stack)
            }
            helper::WORD_LOOKUP
            | helper::WORD_LOOKUP_OR_INIT
            | helper::WORD_UPDATE
            | helper::WORD_DELETE
            | helper::WORD_AGGREGATE => self.map_helper(helper, args, stack),
            helper::AGGREGATE | helper::AGGREGATED | helper::MAP_NEXT | helper::MAP_LEN => {
                self.map_helper(helper, args, stack)
            }
            helper::STR_COMPARE
            | helper::MEM_COMPARE
            | helper::STR_FIND
            | helper::STR_LEN
            | helper::STR_APPEND => self.text_helper(helper, args, stack),
            helper::STR_TIDY => self.text_helper(helper, args, stack),
            helper::PROBE_READ_USER | helper::PROBE_READ_OWN | helper::PROBE_READ_TEXT => {
                self.reading_helper(helper, args, stack)
            }
            helper::RINGBUF_OUTPUT => self.ring_output(args, stack),
            helper::MEM_ZERO => {
                let len = args[1] as usize;
                if len > PIECE_MAX {
                    return Err(Fault::Access { addr: args[0], len });
                }
                self.write_own(stack, args[0], &vec![0; len])?;
                Ok(0)
            }
            helper::KTIME_GET_NS => Ok(self.time(os::MONOTONIC)),
            helper::KTIME_GET_BOOT_NS => Ok(self.time(os::BOOT)),
            helper::KTIME_GET_TAI_NS => Ok(self.time(os::TAI)),
            helper::PRANDOM_U32 => Ok(u64::from(self.random())),
            helper::SMP_PROCESSOR_ID | helper::NUMA_NODE_ID | helper::PID_TGID | helper::UID_GID => {
                Ok(self.who(helper))
            }
            helper::COMM => {
                let name = self.sample.as_ref().map_or_else(|| os::comm("self"), Sample::comm);
                self.give(&name, args[0], args[1], stack)
            }
            helper::COMM_OF => self.give(&os::comm(&(args[0] as u32).to_string()), args[1], args[2], stack),
            helper::ABOUT => self.about(args, stack),
            // There is no probed place here.
            helper::ATTACH_COOKIE | helper::FUNC_IP | helper::VECTOR => Ok(0),
            helper::CHILD => Ok(u64::from(self.child)),
            helper::NAME_OF => {
                let number = args[1] as i32;
                let text = match args[0] {
                    n if n == Named::Error as u64 => os::error_text(number),
                    n if n == Named::Signal as u64 => os::signal_text(number),
                    _ => names::syscall(number),
                };
                self.give(&text, args[2], args[3], stack)
            }
            helper::USER_STACK => self.user_stack(args, stack),
            helper::WRITE_USER | helper::SEND_SIGNAL => self.change(helper, args, stack),
            _ => Err(Fault::NoHelper { number }),
        }
    }

    fn meaning(&mut self, wide: Wide) -> Result<u64, Fault> {
        match wide {
            Wide::MapIndex(index) if index >= 0 && index < FIRST_MAP + self.maps.len() as i32 => {
                Ok(HANDLES_AT + index as u64)
            }
            Wide::MapValueIndex { index: CONSTANTS, offset } => Ok(CONSTANTS_AT + u64::from(offset)),
            wide => Err(Fault::NoMeaning(wide)),
        }
    }
}

/// The bytes before the first NUL.
pub fn until_nul(text: &[u8]) -> &[u8] {
    &text[..text.iter().position(|b| *b == 0).unwrap_or(text.len())]
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(0);
    }
    hay.windows(needle.len()).position(|window| window == needle)
}

/// A key or a value of a word or of half of one.
fn word(word: u64, len: usize) -> Option<Vec<u8>> {
    matches!(len, 4 | 8).then(|| word.to_le_bytes()[..len].to_vec())
}
