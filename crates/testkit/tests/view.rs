//! `top` on a terminal: what is on the screen, which keys do what, and that the terminal is as it was, however it ends.
//!
//! For:     the live view.
//! Keeps:   settings, screen and cursor are those from before after every way to end.

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::{Link, Nanoprobe, Program, Result, Running, Target, wait_until};

const STEP: Duration = Duration::from_secs(60);
const SMALL: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A terminal with a nanoprobe in it.
struct View {
    keys: File,
    slave: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<vt100::Parser>>,
    /// The terminal was asked where its cursor is.
    was_asked: Arc<AtomicBool>,
    child: Child,
}

impl View {
    fn start(words: &[&str]) -> View {
        View::of_size(SMALL, words)
    }

    fn of_size(size: Winsize, words: &[&str]) -> View {
        let pair = openpty(&size, None).unwrap();
        let before = tcgetattr(&pair.slave).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size.ws_row, size.ws_col, 500)));
        let (mut output, seen) = (File::from(pair.master.try_clone().unwrap()), screen.clone());
        let was_asked = Arc::new(AtomicBool::new(false));
        let asked = was_asked.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if bytes[..n].windows(4).any(|part| part == b"\x1b[6n") {
                    asked.store(true, Ordering::SeqCst);
                }
                seen.lock().unwrap().process(&bytes[..n]);
            }
        });
        let end = || Stdio::from(pair.slave.try_clone().unwrap());
        // A session of its own, whose terminal this is.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(Nanoprobe::find().unwrap().path()).args(words);
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        View { keys: pair.master.into(), slave: pair.slave, before, screen, was_asked, child }
    }

    fn of(target: &Target, running: &Running, more: &[&str]) -> View {
        let (spec, pid) = (target.spec("work"), running.pid_text());
        let words: Vec<&str> = ["top", &spec, "-p", &pid].into_iter().chain(more.iter().copied()).collect();
        let view = View::start(&words);
        view.shows("1 functions");
        view
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn shows(&self, what: &str) {
        let shown = wait_until(what, STEP, || self.text().contains(what));
        assert!(shown.is_ok(), "no `{what}` in:\n{}", self.text());
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Rows and columns.
    fn resize(&self, rows: u16, columns: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(rows, columns);
        let size = ["rows".into(), rows.to_string(), "cols".into(), columns.to_string()];
        let stty =
            Command::new("stty").args(size).stdin(Stdio::from(self.slave.try_clone().unwrap())).status();
        assert!(stty.unwrap().success());
    }

    fn is_sane(&self) -> bool {
        let is_left = {
            let parser = self.screen.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        is_left && tcgetattr(&self.slave).unwrap() == self.before
    }

    fn becomes_sane(&self) {
        let sane = wait_until("a sane terminal", STEP, || self.is_sane());
        assert!(sane.is_ok(), "{:?}\n{}", tcgetattr(&self.slave), self.text());
    }

    fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = wait_until("the end of top", STEP, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended.is_ok(), "{}", self.text());
        status.unwrap()
    }

    /// It ended by itself, with all that it says then.
    fn ends_well(&mut self) {
        assert!(self.ends().success());
        self.becomes_sane();
        self.shows("Detach verified: ");
    }

    /// The process of this name that it started, the engine or the guard.
    fn part(&self, name: &str) -> Pid {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(path).unwrap();
        let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        Pid::from_raw({ pids }.find(|pid| comm(pid).starts_with(name)).unwrap())
    }

    fn front(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = kill(self.front(), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn target() -> Result<(Target, Running)> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    Ok((target, running))
}

#[test]
fn the_view_shows_what_is_called_obeys_keys_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let (target, mut running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    let made = running.run(5000, "work")?;
    view.shows(&format!(" {made} "));
    view.press("4");
    view.shows("no thread stood still");
    view.shows(&format!("= {} handled + 0 skipped", 2 * made));
    view.press("?");
    view.shows("any key goes back");
    view.press("x2");
    view.shows("work: calls by how long they took");
    view.press("1p");
    view.shows("PAUSED");
    view.press("p/nothing_like_it");
    view.shows("no function fits the filter");
    view.press("\x1b");
    view.resize(40, 120);
    let last = || view.screen.lock().unwrap().screen().rows(0, 120).nth(39).unwrap_or_default();
    assert!(
        wait_until("a line at the new end", STEP, || last().contains("q quit")).is_ok(),
        "{}",
        view.text()
    );
    view.press("z");
    view.shows("counts begin at 0 here");
    view.press("q");
    view.ends_well();
    // What was zeroed on the screen is in the closing report.
    view.shows(&format!("Calls {made}: {made} returned"));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// A key that comes together with this signal would wait for the next one: whoever reads keys never gets to see it.
#[test]
fn the_signal_of_a_new_size_keeps_no_key_back() -> Result<()> {
    const WINCH: u64 = 1 << (Signal::SIGWINCH as u64 - 1);
    let (target, running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    // Somebody reads keys by now.
    view.press("?");
    view.shows("any key goes back");
    view.press("x");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", view.front())).unwrap();
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        assert!(u64::from_str_radix(blocked, 16).unwrap() & WINCH != 0, "{status}");
    }
    view.press("q");
    view.ends_well();
    Ok(())
}

/// Whoever asks the terminal for something reads its answer, and keys with it; of a terminal that has gone it reads for ever.
#[test]
fn a_whole_picture_is_drawn_without_a_question_to_the_terminal() -> Result<()> {
    let (target, running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    view.screen.lock().unwrap().process(b"\x1b[2Jwritten by another");
    view.press("\x0c");
    let is_over = || view.text().contains("1 functions") && !view.text().contains("written by another");
    assert!(wait_until("a whole picture", STEP, is_over).is_ok(), "{}", view.text());
    view.press("?");
    view.shows("any key goes back");
    assert!(!view.was_asked.load(Ordering::SeqCst));
    view.press("xq");
    view.ends_well();
    Ok(())
}

#[test]
fn calls_are_shown_by_probes_that_come_and_go_while_it_runs() -> Result<()> {
    let (target, mut running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    view.shows("work");
    view.press("t");
    view.shows("calls of work, the newest below");
    let made = running.run(800, "work")?;
    view.shows("work(");
    view.press("t");
    view.shows("are not shown any more");
    view.press("q");
    view.ends_well();
    view.shows(&format!("Hits {0}: {0} handled, 0 skipped", 2 * made));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn who_calls_a_function_is_drawn_by_probes_that_come_and_go() -> Result<()> {
    let (target, mut running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    view.shows("work");
    view.press("f");
    view.shows("who calls work,");
    let made = running.run(800, "work")?;
    view.shows(&format!("who calls work, {made} calls"));
    let has_box = || view.text().lines().any(|line| line.starts_with("|work 100%"));
    assert!(wait_until("the innermost box", STEP, has_box).is_ok(), "{}", view.text());
    view.press("f");
    view.shows("are not drawn any more");
    view.press("q");
    view.ends_well();
    view.shows(&format!("Hits {0}: {0} handled, 0 skipped", 2 * made));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn what_is_switched_off_is_off_at_all_its_exits_and_keeps_its_row() -> Result<()> {
    let (target, mut running) = target()?;
    let mut view = View::start(&["top", &target.spec("work*"), "-p", &running.pid_text()]);
    view.shows("1 functions");
    let first = running.run(800, "work")?;
    view.shows(&format!(" {first} "));
    view.press("o");
    view.shows("the probes of work are off");
    let row = |view: &View| view.text().lines().position(|line| line.starts_with("work "));
    let (before, skipped) = (row(&view), running.run(1600, "work")?);
    let other = running.run(4000, "work_args")?;
    view.shows(&format!(" {other} "));
    assert_eq!(row(&view), before, "{}", view.text());
    view.press("o");
    view.shows("are on again");
    let second = running.run(2400, "work")?;
    view.shows(&format!(" {} ", first + second));
    view.press("q");
    view.ends_well();
    let handled = 2 * (first + second + other);
    // Of what was off nothing was seen: neither entries nor exits without one.
    view.shows(&format!("{} handled, {} skipped", handled, 2 * skipped));
    view.shows("0 returns whose entry was not seen");
    view.shows("their functions were switched off");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn the_end_of_the_target_a_signal_and_control_c_leave_a_sane_terminal_and_the_report() -> Result<()> {
    let (target, running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    view.press("\x03");
    view.ends_well();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut view = View::of(&target, &running, &[]);
        kill(view.front(), signal).unwrap();
        view.ends_well();
    }
    let mut view = View::of(&target, &running, &[]);
    assert_eq!(running.end()?.code(), Some(7));
    view.ends_well();
    Ok(())
}

#[test]
fn whoever_is_killed_the_terminal_becomes_sane() -> Result<()> {
    let (target, running) = target()?;
    let mut view = View::of(&target, &running, &[]);
    kill(view.part("np-engine"), Signal::SIGKILL).unwrap();
    view.ends();
    view.becomes_sane();

    let mut view = View::of(&target, &running, &[]);
    let guard = view.part("np-guard");
    kill(view.front(), Signal::SIGKILL).unwrap();
    view.ends();
    view.becomes_sane();
    let path = format!("/proc/{guard}/exe");
    wait_until("the guard's end", STEP, || !std::path::Path::new(&path).exists())?;

    // Both, as at one moment: stopped first, so that none sees the other die.
    let mut view = View::of(&target, &running, &[]);
    let engine = view.part("np-engine");
    kill(view.front(), Signal::SIGSTOP).unwrap();
    kill(engine, Signal::SIGKILL).unwrap();
    kill(view.front(), Signal::SIGKILL).unwrap();
    view.ends();
    view.becomes_sane();
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// As when a connection breaks: whoever is left takes the probes out and ends.
#[test]
fn a_terminal_that_goes_ends_the_view_and_its_probes() -> Result<()> {
    let (target, running) = target()?;
    for is_front_there in [true, false] {
        let mut view = View::of(&target, &running, &[]);
        let (engine, guard) = (view.part("np-engine"), view.part("np-guard"));
        view.resize(30, 100);
        if !is_front_there {
            kill(view.front(), Signal::SIGSTOP).unwrap();
        }
        // SAFETY: For: the call takes a descriptor and changes no memory of ours.
        // Context: the slave is open.
        // Checked: by the ends below, which no other step brings about.
        let hung_up = unsafe { nix::libc::ioctl(view.slave.as_raw_fd(), nix::libc::TIOCVHANGUP) };
        assert_eq!(hung_up, 0, "{}", std::io::Error::last_os_error());
        if !is_front_there {
            kill(view.front(), Signal::SIGKILL).unwrap();
        }
        view.ends();
        for part in [engine, guard] {
            let path = format!("/proc/{part}/exe");
            wait_until("the end of a part", STEP, || !std::path::Path::new(&path).exists())?;
        }
    }
    // A second attach finds nothing of the first ones.
    let mut view = View::of(&target, &running, &[]);
    view.press("q");
    view.ends_well();
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_command_writes_beside_the_view_and_its_output_is_shown_at_the_end() -> Result<()> {
    let mut view =
        View::start(&["top", "u:libc:malloc", "--", "sh", "-c", "echo from the command; sleep 600"]);
    view.shows("1 functions");
    view.press("4");
    view.shows("no thread stood still");
    assert!(!view.text().contains("from the command"), "{}", view.text());
    view.press("q");
    view.ends_well();
    view.shows("from the command");
    Ok(())
}

/// A script that counts calls, draws a histogram, and prints when it is told to.
const SCRIPT: &str = "begin { printf(\"it begins\\n\"); } uprobe:WORK { @calls[comm] = count(); @by = hist(arg0); } end { printf(\"it ends\\n\"); }";

/// It goes with the test.
struct Script(PathBuf);

impl Script {
    fn of(target: &Target) -> Result<Script> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let work = target.spec("work").trim_start_matches("u:").to_owned();
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("np-view-{}-{number}.bt", std::process::id()));
        std::fs::write(&path, SCRIPT.replace("WORK", &work)).unwrap();
        Ok(Script(path))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_script_is_shown_by_its_maps_and_lines_and_ends_as_it_does_without_a_view() -> Result<()> {
    let (target, mut running) = target()?;
    let file = Script::of(&target)?;
    let words = ["top", file.path(), "-p", &running.pid_text()];
    let large = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    for size in [SMALL, large] {
        let mut view = View::of_size(size, &words);
        view.shows("nothing is in the script's maps so far");
        let made = running.run(5000, "work")?;
        view.shows(&format!("]: {made}"));
        view.shows("keys of each map: @by: 1, @calls: 1");
        view.shows("|@@@");
        view.press("3");
        view.shows("it begins");
        view.press("4");
        view.shows(&format!("{made} = {made} handled + 0 skipped"));
        view.press("6p");
        view.shows("PAUSED");
        let more = running.run(800, "work")?;
        view.press("p");
        view.shows(&format!("]: {}", made + more));
        view.press("z");
        view.shows("the maps are empty");
        view.shows("nothing is in the script's maps so far");
        let last = running.run(2400, "work")?;
        view.shows(&format!("]: {last}"));
        view.press("q");
        view.ends_well();
        // What `run` says at its end: of the maps what came since they were emptied, of hits all.
        view.shows("it ends");
        view.shows(&format!("]: {last}"));
        view.shows(&format!("Hits {0}: {0} handled, 0 skipped", made + more + last));
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_script_in_a_view_leaves_a_sane_terminal_when_its_target_ends_or_its_engine_is_killed() -> Result<()> {
    let (target, running) = target()?;
    let file = Script::of(&target)?;
    let words = ["top", file.path(), "-p", &running.pid_text()];
    let mut view = View::start(&words);
    view.shows("6 maps");
    kill(view.part("np-engine"), Signal::SIGKILL).unwrap();
    view.ends();
    view.becomes_sane();
    let mut view = View::start(&words);
    view.shows("6 maps");
    assert_eq!(running.end()?.code(), Some(7));
    view.ends_well();
    Ok(())
}

#[test]
fn without_a_terminal_the_maps_of_a_script_are_printed() -> Result<()> {
    let (target, mut running) = target()?;
    let file = Script::of(&target)?;
    let mut plain =
        Nanoprobe::find()?.start(["top", file.path(), "-p", &running.pid_text(), "-i", "100ms"])?;
    plain.expect("it begins")?;
    plain.expect("hits  ")?;
    let made = running.run(5000, "work")?;
    while !plain.expect("hits  ")?.contains(&format!("{made} = {made} handled")) {}
    let outcome = plain.interrupt_and_finish()?.success()?;
    let shown = outcome.stdout.matches(&format!("]: {made}\n")).count();
    assert!(
        shown >= 2 && outcome.stdout.contains("it ends") && !outcome.stdout.contains('\x1b'),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("Detach verified: yes"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn without_a_terminal_the_same_numbers_are_printed() -> Result<()> {
    let (target, mut running) = target()?;
    let (spec, pid) = (target.spec("work"), running.pid_text());
    let mut plain = Nanoprobe::find()?.start(["top", &spec, "-p", &pid, "-i", "100ms"])?;
    plain.attached()?;
    let made = running.run(5000, "work")?;
    plain.expect("hits  ")?;
    plain.expect("hits  ")?;
    let outcome = plain.interrupt_and_finish()?.success()?;
    assert!(!outcome.stdout.contains('\x1b'), "{}", outcome.stdout);
    let last: Vec<&str> = outcome.stdout.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((last[1], last.last()), (made.to_string().as_str(), Some(&"work")), "{}", outcome.stdout);

    let mut json =
        Nanoprobe::find()?.start(["top", "--count", &spec, "-p", &pid, "-i", "100ms", "-f", "json"])?;
    json.attached()?;
    let made = running.run(5000, "work")?;
    let shown = format!("\"name\":\"work\",\"calls\":{made}");
    json.expect("{\"type\":\"attached_probes\"")?;
    let mut line = String::new();
    while !line.contains(&shown) {
        line = json.expect("{\"type\":\"top\"")?;
    }
    let outcome = json.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.json_receipt()?.hits, made);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
