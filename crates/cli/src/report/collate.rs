//! `--collate`: hosts that answered the same, together, under their folded names.

use super::colours::Colours;
use super::{HostResult, Outcome, fold, hosts, printable};
use std::collections::HashMap;
use std::io::{self, Write};

/// Hosts with the same outcome and, byte for byte, the same output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// In the order of the results.
    pub(crate) hosts: Vec<&'a str>,
    /// How the command ended on each.
    pub(crate) outcome: &'a Outcome,
    /// What each printed to standard output.
    pub(crate) stdout: &'a [u8],
    /// What each printed to standard error.
    pub(crate) stderr: &'a [u8],
}

/// Groups results: the biggest group first, among equals the one whose first host came first.
pub(crate) fn groups(results: &[HostResult]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places: HashMap<(&Outcome, &[u8], &[u8]), usize> = HashMap::new();
    for result in results {
        let HostResult {
            host,
            outcome,
            stdout,
            stderr,
            ..
        } = result;
        let place = *places.entry((outcome, stdout, stderr)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.hosts.push(host),
            None => groups.push(Group {
                hosts: vec![host],
                outcome,
                stdout,
                stderr,
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.hosts.len()));
    groups
}

impl Group<'_> {
    /// Writes a heading with the names and the outcome (left out where it is exit status 0), then the output;
    /// lines of standard error are marked by `! `. The output's bytes pass unchanged, and it ends in a
    /// newline in any case.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(&self, out: &mut impl Write, colours: Colours) -> io::Result<()> {
        let rule = "-".repeat(RULE);
        let names = colours.host(fold::fold(&self.hosts));
        let count = if self.hosts.len() > 1 {
            format!(" ({})", hosts(self.hosts.len()))
        } else {
            String::new()
        };
        let outcome = match self.outcome {
            outcome if outcome.is_success() => String::new(),
            outcome => format!(": {}", colours.bad(outcome)),
        };
        writeln!(out, "{rule}\n{names}{count}{outcome}\n{rule}")?;
        if let Outcome::Failed {
            message, execution, ..
        } = self.outcome
        {
            writeln!(out, "{} (the command {execution})", printable(message))?;
        }
        write_lines(out, "", self.stdout)?;
        write_lines(out, &colours.bad("! "), self.stderr)
    }
}

/// The width of the rules around a heading, as clush draws them.
const RULE: usize = 15;

fn write_lines(out: &mut impl Write, mark: &str, output: &[u8]) -> io::Result<()> {
    for line in output.split_inclusive(|&byte| byte == b'\n') {
        out.write_all(mark.as_bytes())?;
        out.write_all(line)?;
    }
    if output.last().is_some_and(|&byte| byte != b'\n') {
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Execution;
    use super::super::tests::{failed, result};
    use super::*;

    fn printed(results: &[HostResult], colours: Colours) -> String {
        let mut out = Vec::new();
        for group in groups(results) {
            group.write(&mut out, colours).expect("a Vec takes everything");
        }
        String::from_utf8(out).expect("these tests print text")
    }

    #[test]
    fn hosts_that_answered_the_same_stand_together_the_biggest_group_first() {
        let refused = failed("network", "connection refused\u{7}", Execution::DidNotStart);
        let mut odd = result("web04", Outcome::Exited(2), "6.1.0\n");
        odd.stderr = b"warning: old\nno newline".to_vec();
        let results = [
            result("db1", refused, ""),
            odd,
            result("web01", Outcome::Exited(0), "6.12.0\n"),
            result("web02", Outcome::Exited(0), "6.12.0\n"),
            result("web03", Outcome::Exited(0), "6.12.0\n"),
            result("web05", Outcome::Exited(0), "6.12.0"),
        ];
        insta::assert_snapshot!(printed(&results, Colours::Off), @"
        ---------------
        web[01-03] (3 hosts)
        ---------------
        6.12.0
        ---------------
        db1: network
        ---------------
        connection refused\\007 (the command did not start)
        ---------------
        web04: exit status 2
        ---------------
        6.1.0
        ! warning: old
        ! no newline
        ---------------
        web05
        ---------------
        6.12.0
        ");
    }

    #[test]
    fn output_that_is_no_text_passes_unchanged() {
        let mut binary = result("h", Outcome::Exited(0), "");
        binary.stdout = vec![0, 0xff, b'\n', 0xfe];
        let mut out = Vec::new();
        groups(&[binary])[0]
            .write(&mut out, Colours::On)
            .expect("a Vec takes everything");
        assert!(out.ends_with(&[b'-', b'\n', 0, 0xff, b'\n', 0xfe, b'\n']));
    }
}
