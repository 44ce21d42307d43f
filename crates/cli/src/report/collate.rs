//! `--collate`: hosts with the same result, together under their folded names.

use super::colours::Colours;
use super::grid::wrap;
use super::output::Output;
use super::{HostResult, Outcome, fold, join, printable};
use std::collections::HashMap;
use std::io::{self, Write};

use trunkline_text::count_of;

/// Hosts with the same outcome and, byte for byte, the same output.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// In the order of the list.
    pub(crate) hosts: Vec<&'a str>,
    /// The outcomes of the command on each.
    outcomes: Vec<&'a Outcome>,
    /// The standard output of each.
    pub(crate) stdout: &'a Output,
    /// The standard error of each.
    pub(crate) stderr: &'a Output,
}

/// Groups results: the biggest group first, among equals the one whose first host is first in the list.
///
/// # Errors
/// Output on disk could not be read.
pub(crate) fn groups(results: &[HostResult]) -> io::Result<Vec<Group<'_>>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    // Groups with the same digest, which a server may have forged.
    let mut places: HashMap<_, Vec<usize>> = HashMap::new();
    let mut results: Vec<&HostResult> = results.iter().collect();
    results.sort_by_key(|result| result.number);
    for result in results {
        let HostResult {
            host,
            outcome,
            stdout,
            stderr,
            ..
        } = result;
        let alike = places
            .entry((result.alike(), stdout.digest(), stderr.digest()))
            .or_default();
        let mut found = None;
        for place in alike.iter().copied() {
            if groups[place].stdout.is_same(stdout)? && groups[place].stderr.is_same(stderr)? {
                found = Some(place);
                break;
            }
        }
        match found {
            Some(place) => {
                groups[place].hosts.push(host);
                groups[place].outcomes.push(outcome);
            }
            None => {
                alike.push(groups.len());
                groups.push(Group {
                    hosts: vec![host],
                    outcomes: vec![outcome],
                    stdout,
                    stderr,
                });
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.hosts.len()));
    Ok(groups)
}

impl Group<'_> {
    /// Writes a heading with the names and the outcome (omitted for exit status 0), then the output; lines of standard
    /// error are marked by `! `. The output's bytes pass unchanged, with a newline added at the end if missing. `width`
    /// is the terminal's in columns, or `None` not to wrap failures.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub(crate) fn write(&self, out: &mut impl Write, colours: Colours, width: Option<u16>) -> io::Result<()> {
        let rule = "-".repeat(RULE);
        let names = colours.host(fold::fold(&self.hosts));
        let count = if self.hosts.len() > 1 {
            format!(" ({})", count_of(self.hosts.len(), "host"))
        } else {
            String::new()
        };
        let joined = join(&self.outcomes);
        let outcome = match &joined {
            Some(outcome) if !outcome.is_success() => format!(": {}", colours.bad(outcome)),
            _ => String::new(),
        };
        writeln!(out, "{rule}\n{names}{count}{outcome}\n{rule}")?;
        if let Some(Outcome::Failed {
            message, execution, ..
        }) = joined
        {
            let line = format!("{} (the command {execution})", printable(&message));
            writeln!(out, "{}", wrap(&line, 0, width))?;
        }
        write_lines(out, "", self.stdout)?;
        write_lines(out, &colours.bad("! "), self.stderr)
    }
}

/// The width of the rules around a heading, as clush draws them.
const RULE: usize = 15;

fn write_lines(out: &mut impl Write, mark: &str, output: &Output) -> io::Result<()> {
    let mut at_start = true;
    output.each_piece(|piece| {
        for line in piece.split_inclusive(|&byte| byte == b'\n') {
            if at_start {
                out.write_all(mark.as_bytes())?;
            }
            out.write_all(line)?;
            at_start = line.ends_with(b"\n");
        }
        Ok(())
    })?;
    if !at_start {
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Execution;
    use super::super::forms::forms;
    use super::super::tests::{failure, result};
    use super::*;

    fn print(results: &[HostResult], colours: Colours, width: Option<u16>) -> String {
        let mut out = Vec::new();
        for group in groups(results).expect("nothing is on disk") {
            group
                .write(&mut out, colours, width)
                .expect("a Vec takes everything");
        }
        String::from_utf8(out).expect("these tests print text")
    }

    #[test]
    fn hosts_that_answered_the_same_stand_together_the_biggest_group_first() {
        let refused = failure("network", "connection refused\u{7}", Execution::DidNotStart);
        let mut odd = result("web04", Outcome::Exited(2), "6.1.0\n");
        odd.stderr = b"warning: old\nno newline".as_slice().into();
        let results = [
            result("db1", refused, ""),
            odd,
            result("web01", Outcome::Exited(0), "6.12.0\n"),
            result("web02", Outcome::Exited(0), "6.12.0\n"),
            result("web03", Outcome::Exited(0), "6.12.0\n"),
            result("web05", Outcome::Exited(0), "6.12.0"),
        ];
        insta::assert_snapshot!(forms(|width, colours| print(&results, colours, width)));
    }

    #[test]
    fn output_that_is_no_text_passes_unchanged() {
        let mut binary = result("h", Outcome::Exited(0), "");
        binary.stdout = [0, 0xff, b'\n', 0xfe].as_slice().into();
        let mut out = Vec::new();
        groups(&[binary]).expect("nothing is on disk")[0]
            .write(&mut out, Colours::On, None)
            .expect("a Vec takes everything");
        assert!(out.ends_with(&[b'-', b'\n', 0, 0xff, b'\n', 0xfe, b'\n']));
    }
}
