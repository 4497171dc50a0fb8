//! `nanoprobe -e`, `nanoprobe run` and the name `bpftrace`.

use std::process::{Command, Output};

fn nanoprobe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nanoprobe")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_program_is_run_and_its_exit_code_is_ours() {
    let output = nanoprobe(&["-e", "begin { printf(\"%d %s\\n\", $1, str($2)); exit(3); }", "7", "x"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("7 x\n\n\n", Some(3)));
    assert_eq!(stderr(&output), "Attached 1 probe\n");
}

#[test]
fn the_name_bpftrace_takes_its_command_line() {
    let dir = std::env::temp_dir().join(format!("nanoprobe-name-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let name = dir.join("bpftrace");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nanoprobe"), &name).unwrap();
    let file = dir.join("x.bt");
    std::fs::write(&file, "begin { @a[comm] = $1; }").unwrap();
    let output = Command::new(&name).args(["-q", "-f", "json"]).arg(&file).arg("5").output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(
        stdout(&output),
        "{\"type\": \"map\", \"data\": {\"@a\": {\"bpftrace\": 5}}}\n",
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_probe_that_cannot_be_had_is_named_and_nothing_runs() {
    let output = nanoprobe(&["-e", "begin { print(1); } uprobe:/bin/true:no_such { print(2); }"]);
    let err = stderr(&output);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(1)));
    assert!(err.starts_with("stdin:1:21-45: ERROR: No matches for uprobe /bin/true:no_such."), "{err}");
}

#[test]
fn errors_have_their_place_and_a_file_that_is_not_there_is_named() {
    let output = nanoprobe(&["-e", "begin { prnt(1); }"]);
    assert!(
        stderr(&output).starts_with("stdin:1:") && output.status.code() == Some(1),
        "{}",
        stderr(&output)
    );
    let output = nanoprobe(&["run", "/nonexistent.bt"]);
    assert_eq!(stderr(&output), "ERROR: failed to open file '/nonexistent.bt': No such file or directory\n");
}

#[test]
fn options_may_stand_before_the_program_and_a_file_is_formatted() {
    let output = nanoprobe(&["-q", "-f", "json", "-e", "begin { @h = hist(2); }"]);
    let line = "{\"type\": \"hist\", \"data\": {\"@h\": [{\"min\": 2, \"max\": 3, \"count\": 1}]}}\n";
    assert_eq!(stdout(&output), line, "{}", stderr(&output));
    let file = std::env::temp_dir().join(format!("nanoprobe-fmt-{}.bt", std::process::id()));
    std::fs::write(&file, "begin{print(1)}").unwrap();
    let output = nanoprobe(&["run", "--fmt", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert!(stdout(&output).contains("print(1)") && output.status.success(), "{}", stderr(&output));
}

#[test]
fn headers_give_their_constants() {
    let output = nanoprobe(&["run", "--include", "errno.h", "-e", "begin { print(EPERM); exit() }"]);
    assert!(stdout(&output).lines().any(|line| line == "1"), "{}", stderr(&output));
}
