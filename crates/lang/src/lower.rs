//! From a checked tree to programs.
//!
//! For:     whoever runs a script: the controller, later targets and the kernel.
//! State:   the constants and records of one script.
//! Context: control.
//! Keeps:   L1 every program is one that `bpf::Program` takes, and is safe by construction: it touches its context, its
//!             stack, scratch, constants and map values, each within its bounds, and a target's memory by helpers only.
//!          L2 padding of keys is zeros, so that equal keys are equal bytes.
//!          L3 what depends on the running process (addresses, numbers of maps) is not in a program.
//! Checked: `tests/scripts.rs`; `torture lang` (no panic, no refused program, bounded).

mod aggregate;
mod build;
mod call;
mod code;
mod convert;
mod expr;
mod frame;
mod memory;
mod native;
mod operator;
mod output;
mod sites;
mod statement;
mod text;

use crate::ast::{AttachPoint, MapId, Spec};
use crate::program::{Event, MapDecl, Place as At, Probe, Record, Script, Target, What};
use crate::types::{Agg, Type};
use crate::{Checked, Diagnostic, Span};
use build::Build;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// Most bytes of scratch memory that one program may have.
const SCRATCH_MAX: usize = 1 << 22;
/// Most programs.
const PROGRAMS_MAX: usize = 1 << 16;

/// What the lowering is told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Failed reads and lookups leave a record each (`-k`).
    pub says_failures: bool,
    /// CPUs of the machine.
    pub ncpus: u32,
    /// A map whose value stands for the time of `tseries` (`BPFTRACE_DUMMY_TS_MAP`, for tests).
    pub time_map: Option<String>,
}

/// Lowers a script.
///
/// # Errors
/// A value or a program that is too large, a function that is only in the kernel.
pub fn lower(checked: &Checked, options: Options) -> Result<Script, Diagnostic> {
    let mut lowering = Lowering {
        checked,
        options,
        constants: crate::program::SCALAR_KEY.to_vec(),
        interned: HashMap::from([(crate::program::SCALAR_KEY.to_vec(), 0)]),
        records: Vec::new(),
        time_formats: Vec::new(),
        names: Vec::new(),
        scratch: 8,
        not_own: BTreeSet::new(),
    };
    let mut probes = Vec::new();
    for (number, probe) in checked.probes.iter().enumerate() {
        for (i, point) in probe.points.iter().enumerate() {
            for mut group in sites::groups(checked, number, i, probe, point) {
                if probes.len() >= PROGRAMS_MAX {
                    return Err(Diagnostic::error(point.span, "more probes than can be kept"));
                }
                group.cookie = lowering.names.len() as u64;
                lowering.names.extend(group.sites.iter().map(|site| point.sites[*site].name.clone()));
                let event = event(point, &group)?;
                let (program, scratch) = Build::program(&mut lowering, number, probe, point, group)?;
                let native = native::native(checked, probe, point);
                probes.push(Probe { name: point.text.clone(), event, program, scratch, native });
            }
        }
    }
    Ok(Script {
        probes,
        maps: (0..).zip(&checked.maps).map(|(id, map)| lowering.declaration(MapId(id), map)).collect(),
        constants: lowering.constants,
        scratch: lowering.scratch,
        records: lowering.records,
        time_formats: lowering.time_formats,
        names: lowering.names,
        symbols: None,
        ctypes: checked.ctypes.clone(),
    })
}

/// Bytes that a value takes in a map.
fn cell(size: usize) -> usize {
    match size {
        0..=2 => 8,
        size => size,
    }
}

