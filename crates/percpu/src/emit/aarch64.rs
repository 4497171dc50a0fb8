//! The restartable count as A64 instructions.
//!
//! For:     trampolines of AArch64 processes, built on any host.
//! State:   none.
//! Context: built in control; run in a hit.
//! Keeps:   A1 no flag is written, and of registers x16 and x17 alone; no stack is used.
//!          A2 the one instruction that commits is the last.
//!          A3 whatever 16-bit number is read as the CPU's leads to a copy or to 0; a thread pointer that is 0 is not followed.
//! Checked: tests below; text's trampoline tests; the machine's test (docs/aarch64.md): exact counts under migration.
//! Source:  rseq(2); Arm ARM C6.

use super::TooFar;

/// No section is longer.
const ROOM: usize = 16;
const X16: u32 = 16;
const X17: u32 = 17;

/// What the section refers to: addresses, all within 32 KiB of it.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Its first instruction.
    pub at: u64,
    /// The descriptor that names it.
    pub descriptor: u64,
    /// Eight bytes: the address of CPU 0's entry of the table.
    pub table: u64,
    /// Where a thread goes on that has no copy.
    pub slow: u64,
}

/// A count.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    words: [u32; ROOM],
    len: usize,
    /// Words before the section that the kernel restarts.
    pub start: usize,
}

impl Emitted {
    /// The code; the restartable section goes from `start` to its end.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }
}

/// Whether an area that lies there from the thread pointer can be reached by one instruction.
pub fn reaches(area: i32) -> bool {
    (-256..=255 - 8).contains(&area)
}

/// The count of the cell `cell` bytes into a copy, a multiple of 8, in threads whose area lies `area` bytes from their thread
/// pointer; [`reaches`] says where it may.
///
/// # Errors
/// What is too far from `places.at`.
pub fn count(area: i32, cell: u32, places: &Places) -> Result<Emitted, TooFar> {
    let mut code = Writer { out: Emitted { words: [0; ROOM], len: 0, start: 0 }, at: places.at };
    let small = |offset: i32| (offset.cast_unsigned() & 0x1ff) << 12;
    code.put(0xd53b_d040 | X16); // mrs x16, tpidr_el0
    code.near(0xb400_0000 | X16, places.slow)?; // cbz x16, slow
    code.address(X17, places.descriptor)?; // adr x17, descriptor
    code.put(0xf800_0000 | small(area + 8) | X16 << 5 | X17); // stur x17, [x16, #area + 8]
    code.out.start = code.out.len;
    code.put(0x7840_0000 | small(area + 4) | X16 << 5 | X17); // ldurh w17, [x16, #area + 4]
    code.near(0x5800_0000 | X16, places.table)?; // ldr x16, table
    code.put(0xf860_5800 | X17 << 16 | X16 << 5 | X16); // ldr x16, [x16, w17, uxtw #3]
    code.near(0xb400_0000 | X16, places.slow)?; // cbz x16, slow
    code.put(0x9278_dc00 | X16 << 5 | X16); // and x16, x16, #~0xff: the low byte is the readers' rank
    let (high, low) = (cell >> 12, cell & 0xfff);
    if high != 0 {
        code.put(0x9140_0000 | high << 10 | X16 << 5 | X16); // add x16, x16, #high, lsl #12
    }
    code.put(0xf940_0000 | (low / 8) << 10 | X16 << 5 | X17); // ldr x17, [x16, #low]
    code.put(0x9100_0400 | X17 << 5 | X17); // add x17, x17, #1
    code.put(0xf900_0000 | (low / 8) << 10 | X16 << 5 | X17); // str x17, [x16, #low]
    Ok(code.out)
}

struct Writer {
    out: Emitted,
    at: u64,
}

impl Writer {
    fn put(&mut self, word: u32) {
        self.out.words[self.out.len] = word;
        self.out.len += 1;
    }

    fn distance(&self, to: u64) -> Result<u32, TooFar> {
        let from = self.at + 4 * self.out.len as u64;
        let distance = to.wrapping_sub(from).cast_signed();
        let is_near = (-(1 << 15)..1 << 15).contains(&distance) && distance & 3 == 0;
        if is_near { Ok((distance as i32).cast_unsigned()) } else { Err(TooFar { from, to }) }
    }

    /// A branch or load whose distance in words stands in bits 23 to 5.
    fn near(&mut self, word: u32, to: u64) -> Result<(), TooFar> {
        let distance = self.distance(to)?;
        self.put(word | ((distance >> 2) & 0x7_ffff) << 5);
        Ok(())
    }

    fn address(&mut self, register: u32, to: u64) -> Result<(), TooFar> {
        self.near(0x1000_0000 | register, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { at: 0x1000, descriptor: 0xf00, table: 0xf20, slow: 0xf44 };

    #[test]
    fn the_words_are_what_an_assembler_makes_of_the_steps() {
        let code = count(-32, 0x40, &PLACES).unwrap();
        // As GNU as 2.40 assembles what the comments in `count` say.
        let expected = [
            0xd53b_d050,
            0xb4ff_fa10,
            0x10ff_f7d1,
            0xf81e_8211,
            0x785e_4211,
            0x58ff_f870,
            0xf871_5a10,
            0xb4ff_f950,
            0x9278_de10,
            0xf940_2211,
            0x9100_0631,
            0xf900_2211,
        ];
        assert_eq!(code.words(), expected, "{:x?}", code.words());
        assert_eq!(code.start, 4);
    }

    #[test]
    fn a_cell_far_into_the_copy_takes_one_instruction_more_and_a_far_place_is_refused() {
        let code = count(-32, 0x12_3458, &PLACES).unwrap();
        assert_eq!(code.words()[9..], [0x9144_8e10, 0xf942_2e11, 0x9100_0631, 0xf902_2e11]);
        assert!(count(-32, 0, &Places { slow: 0x1_9004, ..PLACES }).is_err());
        assert!(reaches(-32) && reaches(-256) && !reaches(-260) && reaches(247) && !reaches(248));
    }
}
