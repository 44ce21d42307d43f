//! The forms of an output for snapshots: on a narrow and a wide terminal, with and without colours, and through a pipe.

use console::{measure_text_width, strip_ansi_codes};

use super::colours::Colours;

/// Returns an output in all its forms, each below its name. Checks that colours change nothing else, a pipe gets none,
/// and no line is wider than the terminal unless it is a single word.
#[track_caller]
pub(crate) fn forms(print: impl Fn(Option<u16>, Colours) -> String) -> String {
    let mut text = String::new();
    for (name, width, colours) in [
        ("80 columns", Some(80), Colours::On),
        ("200 columns", Some(200), Colours::On),
        ("a pipe", None, Colours::Off),
    ] {
        let shown = print(width, colours);
        let plain = print(width, Colours::Off);
        assert_eq!(
            strip_ansi_codes(&shown),
            plain,
            "{name}: with colours and without"
        );
        for line in plain.lines() {
            let fits = width.is_none_or(|width| measure_text_width(line) <= usize::from(width));
            assert!(fits || !line.trim_start().contains(' '), "{name}: {line}");
            assert_eq!(line, line.trim_end(), "{name}: spaces at the end of a line");
        }
        text.push_str(&format!("----- {name}\n{}", shown.replace('\x1b', "␛")));
    }
    text
}
