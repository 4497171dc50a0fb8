//! The restartable adds as A64 instructions.
//!
//! For:     trampolines of AArch64 processes, built on any host.
//! State:   none.
//! Context: built in control; run in a hit.
//! Keeps:   A1 a count writes no flag, and of registers x16 and x17 alone; entering x19 too, leaving x9, x10 and flags; no
//!             stack is used.
//!          A2 the one instruction that commits is the last.
//!          A3 whatever 16-bit number is read as the CPU's leads to a copy or to 0; a thread pointer that is 0 is not followed.
//! Checked: tests below; text's trampoline tests; the machine's test (docs/aarch64.md): exact counts under migration.
//! Source:  rseq(2); Arm ARM C6.

use super::TooFar;

/// No section is longer.
const ROOM: usize = 16;
const X9: u32 = 9;
const X10: u32 = 10;
const X16: u32 = 16;
const X17: u32 = 17;
/// What a hit of the general path keeps while it is inside: the entry by which it found its copy.
const ENTRY: u32 = 19;

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
    let mut code = begin(area, places)?;
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

/// A count that leaves in x19 the entry by which it found the copy, with the low byte, to which it adds too; the rest as in
/// [`count`].
///
/// # Errors
/// As for [`count`].
pub fn enter(area: i32, cell: u32, places: &Places) -> Result<Emitted, TooFar> {
    let mut code = begin(area, places)?;
    code.near(0x5800_0000 | ENTRY, places.table)?; // ldr x19, table
    code.put(0xf860_5800 | X17 << 16 | ENTRY << 5 | ENTRY); // ldr x19, [x19, w17, uxtw #3]
    code.near(0xb400_0000 | ENTRY, places.slow)?; // cbz x19, slow
    code.put(0xf940_0000 | (cell / 8) << 10 | ENTRY << 5 | X17); // ldr x17, [x19, #cell]
    code.put(0x9100_0400 | X17 << 5 | X17); // add x17, x17, #1
    code.put(0xf900_0000 | (cell / 8) << 10 | ENTRY << 5 | X17); // str x17, [x19, #cell]
    Ok(code.out)
}

/// A count to the entry in x19, if that still is the CPU's; what the thread did before it is over when it is seen.
///
/// # Errors
/// As for [`count`].
pub fn leave(area: i32, cell: u32, places: &Places) -> Result<Emitted, TooFar> {
    let mut code = begin(area, places)?;
    code.near(0x5800_0000 | X16, places.table)?; // ldr x16, table
    code.put(0xf860_5800 | X17 << 16 | X16 << 5 | X16); // ldr x16, [x16, w17, uxtw #3]
    code.put(0xeb00_001f | ENTRY << 16 | X16 << 5); // cmp x16, x19
    code.near(0x5400_0001, places.slow)?; // b.ne slow
    code.put(0x9100_0000 | cell << 10 | ENTRY << 5 | X9); // add x9, x19, #cell
    code.put(0xf940_0000 | X9 << 5 | X10); // ldr x10, [x9]
    code.put(0x9100_0400 | X10 << 5 | X10); // add x10, x10, #1
    code.put(0xc89f_fc00 | X9 << 5 | X10); // stlr x10, [x9]
    Ok(code.out)
}

/// From the thread pointer to the CPU's number in x17, with the section named and begun.
fn begin(area: i32, places: &Places) -> Result<Writer, TooFar> {
    let mut code = Writer { out: Emitted { words: [0; ROOM], len: 0, start: 0 }, at: places.at };
    let small = |offset: i32| (offset.cast_unsigned() & 0x1ff) << 12;
    code.put(0xd53b_d040 | X16); // mrs x16, tpidr_el0
    code.near(0xb400_0000 | X16, places.slow)?; // cbz x16, slow
    code.address(X17, places.descriptor)?; // adr x17, descriptor
    code.put(0xf800_0000 | small(area + 8) | X16 << 5 | X17); // stur x17, [x16, #area + 8]
    code.out.start = code.out.len;
    code.put(0x7840_0000 | small(area + 4) | X16 << 5 | X17); // ldurh w17, [x16, #area + 4]
    Ok(code)
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
    fn entering_and_leaving_are_what_an_assembler_makes_of_the_steps() {
        let head = [0xd53b_d050, 0xb4ff_fa10, 0x10ff_f7d1, 0xf81e_8211, 0x785e_4211];
        // As GNU as 2.40 assembles what the comments in `enter` and `leave` say.
        let enter = [0x58ff_f873, 0xf871_5a73, 0xb4ff_f953, 0xf940_2271, 0x9100_0631, 0xf900_2271];
        let leave = [
            0x58ff_f870,
            0xf871_5a10,
            0xeb13_021f,
            0x54ff_f921,
            0x9101_0269,
            0xf940_012a,
            0x9100_054a,
            0xc89f_fd2a,
        ];
        for (code, tail) in
            [(self::enter(-32, 0x40, &PLACES), &enter[..]), (self::leave(-32, 0x40, &PLACES), &leave)]
        {
            let code = code.unwrap();
            assert_eq!((&code.words()[..5], &code.words()[5..]), (&head[..], tail), "{:x?}", code.words());
            assert_eq!(code.start, 4);
        }
    }

    #[test]
    fn a_cell_far_into_the_copy_takes_one_instruction_more_and_a_far_place_is_refused() {
        let code = count(-32, 0x12_3458, &PLACES).unwrap();
        assert_eq!(code.words()[9..], [0x9144_8e10, 0xf942_2e11, 0x9100_0631, 0xf902_2e11]);
        assert!(count(-32, 0, &Places { slow: 0x1_9004, ..PLACES }).is_err());
        assert!(reaches(-32) && reaches(-256) && !reaches(-260) && reaches(247) && !reaches(248));
    }
}
