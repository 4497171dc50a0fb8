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
