//! Moments as people and programs read them.

use std::time::Duration;

/// A moment so long after 1970, as RFC 3339 writes it in UTC, with so many digits behind the second (9 at most).
#[must_use]
pub fn moment(since_1970: Duration, digits: usize) -> String {
    let all = since_1970.as_secs();
    let (days, rest) = (all / 86_400, all % 86_400);
    // Years begin in March, so that a leap day is the last; 719,468 days lie before 1970.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let part = format!("{:09}", since_1970.subsec_nanos());
    let part = match part.get(..digits) {
        None | Some("") => String::new(),
        Some(digits) => format!(".{digits}"),
    };
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{part}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        let of = |seconds, nanos, digits| moment(Duration::new(seconds, nanos), digits);
        assert_eq!(of(0, 0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(of(951_782_400, 0, 0), "2000-02-29T00:00:00Z");
        assert_eq!(of(1_795_373_999, 123_456_789, 3), "2026-11-22T18:59:59.123Z");
        assert_eq!(of(4_107_542_400, 1000, 6), "2100-03-01T00:00:00.000001Z");
    }
}
