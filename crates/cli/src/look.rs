//! `list` and `explain`: looking without touching; `recover`: cleaning up.
//!
//! For:     main.
//! State:   none.
//! Context: control.
//! Keeps:   for `list` and `explain` the target is read, never stopped or written.
//! Checked: testkit `faces`.

use crate::args::{ExplainArgs, Format, LookArgs};
use crate::out::Out;
use crate::{advice, bar, run};
use insn::Coverage;
use serde_json::json;
use session::{Explained, FileCoverage, Listed, Pace, RefusedSite};

/// What takes long is drawn on a terminal, and told elsewhere. What only looks is ended by signals as any command is.
pub fn pace(is_stopped: impl Fn() -> bool + 'static) -> Pace {
    let pace = Pace::new(is_stopped, tell);
    if bar::can_be_drawn() { pace.drawn(bar::draw) } else { pace }
}

/// One line about work that goes on.
fn tell(line: &str) {
    eprintln!("nanoprobe: {line}");
}

pub fn list(args: &LookArgs) -> i32 {
    let specs = match run::parse(&args.specs) {
        Ok(specs) => specs,
        Err(code) => return code,
    };
    match checked(args)
        .and_then(|()| session::list(args.pid, &specs).map_err(|e| advice::nowhere(&e, args.pid)))
    {
        Ok(listed) => print(listed.iter().map(|l| listing(l, args)), args.format),
        Err(code) => code,
    }
}

fn checked(args: &LookArgs) -> Result<(), i32> {
    args.pid.map_or(Ok(()), |pid| session::check_readable(pid).map_err(|b| advice::cannot_attach(&b)))
}

fn listing(l: &Listed, args: &LookArgs) -> String {
    if args.format == Format::Json {
        let data = json!({
            "name": l.name, "path": l.path, "addr": l.addr, "size_bytes": l.size_bytes,
            "aliases": l.aliases, "left_out": l.left_out,
        });
        return json!({"type": "function", "data": data}).to_string();
    }
    let mut line = format!("u:{}:{}  {:#x}", l.path, l.name, l.addr);
    if l.size_bytes > 0 {
        line += &format!("  {} bytes", l.size_bytes);
    }
    if !l.aliases.is_empty() && (args.verbose || l.aliases.len() <= 2) {
        line += &format!("  also {}", l.aliases.join(", "));
    } else if !l.aliases.is_empty() {
        line += &format!("  and {} other names", l.aliases.len());
    }
    if let Some(why) = &l.left_out {
        line += &format!("  left out: {why}");
    }
    line
}

pub fn explain(args: &ExplainArgs) -> i32 {
    if args.all { shares(&args.look) } else { explain_sites(&args.look) }
}

/// How much of each file can be probed.
fn shares(args: &LookArgs) -> i32 {
    let texts: Vec<String> = args
        .specs
        .iter()
        .map(|text| if text.contains(':') { text.clone() } else { format!("u:{text}:*") })
        .collect();
    let specs = match run::parse(&texts) {
        Ok(specs) => specs,
        Err(code) => return code,
    };
    for spec in &specs {
        match session::coverage(spec, &pace(|| false)) {
            Ok(coverage) => match print(share_lines(&coverage, args).into_iter(), args.format) {
                0 => {}
                code => return code,
            },
            Err(error) => return advice::nowhere(&error, None),
        }
    }
    0
}

fn share_lines(c: &FileCoverage, args: &LookArgs) -> Vec<String> {
    let kinds = [("entries", &c.entries), ("instructions", &c.instructions)];
    if args.format == Format::Json {
        let counts = |k: &Coverage| {
            json!({
                "total": k.total(), "nop": k.nop, "jump": k.jump, "window": k.window + k.padded_window,
                "island": k.island, "punned": k.punned, "needs_trap": k.needs_trap,
                "refused": k.refused,
            })
        };
        let data = json!({
            "path": c.path.display().to_string(), "entries": counts(&c.entries),
            "instructions": counts(&c.instructions), "timed": c.timed,
        });
        return vec![json!({"type": "coverage", "data": data}).to_string()];
    }
    let share = |part: u64, all: u64| format!("{:.2} %", 100.0 * part as f64 / all.max(1) as f64);
    let mut lines = vec![c.path.display().to_string()];
    for (what, k) in kinds {
        let all = k.total();
        lines.push(format!(
            "  {all} {what}: {} on rungs 1 to 5 (nop {}, jump {}, window {}, island {}, punned {}); {} need a trap, {} \
             are refused",
            share(k.placed(), all),
            share(k.nop, all),
            share(k.jump, all),
            share(k.window + k.padded_window, all),
            share(k.island, all),
            share(k.punned, all),
            share(k.needs_trap, all),
            share(k.refused, all)
        ));
    }
    lines.push(format!("  {} of the functions can be timed by lat", share(c.timed, c.entries.total())));
    lines
}

