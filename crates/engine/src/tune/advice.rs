//! What to tell plain ssh, scp and rsync: decided from the figures, without any I/O.

use super::choice::{WORTH, best_cipher, pays, row};
use crate::tuned::Rates;
use trunkline_request::tuning::{Advice, Report, RsyncRow};

const CHANGED: &str = "changed files";

/// Options of ssh, scp and sftp, against what they do on their own: this cipher, and compression or not. For data of any
/// kind, and for text.
pub(super) fn for_ssh(report: &Report, stock_cipher: &str, stock_compression: bool) -> Vec<Advice> {
    let rows = &report.ciphers;
    let Some(stock) = row(rows, stock_cipher, stock_compression) else {
        return Vec::new();
    };
    let cipher = best_cipher(rows, stock_cipher);
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
        Some(Advice {
            tool: "ssh, scp, sftp".into(),
            data: data.into(),
            gain: if options.is_empty() { 1.0 } else { gain },
            options,
        })
    };
    let for_all = pays(rows, &cipher).unwrap_or(stock_compression);
    let text = |compression| row(rows, &cipher, compression).and_then(|row| row.compressible.both());
    let for_text = match (text(true), text(false)) {
        (Some(zlib), Some(plain)) => zlib > plain * WORTH,
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

/// Options of rsync: for new files that are text, and for files of which a part has changed.
pub(super) fn for_rsync(rows: &[RsyncRow]) -> Vec<Advice> {
    let mut all = Vec::new();
    for (work, data) in [("new file", "text"), ("changed file", CHANGED)] {
        let mut runs = rows
            .iter()
            .filter(|row| row.work == work)
            .filter_map(|row| Some((row, row.median()?)));
        // The first is rsync as it is.
        let Some((_, usual)) = runs.next() else { continue };
        let best = runs
            .filter(|(_, median)| median * WORTH < usual)
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

/// What rsync is to be told whatever it copies: what pays for changed files, and `-z` where it pays and compression costs
/// no other data anything.
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
