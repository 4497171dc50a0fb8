//! The agent as bytes for a given address.
//!
//! For:     placing the blob next to a region's trampolines.
//! State:   the ELF file embedded at build time.
//! Context: control.
//! Keeps:   B1 only relative relocations exist, all are applied.
//!          B2 the image is never written after it was placed.
//!          B3 what a handler is said to leave alone it leaves alone: read from its code, whoever compiled it. Where trampolines
//!             save all that a function may write, nobody asks.
//! Checked: tests below.

use crate::arch;
use crate::facts::error::Broken;
use insn::{Code, RegSet};
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela};
use object::{Endianness, Object, ObjectSymbol};
use std::sync::{Arc, OnceLock};
use wire::{AgentExports, AgentTable, HANDLERS_LEN, HELPERS_LEN, HandlerKind, Helper};

/// Words of an [`AgentTable`].
const TABLE_LEN: usize = HANDLERS_LEN + HELPERS_LEN;

static BLOB: &[u8] = include_bytes!(env!("NANOPROBE_AGENT"));

/// A relocation: where, and what to add to the image's address.
type Relative = (usize, u64);

/// The agent's image, as it stands in memory, and what must be adjusted to its address.
#[derive(Debug)]
pub(crate) struct AgentImage {
    bytes: Vec<u8>,
    relative: Vec<Relative>,
    exports: usize,
    clobbers: OnceLock<Clobbers>,
}

/// What handlers and helpers write of the registers that are saved for them alone, read from the code of each when it is first asked
/// for: most are never called.
#[derive(Clone, Debug)]
pub(crate) struct Clobbers {
    known: Arc<Known>,
    is_rseq: bool,
}

/// The agent as it stands at address 0, and what was read of it.
#[derive(Debug)]
struct Known {
    bytes: Vec<u8>,
    exports: AgentExports,
    /// With rseq and without.
    read: [Table; 2],
}

/// Of one way to count: by [`wire::HandlerKind`], by [`wire::Helper`].
#[derive(Debug)]
struct Table {
    handlers: [OnceLock<RegSet>; HANDLERS_LEN],
    helpers: [OnceLock<RegSet>; HELPERS_LEN],
}

impl Clobbers {
    fn of(bytes: Vec<u8>, exports: AgentExports) -> Clobbers {
        let nothing = || Table {
            handlers: std::array::from_fn(|_| OnceLock::new()),
            helpers: std::array::from_fn(|_| OnceLock::new()),
        };
        let known = Known { bytes, exports, read: [nothing(), nothing()] };
        Clobbers { known: Arc::new(known), is_rseq: false }
    }

    /// The same for hits that count by restartable sequences, or by locked adds.
    pub fn counting(&self, is_rseq: bool) -> Clobbers {
        Clobbers { known: self.known.clone(), is_rseq }
    }

    /// Of a handler, by its kind.
    pub fn handler(&self, kind: HandlerKind) -> RegSet {
        if arch::SAVES_ALL {
            return RegSet::default();
        }
        let (exports, read) = self.table();
        let entry = exports.handlers[kind as usize];
        let code = self.code();
        *read.handlers[kind as usize].get_or_init(|| match kind {
            // What the program writes is known of each by itself.
            HandlerKind::Program | HandlerKind::ProgramInSpace => {
                insn::written_apart_from_computed_calls(&code, entry)
            }
            _ => insn::written(&code, entry),
        })
    }

    /// Of a helper.
    pub fn helper(&self, helper: Helper) -> RegSet {
        if arch::SAVES_ALL {
            return RegSet::default();
        }
        let (exports, read) = self.table();
        let entry = exports.helpers[helper as usize];
        *read.helpers[helper as usize].get_or_init(|| insn::written(&self.code(), entry))
    }

    fn code(&self) -> Code<'_> {
        Code { base: 0, bytes: &self.known.bytes }
    }

    fn table(&self) -> (&AgentTable, &Table) {
        let [locked, rseq] = &self.known.read;
        match self.is_rseq {
            true => (&self.known.exports.rseq, rseq),
            false => (&self.known.exports.locked, locked),
        }
    }
}

impl AgentImage {
    pub fn load() -> Result<AgentImage, Broken> {
        parse().map_err(|e| Broken::Agent(e.to_string()))
    }

