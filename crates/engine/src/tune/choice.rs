//! What is best on a path, decided from what was measured.

use crate::tuned::{Choice, Rates, SMALLEST_REQUEST};
use trunkline_request::tuning::{CipherRow, Report, RequestRow, StreamsRow};

/// How much better something must be than what is usual to be chosen: more than rates differ from run to run.
pub(super) const WORTH: f64 = 1.08;

/// What is best by the figures of a report, of which `usual_cipher` and `usual_compression` say what is there without
/// a choice. What makes no clear difference is left as it is.
pub(super) fn decide(report: &Report, usual_cipher: &str, usual_compression: bool) -> Choice {
    let cipher = best_cipher(&report.ciphers, usual_cipher);
    let compression = pays(&report.ciphers, &cipher).unwrap_or(usual_compression);
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
        request_size: best_request(&report.requests),
        streams_down: fewest_streams(&report.streams, |rates| rates.down),
        streams_up: fewest_streams(&report.streams, |rates| rates.up),
        rsync: Vec::new(),
    }
}

pub(super) fn row<'a>(rows: &'a [CipherRow], cipher: &str, compression: bool) -> Option<&'a CipherRow> {
    rows.iter()
        .find(|row| row.cipher == cipher && row.compression == compression)
}

/// The fastest cipher for data that does not compress, which is bound by nothing else.
pub(super) fn best_cipher(rows: &[CipherRow], usual: &str) -> String {
    let rate = |row: &CipherRow| row.incompressible.both();
    let plain = || rows.iter().filter(|row| !row.compression);
    let Some(bar) = row(rows, usual, false).and_then(rate) else {
        return usual.to_owned();
    };
    plain()
        .filter(|row| rate(row).is_some_and(|rate| rate > bar * WORTH))
        .max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))
        .map_or(usual, |row| &row.cipher)
        .to_owned()
}

/// Whether compression is worth having for everything: it speeds up what compresses, and slows nothing down. `None` where
/// that was not measured.
pub(super) fn pays(rows: &[CipherRow], cipher: &str) -> Option<bool> {
    let [plain, zlib] = [row(rows, cipher, false)?, row(rows, cipher, true)?];
    let gain = zlib.compressible.both()? / plain.compressible.both().or(plain.incompressible.both())?;
    let cost = plain.incompressible.both()? / zlib.incompressible.both()?;
    Some(gain > WORTH && cost < WORTH)
}

/// The size at which the best depth moves most; `None` where the largest is as good.
fn best_request(rows: &[RequestRow]) -> Option<u32> {
    let rate_of = |size: u32| {
        let rates = rows.iter().filter(|row| row.size == size);
        rates.filter_map(|row| row.rates.both()).max_by(f64::total_cmp)
    };
    let largest = rows.iter().map(|row| row.size).max()?;
    let bar = rate_of(largest)? * WORTH;
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
        .into_iter()
        .filter_map(|size| Some((size, rate_of(size).filter(|rate| *rate > bar)?)))
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(size, _)| size.max(SMALLEST_REQUEST))
}

/// The fewest sessions that move as much as any number does.
fn fewest_streams(rows: &[StreamsRow], rate: impl Fn(Rates) -> Option<f64>) -> Option<usize> {
    let best = rows
        .iter()
        .filter_map(|row| rate(row.rates))
        .max_by(f64::total_cmp)?;
    rows.iter()
        .filter(|row| rate(row.rates).is_some_and(|rate| rate * WORTH >= best))
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
    fn compression_is_chosen_where_it_gains_for_text_and_costs_nothing_for_other_data() {
        let chosen = |text, random| {
            let rows = vec![cipher("c", false, 100.0, 100.0), cipher("c", true, text, random)];
            decide(&report(rows), "c", false).compression
        };
        assert!(chosen(400.0, 99.0));
        assert!(!chosen(400.0, 60.0));
        assert!(!chosen(101.0, 100.0));
        // What was not measured stays as it is.
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
        assert_eq!(best_request(&rows(104.0)), None);
        assert_eq!(best_request(&rows(150.0)), Some(32_768));
        assert_eq!(best_request(&[]), None);
    }

    #[test]
    fn no_more_sessions_are_taken_than_gain() {
        let rows = [(1, 100.0), (2, 190.0), (4, 198.0), (8, 150.0)].map(|(streams, rate)| StreamsRow {
            streams,
            rates: rates(rate),
        });
        assert_eq!(fewest_streams(&rows, |rates| rates.up), Some(2));
        assert_eq!(fewest_streams(&[], |rates| rates.up), None);
    }
}
