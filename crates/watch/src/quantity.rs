//! Short forms of numbers for tables.

use std::time::Duration;

/// Formats bytes: `999`, `1.5k`, `20M`, with powers of 1024.
pub(crate) fn bytes(count: u64) -> String {
    scale(count as f64)
}

/// Formats bytes per second; empty for none.
pub(crate) fn rate(bytes_a_second: f64) -> String {
    match bytes_a_second {
        none if none < 1.0 => String::new(),
        some => scale(some),
    }
}

fn scale(mut value: f64) -> String {
    for unit in ["", "k", "M", "G", "T"] {
        if value < 999.5 {
            return match unit.is_empty() || value >= 9.95 {
                true => format!("{value:.0}{unit}"),
                false => format!("{value:.1}{unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.0}P")
}

/// Formats a time in one unit: `0.4 ms`, `12 ms`, `3 s`, `5 min`, `7 h`, `2 d`.
pub fn time(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    match time.as_secs() {
        0 if milliseconds < 9.95 => format!("{milliseconds:.1} ms"),
        0 => format!("{:.0} ms", milliseconds.min(999.0)),
        seconds @ ..100 => format!("{seconds} s"),
        seconds @ ..6_000 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_at_most_four_characters() {
        for (count, shown) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.0k"),
            (1 << 20, "1.0M"),
            (10_200, "10k"),
            (1_023_000, "999k"),
            (u64::MAX, "16384P"),
        ] {
            assert_eq!(bytes(count), shown);
        }
        assert_eq!(rate(0.2), "");
    }

    #[test]
    fn a_time_has_one_unit() {
        let shown = |millis| time(Duration::from_millis(millis));
        assert_eq!(
            [0, 9, 10, 999, 1_000, 99_999, 100_000, 7_200_000, 200_000_000].map(shown),
            [
                "0.0 ms", "9.0 ms", "10 ms", "999 ms", "1 s", "99 s", "1 min", "2 h", "2 d"
            ]
        );
    }
}
