//! The patterns of rules: for hosts, commands and directories.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::words;

/// A host pattern in which `*` and `?` stand for characters other than a dot, so that it never matches another domain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HostPattern(String);

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-:*?".contains(c);
        match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_allowed) {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(format!(
                "{text:?} is not a host: a name or an address, in which * and ? stand for anything but a dot; users and ports \
                 have lists of their own"
            )),
        }
    }
}

impl HostPattern {
    pub(crate) fn matches(&self, host: &str) -> bool {
        matches_glob(&self.0, &host.to_ascii_lowercase(), |c| c != '.')
    }

    /// Matches a host, but `*` and `?` also match dots: a denial applies in every domain.
    pub(crate) fn encloses(&self, host: &str) -> bool {
        matches_glob(&self.0, &host.to_ascii_lowercase(), |_| true)
    }

    /// Returns the host's name, if it is not a pattern.
    pub(crate) fn name(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&self.0)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A command pattern: words as [`words::parse`] reads them, in which
/// - `*` stands for any characters of a word but `/`, and `**` for any;
/// - a word that begins with either matches nothing that begins with `-`, so that no option can take an argument's
///   place;
/// - their text has no `..` between slashes;
/// - `...` at the end stands for any further words.
///
/// A `*` in quotes or after a backslash is literal.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CommandPattern {
    words: Vec<WordPattern>,
    more: bool,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WordPattern {
    Literal(String),
    Glob(String),
}

/// Marks a wildcard while a pattern is parsed. As a control character it cannot occur in a word.
const STAR: char = '\u{1}';

impl TryFrom<String> for CommandPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let marked = stars_marked(&text)?;
        let mut words = words::parse_pattern(&marked, STAR).map_err(|error| format!("{text:?}: {error}"))?;
        let more = words.last().is_some_and(|word| word == "...");
        if more {
            words.pop();
        }
        let Some(program) = words.first() else {
            return Err(format!("{text:?} names no program"));
        };
        if program.contains(STAR) {
            return Err(format!("{text:?}: name the program without *"));
        }
        let words = words.into_iter().map(|word| match word.contains(STAR) {
            true => WordPattern::Glob(word),
            false => WordPattern::Literal(word),
        });
        Ok(Self {
            words: words.collect(),
            more,
            text,
        })
    }
}

/// Returns the text with each unquoted `*` replaced by the mark.
fn stars_marked(text: &str) -> Result<String, String> {
    let mut marked = String::new();
    let (mut quote, mut escaped) = (None, false);
    for c in text.chars() {
        if c == STAR {
            return Err(format!("{text:?} has a control character"));
        }
        match (quote, c) {
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '*') => {
                marked.push(STAR);
                continue;
            }
            _ => {}
        }
        marked.push(c);
    }
    Ok(marked)
}

impl CommandPattern {
    pub(crate) fn matches(&self, words: &[String]) -> bool {
        let enough = match self.more {
            true => words.len() >= self.words.len(),
            false => words.len() == self.words.len(),
        };
        enough
            && self
                .words
                .iter()
                .zip(words)
                .all(|(pattern, word)| pattern.matches(word))
    }

