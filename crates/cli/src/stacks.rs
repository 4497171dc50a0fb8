//! Stacks that were counted: as lines, as folded text, as a picture.
//!
//! For:     the engine, with `count --stack`.
//! State:   what names need, from the attach on.
//! Context: control.
//! Keeps:   S1 counts of stacks that look the same are one; their sum is that of the hits that have a stack.
//! Checked: tests below; testkit `stacks`.

use crate::args::Format;
use crate::names::{Files, Frame, Names};
use crate::out::{may_write, write_whole};
use crate::shown::shown;
use report::{Folded, flame};
use serde_json::{Value, json};
use session::{Session, StackLosses};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What of stacks is wanted.
#[derive(Clone, Debug, Default)]
pub struct StackArgs {
    /// Source lines, and functions that were inlined.
    pub has_lines: bool,
    /// A picture.
    pub flame: Option<PathBuf>,
    /// Folded text.
    pub folded: Option<PathBuf>,
    /// An older run's folded text, to compare the picture with.
    pub diff: Option<PathBuf>,
}

impl StackArgs {
    /// Looks at the files before anything is traced for them.
    ///
    /// # Errors
    /// Which cannot be written, or read, and why.
    pub fn check(&self) -> Result<(), String> {
        self.flame.iter().chain(&self.folded).try_for_each(|path| may_write(path))?;
        self.diff.as_deref().map_or(Ok(()), |path| read_folded(path).map(drop))
    }
}

/// Counted stacks with their names.
pub struct Stacks {
    /// Of each session: one is of a process, and of one program in it.
    names: Vec<Names>,
    files: Files,
    args: StackArgs,
}

/// One stack, the probed function first.
type Named = (Vec<Frame>, u64);

impl Stacks {
    /// Holds what names need: the files may be replaced, and the process may go.
    pub fn hold(pid: i32, args: StackArgs) -> Stacks {
        let files = Files::default();
        Stacks { names: vec![Names::hold(pid, &files)], files, args }
    }

    /// The same for sessions that have come since.
    pub fn hold_all(&mut self, sessions: &[Session]) {
        let new =
            sessions.iter().skip(self.names.len()).map(|session| Names::hold(session.pid(), &self.files));
        self.names.extend(new);
    }

    /// A walk has met something new: files are opened while they are there.
    pub fn look_for_names(&mut self) {
        self.names.iter_mut().for_each(Names::look);
    }

    /// The stacks so far, by count.
    fn named(&mut self, sessions: &[Session]) -> Vec<Named> {
        self.hold_all(sessions);
        let mut sums: BTreeMap<Vec<Frame>, u64> = BTreeMap::new();
        for (session, names) in sessions.iter().zip(&mut self.names) {
            let stacks = session.stacks();
            names.learn(stacks.iter().map(|stack| &stack.frames), self.args.has_lines);
            for stack in stacks {
                let sum = sums.entry(names.stack(&stack.frames)).or_default();
                *sum = sum.saturating_add(stack.count);
            }
        }
        let mut named: Vec<Named> = sums.into_iter().collect();
        named.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        named
    }

    /// The lines of what was counted so far.
    pub fn lines(&mut self, sessions: &[Session], format: Format) -> Vec<String> {
        let named = self.named(sessions);
        match format {
            Format::Json => {
                let all: Vec<Value> =
                    named.iter().map(|(stack, n)| json!({"frames": texts(stack), "count": n})).collect();
                // Names that are files: what is behind them is not an offset in a function.
                let files: BTreeSet<&str> = named
                    .iter()
                    .flat_map(|(stack, _)| stack)
                    .filter(|f| f.is_file)
                    .map(|f| f.name.as_str())
                    .collect();
                vec![json!({"type": "stacks", "data": {"@": all, "files": files}}).to_string()]
            }
            Format::Text => named.iter().flat_map(|(stack, n)| block(stack, *n)).collect(),
        }
    }

    /// The same as folded stacks, outermost first.
    pub fn folded(&mut self, sessions: &[Session]) -> Folded {
        folded(&self.named(sessions))
    }

    /// Writes the files that are wanted.
    ///
    /// # Errors
    /// Which could not be written, or read, and why.
    pub fn write(&mut self, sessions: &[Session], title: &str) -> Result<(), String> {
        if self.args.flame.is_none() && self.args.folded.is_none() {
            return Ok(());
        }
        let folded = self.folded(sessions);
        let save = |path: &Path, text: String| write_whole(path, text.as_bytes());
        if let Some(path) = &self.args.folded {
            let line = |(stack, n): (&Vec<String>, &u64)| format!("{} {n}", stack.join(";"));
            let lines = folded.iter().map(|one| shown(&line(one), Format::Text).into_owned() + "\n");
            save(path, lines.collect())?;
        }
        if let Some(path) = &self.args.flame {
            let before = self.args.diff.as_deref().map(read_folded).transpose()?;
            save(path, flame::svg(&folded, before.as_ref(), title))?;
        }
        Ok(())
    }
}

