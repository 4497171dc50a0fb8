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
use probe::{Config, Preset, Protection};

/// A column: its name, and how entries and returns are protected.
pub struct Column {
    pub name: &'static str,
    pub by: Config,
}

/// Mean and standard deviation in M/s; none where nothing was published.
pub type Published = Option<(f64, f64)>;

/// A row: CPUs, and what was published for each column.
pub struct Row {
    pub cpus: usize,
    pub published: &'static [Published],
}

pub struct Table {
    pub title: &'static str,
    pub machine: &'static str,
    pub kind: Kind,
    pub columns: &'static [Column],
    pub rows: &'static [Row],
}

const fn column(name: &'static str, preset: Preset) -> Column {
    Column { name, by: Config::preset(preset) }
}

/// The same with readers in the hit's own code.
const fn inlined(name: &'static str, preset: Preset) -> Column {
    let (entry, returns) = preset.protections();
    Column { name, by: Config::new(entry, returns) }
}

const fn ours(name: &'static str, by: Protection) -> Column {
    Column { name, by: Config::new(by, by) }
}

const fn row(cpus: usize, published: &'static [Published]) -> Row {
    Row { cpus, published }
}

const fn v(mean: f64, sd: f64) -> Published {
    Some((mean, sd))
}

/// Not published.
const NOT: Published = None;

const XEON: &str = "Xeon 6138";
const UNNAMED: &str = "machine not named";

/// Three stages: references and locks, SRCU, RCU Tasks Trace on entries; then what came later.
const STAGES: &[Column] = &[
    column("baseline", Preset::Baseline),
    inlined("SRCU", Preset::D),
    inlined("RTT", Preset::A),
    ours("lite", Protection::Lite),
    ours("tasks-fast", Protection::TasksFast),
    ours("fast", Protection::Fast),
];

pub const UPROBE: &[Table] = &[
    Table {
        title: "uprobe-nop",
        machine: XEON,
        kind: Kind::Entry,
        columns: STAGES,
        rows: &[
            row(1, &[v(3.032, 0.023), v(3.276, 0.005), v(3.396, 0.002), NOT, NOT, NOT]),
            row(2, &[v(3.452, 0.005), v(4.125, 0.002), v(4.271, 0.006), NOT, NOT, NOT]),
            row(4, &[v(3.663, 0.005), v(7.713, 0.002), v(8.499, 0.015), NOT, NOT, NOT]),
            row(8, &[v(3.718, 0.038), v(8.097, 0.006), v(10.355, 0.028), NOT, NOT, NOT]),
        ],
    },
    Table {
        title: "uretprobe-nop",
        machine: XEON,
        kind: Kind::Return,
        columns: STAGES,
        rows: &[
            row(1, &[v(1.979, 0.005), v(2.055, 0.001), v(2.174, 0.001), NOT, NOT, NOT]),
            row(2, &[v(2.361, 0.005), v(2.677, 0.000), v(2.853, 0.001), NOT, NOT, NOT]),
            row(4, &[v(2.309, 0.002), v(4.561, 0.003), v(4.913, 0.002), NOT, NOT, NOT]),
            row(8, &[v(2.253, 0.001), v(5.291, 0.002), v(5.883, 0.002), NOT, NOT, NOT]),
        ],
    },
];

/// All presets. B was published for returns alone, C and D for entries alone.
const PRESETS: &[Column] = &[
    column("baseline", Preset::Baseline),
    column("A", Preset::A),
    column("B", Preset::B),
    column("C", Preset::C),
    column("D", Preset::D),
    column("A'", Preset::APrime),
    column("B'", Preset::BPrime),
    column("C'", Preset::CPrime),
    ours("tasks-fast", Protection::TasksFast),
    ours("fast", Protection::Fast),
];

/// A row of `PRESETS` for returns, published for A, B, A' and B'.
macro_rules! returns {
    ($cpus:literal, $a:expr, $b:expr, $a2:expr, $b2:expr) => {
        row($cpus, &[NOT, $a, $b, NOT, NOT, $a2, $b2, NOT, NOT, NOT])
    };
}

/// A row of `PRESETS` for entries, published for A, C, D, A' and C'.
macro_rules! entries {
    ($cpus:literal, $a:expr, $c:expr, $d:expr, $a2:expr, $c2:expr) => {
        row($cpus, &[NOT, $a, NOT, $c, $d, $a2, NOT, $c2, NOT, NOT])
    };
}

pub const SRCU_LITE: &[Table] = &[
    Table {
        title: "uretprobe-nop",
        machine: UNNAMED,
        kind: Kind::Return,
        columns: PRESETS,
        rows: &[
            returns!(1, v(1.941, 0.002), v(2.014, 0.014), v(1.946, 0.001), v(1.973, 0.001)),
            returns!(2, v(3.731, 0.001), v(3.820, 0.002), v(3.660, 0.002), v(3.756, 0.002)),
            returns!(4, v(7.234, 0.003), v(7.410, 0.003), v(7.145, 0.001), v(7.206, 0.029)),
            returns!(8, v(13.448, 0.098), v(13.877, 0.009), v(13.449, 0.004), v(13.668, 0.004)),
        ],
    },
    Table {
        title: "uprobe-nop",
        machine: UNNAMED,
        kind: Kind::Entry,
        columns: PRESETS,
        rows: &[
            entries!(1, v(3.574, 0.004), v(3.446, 0.010), v(3.413, 0.003), v(3.480, 0.036), v(3.444, 0.014)),
            entries!(2, v(6.735, 0.006), v(6.411, 0.003), v(6.305, 0.003), v(6.652, 0.026), v(6.400, 0.021)),
            entries!(
                4,
                v(13.087, 0.008),
                v(12.454, 0.016),
                v(12.253, 0.006),
                v(13.079, 0.008),
                v(12.473, 0.020)
            ),
            entries!(
                8,
                v(24.622, 0.031),
                v(23.172, 0.013),
                v(23.044, 0.010),
                v(24.620, 0.004),
                v(23.552, 0.007)
            ),
        ],
    },
];
