//! The steps of an add, once: as text for inline assembly, here; as bytes, in `emit`.
//!
//! For:     `arch`, `table` and whoever has a sequence of its own; the golden test, which holds text and bytes together.
//! State:   none.
//! Context: built into hits.
//! Keeps:   E1 each step is one text, with the operands of whoever uses it.
//! Checked: tests/golden.rs.

/// Names the section to the kernel: from the step behind it to the commit the kernel sends an interrupted thread to the
/// abort handler.
#[doc(hidden)]
#[macro_export]
macro_rules! step_name {
    ($scratch:literal, $descriptor:literal, $area:literal) => {
        concat!(
            "lea ",
            $scratch,
            ", [rip + ",
            $descriptor,
            "]\n",
            "mov qword ptr fs:[",
            $area,
            " + 8], ",
            $scratch,
            "\n",
        )
    };
}

/// Reads the CPU as a number of 16 bits, for each of which a table has an entry.
#[doc(hidden)]
#[macro_export]
macro_rules! step_cpu {
    ($cpu:literal, $area:literal) => {
        concat!("movzx ", $cpu, ", word ptr fs:[", $area, " + 4]\n")
    };
}

/// Loads the table's entry of a CPU.
#[doc(hidden)]
#[macro_export]
macro_rules! step_entry {
    ($to:literal, $table:literal, $cpu:literal) => {
        concat!("mov ", $to, ", qword ptr [", $table, " + ", $cpu, " * 8]\n")
    };
}

/// Leaves of an entry the copy's address alone.
#[doc(hidden)]
#[macro_export]
macro_rules! step_copy {
    ($low_byte:literal) => {
        concat!("mov ", $low_byte, ", 0\n")
    };
}

/// Commits: adds one.
#[doc(hidden)]
#[macro_export]
macro_rules! step_inc {
    ($copy:literal, $cell:literal) => {
        concat!("inc qword ptr [", $copy, " + ", $cell, "]\n")
    };
}
