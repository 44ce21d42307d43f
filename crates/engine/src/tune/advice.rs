//! Advice for plain ssh, scp and rsync, decided from the figures without I/O.

use super::choice::{WORTH, best_cipher, pays, row, worth};
use crate::memory::tuned::Rates;
use trunkline_request::tuning::{Advice, Report, RsyncRow};

const CHANGED: &str = "changed files";

/// Returns options of ssh, scp and sftp, compared with their defaults of this cipher and compression: for data of any
/// kind, and for text.
pub(super) fn for_ssh(report: &Report, stock_cipher: &str, stock_compression: bool) -> Vec<Advice> {
    let (rows, worth) = (&report.ciphers, worth(report));
    let Some(stock) = row(rows, stock_cipher, stock_compression) else {
        return Vec::new();
    };
    let cipher = best_cipher(rows, stock_cipher, worth);
    let advice = |data: &str, compression: bool, of: fn(&super::CipherRow) -> Rates| {
        let best = row(rows, &cipher, compression)?;
        let gain = of(best).both()? / of(stock).both()?;
        let mut options = Vec::new();
        if cipher != stock_cipher {
            options.extend(["-c".to_owned(), cipher.clone()]);
        }
        if compression != stock_compression {
            let word = if compression { "yes" } else { "no" };
            options.extend(["-o".to_owned(), format!("Compression={word}")]);
        }
        if gain <= worth {
            options.clear();
        }
        Some(Advice {
            tool: "ssh, scp, sftp".into(),
            data: data.into(),
            gain: if options.is_empty() { 1.0 } else { gain },
            options,
        })
    };
    let for_all = pays(rows, &cipher, worth).unwrap_or(stock_compression);
    let text = |compression| row(rows, &cipher, compression).and_then(|row| row.compressible.both());
    let for_text = match (text(true), text(false)) {
        (Some(zlib), Some(plain)) => zlib > plain * worth,
        _ => for_all,
    };
    [
        advice("any", for_all, |row| row.incompressible),
        advice("text", for_text, |row| row.compressible),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns options of rsync: for new text files, and for files of which a part has changed.
pub(super) fn for_rsync(rows: &[RsyncRow]) -> Vec<Advice> {
    let mut all = Vec::new();
    for (work, data) in [("new file", "text"), ("changed file", CHANGED)] {
        let mut runs = rows
            .iter()
            .filter(|row| row.work == work)
            .filter_map(|row| Some((row, row.median()?)));
        // The first is rsync without options.
        let Some((first, usual)) = runs.next() else {
            continue;
        };
        let best = runs
            .filter(|(row, median)| median * WORTH < usual && usual - median > spread(first) + spread(row))
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        all.push(Advice {
            tool: "rsync".into(),
            data: data.into(),
            options: best.map(|(row, _)| row.options.clone()).unwrap_or_default(),
            gain: best.map_or(1.0, |(_, median)| usual / median),
        });
    }
    all
}

/// Returns the median distance of a row's runs from their median, in seconds.
fn spread(row: &RsyncRow) -> f64 {
    let Some(median) = row.median() else { return 0.0 };
    let mut distances: Vec<f64> = row
        .seconds
        .iter()
        .map(|seconds| (seconds - median).abs())
        .collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied().unwrap_or_default()
}

/// Returns rsync's options for any copy: those that pay for changed files, and `-z` if it pays and compression costs
/// other data nothing.
pub(super) fn rsync_options(advice: &[Advice], compression: bool) -> Vec<String> {
    let of = |data: &str| {
        let mut all = advice.iter();
        let found = all.find(|advice| advice.tool == "rsync" && advice.data == data);
        found.map(|advice| advice.options.clone()).unwrap_or_default()
    };
    let mut options = of(CHANGED);
    if compression && of("text").iter().any(|option| option == "-z") {
        options.insert(0, "-z".into());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::CipherRow;

    fn cipher(name: &str, compression: bool, text: f64, random: f64) -> CipherRow {
        let rates = |rate| Rates {
            down: Some(rate),
            up: Some(rate),
        };
        CipherRow {
            cipher: name.into(),
            compression,
            compressible: rates(text),
            incompressible: rates(random),
        }
    }

    fn run(work: &str, options: &[&str], seconds: [f64; 3]) -> RsyncRow {
        RsyncRow {
            work: work.into(),
            options: options.iter().map(|&option| option.into()).collect(),
            bytes: 1,
            seconds: seconds.into(),
        }
    }

    #[test]
    fn ssh_is_told_what_gains_over_its_own_defaults() {
        let report = Report {
            ciphers: vec![
                cipher("slow", false, 50.0, 50.0),
                cipher("fast", false, 100.0, 100.0),
                cipher("fast", true, 400.0, 30.0),
            ],
            ..Report::default()
        };
        let [any, text] = &for_ssh(&report, "slow", false)[..] else {
            panic!("two pieces of advice");
        };
        assert_eq!(
            (&any.options[..], any.gain),
            (&["-c".into(), "fast".into()][..], 2.0)
        );
        assert_eq!(text.options, ["-c", "fast", "-o", "Compression=yes"]);
        assert_eq!(text.gain, 8.0);
        let as_it_is = &for_ssh(&report, "fast", false)[0];
        assert!(as_it_is.options.is_empty() && as_it_is.gain == 1.0);
        assert!(for_ssh(&Report::default(), "slow", false).is_empty());
    }

    #[test]
    fn rsync_is_told_what_the_median_of_its_runs_says() {
        let rows = [
            run("new file", &[], [1.0, 9.0, 1.0]),
            run("new file", &["-z"], [0.5, 0.5, 9.0]),
            run("changed file", &[], [1.0, 1.0, 1.0]),
            run("changed file", &["-W"], [0.99, 0.1, 0.98]),
        ];
        let noisy = [
            run("new file", &[], [1.0, 1.3, 0.7]),
            run("new file", &["-z"], [0.9, 0.6, 1.2]),
        ];
        assert!(
            for_rsync(&noisy)[0].options.is_empty(),
            "runs differ more than options"
        );
        let advice = for_rsync(&rows);
        assert_eq!(
            (&advice[0].options[..], advice[0].gain),
            (&["-z".to_owned()][..], 2.0)
        );
        assert!(advice[1].options.is_empty(), "{advice:?}");
        assert_eq!(rsync_options(&advice, true), ["-z"]);
        assert!(rsync_options(&advice, false).is_empty());
        assert!(for_rsync(&[]).is_empty());
    }
}