    /// Returns true if the words begin with the pattern, for any path of the program, any text of wildcards and any
    /// further words: no spelling of a denied command may escape.
    pub(crate) fn encloses(&self, words: &[String]) -> bool {
        let program = |nth: usize, word: &String| match (nth, self.words.first()) {
            (0, Some(WordPattern::Literal(program))) if !program.contains('/') => {
                word.rsplit('/').next().unwrap_or_default().to_owned()
            }
            _ => word.clone(),
        };
        words.len() >= self.words.len()
            && self
                .words
                .iter()
                .zip(words)
                .enumerate()
                .all(|(nth, (pattern, word))| pattern.encloses(&program(nth, word)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl WordPattern {
    fn encloses(&self, word: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == word,
            Self::Glob(pattern) => matches_glob(&pattern.replace(STAR, "*"), word, |_| true),
        }
    }

    fn matches(&self, word: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == word,
            Self::Glob(pattern) => {
                let smuggles_option = pattern.starts_with(STAR) && word.starts_with('-');
                let climbs = word.split('/').any(|part| part == "..");
                !smuggles_option && !climbs && globbed_word(pattern, word)
            }
        }
    }
}

/// Matches a word with a pattern in which [`STAR`] stands for anything but slashes, and two of them for anything.
fn globbed_word(pattern: &str, word: &str) -> bool {
    let double = format!("{STAR}{STAR}");
    // Longer runs of stars act like two.
    let mut regex = String::from("^(?s:");
    for (index, piece) in pattern.split(&double).enumerate() {
        if index > 0 {
            regex.push_str(".*");
        }
        for (index, piece) in piece.split(STAR).enumerate() {
            if index > 0 {
                regex.push_str("[^/]*");
            }
            regex.push_str(&regex::escape(piece));
        }
    }
    regex.push_str(")$");
    // A pattern of literals and two wildcards is always valid. An invalid one would match nothing.
    regex::Regex::new(&regex).is_ok_and(|regex| regex.is_match(word))
}

/// Matches a text with a pattern in which `?` stands for one character that `wild` allows, and `*` for any number of
/// them.
fn matches_glob(pattern: &str, text: &str, wild: impl Fn(char) -> bool) -> bool {
    // The possible states: offsets into the pattern.
    let pattern: Vec<char> = pattern.chars().collect();
    let skip_stars = |mut states: BTreeSet<usize>| {
        for (at, c) in pattern.iter().enumerate() {
            if *c == '*' && states.contains(&at) {
                states.insert(at + 1);
            }
        }
        states
    };
    let mut states = skip_stars(BTreeSet::from([0]));
    for c in text.chars() {
        let next = states.iter().filter_map(|&at| match pattern.get(at)? {
            '*' => wild(c).then_some(at),
            '?' => wild(c).then_some(at + 1),
            literal => (*literal == c).then_some(at + 1),
        });
        states = skip_stars(next.collect());
    }
    states.contains(&pattern.len())
}

/// A directory with its contents, or a file: an absolute path without `.`, `..` or empty parts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Directory(String);

impl TryFrom<String> for Directory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match clean(&text) {
            Some(path) => Ok(Self(path)),
            None => Err(format!(
                "{text:?} is not an absolute path without . and .. in it: write where it really is, as realpath(1) prints it"
            )),
        }
    }
}

impl Directory {
    /// Returns true if a clean path is the directory or in it, and is not guarded.
    pub(crate) fn holds(&self, path: &str) -> bool {
        self.rest(path).is_some_and(|rest| !is_guarded(rest))
    }

    /// Returns true if a clean path is the directory or in it.
    pub(crate) fn encloses(&self, path: &str) -> bool {
        self.rest(path).is_some()
    }

