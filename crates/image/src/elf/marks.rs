//! Marks that a program's authors put in: USDT, as <sys/sdt.h> writes it.
//!
//! For:     `U:` specifications.
//! State:   none; the note section is read each time.
//! Context: control.
//! Keeps:   M1 an address is that of the instruction which the mark stands at, also in a prelinked file.
//! Checked: tests/suite/marks.rs, against readelf.
//! Source:  the format of the notes: <sys/sdt.h>, `_SDT_NOTE`.

use object::elf::FileHeader64;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::ImageAddr;
use crate::loc::{MarkArgument, mark_arguments};

/// The type of the notes.
const NT_STAPSDT: u32 = 3;

/// One place of a mark; several places may have one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Who put it in.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// Where it is: usually a nop.
    pub addr: ImageAddr,
    /// A 16-bit count of tracers; the program comes by the mark only if it is not 0.
    pub semaphore: Option<ImageAddr>,
    /// Where its arguments are, in the assembler's words.
    pub arguments: String,
}

/// Where a mark has one of its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand<'a> {
    /// Its length in bytes: 1, 2, 4 or 8.
    pub len_bytes: u8,
    /// A register with its percent sign, memory, or a constant, in the assembler's words.
    pub place: &'a str,
}

impl Mark {
    /// `provider:name`.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }

    /// All arguments; `symbol` knows the addresses of names in the file.
    pub fn all_arguments(&self, symbol: &dyn Fn(&str) -> Option<ImageAddr>) -> Vec<MarkArgument> {
        mark_arguments(&self.arguments, symbol)
    }

    /// The n-th argument, from 0; `None` if it has fewer, or the note cannot be read.
    pub fn operand(&self, n: usize) -> Option<Operand<'_>> {
        let (len, place) = apart(&self.arguments).nth(n)?.split_once('@')?;
        let len_bytes = len.trim_start_matches('-').parse().ok()?;
        Some(Operand { len_bytes, place })
    }
}

/// Arguments stand apart by spaces; A64's memory has some within its brackets.
fn apart(arguments: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let parts = arguments.split(move |c: char| {
        is_inside = (is_inside || c == '[') && c != ']';
        c.is_whitespace() && !is_inside
    });
    parts.filter(|part| !part.is_empty())
}

/// The marks of the ELF file `data`, in file order.
pub(super) fn marks(data: &[u8]) -> Vec<Mark> {
    let Ok(header) = FileHeader64::<LE>::parse(data) else { return Vec::new() };
    let Ok(sections) = header.sections(LE, data) else { return Vec::new() };
    let base = sections.section_by_name(LE, b".stapsdt.base").map(|(_, s)| s.sh_addr(LE));
    let mut found = Vec::new();
    for mut notes in sections.iter().filter_map(|s| s.notes(LE, data).ok().flatten()) {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"stapsdt" && note.n_type(LE).0 == NT_STAPSDT {
                found.extend(mark(note.desc(), base));
            }
        }
    }
    found
}

/// Location, base, semaphore, then three texts that end in 0.
fn mark(bytes: &[u8], base: Option<u64>) -> Option<Mark> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let moved = base.map_or(0, |base| base.wrapping_sub(word(8).unwrap_or(base)));
    let mut texts = bytes.get(24..)?.split(|b| *b == 0).map(|t| String::from_utf8_lossy(t).into_owned());
    let semaphore = word(16).filter(|at| *at != 0);
    Some(Mark {
        addr: ImageAddr(word(0)?.wrapping_add(moved)),
        semaphore: semaphore.map(|at| ImageAddr(at.wrapping_add(moved))),
        provider: texts.next()?,
        name: texts.next()?,
        arguments: texts.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn spaces_within_brackets_separate_no_arguments() {
        let of = |arguments| apart(arguments).collect::<Vec<_>>();
        assert_eq!(of("4@w3 -4@[sp, 8]  8@x0"), ["4@w3", "-4@[sp, 8]", "8@x0"]);
        assert_eq!(of(" 4@%ecx -4@8(%rsp)"), ["4@%ecx", "-4@8(%rsp)"]);
    }
}
