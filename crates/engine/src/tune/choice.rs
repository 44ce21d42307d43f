//! The best settings on a path, decided from the measurements.

use crate::memory::tuned::{Choice, Rates, SMALLEST_REQUEST};
use trunkline_request::tuning::{
    Certainty, Change, CipherRow, Direction, Report, RequestRow, StreamsRow, Verdict,
};
use trunkline_text::count_of;

/// The smallest factor of improvement that is worth a change, whatever was measured.
pub(super) const WORTH: f64 = 1.05;
/// The same if nothing was measured twice, so that the variation from run to run is unknown.
const WORTH_UNKNOWN: f64 = 1.08;

/// The variation between repeated measurements up to which a verdict is reliable. Above it, the smallest gain that
/// counts on a quiet path, [`WORTH`], is half of the variation: neither a gain nor its absence is certain.
const NOISY: f64 = 0.1;

/// Returns the factor of improvement that is worth a change by this report: more than its rates vary from run to run.
pub(super) fn worth(report: &Report) -> f64 {
    match report.noise {
        None => WORTH_UNKNOWN,
        Some(noise) => WORTH.max(1.0 / (1.0 - noise.clamp(0.0, 0.99))),
    }
}

/// Returns the median variation between repeated measurements.
pub(super) fn noise(differences: &[f64]) -> Option<f64> {
    let mut sorted = differences.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Returns the best choice by a report's figures, starting from `usual_cipher` and `usual_compression`. Settings
/// without a clear difference are not changed.
pub(super) fn decide(report: &Report, usual_cipher: &str, usual_compression: bool) -> Choice {
    let worth = worth(report);
    let cipher = best_cipher(&report.ciphers, usual_cipher, worth);
    let compression = pays(&report.ciphers, &cipher, worth).unwrap_or(usual_compression);
    let rates = |cipher: &str, compression: bool| {
        row(&report.ciphers, cipher, compression).map_or_else(Rates::default, |row| row.incompressible)
    };
    Choice {
        measured: report.measured,
        rates: rates(&cipher, compression),
        usual_rates: rates(usual_cipher, usual_compression),
        usual_cipher: usual_cipher.to_owned(),
        cipher,
        compression,
        request_size: best_request(&report.requests, worth),
        streams_down: fewest_streams(&report.streams, worth, |rates| rates.down),
        streams_up: fewest_streams(&report.streams, worth, |rates| rates.up),
        rsync: Vec::new(),
    }
}

/// Returns the gains of a choice over the usual cipher, `usual_compression` and numbers of sessions, down and up. Gains
/// that are not worth a change are left out.
pub(super) fn verdict(
    report: &Report,
    choice: &Choice,
    usual_compression: bool,
    usual_streams: [usize; 2],
) -> Verdict {
    let worth = worth(report);
    let mut changes = Vec::new();
    let mut add = |what: String, gain: Option<f64>| {
        if let Some(gain) = gain.filter(|gain| *gain > worth) {
            changes.push(Change { what, gain });
        }
    };
    let ratio = |new: Option<f64>, old: Option<f64>| Some(new? / old?);
    if choice.cipher != choice.usual_cipher {
        let rate =
            |cipher: &str| row(&report.ciphers, cipher, false).and_then(|row| row.incompressible.both());
        add(
            choice.cipher.clone(),
            ratio(rate(&choice.cipher), rate(&choice.usual_cipher)),
        );
    }
    if choice.compression && !usual_compression {
        let rate = |compression| {
            row(&report.ciphers, &choice.cipher, compression).and_then(|row| row.compressible.both())
        };
        add("compression for text".into(), ratio(rate(true), rate(false)));
    }
    if let Some(size) = choice.request_size {
        let largest = report.requests.iter().map(|row| row.size).max();
        let best = |size: u32| best_of_size(&report.requests, size);
        add(
            format!("requests of {} KiB", f64::from(size) / 1024.0),
            ratio(best(size), largest.and_then(best)),
        );
    }
    for (direction, usual) in Direction::BOTH.into_iter().zip(usual_streams) {
        let chosen = choice.streams(direction == Direction::Up);
        let rate = |streams: usize| {
            let row = report.streams.iter().find(|row| row.streams == streams)?;
            match direction {
                Direction::Down => row.rates.down,
                Direction::Up => row.rates.up,
            }
        };
        if let Some(chosen) = chosen {
            add(
                format!("{} {}", count_of(chosen, "session"), direction.as_str()),
                ratio(rate(chosen), rate(usual)),
            );
        }
    }
    let noise = report.noise;
    let smallest = changes.iter().map(|change| change.gain).min_by(f64::total_cmp);
    let certainty = match (noise, smallest) {
        (None, _) => Certainty::Low,
        (Some(noise), _) if noise > NOISY => Certainty::Low,
        // Three times the variation.
        (Some(noise), Some(gain)) if gain - 1.0 > 3.0 * noise => Certainty::High,
        (Some(noise), None) if noise < WORTH - 1.0 => Certainty::High,
        _ => Certainty::Fair,
    };
    Verdict {
        changes,
        worth,
        certainty,
    }
}

pub(super) fn row<'a>(rows: &'a [CipherRow], cipher: &str, compression: bool) -> Option<&'a CipherRow> {
    rows.iter()
        .find(|row| row.cipher == cipher && row.compression == compression)
}

