//! Settings of a program: the config block and its environment variables.
//!
//! For:     the checker (sizes), who runs the program (output, limits).
//! State:   the values.
//! Context: control.
//! Keeps:   1. The environment wins over the block.
//! Checked: tests/language.rs.

use crate::types::StackMode;

/// What happens if a probe is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub enum MissingProbes {
    #[default]
    Error,
    Warn,
    Ignore,
}

/// What happens if a feature that may change is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub enum Unstable {
    Error,
    #[default]
    Warn,
    Enable,
}

/// All settings, by bpftrace's names.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Config {
    pub cache_user_symbols: Option<String>,
    pub cpp_demangle: bool,
    pub lazy_symbolication: bool,
    pub license: String,
    pub log_size: u64,
    pub max_bpf_progs: u64,
    pub max_cat_bytes: u64,
    pub max_map_keys: u64,
    pub max_probes: u64,
    pub max_strlen: u64,
    pub missing_probes: MissingProbes,
    pub on_stack_limit: u64,
    /// Pages of one ring; `None`: by memory.
    pub perf_rb_pages: Option<u64>,
    pub show_debug_info: bool,
    pub stack_mode: StackMode,
    pub str_trunc_trailer: String,
    pub print_maps_on_exit: bool,
    pub unstable_tseries: Unstable,
    pub unstable_dw_ustack: Unstable,
    pub unstable_map_decl: Unstable,
    pub unstable_typeinfo: Unstable,
}

impl Config {
    /// A setting as the bytes of a value: a number, a truth or a text.
    pub(crate) fn value(&self, name: &str) -> Vec<u8> {
        let number = |n: u64| n.to_le_bytes().to_vec();
        let truth = |is: bool| vec![u8::from(is)];
        let text = |text: &str| text.as_bytes().to_vec();
        match name {
            "cache_user_symbols" => text(self.cache_user_symbols.as_deref().unwrap_or("PER_PID")),
            "cpp_demangle" => truth(self.cpp_demangle),
            "lazy_symbolication" => truth(self.lazy_symbolication),
            "license" => text(&self.license),
            "log_size" => number(self.log_size),
            "max_bpf_progs" => number(self.max_bpf_progs),
            "max_cat_bytes" => number(self.max_cat_bytes),
            "max_map_keys" => number(self.max_map_keys),
            "max_probes" => number(self.max_probes),
            "max_strlen" => number(self.max_strlen),
            "missing_probes" => text(match self.missing_probes {
                MissingProbes::Error => "error",
                MissingProbes::Warn => "warn",
                MissingProbes::Ignore => "ignore",
            }),
            "on_stack_limit" => number(self.on_stack_limit),
            "perf_rb_pages" => number(self.perf_rb_pages.unwrap_or(0)),
            "print_maps_on_exit" => truth(self.print_maps_on_exit),
            "show_debug_info" => truth(self.show_debug_info),
            "stack_mode" => text(match self.stack_mode {
                StackMode::Bpftrace => "bpftrace",
                StackMode::Perf => "perf",
                StackMode::Raw => "raw",
                StackMode::BuildId => "build_id",
            }),
            "str_trunc_trailer" => text(&self.str_trunc_trailer),
            _ => Vec::new(),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cache_user_symbols: None,
            cpp_demangle: true,
            lazy_symbolication: false,
            license: "GPL".into(),
            log_size: 1_000_000,
            max_bpf_progs: 1024,
            max_cat_bytes: 10_240,
            max_map_keys: 4096,
            max_probes: 1024,
            max_strlen: 1024,
            missing_probes: MissingProbes::default(),
            on_stack_limit: 32,
            perf_rb_pages: None,
            show_debug_info: true,
            stack_mode: StackMode::default(),
            str_trunc_trailer: "..".into(),
            print_maps_on_exit: true,
            unstable_tseries: Unstable::default(),
            unstable_dw_ustack: Unstable::default(),
            unstable_map_decl: Unstable::default(),
            unstable_typeinfo: Unstable::default(),
        }
    }
}
