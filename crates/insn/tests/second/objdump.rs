//! Code as binutils' objdump reads it.
//!
//! For:     main.rs.
//! State:   files in a directory of their own, which are removed.
//! Context: test only.
//! Keeps:   O1 the length of each line is that of the bytes printed in it.
//! Checked: by agreeing over whole files.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insn::Code;

/// One line.
pub struct Line {
    pub len: u64,
    /// Where it leads, by a direct branch or by the comment behind a rip-relative operand.
    pub target: Option<u64>,
    /// It says that these bytes are no instruction.
    pub is_bad: bool,
    /// Nothing but prefixes.
    pub is_prefix: bool,
    pub text: String,
}

/// A directory that goes away.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The lines of the functions, by address; `None` if binutils is not installed.
pub fn lines(code: &Code<'_>, functions: &[Range<u64>]) -> Option<BTreeMap<u64, Line>> {
    let dir = Dir(std::env::temp_dir().join(format!("insn-second-{}-{:x}", std::process::id(), code.base)));
    fs::create_dir_all(&dir.0).expect("a directory");
    let (raw, object, args) = (dir.0.join("code"), dir.0.join("code.o"), dir.0.join("args"));
    fs::write(&raw, code.bytes).expect("written");
    fs::write(&args, symbols(code, functions)).expect("written");
    let made = run("objcopy", &[&format!("@{}", args.display()), &show(&raw), &show(&object)])?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let vma = format!("--adjust-vma={:#x}", code.base);
    let read = run("objdump", &["-d", "-w", "-z", "-M", "intel64", &vma, &show(&object)])?;
    let text = String::from_utf8_lossy(&read.stdout);
    Some(text.lines().filter_map(line).collect())
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

fn run(tool: &str, args: &[&str]) -> Option<Output> {
    Command::new(tool).args(args).output().ok()
}

/// What makes an object of bare code, with a symbol at the start and the end of each function.
fn symbols(code: &Code<'_>, functions: &[Range<u64>]) -> String {
    let mut text = String::from(
        "-I binary -O elf64-x86-64 -B i386:x86-64 --rename-section .data=.text,alloc,load,readonly,code,contents\n",
    );
    let ends = functions.iter().map(|f| f.end.min(code.range().end));
    let mut all: Vec<u64> = functions.iter().map(|f| f.start).chain(ends).collect();
    all.sort_unstable();
    all.dedup();
    for addr in all {
        text += &format!("--add-symbol f{addr:x}=.text:{:#x},function,global\n", addr - code.base);
    }
    text
}

/// `  401000:\t48 89 e5 \tmov %rsp,%rbp`
fn line(line: &str) -> Option<(u64, Line)> {
    let mut parts = line.splitn(3, '\t');
    let addr = u64::from_str_radix(parts.next()?.trim().strip_suffix(':')?, 16).ok()?;
    let len = parts.next()?.split_whitespace().count() as u64;
    let text = parts.next().unwrap_or("(bad)").trim().to_owned();
    let is_bad = text.contains("(bad)") || text.starts_with(".byte");
    let is_prefix = text.split_whitespace().all(is_prefix);
    Some((addr, Line { len, target: target(&text), is_bad, is_prefix, text }))
}

fn target(text: &str) -> Option<u64> {
    if let Some((_, comment)) = text.split_once("# ") {
        return hex(comment);
    }
    let mut words = text.split_whitespace().skip_while(|word| is_prefix(word));
    let opcode = words.next()?;
    let is_branch = ["j", "call", "loop", "xbegin"].iter().any(|start| opcode.starts_with(start));
    words.next().filter(|_| is_branch).and_then(hex)
}

fn hex(text: &str) -> Option<u64> {
    let word = text.split_whitespace().next()?;
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

fn is_prefix(word: &str) -> bool {
    matches!(word, "bnd" | "notrack" | "lock" | "rep" | "repz" | "repnz" | "data16" | "addr32")
        || matches!(word, "cs" | "ds" | "es" | "ss" | "fs" | "gs")
        || word.starts_with("rex")
}
