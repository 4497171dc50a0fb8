//! The adds of `table` as machine code, for a place in which much is a constant.
//!
//! For:     trampolines, which hold one add and know its area, its table and its cell.
//! State:   none.
//! Context: built in control; run in a hit.
//! Keeps:   M1 each emitted form is the steps of `steps`, in their order; what is emitted is what an assembler makes of them.
//!          M2 the one instruction that commits is the last.
//! Checked: tests/golden.rs (M1), text's trampoline tests (M2, read back by a decoder that is not ours).
//! Source:  rseq(2).

pub mod aarch64;

/// What an add is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A count that finds its copy, and writes no flag if it is restartable. Clobbers rax and rcx.
    Count,
    /// A count that leaves the entry by which it found the copy in rbx, with the low byte, to which it adds too. Clobbers rax,
    /// rcx and the flags.
    Enter,
    /// A count to the entry in rbx, if that still is the CPU's. Clobbers rax, rcx and the flags.
    Leave,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In a restartable sequence of a thread whose area lies so many bytes from its pointer. The descriptor names what
    /// [`Emitted`] tells.
    Restartable {
        /// Where the area lies.
        area: i32,
        /// Address of the descriptor.
        descriptor: u64,
    },
    /// By a locked add; the CPU is read by `rdpid`, or where that is missing by `lsl`.
    Locked {
        /// The processor has it.
        has_rdpid: bool,
    },
}

/// Where an add stands, and what it leads to: addresses.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Its first byte.
    pub at: u64,
    /// CPU 0's entry of the table.
    pub table: u64,
    /// Where a thread goes on that has no copy, or another one than before; near, of a count.
    pub slow: u64,
}

/// One add.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    bytes: [u8; ROOM],
    len: usize,
    /// Bytes before the section that the kernel restarts, if there is one.
    pub start: usize,
}

/// A place that the add leads to is too far from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFar {
    /// The address behind the instruction.
    pub from: u64,
    /// The place.
    pub to: u64,
}

/// No add is longer.
const ROOM: usize = 80;
/// Selector of the segment whose limit is the node and the CPU: GDT_ENTRY_CPUNODE, privilege 3.
const CPU_SEGMENT: u32 = 15 << 3 | 3;

