//! Which torture is meant.
//!
//! For:     `nanoprobe torture NAME`, and the targets that some of them start.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: by use.

use std::io::Write;

/// A torture: its name, what it does, its main function.
type Torture = (&'static str, &'static str, fn(&[String]) -> i32);

const ALL: &[Torture] = &[
    ("anywhere", "real programs with a thousand random instructions probed at a time", crate::anywhere_main),
    ("attach", "attach and detach under busy threads", crate::attach_main),
    ("bpf", "random eBPF programs in every engine, and broken compilers", crate::bpf_main),
    (
        "hwbp",
        "breakpoints reserved, released and changed by many threads, and broken accounts",
        crate::hwbp_main,
    ),
    ("lang", "scripts made by chance through the whole of the language", crate::lang_main),
    ("live", "consumers that come and go in one session under hits, and broken ones", crate::live_main),
    ("mem", "objects taken, given and retired in any context, and broken caches", crate::mem_main),
    ("rcu", "reader flavours and grace periods, and broken ones", crate::rcu_main),
    ("rhltable", "lookups while a table is resized without pause", crate::rhltable_main),
    ("uprobe", "probes that come and go under hits, forks, signals and loads", crate::uprobe_main),
    ("xol", "slots for out-of-line execution under more threads than slots", crate::xol_main),
];

/// Runs `nanoprobe torture NAME ...` and returns its exit code.
pub fn torture_main(args: &[String]) -> i32 {
    let name = args.first().map_or("", String::as_str);
    if let Some((_, _, run)) = ALL.iter().find(|(n, _, _)| *n == name) {
        return run(&args[1..]);
    }
    let is_help = matches!(name, "-h" | "--help" | "help");
    let mut text = String::from("nanoprobe torture NAME [OPTIONS]; NAME --help shows its options\n");
    for (name, what, _) in ALL {
        text += &format!("  {name:<10} {what}\n");
    }
    match is_help {
        true => drop(std::io::stdout().write_all(text.as_bytes())),
        false => eprint!("nanoprobe: torture: no '{name}'\n{text}"),
    }
    i32::from(!is_help)
}

/// Runs `nanoprobe torture-target ...`, which is what a torture attaches to, and returns its exit code.
pub fn target_main(args: &[String]) -> i32 {
    match args.split_first() {
        Some((role, rest)) if role == crate::uprobe::ROLE => crate::uprobe::target_main(rest),
        Some((role, rest)) if role == crate::uprobe::CHILD => crate::uprobe::child_main(rest),
        Some((role, rest)) if role == crate::live::ROLE => crate::live::target::target_main(rest),
        Some((role, _)) if role == crate::live::STEPS => crate::live::target::steps_main(),
        _ => crate::attach::attach_target_main(args),
    }
}
