//! x86-64: the kernel's `struct pt_regs`.
//!
//! For:     the lowering, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: tests/scripts.rs; tests/sites.rs.

/// What it is called.
pub(crate) const NAME: &str = "x86_64";
/// Whether it is known where values of a type are passed and returned, and operands of marks.
pub(crate) const HAS_PLACES: bool = true;
/// Offsets of the registers by which arguments are passed.
pub(crate) const ARGUMENTS: [i16; 6] = [112, 104, 96, 88, 72, 64];
/// Those by which Go passes whole numbers and pointers.
pub(crate) const GO_ARGUMENTS: [i16; 9] = [80, 40, 88, 112, 104, 72, 64, 56, 48];
/// Words between the stack pointer and the first argument that lies there: the return address.
pub(crate) const ABOVE_STACK: i64 = 1;
/// Offsets of what a program asks of registers that are no argument.
pub(crate) const STACK_POINTER: i16 = 152;
pub(crate) const INSTRUCTION: i16 = 128;
/// rax.
pub(crate) const RETVAL: i16 = 80;

/// By DWARF's numbers.
const BY_DWARF: [i16; 17] = [80, 96, 88, 40, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0, INSTRUCTION];
const BY_NAME: [(&str, i16); 24] = [
    ("r15", 0),
    ("r14", 8),
    ("r13", 16),
    ("r12", 24),
    ("bp", 32),
    ("bx", 40),
    ("r11", 48),
    ("r10", 56),
    ("r9", 64),
    ("r8", 72),
    ("ax", 80),
    ("cx", 88),
    ("dx", 96),
    ("si", 104),
    ("di", 112),
    ("orig_ax", 120),
    ("ip", INSTRUCTION),
    ("pc", INSTRUCTION),
    ("cs", 136),
    ("flags", 144),
    ("sp", STACK_POINTER),
    ("ss", 160),
    ("rax", 80),
    ("rip", INSTRUCTION),
];

/// The offset of the register that DWARF has by this number.
pub(crate) fn by_dwarf(number: u8) -> i16 {
    BY_DWARF[usize::from(number).min(16)]
}

/// The offset of the register of this name.
pub(crate) fn by_name(name: &str) -> Option<i16> {
    BY_NAME.iter().find(|(known, _)| *known == name).map(|(_, at)| *at)
}
