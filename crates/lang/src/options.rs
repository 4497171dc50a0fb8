//! Settings and named parameters.
//!
//! For:     the checker.
//! State:   which named parameters a program takes.
//! Context: control.
//! Keeps:   1. `getopt` becomes the constant that was given, or its default.
//! Checked: tests/language.rs.

use crate::ast::{ConfigItem, Expr, ExprKind, Probe};
use crate::builtin::Builtin;
use crate::check::Request;
use crate::checked::{Opt, OptValue};
use crate::config::{Config, MissingProbes, Unstable};
use crate::diagnostic::Diagnostic;
use crate::infer::promote::stack_mode;
use crate::names::nearest;
use crate::source::Span;
use crate::syntax::number;
use crate::visit::Visit;

/// What a script may call a program's licence.
const LICENSES: [&str; 6] =
    ["Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights", "GPL v2", "GPL"];

/// The names of all settings.
const NAMES: [&str; 21] = [
    "cache_user_symbols",
    "cpp_demangle",
    "lazy_symbolication",
    "license",
    "log_size",
    "max_bpf_progs",
    "max_cat_bytes",
    "max_map_keys",
    "max_probes",
    "max_strlen",
    "missing_probes",
    "on_stack_limit",
    "perf_rb_pages",
    "show_debug_info",
    "stack_mode",
    "str_trunc_trailer",
    "print_maps_on_exit",
    "unstable_tseries",
    "unstable_dw_ustack",
    "unstable_map_decl",
    "unstable_typeinfo",
];

/// Variables of the environment that are no settings of scripts.
const ENV_ONLY: [&str; 12] = [
    "btf",
    "kernel_build",
    "kernel_source",
    "vmlinux",
    "color",
    "debug_output",
    "no_cpp_demangle",
    "use_blazesym",
    "verify_llvm_ir",
    "addrspace",
    "ksymbols",
    "cache_user_symbols_mode",
];