impl Emitted {
    /// The code; a restartable section goes from `start` to its end.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The add of this form to the cell `cell` bytes into a copy.
///
/// # Errors
/// What is too far from `places.at`.
pub fn emit(form: Form, way: Way, cell: u32, places: &Places) -> Result<Emitted, TooFar> {
    let mut code = Writer { out: Emitted { bytes: [0; ROOM], len: 0, start: 0 }, at: places.at };
    match way {
        Way::Restartable { area, descriptor } => {
            restartable(&mut code, form, area, descriptor, cell, places)?
        }
        Way::Locked { has_rdpid } => locked(&mut code, form, has_rdpid, cell, places)?,
    }
    Ok(code.out)
}

fn restartable(
    code: &mut Writer,
    form: Form,
    area: i32,
    descriptor: u64,
    cell: u32,
    places: &Places,
) -> Result<(), TooFar> {
    code.relative(&[0x48, 0x8d, 0x05], descriptor)?; // lea rax, [rip + descriptor]
    code.with(&[0x64, 0x48, 0x89, 0x04, 0x25], area + 8); // mov fs:[area + 8], rax
    code.out.start = code.out.len;
    code.with(&[0x64, 0x0f, 0xb7, 0x04, 0x25], area + 4); // movzx eax, word fs:[area + 4]
    code.relative(&[0x48, 0x8d, 0x0d], places.table)?; // lea rcx, [rip + table]
    match form {
        Form::Count => {
            code.put(&[0x48, 0x8b, 0x0c, 0xc1]); // mov rcx, [rcx + rax*8]
            code.near(0xe3, places.slow)?; // jrcxz slow
            code.put(&[0xb1, 0]); // mov cl, 0
            code.with(&[0x48, 0x8b, 0x81], cell.cast_signed()); // mov rax, [rcx + cell]
            code.put(&[0x48, 0x8d, 0x40, 1]); // lea rax, [rax + 1]
            code.with(&[0x48, 0x89, 0x81], cell.cast_signed()); // mov [rcx + cell], rax
            return Ok(());
        }
        Form::Enter => {
            code.put(&[0x48, 0x8b, 0x1c, 0xc1]); // mov rbx, [rcx + rax*8]
            code.put(&[0x48, 0x85, 0xdb]); // test rbx, rbx
            code.relative(&[0x0f, 0x84], places.slow)?; // jz slow
        }
        Form::Leave => {
            code.put(&[0x48, 0x39, 0x1c, 0xc1]); // cmp [rcx + rax*8], rbx
            code.relative(&[0x0f, 0x85], places.slow)?; // jnz slow
        }
    }
    code.with(&[0x48, 0xff, 0x83], cell.cast_signed()); // inc qword [rbx + cell]
    Ok(())
}

fn locked(code: &mut Writer, form: Form, has_rdpid: bool, cell: u32, places: &Places) -> Result<(), TooFar> {
    match has_rdpid {
        true => code.put(&[0xf3, 0x0f, 0xc7, 0xf9]), // rdpid rcx
        // Neither traps where the time stamp counter does, as `rdtscp` would.
        false => {
            code.with(&[0xb9], CPU_SEGMENT.cast_signed()); // mov ecx, segment
            code.put(&[0x0f, 0x03, 0xc9]); // lsl ecx, ecx
        }
    }
    code.with(&[0x81, 0xe1], 0xfff); // and ecx, 0xfff: the node's number stands above the CPU's
    code.relative(&[0x48, 0x8d, 0x05], places.table)?; // lea rax, [rip + table]
    match form {
        Form::Count => {
            code.put(&[0x48, 0x8b, 0x04, 0xc8]); // mov rax, [rax + rcx*8]
            code.put(&[0x48, 0x85, 0xc0]); // test rax, rax
            code.near(0x74, places.slow)?; // jz slow
            code.put(&[0xb0, 0]); // mov al, 0
            code.with(&[0xf0, 0x48, 0xff, 0x80], cell.cast_signed()); // lock inc qword [rax + cell]
            return Ok(());
        }
        Form::Enter => {
            code.put(&[0x48, 0x8b, 0x1c, 0xc8]); // mov rbx, [rax + rcx*8]
            code.put(&[0x48, 0x85, 0xdb]); // test rbx, rbx
            code.relative(&[0x0f, 0x84], places.slow)?; // jz slow
        }
        Form::Leave => {
            code.put(&[0x48, 0x39, 0x1c, 0xc8]); // cmp [rax + rcx*8], rbx
            code.relative(&[0x0f, 0x85], places.slow)?; // jnz slow
        }
    }
    code.with(&[0xf0, 0x48, 0xff, 0x83], cell.cast_signed()); // lock inc qword [rbx + cell]
    Ok(())
}

struct Writer {
    out: Emitted,
    at: u64,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.out.bytes[self.out.len..][..bytes.len()].copy_from_slice(bytes);
        self.out.len += bytes.len();
    }

    /// An opcode with a constant behind it.
    fn with(&mut self, opcode: &[u8], constant: i32) {
        self.put(opcode);
        self.put(&constant.to_le_bytes());
    }

    /// An opcode with the distance to a place behind it.
    fn relative(&mut self, opcode: &[u8], to: u64) -> Result<(), TooFar> {
        let from = self.at + (self.out.len + opcode.len() + 4) as u64;
        let distance = to.wrapping_sub(from).cast_signed();
        self.with(opcode, i32::try_from(distance).map_err(|_| TooFar { from, to })?);
        Ok(())
    }

    /// A short branch.
    fn near(&mut self, opcode: u8, to: u64) -> Result<(), TooFar> {
        let from = self.at + self.out.len as u64 + 2;
        let distance = to.wrapping_sub(from).cast_signed();
        let distance = i8::try_from(distance).map_err(|_| TooFar { from, to })?;
        self.put(&[opcode, distance.cast_unsigned()]);
        Ok(())
    }
}
