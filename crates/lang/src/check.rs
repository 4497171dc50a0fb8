//! Text to a checked program.
//!
//! For:     whoever runs or lists a program.
//! State:   none between programs.
//! Context: control.
//! Keeps:   1. Its time and memory are bounded by the bounds of its parts: size of a script, depth, expansion, passes.
//! Checked: tests/check.rs, tests/limits.rs, `torture lang`.

mod result;

use result::{Found, causes, declared, unresolved};

use crate::ast::{Expr, Item, Macro, MapDecl, Probe, Script};
use crate::cdecl::{Names, declare};
use crate::checked::{Checked, Map, MapKind, Var};
use crate::config::{Config, MissingProbes, Unstable};
use crate::diagnostic::{Diagnostic, Level};
use crate::expand::{Expander, Texts};
use crate::fold::Folder;
use crate::imports;
use crate::infer::{Around, Infer, Locks, settle};
use crate::options;
use crate::resolve::{Resolver, shown};
use crate::source::{FileId, Sources, Span};
use crate::syntax;
use crate::types::{Agg, CTypes, Type};
use crate::visit::Visit;
use crate::world::{Missing, World};
use std::path::{Path, PathBuf};

/// Rounds of settling `comptime` before it is given up.
const ROUNDS_MAX: u32 = 50;

/// A program to be checked, and what it was called with.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// As messages name it: `stdin` for `-e`.
    pub name: String,
    /// The script.
    pub text: String,
    /// Where imports are looked for.
    pub dir: PathBuf,
    /// `$1`, `$2` ...
    pub params: Vec<String>,
    /// `--name=value` after `--`; the value is `None` without `=`.
    pub named: Vec<(String, Option<String>)>,
    /// Environment variables; those named `BPFTRACE_...` are settings.
    pub env: Vec<(String, String)>,
    /// Headers of `--include`.
    pub headers: Vec<String>,
    /// Without `--unsafe`.
    pub safe: bool,
    /// With `-p`, `-c` or `--dwarf-pid`.
    pub has_target: bool,
}

impl Request {
    /// A script of `-e` without parameters.
    pub fn of(text: impl Into<String>) -> Request {
        Request { name: "stdin".into(), text: text.into(), safe: true, ..Request::default() }
    }
}

/// Why a program is refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The texts, for the messages.
    pub sources: Sources,
    /// Errors, and the warnings found before them.
    pub diagnostics: Vec<Diagnostic>,
}

