//! The seven rows and what was published for them (table).
//!
//! For:     `bench xol`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: `bench xol`'s test.
//! Source:  a mail of 14 April 2014 to linux-arm-kernel by Victor Kamensky. Arndale: Exynos 5250, two cores.
//!          Pandaboard ES: OMAP 4460. One million calls.

use trap::{Lookup, Scheme, Sync};

/// How a row is run.
pub struct Setting {
    /// `None`: no probe.
    pub probe: Option<(Scheme, Sync, Lookup)>,
    pub threads: u64,
    /// File mappings besides those that are there.
    pub mappings: usize,
}

pub struct Kind {
    /// In JSON.
    pub name: &'static str,
    pub title: &'static str,
    pub setting: Setting,
    pub arndale_us: f64,
    pub arndale_percent: u32,
    pub pandaboard_us: Option<f64>,
    pub pandaboard_percent: Option<u32>,
    /// The percentage does not follow from the figure.
    pub is_slip: bool,
}

const DYNAMIC: Option<(Scheme, Sync, Lookup)> = Some((Scheme::Dynamic, Sync::Range, Lookup::Mapping));
const DIRECT: Option<(Scheme, Sync, Lookup)> = Some((Scheme::Dynamic, Sync::Range, Lookup::Site));
const BROADCAST: Option<(Scheme, Sync, Lookup)> = Some((Scheme::Dynamic, Sync::Broadcast, Lookup::Mapping));
const CACHED: Option<(Scheme, Sync, Lookup)> = Some((Scheme::Cached, Sync::Range, Lookup::Site));

const fn row(
    (name, title): (&'static str, &'static str),
    (probe, threads, mappings): (Option<(Scheme, Sync, Lookup)>, u64, usize),
    (arndale_us, arndale_percent): (f64, u32),
    pandaboard: Option<(f64, u32)>,
) -> Kind {
    let (pandaboard_us, pandaboard_percent) = match pandaboard {
        Some((us, percent)) => (Some(us), Some(percent)),
        None => (None, None),
    };
    let setting = Setting { probe, threads, mappings };
    Kind {
        name,
        title,
        setting,
        arndale_us,
        arndale_percent,
        pandaboard_us,
        pandaboard_percent,
        is_slip: false,
    }
}

/// In the published order.
pub const ROWS: [Kind; 7] = [
    row(("none", "no tracing"), (None, 1, 0), (5.0, 100), Some((11.5, 100))),
    row(("lookup", "lookup per hit"), (DYNAMIC, 1, 0), (9.8, 196), Some((28.1, 244))),
    row(("mappings", "lookup per hit, 1000 mappings"), (DYNAMIC, 1, 1000), (10.0, 200), Some((28.7, 250))),
    row(("direct", "direct range flush, no lookup"), (DIRECT, 1, 0), (9.4, 188), Some((26.4, 230))),
    row(
        ("broadcast1", "lookup, broadcast serialisation, 1 thread"),
        (BROADCAST, 1, 0),
        (13.7, 274),
        Some((39.8, 346)),
    ),
    row(
        ("broadcast2", "lookup, broadcast serialisation, 2 threads"),
        (BROADCAST, 2, 0),
        (14.1, 282),
        Some((41.6, 361)),
    ),
    Kind { is_slip: true, ..row(("cached", "cached slot, written once"), (CACHED, 1, 0), (8.9, 188), None) },
];
