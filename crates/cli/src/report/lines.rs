//! Output as it arrives, each line after its host's name: `web01: Linux`.
//!
//! The prefix is that of pdsh and clush, so that `dshbak` and existing pipelines keep working. On a terminal each host
//! has a colour and the lines are aligned. A line of standard error is marked by `!` in place of the colon.

use super::colours::Colours;

/// The format of the names before lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// The columns of the longest name; 0 if lines are not aligned.
    width: usize,
    /// Lines have no names.
    absent: bool,
}

/// Longer names do not move the lines of others to the right.
const WIDEST: usize = 24;

impl Names {
    /// Returns the format for a terminal.
    pub(crate) fn align<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let widths = names.into_iter().map(|name| name.chars().count());
        let width = widths.filter(|width| *width <= WIDEST).max().unwrap_or(0);
        Self { width, absent: false }
    }

    /// Returns the format without names.
    pub(crate) fn absent() -> Self {
        Self {
            width: 0,
            absent: true,
        }
    }

    /// Returns the prefix of a line of the `number`th host.
    pub(crate) fn prefix(&self, host: &str, number: usize, colours: Colours) -> String {
        let space = self.space(host);
        format!("{}:{:space$}", colours.host_of_many(number, host), "")
    }

    fn space(&self, host: &str) -> usize {
        self.width.saturating_sub(host.chars().count()) + 1
    }
}

/// Splits one stream of one host into prefixed lines.
#[derive(Debug)]
pub(crate) struct LinePrefixer {
    prefix: Vec<u8>,
    /// The incomplete last line.
    partial: Vec<u8>,
}

/// One of a command's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The longest line in bytes that is held back until its end. A longer one is broken here, so that a host that prints
/// no newline does not use unbounded memory.
pub(crate) const MAX_LINE: usize = 1 << 20;

impl LinePrefixer {
    /// Makes the prefixer for one stream of `host`, the `number`th of the command. `colours` are those of the stream
    /// that the lines are printed on.
    pub(crate) fn new(names: &Names, host: &str, number: usize, stream: Stream, colours: Colours) -> Self {
        let prefix = match stream {
            _ if names.absent => String::new(),
            Stream::Stdout => names.prefix(host, number, colours),
            Stream::Stderr => {
                let space = names.space(host);
                format!("{}{:space$}", colours.bad(format_args!("{host}!")), "")
            }
        };
        Self {
            prefix: prefix.into_bytes(),
            partial: Vec::new(),
        }
    }