fn texts(stack: &[Frame]) -> Vec<String> {
    stack.iter().map(Frame::to_string).collect()
}

/// As bpftrace shows a stack that is a key.
fn block(stack: &[Frame], count: u64) -> Vec<String> {
    let frames = stack.iter().map(|frame| format!("    {frame}"));
    std::iter::once("@[".to_owned()).chain(frames).chain([format!("]: {count}")]).collect()
}

/// Names without offsets, as tools that read stacks want them; of what has none the file and the offset.
fn folded(named: &[Named]) -> Folded {
    let mut sums = Folded::new();
    let name = |frame: &Frame| match frame.is_file {
        true => frame.to_string(),
        false => frame.name.clone(),
    };
    for (stack, n) in named {
        let names =
            stack.iter().rev().map(|frame| name(frame).replace([';', '\n'], ":").trim_start().to_owned());
        let sum = sums.entry(names.collect()).or_default();
        *sum = sum.saturating_add(*n);
    }
    sums
}

/// # Errors
/// Why it cannot be read.
fn read_folded(path: &Path) -> Result<Folded, String> {
    let text =
        std::fs::read_to_string(path).map_err(|why| format!("{} cannot be read: {why}", path.display()))?;
    let mut sums = Folded::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let bad = || {
            format!("{}:{}: no folded stack: names with ; between them, and a count", path.display(), i + 1)
        };
        let (stack, n) = line.rsplit_once(' ').ok_or_else(bad)?;
        let n: u64 = n.parse().map_err(|_| bad())?;
        let sum = sums.entry(stack.split(';').map(str::to_owned).collect()).or_default();
        *sum = sum.saturating_add(n);
    }
    Ok(sums)
}

/// What is to be said of hits without a stack, and of stacks that are not whole.
pub fn losses(sessions: &[Session]) -> (StackLosses, Vec<String>) {
    let all: Vec<StackLosses> = sessions.iter().map(Session::stack_losses).collect();
    let sum = |of: fn(&StackLosses) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
    let total = StackLosses {
        full: sum(|l| l.full),
        no_space: sum(|l| l.no_space),
        children: sum(|l| l.children),
        not_stack: sum(|l| l.not_stack),
        no_frame: sum(|l| l.no_frame),
        unknown: sum(|l| l.unknown),
        not_up: sum(|l| l.not_up),
    };
    let said = [
        (total.full, "hits have no stack: more different stacks were met than there is room for; probe less"),
        (total.no_space, "hits have no stack: too many threads were in hits at once"),
        (total.children, "hits in forked children have no stack: children's stacks are not walked"),
        (
            total.not_stack,
            "stacks end early: they go on in memory that is not known to be the thread's stack (a signal's own stack, a coroutine's)",
        ),
        (total.no_frame, "stacks end early: in code without unwind information and without frame pointers"),
        (total.unknown, "stacks end early: in code whose unwind information is missing or not understood"),
        (total.not_up, "stacks end early: the next frame would not lie above"),
    ];
    let said = said.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    (total, said.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_stacks_are_read_back_and_other_lines_refused() {
        let frame = |name: &str| Frame { name: name.into(), ..Frame::default() };
        let named = vec![
            (vec![frame("malloc"), frame("a;b"), frame("main")], 3),
            (vec![frame("malloc"), frame("a;b"), frame("main")], 4),
            (vec![frame("malloc"), frame(" main")], 1),
        ];
        let all = folded(&named);
        let text: String = all.iter().map(|(stack, n)| format!("{} {n}\n", stack.join(";"))).collect();
        assert_eq!(text, "main;a:b;malloc 7\nmain;malloc 1\n");
        // A stripped program: its functions are told apart by their places.
        let place = |at| Frame { offset: Some(at), is_file: true, ..frame("nginx") };
        let stripped = folded(&[(vec![place(0x10)], 1), (vec![place(0x20)], 2)]);
        let stripped: Vec<&str> = stripped.keys().map(|stack| stack[0].as_str()).collect();
        assert_eq!(stripped, ["nginx+0x10", "nginx+0x20"]);
        let path = std::env::temp_dir().join(format!("np-folded-{}", std::process::id()));
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read_folded(&path), Ok(all));
        std::fs::write(&path, "main;x 7\nnonsense\n").unwrap();
        assert!(read_folded(&path).unwrap_err().contains(":2: no folded stack"));
        std::fs::remove_file(&path).unwrap();
        assert!(read_folded(&path).unwrap_err().contains("cannot be read"));
    }
}
