//! Times as people type them.
//!
//! For:     options of every torture and of the command line.
//! State:   none.
//! Context: control.
//! Keeps:   D1 what is no time is refused with the units there are.
//! Checked: tests below.

use std::time::Duration;

/// The time that `10s`, `500ms`, `1.5m`, `2h` or a bare number of seconds means.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is no time such as 10s, 500ms or 2m"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        other => return Err(format!("'{other}' is no unit of time: us, ms, s, m or h")),
    };
    match seconds < 1e9 {
        true => Duration::try_from_secs_f64(seconds).map_err(|_| format!("'{text}' is before now")),
        false => Err(format!("'{text}' is more than a life")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("90", 90_000),
            ("1.5", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("20000us", 20),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for wrong in ["", "x", "5y", "3 days", "-1s", "nan", "inf", "1e300", "s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