    /// Takes output in pieces of any size and appends complete lines to `lines`. The bytes need not be UTF-8 and pass
    /// unchanged. Write what was appended with one call, so that the lines of several hosts do not mix.
    pub(crate) fn feed(&mut self, mut output: &[u8], lines: &mut Vec<u8>) {
        while let Some(end) = output.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = output.split_at(end + 1);
            self.take(line, lines);
            lines.extend_from_slice(&self.prefix);
            lines.append(&mut self.partial);
            output = rest;
        }
        self.take(output, lines);
    }

    /// Appends the last line, with a newline if it had none.
    pub(crate) fn finish(mut self, lines: &mut Vec<u8>) {
        self.break_line(lines);
    }

    /// Adds to the partial line, and breaks it if it becomes too long.
    fn take(&mut self, mut line: &[u8], lines: &mut Vec<u8>) {
        while self.partial.len() + line.len() > MAX_LINE {
            let (now, later) = line.split_at(MAX_LINE - self.partial.len());
            self.partial.extend_from_slice(now);
            self.break_line(lines);
            line = later;
        }
        self.partial.extend_from_slice(line);
    }

    fn break_line(&mut self, lines: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            lines.extend_from_slice(&self.prefix);
            lines.append(&mut self.partial);
            lines.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix_all(prefixer: LinePrefixer, pieces: &[&[u8]]) -> Vec<u8> {
        let mut prefixer = prefixer;
        let mut lines = Vec::new();
        for piece in pieces {
            prefixer.feed(piece, &mut lines);
        }
        prefixer.finish(&mut lines);
        lines
    }

    #[test]
    fn every_line_bears_its_hosts_name() {
        let stdout = LinePrefixer::new(&Names::default(), "web1", 1, Stream::Stdout, Colours::Off);
        let lines = prefix_all(stdout, &[b"a", b"b\n\nc\r\n\xff", b"", b"d"]);
        assert_eq!(lines, b"web1: ab\nweb1: \nweb1: c\r\nweb1: \xffd\n");
        let stderr = LinePrefixer::new(&Names::default(), "web1", 1, Stream::Stderr, Colours::Off);
        assert_eq!(prefix_all(stderr, &[b"oops\n"]), b"web1! oops\n");
        let coloured = LinePrefixer::new(&Names::default(), "web1", 1, Stream::Stdout, Colours::On);
        assert_eq!(prefix_all(coloured, &[b"a\n"]), b"\x1b[36mweb1\x1b[0m: a\n");
        let names = Names::align(["web1", "web10", "a-name-that-is-longer-than-most.example.com"]);
        let aligned = LinePrefixer::new(&names, "web1", 2, Stream::Stdout, Colours::Off);
        assert_eq!(prefix_all(aligned, &[b"a\n"]), b"web1:  a\n");
        let other = LinePrefixer::new(&names, "web10", 2, Stream::Stdout, Colours::On);
        assert_eq!(prefix_all(other, &[b"a\n"]), b"\x1b[32mweb10\x1b[0m: a\n");
        assert_eq!(
            prefix_all(
                LinePrefixer::new(&Names::default(), "web1", 1, Stream::Stdout, Colours::Off),
                &[]
            ),
            b""
        );
        let bare = LinePrefixer::new(&Names::absent(), "web1", 1, Stream::Stderr, Colours::On);
        assert_eq!(prefix_all(bare, &[b"a\nb"]), b"a\nb\n");
    }

    #[test]
    fn only_whole_lines_come_out_before_the_end() {
        let mut prefixer = LinePrefixer::new(&Names::default(), "h", 1, Stream::Stdout, Colours::Off);
        let mut lines = Vec::new();
        prefixer.feed(b"begun", &mut lines);
        assert_eq!(lines, b"");
        prefixer.feed(b" ended\nnext", &mut lines);
        assert_eq!(lines, b"h: begun ended\n");
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut prefixer = LinePrefixer::new(&Names::default(), "h", 1, Stream::Stdout, Colours::Off);
        let mut lines = Vec::new();
        for _ in 0..5 {
            prefixer.feed(&vec![b'x'; MAX_LINE / 2 + 1], &mut lines);
            assert!(prefixer.partial.len() <= MAX_LINE);
        }
        prefixer.finish(&mut lines);
        assert_eq!(
            lines.iter().filter(|&&byte| byte == b'x').count(),
            5 * (MAX_LINE / 2 + 1)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn chunking_changes_nothing(
            output in prop::collection::vec(prop::sample::select(b"ab\n\r\xfe".to_vec()), 0..60),
            size in 1..10usize,
        ) {
            let prefixer = || LinePrefixer::new(&Names::default(), "h", 1, Stream::Stdout, Colours::Off);
            let pieces: Vec<&[u8]> = output.chunks(size).collect();
            let lines = prefix_all(prefixer(), &pieces);
            prop_assert_eq!(&lines, &prefix_all(prefixer(), &[&output]));
            let each = lines.split_inclusive(|&byte| byte == b'\n');
            let mut bare: Vec<u8> = each.flat_map(|line| &line["h: ".len()..]).copied().collect();
            if output.last().is_some_and(|&byte| byte != b'\n') {
                bare.pop();
            }
            prop_assert_eq!(bare, output);
        }
    }
}