fn explain_sites(args: &LookArgs) -> i32 {
    let specs = match run::parse(&args.specs) {
        Ok(specs) => specs,
        Err(code) => return code,
    };
    let found = checked(args).and_then(|()| {
        session::explain(args.pid, &specs, pace(|| false)).map_err(|e| advice::nowhere(&e, args.pid))
    });
    match found {
        Ok((sites, refused)) => {
            let lines = sites.iter().flat_map(|e| placed(e, args));
            let code = print(lines.chain(refused.iter().flat_map(|r| left_out(r, args))), args.format);
            if args.format == Format::Text {
                eprintln!("{}", totals(&sites, refused.len()));
            }
            code
        }
        Err(code) => code,
    }
}

fn placed(e: &Explained, args: &LookArgs) -> Vec<String> {
    let p = &e.site.placement;
    if args.format == Format::Json {
        let data = json!({
            "name": e.site.name, "path": e.site.module, "addr": p.site, "rung": p.rung as u8,
            "rung_name": p.rung.to_string(), "displaced_bytes": p.displaced_len,
            "flags_dead": p.hooks.first().is_some_and(|hook| hook.flags_dead), "why_not": e.why_not,
        });
        return vec![json!({"type": "site", "data": data}).to_string()];
    }
    let mut text = format!("{}  {:#x}  rung {} {}", e.site.name, p.site, p.rung as u8, p.rung);
    if args.verbose {
        let plural = if p.displaced.len() == 1 { "" } else { "s" };
        text += &format!("  displaces {} instruction{plural}, {} bytes", p.displaced.len(), p.displaced_len);
    }
    std::iter::once(text).chain(e.why_not.iter().map(|why| format!("    {why}"))).collect()
}

fn left_out(r: &RefusedSite, args: &LookArgs) -> Vec<String> {
    if args.format == Format::Json {
        let data = json!({"name": r.name, "path": r.module, "addr": r.addr, "refused": r.why});
        return vec![json!({"type": "site", "data": data}).to_string()];
    }
    vec![format!("{}  {:#x}  no probe", r.name, r.addr), format!("    {}", r.why)]
}

fn totals(sites: &[Explained], refused: usize) -> String {
    let on = |rung: u8| sites.iter().filter(|e| e.site.placement.rung as u8 == rung).count();
    format!(
        "{} sites: {} nop, {} jump, {} window, {} island, {} punned, {} kernel; {refused} without a probe",
        sites.len() + refused,
        on(1),
        on(2),
        on(3),
        on(4),
        on(5),
        on(7)
    )
}

/// Takes out probes whose controller was killed.
pub fn recover(pid: i32) -> i32 {
    let mut found = session::recover(pid);
    // A controller that was killed a moment ago may still be on its way out.
    for i in 0..10 {
        let is_clean = i > 0 && !session::is_marked(pid);
        if is_clean || !found.as_ref().is_ok_and(Vec::is_empty) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        found = session::recover(pid);
    }
    match found {
        Ok(receipts) if receipts.is_empty() => {
            eprintln!("Nothing to recover: no probes of a nanoprobe that is gone.");
            0
        }
        Ok(receipts) => {
            receipts.iter().for_each(|r| eprintln!("{}", crate::render::detach_line(r)));
            i32::from(!receipts.iter().all(|r| r.is_verified() && (r.is_unmapped() || r.was_gone())))
        }
        Err(broken) => advice::cannot_attach(&broken),
    }
}

/// Prints lines; the exit code.
fn print(lines: impl Iterator<Item = String>, format: Format) -> i32 {
    let mut out = Out::stdout(format);
    out.lines(lines);
    out.finish(0)
}
