//! Stacks as people read them.
//!
//! For:     values of type `ustack`.
//! State:   none.
//! Context: control.
//! Keeps:   F1 a frame is one line, whatever its function is called.
//! Checked: tests below, testkit `stacks`.
//! Source:  bpftrace 0.26's output: four ways to write a frame.

use super::traced::Frame;
use crate::types::StackMode;

/// Blanks before a frame's name.
const MARGIN: usize = 8;
/// The same in a map's key.
const KEY_MARGIN: usize = 4;

/// A stack's lines, and whether a margin comes before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    lines: Vec<String>,
    has_margin: bool,
}

impl Lines {
    /// A stack in one of the ways.
    pub fn of(frames: &[Frame], mode: StackMode) -> Lines {
        let of_addr = matches!(mode, StackMode::Raw | StackMode::BuildId);
        let wanted = frames.iter().filter(|frame| !(of_addr && frame.is_inlined));
        let lines = wanted.map(|frame| line(frame, mode).replace(char::is_control, "?"));
        let lines = match mode {
            StackMode::Perf => lines.map(|line| format!("\t{line}")).collect(),
            _ => lines.collect(),
        };
        Lines { lines, has_margin: mode == StackMode::Bpftrace }
    }

    /// The stack's text: a line for each frame, behind an empty one.
    pub fn text(&self, is_key: bool) -> String {
        let blanks = match (self.has_margin, is_key) {
            (false, _) => 0,
            (true, false) => MARGIN,
            (true, true) => KEY_MARGIN,
        };
        let lines = self.lines.iter().map(|line| format!("{:blanks$}{line}\n", ""));
        std::iter::once("\n".to_owned()).chain(lines).collect()
    }
}

fn line(frame: &Frame, mode: StackMode) -> String {
    let Frame { addr, name, offset, is_inlined, source, file, build_id } = frame;
    let offset = offset.map_or(String::new(), |offset| format!("+{offset}"));
    let mark = if *is_inlined { "[inlined] " } else { "" };
    match (mode, build_id) {
        (StackMode::Bpftrace, _) => {
            let source = source.as_ref().map_or(String::new(), |source| format!("@{source}"));
            format!("{mark}{name}{offset}{source}")
        }
        (StackMode::Perf, _) => {
            format!("{addr:x} {mark}{name}{offset} ({})", file.as_deref().unwrap_or("[unknown]"))
        }
        (StackMode::BuildId, Some((id, place))) => format!("{id} {place:#x}"),
        (StackMode::Raw | StackMode::BuildId, _) => format!("{addr:x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_written_in_four_ways() {
        let outer = Frame {
            addr: 0x1234,
            name: "f\nx".into(),
            offset: Some(20),
            source: Some("/a/b.c:3".into()),
            file: Some("/bin/x".into()),
            build_id: Some(("ab12".into(), 0x34)),
            ..Frame::default()
        };
        let inner = Frame { name: "small".into(), offset: None, is_inlined: true, ..outer.clone() };
        let frames = [inner, outer, Frame { addr: 8, name: "0x8".into(), ..Frame::default() }];
        let text = |mode| Lines::of(&frames, mode).text(false);
        let margin = " ".repeat(8);
        assert_eq!(
            text(StackMode::Bpftrace),
            format!("\n{margin}[inlined] small@/a/b.c:3\n{margin}f?x+20@/a/b.c:3\n{margin}0x8\n")
        );
        assert_eq!(
            text(StackMode::Perf),
            "\n\t1234 [inlined] small (/bin/x)\n\t1234 f?x+20 (/bin/x)\n\t8 0x8 ([unknown])\n"
        );
        assert_eq!(text(StackMode::Raw), "\n1234\n8\n");
        assert_eq!(text(StackMode::BuildId), "\nab12 0x34\n8\n");
        assert_eq!(Lines::of(&frames[2..], StackMode::Bpftrace).text(true), "\n    0x8\n");
        assert_eq!(Lines::default().text(false), "\n");
    }
}