fn event(point: &AttachPoint, group: &sites::Group) -> Result<Event, Diagnostic> {
    Ok(match &point.spec {
        Spec::Begin => Event::Begin,
        Spec::End => Event::End,
        Spec::Test(name) => Event::Test(name.clone()),
        Spec::Bench(name) => Event::Bench(name.clone()),
        Spec::Signal(name) => {
            // No process is asked about SIGKILL and SIGSTOP.
            let number = crate::run::signal_number(name).filter(|number| ![9, 19].contains(number));
            Event::Signal(
                number.ok_or_else(|| {
                    Diagnostic::error(point.span, format!("{name} is not a supported signal"))
                })?,
            )
        }
        Spec::Period(nanos) if point.provider == crate::ast::Provider::Interval => Event::Interval(*nanos),
        Spec::Period(_) | Spec::Event(..) | Spec::Watchpoint { .. } => Event::Sampled(point.spec.clone()),
        _ => {
            let place = |(site, cookie): (&usize, u64)| (point.sites[*site].place, cookie);
            let sites = group.sites.iter().zip(group.cookie..).map(place).collect();
            Event::Target(Target { provider: point.provider, sites })
        }
    })
}

/// What the programs of a script share.
struct Lowering<'a> {
    checked: &'a Checked,
    options: Options,
    constants: Vec<u8>,
    interned: HashMap<Vec<u8>, usize>,
    records: Vec<Record>,
    time_formats: Vec<Vec<u8>>,
    names: Vec<Arc<str>>,
    scratch: usize,
    /// Maps with a key that is changed by who may not be the thread of that number, or where it lies.
    not_own: BTreeSet<MapId>,
}

impl Lowering<'_> {
    fn declaration(&self, id: MapId, map: &crate::Map) -> MapDecl {
        let size = |ty: &Type| self.checked.ctypes.size(ty) as usize;
        MapDecl {
            name: format!("@{}", map.name),
            kind: map.kind,
            key_size: map.key.as_ref().map_or(crate::program::SCALAR_KEY.len(), size),
            key: map.key.clone(),
            value_size: cell(size(&map.value)),
            value: map.value.clone(),
            max_entries: map.max_entries as usize,
            is_own: map.is_plain
                && map.key.is_some()
                && !matches!(map.value, Type::Agg(_))
                && !self.not_own.contains(&id),
        }
    }

    /// Where these bytes are among the constants.
    fn constant(&mut self, bytes: &[u8]) -> usize {
        if let Some(at) = self.interned.get(bytes) {
            return *at;
        }
        self.constants.resize(self.constants.len().next_multiple_of(8), 0);
        let at = self.constants.len();
        self.constants.extend_from_slice(bytes);
        self.interned.insert(bytes.to_vec(), at);
        at
    }

    /// The number of a record.
    fn record(&mut self, what: What, args: Vec<Type>, span: Span) -> usize {
        let place = Rc::new(self.place(span));
        self.records.push(Record { what, args, place });
        self.records.len() - 1
    }

    /// The number of a format of times.
    fn time_format(&mut self, format: &[u8]) -> usize {
        let known = self.time_formats.iter().position(|f| f == format);
        known.unwrap_or_else(|| {
            self.time_formats.push(format.to_vec());
            self.time_formats.len() - 1
        })
    }

    fn place(&self, span: Span) -> At {
        let sources = &self.checked.sources;
        let (from, to) = (sources.place(span.file, span.start), sources.place(span.file, span.end));
        let line = sources.line(span.file, from.line);
        let mut context = vec![line.to_owned()];
        if from.line == to.line {
            let blanks: String = line
                .chars()
                .take(from.column as usize - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            context.push(blanks + &"~".repeat(to.column.saturating_sub(from.column).max(1) as usize));
        }
        let file = sources.file(span.file).map_or("", |file| file.name.as_str()).to_owned();
        At { at: sources.at(span), file, line: from.line, column: from.column, context }
    }
}

/// What an aggregation gives as a number is signed.
fn is_signed(agg: Agg) -> bool {
    match agg {
        Agg::Sum { signed } | Agg::Min { signed } | Agg::Max { signed } => signed,
        Agg::Avg { signed } | Agg::Stats { signed } | Agg::Tseries { signed, .. } => signed,
        Agg::Count | Agg::Hist { .. } | Agg::Lhist { .. } => false,
    }
}
