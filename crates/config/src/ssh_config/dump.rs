//! The output of `ssh -G`: one directive per line, the keyword in lower case.

use std::collections::HashSet;
use std::time::Duration;

use super::values::NameList;

/// One line of `ssh -G`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Directive {
    /// The keyword, in lower case.
    pub keyword: String,
    /// Everything after the first space; empty for a keyword alone.
    pub value: String,
}

/// Parses the output of `ssh -G`. Any bytes give some list; bytes that are not UTF-8 become U+FFFD, which
/// [`Fields::parse`] rejects.
pub(crate) fn parse(output: &[u8]) -> Vec<Directive> {
    let text = String::from_utf8_lossy(output);
    // Only a line feed ends a line: ssh prints a carriage return of a quoted argument unchanged.
    text.split('\n')
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let (keyword, value) = line.split_once(' ').unwrap_or((line, ""));
            Directive {
                keyword: keyword.to_ascii_lowercase(),
                value: value.into(),
            }
        })
        .collect()
}

/// A directive whose value differs from ssh's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The keyword, in lower case.
    pub keyword: String,
    /// Its value; if it has several lines, one value per line.
    pub values: Vec<String>,
    /// Its default; may be empty.
    pub usual: Vec<String>,
}

/// Returns the lines of `configured` that differ from `usual`, in its order, and then those that only `usual` has.
pub(crate) fn departures(configured: &[Directive], usual: &[Directive]) -> Vec<Departure> {
    let values = |of: &[Directive], keyword: &str| -> Vec<String> {
        let lines = of.iter().filter(|directive| directive.keyword == keyword);
        lines.map(|directive| directive.value.clone()).collect()
    };
    let mut seen = HashSet::new();
    configured
        .iter()
        .chain(usual)
        .filter(|directive| seen.insert(&*directive.keyword))
        .map(|Directive { keyword, .. }| Departure {
            keyword: keyword.clone(),
            values: values(configured, keyword),
            usual: values(usual, keyword),
        })
        .filter(|departure| departure.values != departure.usual)
        .collect()
}

/// The directives still to be parsed. The remaining ones are unknown.
pub(crate) struct Fields {
    left: Vec<Directive>,
    /// Directives with values that could not be parsed.
    pub(crate) not_understood: Vec<Directive>,
}

impl Fields {
    pub(crate) fn new(directives: Vec<Directive>) -> Self {
        Self {
            left: directives,
            not_understood: Vec::new(),
        }
    }

    /// Takes every line of `keyword`, in order, and parses it with `read`. Lines for which that returns `None` count as
    /// not understood.
    pub(crate) fn all<T>(&mut self, keyword: &str, mut read: impl FnMut(&str) -> Option<T>) -> Vec<T> {
        let mut values = Vec::new();
        let mut at = 0;
        while let Some(directive) = self.left.get(at) {
            if directive.keyword != keyword {
                at += 1;
                continue;
            }
            let directive = self.left.remove(at);
            match read(&directive.value).filter(|_| !directive.value.contains('\u{fffd}')) {
                Some(value) => values.push(value),
                None => self.not_understood.push(directive),
            }
        }
        values
    }

    /// Takes the only line of `keyword`; of several the first, as in ssh_config.
    pub(crate) fn parse<T>(&mut self, keyword: &str, read: impl FnMut(&str) -> Option<T>) -> Option<T> {
        self.all(keyword, read).into_iter().next()
    }

    /// Takes a string, in which "none" has no special meaning.
    pub(crate) fn name(&mut self, keyword: &str) -> Option<String> {
        self.parse(keyword, |value| Some(value.to_owned()))
            .filter(|value| !value.is_empty())
    }

    /// Takes a string; "none" counts as absent.
    pub(crate) fn text(&mut self, keyword: &str) -> Option<String> {
        self.name(keyword).filter(|value| value != "none")
    }