    pub fn clobbers(&self) -> Clobbers {
        let read = || {
            let (bytes, exports) = self.at(0);
            Clobbers::of(bytes, exports)
        };
        self.clobbers.get_or_init(read).clone()
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The image for this address, and its entry points there.
    pub fn at(&self, addr: u64) -> (Vec<u8>, AgentExports) {
        let mut bytes = self.bytes.clone();
        for (offset, addend) in &self.relative {
            bytes[*offset..*offset + 8].copy_from_slice(&(addr + addend).to_le_bytes());
        }
        let word = |i: usize| {
            let at = self.exports + i * 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
        };
        let table = |i: usize| AgentTable {
            handlers: std::array::from_fn(|n| word(i + n)),
            helpers: std::array::from_fn(|n| word(i + HANDLERS_LEN + n)),
        };
        let exports = AgentExports { version: word(0), rseq: table(1), locked: table(1 + TABLE_LEN) };
        (bytes, exports)
    }
}

fn parse() -> Result<AgentImage, object::Error> {
    let elf = ElfFile64::<Endianness>::parse(BLOB)?;
    let endian = elf.endian();
    let segments = elf.elf_header().program_headers(endian, BLOB)?;
    let loads = || segments.iter().filter(|s| s.p_type(endian) == PT_LOAD);
    let end = loads().map(|s| s.p_vaddr(endian) + s.p_memsz(endian)).max().unwrap_or(0);
    let mut bytes = vec![0u8; end as usize];
    for segment in loads() {
        let at = segment.p_vaddr(endian) as usize;
        let data = segment.data(endian, BLOB).unwrap_or_default();
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    let mut relative = Vec::new();
    let sections = elf.elf_header().sections(endian, BLOB)?;
    for section in sections.iter() {
        use object::read::elf::SectionHeader;
        for rela in section.rela(endian, BLOB)?.map_or(&[][..], |(r, _)| r) {
            assert_eq!(rela.r_type(endian, false), arch::R_RELATIVE, "B1, checked by a test");
            relative.push((rela.r_offset(endian) as usize, rela.r_addend(endian) as u64));
        }
    }
    let exports = elf.symbols().find(|s| s.name() == Ok("NANOPROBE_EXPORTS"));
    let exports = exports.map_or(0, |s| s.address() as usize);
    Ok(AgentImage { bytes, relative, exports, clobbers: OnceLock::new() })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess};
    use object::ObjectSection;

    #[test]
    fn the_agent_exports_point_into_its_code() {
        let image = AgentImage::load().unwrap();
        let (_, exports) = image.at(0x1000_0000);
        assert_eq!(exports.version, u64::from(wire::VERSION));
        for entry in exports.rseq.handlers.into_iter().chain(exports.locked.handlers) {
            assert!((0x1000_0000..0x1000_0000 + image.len() as u64).contains(&entry), "{entry:#x}");
        }
    }

    /// The agent's instructions, with the address after its last one.
    fn instructions() -> Vec<iced_x86::Instruction> {
        let elf = ElfFile64::<Endianness>::parse(BLOB).unwrap();
        let text = elf.section_by_name(".text").unwrap();
        let decoder = Decoder::with_ip(64, text.data().unwrap(), text.address(), DecoderOptions::NONE);
        decoder.into_iter().collect()
    }

    #[test]
    fn the_agent_writes_no_vector_register_and_has_no_string_instruction() {
        let mut info = InstructionInfoFactory::new();
        for instruction in instructions() {
            assert!(!instruction.is_string_instruction(), "{instruction}");
            for used in info.info(&instruction).used_registers() {
                let is_vector = used.register().is_vector_register() || used.register().is_st();
                assert!(!is_vector || used.access() == OpAccess::Read, "{instruction}");
            }
        }
        assert!(instructions().len() > 20, "the agent has code");
    }

    /// B3, and that the price of a hit is what it was measured to be (CONTRACT 2).
    #[test]
    fn handlers_that_only_count_write_none_of_the_registers_that_need_not_be_saved() {
        let clobbers = AgentImage::load().unwrap().clobbers();
        let apart = |set: RegSet| set.iter().filter(|r| (8..12).contains(r)).count();
        for of in [clobbers.counting(true), clobbers.counting(false)] {
            assert_eq!(apart(of.handler(HandlerKind::Count)), 0, "{:?}", of.handler(HandlerKind::Count));
            assert!(apart(of.handler(HandlerKind::Ring)) >= 1, "it makes system calls, which write r11");
            // What a call keeps comes back; the stack pointer is written by every return.
            let kinds =
                [HandlerKind::Count, HandlerKind::Leave, HandlerKind::Ring, HandlerKind::ProgramInSpace];
            assert!(kinds.iter().all(|kind| of.handler(*kind).contains(0)));
        }
    }

    /// Maps and cells are used there without a check that could fail.
    #[test]
    fn the_agent_has_no_code_that_panics() {
        let elf = ElfFile64::<Endianness>::parse(BLOB).unwrap();
        let names = || elf.symbols().filter_map(|s| s.name().ok());
        assert!(names().any(|name| name.contains("log2_histogram")), "it has its symbols");
        assert_eq!(names().find(|name| name.contains("panic")), None);
    }

    #[test]
    fn the_agent_makes_system_calls_at_the_doorbell_and_in_helpers_alone() {
        let elf = ElfFile64::<Endianness>::parse(BLOB).unwrap();
        let of = |module: &str| -> Vec<_> {
            let symbols = elf.symbols().filter(|s| s.name().is_ok_and(|n| n.contains(module)));
            symbols.map(|s| s.address()..s.address() + s.size()).collect()
        };
        let (rings, mut helpers) = (of("8doorbell"), of("6helper"));
        helpers.extend(of("7helpers"));
        let calls = instructions();
        let calls: Vec<u64> =
            calls.iter().filter(|i| i.mnemonic() == Mnemonic::Syscall).map(|i| i.ip()).collect();
        assert!(rings.len() == 4 && calls.len() >= 2, "{rings:x?} {calls:x?}");
        let mut allowed = rings.iter().chain(&helpers);
        assert!(calls.iter().all(|at| allowed.clone().any(|r| r.contains(at))), "{rings:x?} {calls:x?}");
        assert!(allowed.any(|r| calls.iter().any(|at| r.contains(at))));
    }

    #[test]
    fn the_agent_has_relative_relocations_only_and_all_are_applied() {
        let image = AgentImage::load().unwrap();
        // Two for each of four rseq words (start and abort), and one for each handler.
        assert!(image.relative.len() >= 8, "{:?}", image.relative);
        let (bytes, _) = image.at(0x2000_0000);
        for (offset, addend) in &image.relative {
            let word = u64::from_le_bytes(bytes[*offset..*offset + 8].try_into().unwrap());
            assert_eq!(word, 0x2000_0000 + addend);
        }
    }

    #[test]
    fn the_agent_has_nothing_to_write_to() {
        let elf = ElfFile64::<Endianness>::parse(BLOB).unwrap();
        for name in [".data", ".bss", ".got", ".got.plt"] {
            assert!(elf.section_by_name(name).is_none_or(|s| s.size() == 0), "{name}");
        }
    }
}
