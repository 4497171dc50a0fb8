//! Formatting keeps the meaning and the comments, and is done once.

use lang::formatted;

const SCRIPTS: &str = include_str!("scripts.txt");

#[test]
fn a_formatted_script_is_formatted() {
    for script in SCRIPTS.split("---\n") {
        let once = formatted("x", script).unwrap_or_else(|e| panic!("{script}\n{e}"));
        let twice = formatted("x", &once).unwrap_or_else(|e| panic!("{once}\n{e}"));
        assert_eq!(once, twice, "{script}");
    }
}

#[test]
fn layout_is_made_and_comments_stay() {
    let text =
        "// head\nbegin{ // start\n$a=1;if($a){print((1,2))// in\n}\n\n\n/* last */ @x[1,2]++ }\n// tail\n";
    let new = "// head\nbegin {\n  // start\n  $a = 1;\n  if ($a) {\n    print((1, 2)) // in\n  }\n\n  /* last */\n  \
               @x[1, 2]++\n}\n// tail\n";
    assert_eq!(formatted("x", text).unwrap(), new);
}

#[test]
fn numbers_strings_and_probes_stay_as_written() {
    let text =
        "u:/bin/x:f+0x10,\nuretprobe:\"a b\":g\n/arg0 == 0x1F/\n{\n  print(\"a\\x41\");\n  $t = 5ms;\n}\n";
    assert_eq!(formatted("x", text).unwrap(), text);
}

#[test]
fn a_text_that_is_no_script_is_refused_with_its_place() {
    assert!(
        formatted("x", "begin { print(1 }").unwrap_err().show().starts_with("x:1:17-18: ERROR: syntax error")
    );
}
