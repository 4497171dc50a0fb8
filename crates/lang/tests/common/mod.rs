//! Runs a script and keeps what it printed.

use lang::run::{Buffering, Format, Kept, Machine, Mode, Out, Settings, Untraced};
use lang::{Nowhere, Request, check, lower};

/// Output, errors and exit code; `Err` is why it was refused.
pub fn run(script: &str, format: Format) -> Result<(String, String, i32), String> {
    run_in(script, format, Mode::Trace)
}

/// The same, as a test or a bench.
pub fn run_in(script: &str, format: Format, mode: Mode) -> Result<(String, String, i32), String> {
    let checked = check(&Request::of(script), &mut Nowhere).map_err(|refused| refused.to_string())?;
    let lowered = lower(&checked, lang::Options::default()).map_err(|error| error.show(&checked.sources))?;
    let (out, err) = (Kept::default(), Kept::default());
    let settings = Settings {
        is_quiet: true,
        mode,
        prints_maps: true,
        trailer: "..".into(),
        cat_max: 10_240,
        ..Settings::default()
    };
    let stream = Out::new(Box::new(out.clone()), format, Buffering::Line, false);
    let ended = Machine::new(lowered, settings, stream, Box::new(err.clone())).unwrap().run(&mut Untraced);
    Ok((out.text(), err.text(), ended.code))
}

/// Output, errors and exit code of a script that is taken.
#[allow(dead_code, reason = "not every test uses all")]
pub fn errors(script: &str) -> (String, String, i32) {
    run(script, Format::Text).unwrap_or_else(|why| panic!("{script}\n{why}"))
}

/// Output of a script that is taken and says nothing else.
#[allow(dead_code, reason = "not every test uses all")]
pub fn text(script: &str) -> String {
    let (out, err, code) = errors(script);
    assert_eq!((err.as_str(), code), ("", 0), "{script}");
    out
}

/// Lines of JSON.
#[allow(dead_code, reason = "not every test uses all")]
pub fn json(script: &str) -> Vec<String> {
    let (out, err, _) = run(script, Format::Json).unwrap_or_else(|why| panic!("{script}\n{why}"));
    assert_eq!(err, "");
    out.lines().map(str::to_owned).collect()
}
