//! Long analysis: a bar on a terminal, lines elsewhere, and nothing of it in what was asked for.
//!
//! For:     whoever waits for `explain --all` of a large file.
//! Keeps:   the last screen has nothing of the bar, stdout is the same with and without it.

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use testkit::{Nanoprobe, Result};

const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };

/// What a run writes to stdout, and to a terminal that is its stderr.
fn on_terminal(words: &[&str], term: &str) -> (String, String) {
    let pair = openpty(&SIZE, None).unwrap();
    let mut command = Command::new(Nanoprobe::find().unwrap().path());
    command.args(words).env("TERM", term).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::from(pair.slave)).spawn().unwrap();
    // The command's own copy of the terminal would keep it open.
    drop(command);
    let mut output = File::from(pair.master);
    let talk = std::thread::spawn(move || {
        let mut talk = Vec::new();
        // It ends by an error when the last who had the terminal has gone.
        let _ = output.read_to_end(&mut talk);
        String::from_utf8(talk).unwrap()
    });
    let mut data = String::new();
    child.stdout.take().unwrap().read_to_string(&mut data).unwrap();
    assert!(child.wait().unwrap().success());
    (data, talk.join().unwrap())
}

/// Our own binary takes seconds: it is some ten megabytes of code.
fn long() -> Result<[String; 3]> {
    let path = Nanoprobe::find()?.path().display().to_string();
    Ok(["explain".into(), "--all".into(), path])
}

#[test]
fn on_a_terminal_a_bar_is_drawn_and_taken_away() -> Result<()> {
    let words = long()?;
    let words = words.each_ref().map(String::as_str);
    let (data, talk) = on_terminal(&words, "xterm");
    assert!(data.contains(" entries: ") && !data.contains('\x1b'), "{data}");
    let pictures: Vec<&str> = talk.split("\r\x1b[K").filter(|text| !text.is_empty()).collect();
    assert!(
        pictures.len() > 3 && pictures.iter().all(|text| text.ends_with('%') || text.contains("% of")),
        "{talk:?}"
    );
    assert!(!talk.contains('\n'), "no line of it scrolls away: {talk:?}");
    let mut screen = vt100::Parser::new(SIZE.ws_row, SIZE.ws_col, 10);
    screen.process(talk.as_bytes());
    assert_eq!(screen.screen().contents().trim(), "");
    // Where a line cannot be taken away there are lines, and the result is the same.
    let (same, talk) = on_terminal(&words, "dumb");
    assert!(talk.contains("% of ") && !talk.contains('\x1b'), "{talk:?}");
    assert_eq!(same, data);
    Ok(())
}

#[test]
fn a_signal_takes_the_bar_away_and_ends_the_work() -> Result<()> {
    let all = long()?;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let pair = openpty(&SIZE, None).unwrap();
        // Who runs this behind a shell has it ignored, and so would have whom it starts.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(Nanoprobe::find()?.path());
        command.args(&all).env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::from(pair.slave)).spawn().unwrap();
        drop(command);
        let (mut output, mut talk, mut some) = (File::from(pair.master), Vec::new(), [0; 4096]);
        let mut is_asked = false;
        while let Ok(n @ 1..) = output.read(&mut some) {
            talk.extend(&some[..n]);
            if !is_asked && talk.contains(&b'%') {
                kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
                is_asked = true;
            }
        }
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32));
        let mut screen = vt100::Parser::new(SIZE.ws_row, SIZE.ws_col, 10);
        screen.process(&talk);
        assert_eq!(screen.screen().contents().trim(), "", "{:?}", String::from_utf8_lossy(&talk));
    }
    Ok(())
}

#[test]
fn into_a_pipe_progress_is_told_by_lines_and_short_work_not_at_all() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    let outcome = nanoprobe.run(long()?)?.success()?;
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("% of ")), "{outcome}");
    assert!(!outcome.stderr.contains('\x1b') && !outcome.stderr.contains('\r'), "{outcome}");
    let (data, talk) = on_terminal(&["explain", "u:libc:malloc"], "xterm");
    assert!(data.contains("rung") && !talk.contains('\x1b'), "{data}{talk}");
    Ok(())
}
