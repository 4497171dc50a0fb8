//! Manual pages and shell completions, made from what `args` says.
//!
//! For:     main; packages of distributions.
//! State:   none.
//! Context: control.
//! Keeps:   M1 each command that the help shows has a page.
//! Checked: tests below.

use crate::advice;
use crate::args::{Cli, Format};
use crate::out::Out;
use clap::CommandFactory;
use std::path::Path;

/// Prints the completions for a shell; the exit code.
pub fn completions(shell: clap_complete::Shell) -> i32 {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(), "nanoprobe", &mut text);
    print(&text)
}

/// Prints the page of the command as a whole, or writes the pages of all commands into a directory; the exit code.
pub fn man(to: Option<&Path>) -> i32 {
    if let Some(dir) = to {
        let checked = [format!("directory {}", dir.display())];
        return match std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(shown(), dir)) {
            Ok(()) => 0,
            Err(error) => advice::fail(&format!("the pages cannot be written: {error}"), &checked, &[]),
        };
    }
    let mut text = Vec::new();
    match clap_mangen::Man::new(shown()).render(&mut text) {
        Ok(()) => print(&text),
        Err(error) => advice::fail(&format!("the page cannot be made: {error}"), &[], &[]),
    }
}

/// The commands that the help shows.
fn shown() -> clap::Command {
    let all = Cli::command();
    let hidden: Vec<String> =
        all.get_subcommands().filter(|c| c.is_hide_set()).map(|c| c.get_name().to_owned()).collect();
    let mut shown = clap::Command::new("nanoprobe")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(all.get_after_help().cloned().unwrap_or_default());
    for command in all.get_subcommands().filter(|c| !hidden.iter().any(|name| name == c.get_name())) {
        shown = shown.subcommand(command.clone());
    }
    shown
}

fn print(text: &[u8]) -> i32 {
    let mut out = Out::stdout(Format::Text);
    out.lines(String::from_utf8_lossy(text).lines());
    out.finish(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_help_has_a_page_and_words_to_complete() {
        let dir = std::env::temp_dir().join(format!("nanoprobe-man-{}", std::process::id()));
        assert_eq!(man(Some(&dir)), 0);
        let mut words = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut shown(), "nanoprobe", &mut words);
        let words = String::from_utf8(words).unwrap();
        for verb in ["count", "hist", "lat", "trace", "watch", "list", "explain", "recover", "run"] {
            let page = std::fs::read_to_string(dir.join(format!("nanoprobe-{verb}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{verb}");
            assert!(words.contains(verb), "{verb}");
        }
        assert!(std::fs::read_to_string(dir.join("nanoprobe.1")).unwrap().contains("nanosecond"));
        assert!(!dir.join("nanoprobe-torture-target.1").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