/// The settings of blocks and environment.
pub(crate) fn config(
    blocks: &[(Span, Vec<ConfigItem>)],
    env: &[(String, String)],
    warnings: &mut Vec<Diagnostic>,
) -> Result<Config, Vec<Diagnostic>> {
    let mut config = Config::default();
    let mut problems = Vec::new();
    for item in blocks.iter().flat_map(|(_, items)| items) {
        let lower = item.name.text.to_lowercase();
        let name = lower.strip_prefix("bpftrace_").unwrap_or(&lower).to_string();
        let text = match &item.value.kind {
            ExprKind::Int(n) => n.to_string(),
            ExprKind::Bool(b) => b.to_string(),
            ExprKind::Str(s) => String::from_utf8_lossy(s).into_owned(),
            ExprKind::Ident(s) => s.clone(),
            _ => String::new(),
        };
        if !NAMES.contains(&name.as_str()) {
            let error = Diagnostic::error(item.name.span, format!("Unrecognized config variable: {name}"));
            problems.push(match nearest(&name, NAMES.into_iter()) {
                Some(near) => error.hint(format!("Did you mean {near}?")),
                None => error,
            });
        } else if let Err(why) = set(&mut config, &name, &text) {
            problems.push(Diagnostic::error(item.value.span, why));
        }
    }
    for (variable, value) in env {
        let Some(name) = variable.strip_prefix("BPFTRACE_").map(str::to_lowercase) else { continue };
        if !NAMES.contains(&name.as_str()) {
            if !ENV_ONLY.contains(&name.as_str()) {
                let message = format!("the environment variable {variable} is no setting");
                warnings.push(Diagnostic { span: None, ..Diagnostic::warning(Span::default(), message) });
            }
        } else if let Err(why) = set(&mut config, &name, value) {
            problems.push(Diagnostic { span: None, ..Diagnostic::error(Span::default(), why) });
        }
    }
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn set(config: &mut Config, name: &str, text: &str) -> Result<(), String> {
    let invalid = |valid: &str| format!("Invalid value for {name}. Found: {text}. Valid values: {valid}.");
    let number = || number(text).and_then(|n| u64::try_from(n).ok()).ok_or_else(|| invalid("a number"));
    let truth = || match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(invalid("true, false, 1, 0")),
    };
    let unstable = || match text {
        "enable" | "1" | "true" => Ok(Unstable::Enable),
        "warn" => Ok(Unstable::Warn),
        "error" | "0" | "false" => Ok(Unstable::Error),
        _ => Err(invalid("error, warn, enable")),
    };
    match name {
        "cache_user_symbols" => match text {
            "PER_PID" | "PER_PROGRAM" | "NONE" | "0" | "1" => config.cache_user_symbols = Some(text.into()),
            _ => return Err(invalid("PER_PID, PER_PROGRAM, NONE")),
        },
        "cpp_demangle" => config.cpp_demangle = truth()?,
        "lazy_symbolication" => config.lazy_symbolication = truth()?,
        "license" if LICENSES.contains(&text) => config.license = text.into(),
        "license" => return Err(invalid(&LICENSES.join(", "))),
        "log_size" => config.log_size = number()?,
        "max_bpf_progs" => config.max_bpf_progs = number()?,
        "max_cat_bytes" => config.max_cat_bytes = number()?,
        "max_map_keys" => config.max_map_keys = number()?.max(1),
        "max_probes" => config.max_probes = number()?,
        "max_strlen" => {
            let n = number()?;
            if !(1..=1 << 20).contains(&n) {
                return Err(invalid("1 to 1048576"));
            }
            config.max_strlen = n;
        }
        "missing_probes" => {
            config.missing_probes = match text {
                "error" => MissingProbes::Error,
                "warn" => MissingProbes::Warn,
                "ignore" => MissingProbes::Ignore,
                _ => return Err(invalid("error, warn, ignore")),
            }
        }
        "on_stack_limit" => config.on_stack_limit = number()?,
        "perf_rb_pages" => config.perf_rb_pages = Some(number()?),
        "show_debug_info" => config.show_debug_info = truth()?,
        "stack_mode" => {
            config.stack_mode = stack_mode(text).ok_or_else(|| invalid("bpftrace, perf, raw, build_id"))?;
        }
        "str_trunc_trailer" => config.str_trunc_trailer = text.into(),
        "print_maps_on_exit" => config.print_maps_on_exit = truth()?,
        "unstable_tseries" => config.unstable_tseries = unstable()?,
        "unstable_dw_ustack" => config.unstable_dw_ustack = unstable()?,
        "unstable_map_decl" => config.unstable_map_decl = unstable()?,
        "unstable_typeinfo" => config.unstable_typeinfo = unstable()?,
        _ => {}
    }
    Ok(())
}

/// The named parameters of a program.
pub(crate) struct Options<'a> {
    request: &'a Request,
    pub declared: Vec<Opt>,
    problems: Vec<Diagnostic>,
}

