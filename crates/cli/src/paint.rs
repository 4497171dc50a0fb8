//! Colours of the lines of calls.
//!
//! For:     `trace` on a terminal.
//! State:   none.
//! Context: control.
//! Keeps:   P1 colours go around what `shown` has made harmless: nothing of the target's is in them, and a line without them is the line.
//!          P2 they are for a terminal alone, and for nobody who sets NO_COLOR.
//! Checked: tests below; testkit `output`.

use std::env::var_os;

const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const MAGENTA: &str = "\x1b[35m";
const END: &str = "\x1b[0m";

/// Whoever reads at that terminal wants colours, as far as the environment says.
pub fn is_wanted(is_terminal: bool) -> bool {
    let is_dumb = var_os("TERM").is_none_or(|term| term == "dumb");
    is_terminal && !is_dumb && var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A line of `trace` with its colours: when and where fainter, the function bold, what took long in the colour of its unit. Any other
/// line as it is.
pub fn call(line: &str) -> String {
    let fields: Vec<&str> = line.split_whitespace().take(2).collect();
    match fields[..] {
        [n, unit] if n.parse::<u64>().is_ok() && of_unit(unit).is_some() => way(line),
        [at, tid] if is_moment(at) && (tid == "-" || tid.parse::<u32>().is_ok()) => moment(line, tid),
        _ => line.to_owned(),
    }
}

/// Seconds since the first call, or the time of day.
fn is_moment(text: &str) -> bool {
    text.contains('.') && text.starts_with(|c: char| c.is_ascii_digit())
}

/// A call: when, thread, name, what else, `<how long>`.
fn moment(line: &str, tid: &str) -> String {
    let Some(head) = line.find(&format!(" {tid} ")).map(|at| at + tid.len() + 1) else {
        return line.to_owned();
    };
    let (head, rest) = line.split_at(head);
    let indent = rest.len() - rest.trim_start_matches([' ', '}']).len();
    let (indent, rest) = rest.split_at(indent);
    let (call, took) = match rest.rfind(" <").filter(|_| rest.ends_with('>')) {
        Some(at) => rest.split_at(at + 1),
        None => (rest, ""),
    };
    let name = call.find(['(', ' ']).unwrap_or(call.len());
    let (name, call) = call.split_at(name);
    let unit = took.trim_end_matches('>').rsplit(' ').next().unwrap_or_default();
    let took = match of_unit(unit).unwrap_or(MAGENTA) {
        "" => took.to_owned(),
        _ if took.is_empty() => String::new(),
        colour => format!("{colour}{took}{END}"),
    };
    format!("{DIM}{head}{END}{indent}{BOLD}{name}{END}{call}{took}")
}

/// A way of calls: time, own time, calls, name.
fn way(line: &str) -> String {
    let mut painted = String::new();
    let mut rest = line;
    for _ in 0..2 {
        let start = rest.len() - rest.trim_start().len();
        let Some(end) = rest[start..].match_indices(' ').nth(1).map(|(at, _)| start + at) else { break };
        let (time, more) = rest.split_at(end);
        let colour = time.rsplit(' ').next().and_then(of_unit).unwrap_or_default();
        painted += &if colour.is_empty() { time.to_owned() } else { format!("{colour}{time}{END}") };
        rest = more;
    }
    painted + rest
}

/// The colour of times in this unit; `None` if it is none.
fn of_unit(unit: &str) -> Option<&'static str> {
    match unit {
        "ns" => Some(""),
        "us" => Some(GREEN),
        "ms" => Some(YELLOW),
        "s" => Some(RED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line without its colours.
    fn bare(painted: &str) -> String {
        [DIM, BOLD, GREEN, YELLOW, RED, MAGENTA, END]
            .iter()
            .fold(painted.to_owned(), |text, code| text.replace(code, ""))
    }

    #[test]
    fn a_line_without_its_colours_is_the_line() {
        let lines = [
            "    0.000081   22287   handle(4) {",
            "    0.017373   22287 } serve = 16 <17 ms>",
            "2026-11-24T00:38:06.842001Z    2486 getCommand(0x1, -2) = ? <60 ns>",
            "    0.000000       - f() <no return seen>",
            "     11 ms    5406 us       9161    processCommand",
            "    by_one+0x5",
            "",
            "nothing of the kind <5 ms>",
        ];
        for line in lines {
            assert_eq!(bare(&call(line)), line);
        }
        assert_eq!(lines.map(|line| call(line) != line), [true, true, true, true, true, false, false, false]);
    }

    #[test]
    fn what_takes_long_has_the_colour_of_its_unit_and_names_are_bold() {
        let line = call("    0.017373   22287 } serve = 16 <17 ms>");
        assert_eq!(
            line,
            format!("{DIM}    0.017373   22287{END} }} {BOLD}serve{END} = 16 {YELLOW}<17 ms>{END}")
        );
        assert!(!call("    0.000000    2486 f(1) = 2 <60 ns>").contains(GREEN));
        assert!(
            call("    0.000000       - f(1) <no return seen>")
                .ends_with(&format!("{MAGENTA}<no return seen>{END}"))
        );
        let way = call("     11 ms    5406 us       9161    f");
        assert_eq!(way, format!("{YELLOW}     11 ms{END}{GREEN}    5406 us{END}       9161    f"));
    }
}
