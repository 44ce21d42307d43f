//! Durations as users type them: `90`, `1.5`, `5m`, `1h30m`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest accepted duration, a leap year, so that sums with clocks do not overflow.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// Parses seconds, or numbers with the units of ssh_config(5), TIME FORMATS, and `ms`. Never zero.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 30, 1.5, 5m or 1h30m");
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, behind) = rest.split_at(digits.unwrap_or(rest.len()));
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(letters);
        let unit = match unit {
            "ms" => 0.001,
            "s" | "S" => 1.0,
            "" => 1.0,
            "m" | "M" => 60.0,
            "h" | "H" => 3600.0,
            "d" | "D" => 86_400.0,
            "w" | "W" => 604_800.0,
            _ => return Err(wrong()),
        };
        seconds += number * unit;
        rest = next;
    }
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration > YEAR {
        return Err(format!("{text:?} is longer than a year"));
    }
    if duration.is_zero() {
        return Err(format!("{text:?} is not longer than 0"));
    }
    Ok(duration)
}

/// Returns a parser of durations in a range.
pub(crate) fn parse_within(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let time = parse(text)?;
        match range.contains(&time) {
            true => Ok(time),
            false => Err(format!(
                "{text:?} is not from {:?} to {:?}",
                range.start(),
                range.end()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_ssh_reads_them_and_in_parts_of_seconds() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("0.5", 500),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1m30", 90_000),
            ("250ms", 250),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "m",
            "5x",
            "1..2",
            "inf",
            "5 m",
            "99999999999999999999w",
            "367d",
            "10000000000000000000",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_has_both_of_its_ends() {
        let read = parse_within(Duration::from_secs(1)..=Duration::from_secs(60));
        assert_eq!(read("1"), Ok(Duration::from_secs(1)));
        assert_eq!(read("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(read("999ms"), Err("\"999ms\" is not from 1s to 60s".into()));
        assert!(read("61").is_err());
        assert!(read("x").unwrap_err().contains("is not a time"));
    }
}