    /// Takes a comma-separated list of names.
    pub(crate) fn names(&mut self, keyword: &str) -> NameList {
        let list = self
            .parse(keyword, |value| Some(value.to_owned()))
            .unwrap_or_default();
        list.split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Takes a yes/no directive, with ssh's default for a missing line.
    pub(crate) fn flag(&mut self, keyword: &str, default: bool) -> bool {
        self.parse(keyword, super::values::flag).unwrap_or(default)
    }

    /// Takes a number, with ssh's default for a missing line.
    pub(crate) fn number(&mut self, keyword: &str, default: u32) -> u32 {
        self.parse(keyword, |value| value.parse().ok()).unwrap_or(default)
    }

    /// Takes a value with its own format, with ssh's default for a missing line.
    pub(crate) fn word<T>(&mut self, keyword: &str, read: impl FnMut(&str) -> Option<T>, default: T) -> T {
        self.parse(keyword, read).unwrap_or(default)
    }

    /// Takes a string; "no" and "false" count as absent.
    pub(crate) fn unless_no(&mut self, keyword: &str) -> Option<String> {
        self.text(keyword)
            .filter(|value| value != "no" && value != "false")
    }

    /// Takes a list of names, or that of an older keyword if it is empty.
    pub(crate) fn names_or(&mut self, keyword: &str, older: &str) -> NameList {
        let (names, older) = (self.names(keyword), self.names(older));
        if names.is_empty() { older } else { names }
    }

    /// Takes a list of paths; "none" is an empty one.
    pub(crate) fn paths(&mut self, keyword: &str) -> Vec<String> {
        let list = self
            .parse(keyword, |value| Some(super::values::paths(value)))
            .unwrap_or_default();
        match &list[..] {
            [only] if only.eq_ignore_ascii_case("none") => Vec::new(),
            _ => list,
        }
    }

    /// Takes a time in seconds; "none" and 0 mean no limit.
    pub(crate) fn seconds(&mut self, keyword: &str) -> Option<Duration> {
        let read = |value: &str| match value {
            "none" => Some(Duration::ZERO),
            value => super::values::duration(value),
        };
        self.parse(keyword, read).filter(|time| !time.is_zero())
    }

    /// Returns the value of a keyword, without taking it.
    pub(crate) fn peek(&self, keyword: &str) -> Option<&str> {
        let mut lines = self.left.iter();
        let line = lines.find(|directive| directive.keyword == keyword)?;
        Some(&line.value)
            .filter(|value| !value.is_empty())
            .map(String::as_str)
    }

    /// Returns the directives that were not taken, and those that were not understood.
    pub(crate) fn into_unread(self) -> (Vec<Directive>, Vec<Directive>) {
        (self.left, self.not_understood)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn directives_that_are_set_are_told_with_what_they_would_be() {
        let usual = parse(b"port 22\ncompression no\nsendenv LANG\nidentityfile ~/.ssh/id_rsa\n");
        let configured =
            parse(b"port 2222\ncompression no\nidentityfile /a\nidentityfile /b\nproxyjump gate\n");
        let shown: Vec<String> = departures(&configured, &usual)
            .iter()
            .map(|found| format!("{} {:?} {:?}", found.keyword, found.values, found.usual))
            .collect();
        assert_eq!(
            shown,
            [
                r#"port ["2222"] ["22"]"#,
                r#"identityfile ["/a", "/b"] ["~/.ssh/id_rsa"]"#,
                r#"proxyjump ["gate"] []"#,
                r#"sendenv [] ["LANG"]"#,
            ]
        );
    }

    #[test]
    fn a_value_keeps_its_spaces() {
        let read = parse(
            b"identityfile ~/with  space\nCanonicalizePermittedCnames none\nproxycommand a\r\nalone\n\n",
        );
        let pairs: Vec<_> = read
            .iter()
            .map(|d| (d.keyword.as_str(), d.value.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("identityfile", "~/with  space"),
                ("canonicalizepermittedcnames", "none"),
                ("proxycommand", "a\r"),
                ("alone", "")
            ]
        );
    }

    #[test]
    fn a_line_that_cannot_be_read_is_kept_apart() {
        let mut fields = Fields::new(parse(b"port many\nport 22\nuser \xff\nmystery 1\n"));
        assert_eq!(fields.parse("port", |value| value.parse::<u16>().ok()), Some(22));
        assert_eq!(fields.text("user"), None);
        let (left, not_understood) = fields.into_unread();
        assert_eq!(left.len(), 1);
        assert_eq!(not_understood.len(), 2);
    }

    proptest! {
        #[test]
        fn what_ssh_prints_is_read_as_it_was_printed(
            directives in proptest::collection::vec(("[a-z0-9]{1,12}", "[!-~][ -~é]{0,12}[!-~]"), 0..8),
        ) {
            let printed: String = directives.iter().map(|(k, v)| format!("{k} {v}\n")).collect();
            let read: Vec<_> = parse(printed.as_bytes()).into_iter().map(|d| (d.keyword, d.value)).collect();
            prop_assert_eq!(read, directives);
        }
    }
}
