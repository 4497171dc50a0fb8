//! What the series published (table).
//!
//! For:     `bench seeds`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `every_row_has_a_value_for_every_column`.
//! Source:  "uprobes: RCU-protected hot path optimizations" (2024) and the SRCU-lite series with its reports
//!          (2024). Rows up to 8 CPUs; more are in neither our machines nor this file.

use super::measure::Kind;
use probe::Preset;

/// A column: its published name, and our registry's preset for it.
pub struct Column {
    pub name: &'static str,
    pub preset: Preset,
}

/// A row: CPUs, and mean and standard deviation of each column in M/s.
pub struct Row {
    pub cpus: usize,
    pub published: &'static [(f64, f64)],
}

pub struct Table {
    pub title: &'static str,
    pub machine: &'static str,
    pub kind: Kind,
    pub columns: &'static [Column],
    pub rows: &'static [Row],
}

const fn column(name: &'static str, preset: Preset) -> Column {
    Column { name, preset }
}

const fn row(cpus: usize, published: &'static [(f64, f64)]) -> Row {
    Row { cpus, published }
}

const XEON: &str = "Xeon 6138";
const UNNAMED: &str = "machine not named";

/// Three stages: references and locks, SRCU, RCU Tasks Trace on entries.
const STAGES: &[Column] =
    &[column("baseline", Preset::Baseline), column("SRCU", Preset::D), column("RTT", Preset::A)];

pub const UPROBE: &[Table] = &[
    Table {
        title: "uprobe-nop",
        machine: XEON,
        kind: Kind::Entry,
        columns: STAGES,
        rows: &[
            row(1, &[(3.032, 0.023), (3.276, 0.005), (3.396, 0.002)]),
            row(2, &[(3.452, 0.005), (4.125, 0.002), (4.271, 0.006)]),
            row(4, &[(3.663, 0.005), (7.713, 0.002), (8.499, 0.015)]),
            row(8, &[(3.718, 0.038), (8.097, 0.006), (10.355, 0.028)]),
        ],
    },
    Table {
        title: "uretprobe-nop",
        machine: XEON,
        kind: Kind::Return,
        columns: STAGES,
        rows: &[
            row(1, &[(1.979, 0.005), (2.055, 0.001), (2.174, 0.001)]),
            row(2, &[(2.361, 0.005), (2.677, 0.000), (2.853, 0.001)]),
            row(4, &[(2.309, 0.002), (4.561, 0.003), (4.913, 0.002)]),
            row(8, &[(2.253, 0.001), (5.291, 0.002), (5.883, 0.002)]),
        ],
    },
];

pub const SRCU_LITE: &[Table] = &[
    Table {
        title: "uretprobe-nop",
        machine: UNNAMED,
        kind: Kind::Return,
        columns: &[
            column("A", Preset::A),
            column("B", Preset::B),
            column("A'", Preset::APrime),
            column("B'", Preset::BPrime),
        ],
        rows: &[
            row(1, &[(1.941, 0.002), (2.014, 0.014), (1.946, 0.001), (1.973, 0.001)]),
            row(2, &[(3.731, 0.001), (3.820, 0.002), (3.660, 0.002), (3.756, 0.002)]),
            row(4, &[(7.234, 0.003), (7.410, 0.003), (7.145, 0.001), (7.206, 0.029)]),
            row(8, &[(13.448, 0.098), (13.877, 0.009), (13.449, 0.004), (13.668, 0.004)]),
        ],
    },
    Table {
        title: "uprobe-nop",
        machine: UNNAMED,
        kind: Kind::Entry,
        columns: &[
            column("A", Preset::A),
            column("C", Preset::C),
            column("D", Preset::D),
            column("A'", Preset::APrime),
            column("C'", Preset::CPrime),
        ],
        rows: &[
            row(1, &[(3.574, 0.004), (3.446, 0.010), (3.413, 0.003), (3.480, 0.036), (3.444, 0.014)]),
            row(2, &[(6.735, 0.006), (6.411, 0.003), (6.305, 0.003), (6.652, 0.026), (6.400, 0.021)]),
            row(4, &[(13.087, 0.008), (12.454, 0.016), (12.253, 0.006), (13.079, 0.008), (12.473, 0.020)]),
            row(8, &[(24.622, 0.031), (23.172, 0.013), (23.044, 0.010), (24.620, 0.004), (23.552, 0.007)]),
        ],
    },
];