/// Returns the fastest cipher for incompressible data, for which nothing else is the limit.
pub(super) fn best_cipher(rows: &[CipherRow], usual: &str, worth: f64) -> String {
    let rate = |row: &CipherRow| row.incompressible.both();
    let plain = || rows.iter().filter(|row| !row.compression);
    let Some(bar) = row(rows, usual, false).and_then(rate) else {
        return usual.to_owned();
    };
    plain()
        .filter(|row| rate(row).is_some_and(|rate| rate > bar * worth))
        .max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))
        .map_or(usual, |row| &row.cipher)
        .to_owned()
}

/// The slowdown of other data that a gain by compression may cost, as a fraction of the gain: if text is five times as
/// fast, random bytes may be a fifth slower. On slow paths, where gains are that large, the only cost is variation.
const COST_OF_GAIN: f64 = 0.05;

/// Returns whether compression is worthwhile for everything: it speeds up compressible data and hardly slows down other
/// data. Returns `None` if that was not measured.
pub(super) fn pays(rows: &[CipherRow], cipher: &str, worth: f64) -> Option<bool> {
    let [plain, zlib] = [row(rows, cipher, false)?, row(rows, cipher, true)?];
    let gain = zlib.compressible.both()? / plain.compressible.both().or(plain.incompressible.both())?;
    let cost = plain.incompressible.both()? / zlib.incompressible.both()?;
    Some(gain > worth && cost < worth.max(1.0 + COST_OF_GAIN * (gain - 1.0)))
}

/// Returns the size that moves most at its best depth; `None` if the largest is as good.
fn best_request(rows: &[RequestRow], worth: f64) -> Option<u32> {
    let rate_of = |size: u32| best_of_size(rows, size);
    let largest = rows.iter().map(|row| row.size).max()?;
    let bar = rate_of(largest)? * worth;
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
        .into_iter()
        .filter_map(|size| Some((size, rate_of(size).filter(|rate| *rate > bar)?)))
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(size, _)| size.max(SMALLEST_REQUEST))
}

/// Returns the best rate of requests of this size, at any depth.
fn best_of_size(rows: &[RequestRow], size: u32) -> Option<f64> {
    let rates = rows.iter().filter(|row| row.size == size);
    rates.filter_map(|row| row.rates.both()).max_by(f64::total_cmp)
}