impl Refused {
    /// All lines that are shown.
    pub fn show(&self) -> String {
        self.diagnostics.iter().map(|d| d.show(&self.sources)).collect()
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

impl std::error::Error for Refused {}

/// Checks a program: its tree with types.
///
/// # Errors
/// Every error that was found; the first if the text is no script.
pub fn check(request: &Request, world: &mut dyn World) -> Result<Checked, Refused> {
    let mut state = State::default();
    match state.run(request, world) {
        Ok(checked) => Ok(checked),
        Err(mut diagnostics) => {
            diagnostics.append(&mut state.warnings);
            order(&mut diagnostics);
            Err(Refused { sources: state.sources, diagnostics })
        }
    }
}

/// By place, each once.
fn order(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by_key(|d| d.span.map(|s| (s.file, s.start, s.end)));
    diagnostics.dedup_by(|a, b| a.span == b.span && a.message == b.message);
}

#[derive(Default)]
struct State {
    sources: Sources,
    warnings: Vec<Diagnostic>,
    ids: u32,
}

/// The parts of all scripts.
#[derive(Default)]
pub(crate) struct Parts {
    pub config: Vec<(Span, Vec<crate::ast::ConfigItem>)>,
    pub probes: Vec<Probe>,
    pub macros: Vec<Macro>,
    pub maps: Vec<MapDecl>,
}

type Step<T> = Result<T, Vec<Diagnostic>>;

impl State {
    fn run(&mut self, request: &Request, world: &mut dyn World) -> Step<Checked> {
        let one = |d: Diagnostic| vec![d];
        let file = self.sources.add(&request.name, &request.text);
        let (mut names, mut ctypes, mut parts) = (Names::default(), CTypes::default(), Parts::default());
        for header in &request.headers {
            let text = format!("#include <{header}>");
            let items = vec![Item::C(Span { file, start: 0, end: text.len() as u32 })];
            let script = Script { items, comments: Vec::new() };
            let mut include = |name: &str| world.header(name);
            declare(&script, &text, &mut names, &mut ctypes, &mut self.ids, &mut include).map_err(one)?;
        }
        let mut files = vec![(file, request.dir.clone())];
        self.read(file, &request.dir, request, world, &mut names, &mut ctypes, &mut parts, &mut files, true)?;
        let config = options::config(&parts.config, &request.env, &mut self.warnings)?;
        self.expand(request, config, names, ctypes, parts, world)
    }

    /// A script and then its imports, whose probes come first.
    #[allow(clippy::too_many_arguments)]
    fn read(
        &mut self,
        file: FileId,
        dir: &Path,
        request: &Request,
        world: &mut dyn World,
        names: &mut Names,
        ctypes: &mut CTypes,
        parts: &mut Parts,
        seen: &mut Vec<(FileId, PathBuf)>,
        root: bool,
    ) -> Step<()> {
        let text = self.sources.file(file).map_or(String::new(), |f| f.text.clone());
        let script = syntax::parse(&text, file, &mut self.ids, &request.params).map_err(|d| vec![d])?;
        {
            let mut include = |name: &str| world.header(name);
            declare(&script, &text, names, ctypes, &mut self.ids, &mut include).map_err(|d| vec![d])?;
        }
        for item in script.items {
            match item {
                Item::C(_) => {}
                Item::Config(span, items) if root && parts.config.is_empty() => {
                    parts.config.push((span, items))
                }
                Item::Config(span, _) => {
                    let message = if root {
                        "only one config block is allowed"
                    } else {
                        "an imported script can't have a config block"
                    };
                    return Err(vec![Diagnostic::error(span, message)]);
                }
                Item::Import(import) => {
                    let found = imports::load(&import, dir, world, seen)?;
                    for (path, text) in found {
                        let name = path.display().to_string();
                        let file = self.sources.add(name, text);
                        let dir = path.parent().map(Path::to_path_buf).unwrap_or_default();
                        seen.push((file, path));
                        if seen.len() > imports::FILES_MAX {
                            return Err(vec![Diagnostic::error(import.span, "too many imported files")]);
                        }
                        self.read(file, &dir, request, world, names, ctypes, parts, seen, false)?;
                    }
                }
                Item::Probe(probe) => parts.probes.push(probe),
                Item::Macro(found) => parts.macros.push(found),
                Item::MapDecl(decl) => parts.maps.push(decl),
            }
        }
        Ok(())
    }

    fn expand(
        &mut self,
        request: &Request,
        config: Config,
        mut names: Names,
        mut ctypes: CTypes,
        parts: Parts,
        world: &mut dyn World,
    ) -> Step<Checked> {
        let one = |d: Box<Diagnostic>| vec![*d];
        let texts = Texts { params: &request.params, names: &names };
        let mut expander = Expander::new(texts, parts.macros, self.ids).map_err(one)?;
        let (mut probes, mut problems) = (Vec::new(), Vec::new());
        for probe in parts.probes {
            let predicate = probe.predicate.as_ref().map(|p| expander.top_expr(p)).transpose();
            let body = expander.probe_block(&probe.body);
            match (predicate, body) {
                (Ok(predicate), Ok(body)) => probes.push(Probe { predicate, body, ..probe }),
                (a, b) => problems.extend([a.err(), b.err()].into_iter().flatten().map(|d| *d)),
            }
        }
        let mut sizes = Vec::new();
        for decl in parts.maps {
            match expander.top_expr(&decl.max_entries) {
                Ok(size) => sizes.push((decl, size)),
                Err(d) => problems.push(*d),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.ids = expander.ids;
        let enums = std::mem::take(&mut expander.enums);
        drop(expander);
        let mut options = options::Options::new(request);
        for probe in &mut probes {
            options.probe(probe);
        }
        self.fold(&mut probes, &mut sizes);
        let mut resolver = Resolver::default();
        let decls = declared(&sizes, &mut resolver)?;
        for probe in &mut probes {
            resolver.probe(probe.predicate.as_mut(), &mut probe.body);
        }
        let problems = std::mem::take(&mut resolver.problems);
        self.sort_out(problems.into_iter().chain(options.finish()).collect())?;
        self.find_sites(&mut probes, &config, world)?;
        let around = Around {
            ctypes: &mut ctypes,
            names: &mut names,
            world,
            config: &config,
            enums: &enums,
            vars: &resolver.vars,
            maps: &resolver.maps,
            safe: request.safe,
            has_target: request.has_target,
        };
        let found = self.infer(around, &mut probes)?;
        let vars = resolver.vars.iter().zip(&found.vars).map(|(v, slot)| Var {
            name: shown(&v.name).to_string(),
            ty: slot.clone(),
            span: v.span,
            probe: v.probe,
        });
        let maps = resolver.maps.iter().enumerate().map(|(i, m)| {
            let decl = decls.iter().find(|(id, ..)| id.0 as usize == i);
            Map {
                name: m.name.clone(),
                key: (m.keyed == Some(true)).then(|| found.keys[i].clone()),
                value: found.values[i].clone(),
                kind: decl.map_or(MapKind::Hash, |(_, kind, _)| *kind),
                max_entries: decl.map_or(config.max_map_keys, |(.., n)| *n),
                is_plain: decl.is_none() && config.max_map_keys == Config::default().max_map_keys,
                span: m.span,
            }
        });
        let (vars, maps): (Vec<Var>, Vec<Map>) = (vars.collect(), maps.collect());
        self.unstable(&maps, &config)?;
        order(&mut self.warnings);
        Ok(Checked {
            sources: std::mem::take(&mut self.sources),
            probes,
            types: found.types,
            vars,
            maps,
            options: options.declared,
            located: found.located,
            cgroups: found.cgroups,
            warnings: std::mem::take(&mut self.warnings),
            config,
            ctypes,
        })
    }

    /// Where attach points lead to; those that lead nowhere are dealt with as the setting says.
    fn find_sites(&mut self, probes: &mut Vec<Probe>, config: &Config, world: &mut dyn World) -> Step<()> {
        let (mut errors, mut found) = (Vec::new(), 0);
        for probe in &mut *probes {
            let mut points = Vec::new();
            for mut point in std::mem::take(&mut probe.points) {
                match world.expand(&point) {
                    Ok(sites) => {
                        point.sites = sites.unwrap_or_default().into();
                        found += point.sites.len() as u64;
                        points.push(point);
                    }
                    Err(Missing::Broken(why)) if config.missing_probes == MissingProbes::Error => {
                        errors.push(Diagnostic { span: None, ..Diagnostic::error(point.span, why) });
                    }
                    Err(missing) => {
                        let (why, near) = match missing {
                            Missing::NoMatch { message, near } => (message, near),
                            Missing::Broken(why) => (why, Vec::new()),
                        };
                        match config.missing_probes {
                            MissingProbes::Error => {
                                let error = Diagnostic::error(point.span, why);
                                let error = near.into_iter().fold(error, Diagnostic::hint);
                                errors.push(error.hint(
                                    "If this is expected, set the 'missing_probes' config variable to 'warn'.",
                                ));
                            }
                            MissingProbes::Warn => {
                                let warning = Diagnostic::warning(point.span, format!("{why} Skipping."));
                                self.warnings.push(warning);
                            }
                            MissingProbes::Ignore => {}
                        }
                    }
                }
            }
            probe.points = points;
        }
        // The default is a number for the kernel, whose probes cost more to set.
        if found > config.max_probes && config.max_probes != Config::default().max_probes {
            let (span, max) = (probes.first().map(|p| p.span).unwrap_or_default(), config.max_probes);
            let message = format!(
                "Can't attach to {found} probes because it exceeds the current limit of {max} probes; the setting \
                 max_probes raises it"
            );
            errors.push(Diagnostic::error(span, message));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn fold(&mut self, probes: &mut [Probe], sizes: &mut [(MapDecl, Expr)]) {
        let mut folder = Folder { ids: &mut self.ids, changed: false, last: false };
        for probe in probes {
            if let Some(predicate) = &mut probe.predicate {
                folder.expr(predicate);
            }
            folder.block(&mut probe.body);
        }
        for (_, size) in sizes {
            folder.expr(size);
        }
    }

    /// Keeps warnings; errors end it.
    fn sort_out(&mut self, problems: Vec<Diagnostic>) -> Step<()> {
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems.into_iter().partition(|d| d.level == Level::Error);
        self.warnings.extend(warnings);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn infer(&mut self, mut around: Around<'_>, probes: &mut [Probe]) -> Step<Found> {
        let mut locks = Locks::default();
        for _ in 0..ROUNDS_MAX {
            let mut infer = Infer::new(around, self.ids, locks);
            infer.run(probes);
            let mut settled = settle(&mut infer, probes, &mut self.ids);
            if !settled.problems.is_empty() {
                return Err(settled.problems);
            }
            if !settled.changed {
                let mut problems = causes(std::mem::take(&mut infer.problems));
                problems.extend(unresolved(probes));
                let found = Found {
                    types: std::mem::take(&mut infer.types)
                        .into_iter()
                        .map(|t| if t == Type::Void { Type::None } else { t })
                        .collect(),
                    vars: infer.vars.iter().map(|v| v.ty.clone()).collect(),
                    located: std::mem::take(&mut infer.located),
                    cgroups: std::mem::take(&mut infer.cgroups),
                    keys: std::mem::take(&mut infer.keys),
                    values: std::mem::take(&mut infer.values),
                };
                self.sort_out(problems)?;
                return Ok(found.without_dead_code(probes, &mut self.ids));
            }
            locks = std::mem::take(&mut settled.locks);
            around = infer.around;
        }
        let span = probes.first().map(|p| p.span).unwrap_or_default();
        Err(vec![Diagnostic::error(span, "the comptime expressions of this program do not settle")])
    }

    fn unstable(&mut self, maps: &[Map], config: &Config) -> Step<()> {
        let series = maps.iter().find(|m| matches!(m.value, Type::Agg(Agg::Tseries { .. })));
        let Some(map) = series else { return Ok(()) };
        match config.unstable_tseries {
            Unstable::Enable => Ok(()),
            Unstable::Warn => {
                let message = "Script is using an unstable feature. To prevent this warning you must explicitly enable \
                               the unstable feature in the config e.g. unstable_tseries=enable";
                self.warnings.push(Diagnostic::warning(map.span, message));
                Ok(())
            }
            Unstable::Error => {
                let message = "tseries feature is not enabled by default. To enable this unstable feature, set the \
                               config flag to enable. unstable_tseries=enable";
                Err(vec![Diagnostic::error(map.span, message)])
            }
        }
    }
}
