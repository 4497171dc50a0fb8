//! Dynamic relocations: pointers that the loader fills in.
//!
//! For:     code pointers in position-independent images, and the slots that hold resolved ifuncs.
//! State:   none; `ElfImage` keeps the result.
//! Context: control.
//! Keeps:   Q1 `relative` is sorted by slot and holds RELATIVE and RELR entries alike.
//! Checked: tests/suite/pointers.rs.

use object::elf::{self, RelocationType};
use object::endian::LittleEndian as LE;
use object::read::SymbolIndex;
use object::read::elf::{FileHeader as _, Rela as _, SectionHeader as _, Sym as _};

use super::bounds::Names;
use super::header::Header;
use super::{ElfImage, Machine};
use crate::ImageAddr;

/// A slot that the loader fills with the answer of an ifunc resolver of the same image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IrelativeSlot {
    /// The resolver.
    pub resolver: ImageAddr,
    /// The 8 bytes that hold the chosen implementation's address once the image is loaded.
    pub slot: ImageAddr,
}

/// A slot that the loader fills with the address of a named symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportSlot {
    /// The symbol.
    pub name: String,
    /// The 8 bytes that hold its address once the image is loaded (with lazy binding: once called).
    pub slot: ImageAddr,
    /// True if the slot is filled on the first call at the latest, false if before the program runs.
    pub is_lazy: bool,
}

/// What a relocation does to its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Relative,
    Irelative,
    Symbol { is_lazy: bool },
    Other,
}

#[derive(Debug, Default)]
pub(super) struct Relocs {
    /// Slot and address to be biased.
    pub relative: Vec<(ImageAddr, ImageAddr)>,
    pub irelative: Vec<IrelativeSlot>,
    pub imports: Vec<ImportSlot>,
    /// Addresses in this image that symbolic relocations lead to.
    pub symbolic: Vec<ImageAddr>,
}

impl ElfImage {
    /// The slots of this image that hold answers of its own ifunc resolvers.
    ///
    /// In a process, the 8 bytes at a slot say which implementation was chosen.
    pub fn irelative_slots(&self) -> &[IrelativeSlot] {
        &self.relocs().irelative
    }

    /// The slots of this image that hold the address of the symbol `name`, in whatever image that is.
    pub fn import_slots<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ImportSlot> {
        self.relocs().imports.iter().filter(move |i| i.name == name)
    }

    pub(super) fn relocs(&self) -> &Relocs {
        self.relocs.get_or_init(|| {
            let mut relocs = Relocs::default();
            // A table that cannot be read leaves what was read before it.
            let _ = collect(self, &mut relocs);
            relocs.relative.sort_unstable();
            relocs
        })
    }

    /// The 8 bytes at `addr` as the loader leaves them, less the bias.
    pub fn word(&self, addr: ImageAddr) -> Option<u64> {
        let relative = &self.relocs().relative;
        if let Ok(at) = relative.binary_search_by_key(&addr, |&(slot, _)| slot) {
            return Some(relative[at].1.0);
        }
        self.raw_word(addr)
    }

    pub(super) fn raw_word(&self, addr: ImageAddr) -> Option<u64> {
        let bytes = self.bytes(addr, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

fn collect(image: &ElfImage, relocs: &mut Relocs) -> Option<()> {
    let data = image.data.as_slice();
    let header = Header::parse(data).ok()?;
    let sections = header.sections(LE, data).ok()?;
    // `--emit-relocs` leaves tables that no loader reads; they are not loaded.
    for section in sections.iter().filter(|s| s.sh_flags(LE).contains(elf::SHF_ALLOC)) {
        if let Ok(Some(slots)) = section.relr(LE, data) {
            // A bit stands for a slot of 8 bytes: more slots than the file has room for are a lie.
            for slot in slots.take((data.len() / 8).saturating_sub(relocs.relative.len())) {
                let slot = ImageAddr(slot);
                relocs.relative.extend(image.raw_word(slot).map(|to| (slot, ImageAddr(to))));
            }
        }
        if let Ok(Some((table, symbols))) = section.rela(LE, data) {
            let symbols = sections.symbol_table_by_index(LE, data, symbols).unwrap_or_default();
            let mut names = Names::of(data, &sections, &symbols);
            for rela in table {
                one(image.machine(), rela, &symbols, &mut names, relocs);
            }
        }
    }
    Some(())
}

fn one(
    machine: Machine,
    rela: &elf::Rela64<LE>,
    symbols: &object::read::elf::SymbolTable<'_, Header>,
    names: &mut Names<'_>,
    relocs: &mut Relocs,
) {
    let slot = ImageAddr(rela.r_offset(LE));
    let addend = rela.r_addend(LE) as u64;
    match effect(machine, rela.r_type(LE, false)) {
        Effect::Relative => relocs.relative.push((slot, ImageAddr(addend))),
        Effect::Irelative => {
            relocs.irelative.push(IrelativeSlot { resolver: ImageAddr(addend), slot });
        }
        Effect::Symbol { is_lazy } => {
            let Ok(symbol) = symbols.symbol(SymbolIndex(rela.r_sym(LE, false) as usize)) else { return };
            if !symbol.is_undefined(LE) {
                relocs.symbolic.push(ImageAddr(symbol.st_value(LE).wrapping_add(addend)));
            }
            let name = names.get(symbol.st_name(LE)).unwrap_or_default();
            if addend == 0 && !name.is_empty() {
                let name = String::from_utf8_lossy(name).into_owned();
                relocs.imports.push(ImportSlot { name, slot, is_lazy });
            }
        }
        Effect::Other => {}
    }
}

fn effect(machine: Machine, kind: RelocationType) -> Effect {
    match (machine, kind) {
        (Machine::X86_64, elf::R_X86_64_RELATIVE) => Effect::Relative,
        (Machine::X86_64, elf::R_X86_64_IRELATIVE) => Effect::Irelative,
        (Machine::X86_64, elf::R_X86_64_JUMP_SLOT) => Effect::Symbol { is_lazy: true },
        (Machine::X86_64, elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT) => Effect::Symbol { is_lazy: false },
        (Machine::Aarch64, elf::R_AARCH64_RELATIVE) => Effect::Relative,
        (Machine::Aarch64, elf::R_AARCH64_IRELATIVE) => Effect::Irelative,
        (Machine::Aarch64, elf::R_AARCH64_JUMP_SLOT) => Effect::Symbol { is_lazy: true },
        (Machine::Aarch64, elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT) => {
            Effect::Symbol { is_lazy: false }
        }
        _ => Effect::Other,
    }
}