    fn rest<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.0.as_str() {
            "/" => Some(path),
            own => path
                .strip_prefix(own)
                .filter(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns true if a path would let an assistant change permissions: keys and settings of ssh, and this program's own.
/// Such a path is allowed only by a rule that contains it.
fn is_guarded(rest: &str) -> bool {
    let parts: Vec<&str> = rest.split('/').collect();
    parts.contains(&".ssh") || parts.windows(2).any(|pair| pair == [".config", "trunkline"])
}

/// Returns an absolute path without final slashes; `None` for relative paths, and for those with `.`, `..`, empty parts
/// or control characters.
pub(crate) fn clean(path: &str) -> Option<String> {
    let trimmed = path.trim_end_matches('/');
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        return None;
    }
    if trimmed.is_empty() {
        return Some("/".into());
    }
    let is_clean = trimmed[1..]
        .split('/')
        .all(|part| !matches!(part, "" | "." | ".."));
    is_clean.then(|| trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> HostPattern {
        HostPattern::try_from(text.to_owned()).unwrap()
    }

    fn command(text: &str) -> CommandPattern {
        CommandPattern::try_from(text.to_owned()).unwrap()
    }

    fn allows(pattern: &str, line: &str) -> bool {
        command(pattern).matches(&words::parse(line).unwrap())
    }

    #[test]
    fn a_host_pattern_stays_in_its_domain() {
        assert!(host("web*").matches("web1") && host("WEB?").matches("Web1") && host("*").matches("web"));
        assert!(host("*.example.com").matches("a.example.com"));
        for (pattern, other) in [
            ("web*", "web.evil.com"),
            ("*.example.com", "a.b.example.com"),
            ("web?", "web"),
            ("web", "web1"),
            ("?", "."),
        ] {
            assert!(!host(pattern).matches(other), "{pattern} {other}");
        }
        for wrong in ["", "-oProxyCommand=x", "a b", "root@a", "a;b", "a%b"] {
            assert!(HostPattern::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_denied_host_is_denied_in_every_domain() {
        assert!(host("*").encloses("web1.example.com") && host("web*").encloses("web1.example.com"));
        assert!(!host("web*").encloses("db1"));
    }

    #[test]
    fn a_denied_command_is_denied_however_it_is_written() {
        let denies = |pattern: &str, line: &str| command(pattern).encloses(&words::parse(line).unwrap());
        for (pattern, line) in [
            ("rm", "rm -rf /"),
            ("rm *", "/bin/rm -rf /"),
            ("systemctl stop *", "systemctl stop a b"),
            ("cat /etc/*", "cat /etc/ssh/../shadow"),
            ("ls ...", "ls"),
        ] {
            assert!(denies(pattern, line), "{pattern} {line}");
        }
        for (pattern, line) in [
            ("rm *", "rm"),
            ("/bin/rm", "rm a"),
            ("rm", "rmdir a"),
            ("systemctl stop *", "systemctl start a"),
        ] {
            assert!(!denies(pattern, line), "{pattern} {line}");
        }
    }

    #[test]
    fn a_command_pattern_allows_what_it_shows() {
        assert!(allows("systemctl status *", "systemctl status nginx"));
        assert!(allows(
            "journalctl -u nginx-* -n *",
            "journalctl -u nginx-a -n 50"
        ));
        assert!(allows("cat /var/log/*", "cat /var/log/syslog"));
        assert!(allows("cat /var/log/**", "cat /var/log/a/b"));
        assert!(allows("ls ...", "ls -la /x") && allows("ls ...", "ls"));
        assert!(allows("find . -name '*'", "find . -name '*'"));
        for (pattern, line) in [
            ("systemctl status *", "systemctl status --root=/x"),
            ("systemctl status *", "systemctl status a b"),
            ("systemctl status *", "systemctl status"),
            ("systemctl status *", "/tmp/systemctl status a"),
            ("cat /var/log/*", "cat /var/log/a/b"),
            ("cat /var/log/*", "cat /var/log/.."),
            ("cat /var/log/**", "cat /var/log/../../etc/shadow"),
            ("cat /var/log/*", "cat /var/log/a /etc/shadow"),
            ("find . -name '*'", "find . -name x"),
            ("grep ** /x", "grep -f /x"),
        ] {
            assert!(!allows(pattern, line), "{pattern}: {line}");
        }
        for wrong in ["", "*", "a* b", "a; b", "...", "a 'b"] {
            assert!(CommandPattern::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_holds_what_is_in_it() {
        let logs = Directory::try_from("/var/log/".to_owned()).unwrap();
        assert!(logs.holds("/var/log") && logs.holds("/var/log/a/b"));
        assert!(
            !logs.holds("/var/logs") && !logs.holds("/var") && !logs.holds("/var/log/x/.ssh/authorized_keys")
        );
        let all = Directory::try_from("/".to_owned()).unwrap();
        assert!(
            all.holds("/etc")
                && !all.holds("/root/.ssh")
                && !all.holds("/home/jo/.config/trunkline/mcp.toml")
        );
        assert!(
            Directory::try_from("/root/.ssh".to_owned())
                .unwrap()
                .holds("/root/.ssh/config")
        );
        for wrong in ["", "a", "~/a", "/a/../b", "/a//b", "/./a", "/a\n"] {
            assert!(Directory::try_from(wrong.to_owned()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        /// A command that a pattern with a wildcard allows has the pattern's words at their places and a single word
        /// for the wildcard: the sent text parses back to exactly these.
        #[test]
        fn what_is_allowed_parses_back_to_the_words_allowed(word in "[ -~é]{0,16}") {
            let words = vec!["tool".to_owned(), "-x".to_owned(), word.clone()];
            if command("tool -x *").matches(&words) {
                prop_assert!(!word.starts_with('-') && !word.contains('/'));
                let sent = words::quote(&words);
                prop_assert_eq!(words::parse(&sent).unwrap(), words);
            }
        }

        #[test]
        fn a_line_never_gains_words_by_being_sent(line in "tool -x [ -~]{0,24}") {
            if let Ok(words) = words::parse(&line) {
                let sent = words::quote(&words);
                prop_assert_eq!(command("tool -x *").matches(&words), command("tool -x *").matches(&words::parse(&sent).unwrap()));
            }
        }

        #[test]
        fn a_clean_path_climbs_nowhere(path in "[/.a-c]{0,20}") {
            if let Some(path) = clean(&path) {
                prop_assert!(path.split('/').all(|part| part != ".."));
                prop_assert_eq!(clean(&path), Some(path.clone()));
            }
        }
    }
}