/// Returns the fewest sessions that move as much as any number does.
fn fewest_streams(rows: &[StreamsRow], worth: f64, rate: impl Fn(Rates) -> Option<f64>) -> Option<usize> {
    let best = rows
        .iter()
        .filter_map(|row| rate(row.rates))
        .max_by(f64::total_cmp)?;
    rows.iter()
        .filter(|row| rate(row.rates).is_some_and(|rate| rate * worth >= best))
        .map(|row| row.streams)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rate: f64) -> Rates {
        Rates {
            down: Some(rate),
            up: Some(rate),
        }
    }

    fn cipher(name: &str, compression: bool, text: f64, random: f64) -> CipherRow {
        CipherRow {
            cipher: name.into(),
            compression,
            compressible: rates(text),
            incompressible: rates(random),
        }
    }

    fn report(ciphers: Vec<CipherRow>) -> Report {
        Report {
            ciphers,
            ..Report::default()
        }
    }

    #[test]
    fn a_cipher_is_changed_for_a_clear_gain_only() {
        let rows = |other| {
            vec![
                cipher("usual", false, 100.0, 100.0),
                cipher("other", false, 1.0, other),
            ]
        };
        let chosen = |other| decide(&report(rows(other)), "usual", false).cipher;
        assert_eq!(chosen(107.0), "usual");
        assert_eq!(chosen(150.0), "other");
        assert_eq!(decide(&Report::default(), "usual", true).cipher, "usual");
    }

    #[test]
    fn one_fast_direction_does_not_make_up_for_a_slow_one() {
        let mut rows = vec![
            cipher("usual", false, 100.0, 100.0),
            cipher("other", false, 1.0, 0.0),
        ];
        rows[1].incompressible = Rates {
            down: Some(1000.0),
            up: Some(30.0),
        };
        assert_eq!(decide(&report(rows), "usual", false).cipher, "usual");
    }

    #[test]
    fn compression_is_chosen_where_it_gains_for_text_and_costs_other_data_little() {
        let chosen = |text, random| {
            let rows = vec![cipher("c", false, 100.0, 100.0), cipher("c", true, text, random)];
            decide(&report(rows), "c", false).compression
        };
        assert!(chosen(400.0, 99.0));
        assert!(chosen(500.0, 90.0));
        assert!(!chosen(200.0, 90.0));
        assert!(!chosen(400.0, 60.0));
        assert!(!chosen(101.0, 100.0));
        // Settings that were not measured stay as they are.
        assert!(decide(&report(Vec::new()), "c", true).compression);
    }

    #[test]
    fn requests_stay_as_large_as_the_server_takes_unless_smaller_ones_are_faster() {
        let rows = |small| {
            [
                (32_768, 8, small),
                (32_768, 64, 10.0),
                (261_120, 8, 100.0),
                (261_120, 64, 90.0),
            ]
            .map(|(size, depth, rate)| RequestRow {
                size,
                depth,
                rates: rates(rate),
            })
        };
        assert_eq!(best_request(&rows(104.0), 1.08), None);
        assert_eq!(best_request(&rows(150.0), 1.08), Some(32_768));
        assert_eq!(best_request(&[], 1.08), None);
    }

    #[test]
    fn no_more_sessions_are_taken_than_gain() {
        let rows = [(1, 100.0), (2, 190.0), (4, 198.0), (8, 150.0)].map(|(streams, rate)| StreamsRow {
            streams,
            rates: rates(rate),
        });
        assert_eq!(fewest_streams(&rows, 1.08, |rates| rates.up), Some(2));
        assert_eq!(fewest_streams(&[], 1.08, |rates| rates.up), None);
    }

    #[test]
    fn what_is_within_the_noise_or_below_a_twentieth_is_not_advised() {
        let rows = vec![
            cipher("usual", false, 100.0, 100.0),
            cipher("other", false, 1.0, 115.0),
        ];
        let with = |noise| Report {
            noise,
            ..report(rows.clone())
        };
        let judged = |noise| {
            let report = with(noise);
            let choice = decide(&report, "usual", false);
            let verdict = verdict(&report, &choice, false, [1, 1]);
            let gains: Vec<f64> = verdict.changes.iter().map(|change| change.gain).collect();
            (choice.cipher, gains, verdict.certainty)
        };
        assert_eq!(judged(Some(0.01)), ("other".into(), vec![1.15], Certainty::High));
        assert_eq!(judged(Some(0.1)), ("other".into(), vec![1.15], Certainty::Fair));
        assert_eq!(judged(Some(0.12)), ("other".into(), vec![1.15], Certainty::Low));
        assert_eq!(judged(Some(0.2)), ("usual".into(), vec![], Certainty::Low));
        assert_eq!(judged(Some(0.9)), ("usual".into(), vec![], Certainty::Low));
        assert_eq!(judged(None), ("other".into(), vec![1.15], Certainty::Low));
        assert_eq!(worth(&with(Some(0.0))), 1.05);
        assert_eq!(noise(&[0.5, 0.01, 0.02]), Some(0.02));
        assert_eq!(noise(&[]), None);
    }

    #[test]
    fn a_verdict_names_every_gain_over_what_there_would_be() {
        let streams = [(1, 100.0), (4, 300.0)].map(|(streams, rate)| StreamsRow {
            streams,
            rates: rates(rate),
        });
        let report = Report {
            host: "web1".into(),
            noise: Some(0.02),
            streams: streams.into(),
            ..report(vec![
                cipher("c", false, 100.0, 100.0),
                cipher("c", true, 400.0, 99.0),
            ])
        };
        let choice = decide(&report, "c", false);
        let verdict = verdict(&report, &choice, false, [4, 1]);
        let report = Report { verdict, ..report };
        assert_eq!(
            report.verdict_lines(),
            [
                "web1: `trunkline cp` uses compression for text (4.00 times as fast), 4 sessions up (3.00 times as \
                 fast) from now on.",
                "Certainty: high; repeated measurements differed by 2.0 %, and gains below 5 % do not count.",
            ]
        );
    }

    #[test]
    fn where_repeated_measurements_differ_much_one_is_told_to_measure_again() {
        let report = Report {
            host: "web1".into(),
            noise: Some(0.27),
            ..report(vec![
                cipher("usual", false, 100.0, 100.0),
                cipher("other", false, 1.0, 130.0),
            ])
        };
        let choice = decide(&report, "usual", false);
        let verdict = verdict(&report, &choice, false, [1, 1]);
        let report = Report { verdict, ..report };
        assert_eq!(
            report.verdict_lines(),
            [
                "web1: not certain; no gain was found that is larger than chance.",
                "Certainty: low; repeated measurements differed by 27.0 %, and gains below 37 % do not count. Measure again \
                 when the machine and the link are quiet.",
            ]
        );
    }
}
