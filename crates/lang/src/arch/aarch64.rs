//! AArch64: the kernel's `user_pt_regs`, x0 to x30, the stack pointer, the program counter, pstate.
//!
//! For:     the lowering, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: the machine's test (docs/aarch64.md).

/// What it is called.
pub(crate) const NAME: &str = "aarch64";
/// Whether it is known where values of a type are passed and returned, and operands of marks.
pub(crate) const HAS_PLACES: bool = false;
/// Offsets of the registers by which arguments are passed.
pub(crate) const ARGUMENTS: [i16; 8] = [0, 8, 16, 24, 32, 40, 48, 56];
/// Those by which Go passes whole numbers and pointers.
pub(crate) const GO_ARGUMENTS: [i16; 16] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120];
/// Words between the stack pointer and the first argument that lies there.
pub(crate) const ABOVE_STACK: i64 = 0;
/// Offsets of what a program asks of registers that are no argument.
pub(crate) const STACK_POINTER: i16 = 8 * 31;
pub(crate) const INSTRUCTION: i16 = 8 * 32;
/// x0.
pub(crate) const RETVAL: i16 = 0;

/// The offset of the register that DWARF has by this number.
pub(crate) fn by_dwarf(number: u8) -> i16 {
    8 * i16::from(number.min(31))
}

/// The offset of the register of this name.
pub(crate) fn by_name(name: &str) -> Option<i16> {
    match name {
        "sp" => Some(STACK_POINTER),
        "pc" => Some(INSTRUCTION),
        "pstate" => Some(8 * 33),
        "lr" => Some(8 * 30),
        "fp" => Some(8 * 29),
        _ => {
            // r0 as bpftrace has it, x0 as the manual has it; no zeros in front.
            let number = name.strip_prefix(['r', 'x'])?;
            let is_plain = number == "0" || !number.starts_with(['0', '+']);
            let number: i16 = number.parse().ok().filter(|_| is_plain)?;
            (0..=30).contains(&number).then_some(8 * number)
        }
    }
}