impl<'a> Options<'a> {
    pub fn new(request: &'a Request) -> Options<'a> {
        Options { request, declared: Vec::new(), problems: Vec::new() }
    }

    /// Replaces the calls of `getopt` in a probe.
    pub fn probe(&mut self, probe: &mut Probe) {
        if let Some(predicate) = &mut probe.predicate {
            self.expr(predicate);
        }
        self.block(&mut probe.body);
    }

    /// Errors, among them parameters that nobody asked for.
    pub fn finish(&mut self) -> Vec<Diagnostic> {
        let known: Vec<&str> = self.declared.iter().map(|o| o.name.as_str()).collect();
        let unknown: Vec<String> = self
            .request
            .named
            .iter()
            // `--help` asks what there is.
            .filter(|(n, value)| !known.contains(&n.as_str()) && (n != "help" || value.is_some()))
            .map(|(n, _)| format!("--{n}"))
            .collect();
        if !unknown.is_empty() {
            let message = format!("unexpected program command line options: {}", unknown.join(", "));
            let error = Diagnostic { span: None, ..Diagnostic::error(Span::default(), message) };
            let wanted: Vec<String> = known.iter().map(|n| format!("--{n}")).collect();
            self.problems.push(if wanted.is_empty() {
                error
            } else {
                error.hint(format!("expected program options: {}", wanted.join(", ")))
            });
        }
        std::mem::take(&mut self.problems)
    }

    fn getopt(&mut self, args: &[Expr], span: Span) -> Option<ExprKind> {
        let Some(ExprKind::Str(name)) = args.first().map(|a| &a.kind) else {
            self.problems
                .push(Diagnostic::error(span, "First argument to 'getopt' must be a string literal."));
            return None;
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let default = match args.get(1).map(|a| &a.kind) {
            None => OptValue::Bool(false),
            Some(ExprKind::Int(n)) => OptValue::Int(*n),
            Some(ExprKind::Bool(b)) => OptValue::Bool(*b),
            Some(ExprKind::Str(s)) => OptValue::Str(s.clone()),
            Some(ExprKind::Unary(crate::ast::UnOp::Neg, e)) if matches!(e.kind, ExprKind::Int(_)) => {
                let ExprKind::Int(n) = e.kind else { return None };
                OptValue::Int(-n)
            }
            Some(_) => {
                let message = "Second argument to 'getopt' must be a string literal, integer literal, or a boolean literal.";
                self.problems.push(Diagnostic::error(span, message));
                return None;
            }
        };
        let about = match args.get(2).map(|a| &a.kind) {
            Some(ExprKind::Str(s)) => Some(String::from_utf8_lossy(s).into_owned()),
            _ => None,
        };
        match self.declared.iter().find(|o| o.name == name) {
            Some(known) if known.default != default => {
                let message = format!(
                    "Command line option '{name}' needs to have the same default value in all places it is used"
                );
                self.problems.push(Diagnostic::error(span, message));
            }
            Some(_) => {}
            None => self.declared.push(Opt { name: name.clone(), default: default.clone(), about }),
        }
        let given = self.request.named.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let value = match given {
            None => default,
            Some(text) => self.given(&name, &default, text)?,
        };
        Some(match value {
            OptValue::Bool(b) => ExprKind::Bool(b),
            OptValue::Int(n) => ExprKind::Int(n),
            OptValue::Str(s) => ExprKind::Str(s),
        })
    }

    fn given(&mut self, name: &str, default: &OptValue, text: Option<String>) -> Option<OptValue> {
        let shown = text.clone().unwrap_or_default();
        let (found, kind) = match default {
            OptValue::Bool(_) => {
                let value = match text.as_deref().map(str::to_lowercase).as_deref() {
                    None | Some("true" | "1") => Some(true),
                    Some("false" | "0") => Some(false),
                    _ => None,
                };
                (value.map(OptValue::Bool), "boolean")
            }
            OptValue::Int(_) => {
                let value = match shown.strip_prefix('-') {
                    Some(digits) => number(digits).map(|n| -n),
                    None => number(&shown),
                };
                (value.filter(|n| crate::fold::fits(*n)).map(OptValue::Int), "integer")
            }
            OptValue::Str(_) => (Some(OptValue::Str(shown.clone().into_bytes())), "string"),
        };
        if found.is_none() {
            let message = format!("program command line option --{name} invalid {kind} (value: {shown})");
            self.problems.push(Diagnostic { span: None, ..Diagnostic::error(Span::default(), message) });
        }
        found
    }
}

impl Visit for Options<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        self.parts(expr);
        if let ExprKind::Builtin(Builtin::Getopt, args) = &mut expr.kind {
            let args = std::mem::take(args);
            if let Some(kind) = self.getopt(&args, expr.span) {
                expr.kind = kind;
            }
        }
    }
}
