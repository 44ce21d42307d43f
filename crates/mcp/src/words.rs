//! A command as words: a program and its arguments, which no shell changes.
//!
//! [`parse`] accepts what a user would type and refuses what a shell would act on. [`quote`] writes words so that usual
//! login shells (sh, bash, zsh, fish, csh) read back exactly these words.

use std::fmt;

/// The reason why a command is not a list of words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WordsError {
    /// It is empty.
    #[error("the command is empty")]
    Empty,
    /// It has a character that a shell would act on.
    #[error(
        "{} at byte {at} is for a shell, and commands are run as plain words without one: write it in quotes to \
         pass it to the program as it is", Shown(*found)
    )]
    Meta {
        found: char,
        /// The offset in bytes.
        at: usize,
    },
    /// It has a character that not every shell reads alike on a command line.
    #[error("control character {} at byte {at}: a command is one line of printable text", Shown(*found))]
    Control { found: char, at: usize },
    /// A quote is not closed.
    #[error("the quote at byte {at} is not closed")]
    Open {
        /// The offset of its beginning.
        at: usize,
    },
}

struct Shown(char);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            c if c.is_control() => write!(f, "U+{:04X}", u32::from(c)),
            c => write!(f, "`{c}`"),
        }
    }
}

/// The characters that a shell interprets outside of quotes.
const META: &str = ";&|<>()$`{}*?[]!#~";

/// Splits a command into words. Quotes and backslashes have their meaning in a POSIX shell. Everything else that a
/// shell would act on, outside of quotes or in double quotes, is an error.
///
/// # Errors
/// [`WordsError`].
/// [`WordsError`].
pub(crate) fn parse(line: &str) -> Result<Vec<String>, WordsError> {
    if let Some((at, found)) = line.char_indices().find(|(_, c)| c.is_control() && *c != '\t') {
        return Err(WordsError::Control { found, at });
    }
    split(line)
}

/// Splits a pattern in which the control character `star` replaces each wildcard.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_pattern(line: &str, star: char) -> Result<Vec<String>, WordsError> {
    let is_bad = |c: char| c.is_control() && c != '\t' && c != star;
    match line.char_indices().find(|(_, c)| is_bad(*c)) {
        Some((at, found)) => Err(WordsError::Control { found, at }),
        None => split(line),
    }
}

fn split(line: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some((_, '\'')) => break,
                        Some((at, c)) => word.push(no_control(c, at)?),
                        None => return Err(WordsError::Open { at }),
                    }
                }
            }
            '"' => double_quoted(&mut chars, at, word.get_or_insert_default())?,
            '\\' => match chars.next() {
                Some((at, c)) => word.get_or_insert_default().push(no_control(c, at)?),
                None => return Err(WordsError::Open { at }),
            },
            c if META.contains(c) => return Err(WordsError::Meta { found: c, at }),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match words.is_empty() {
        true => Err(WordsError::Empty),
        false => Ok(words),
    }
}

/// Reads the inside of double quotes, up to their end.
fn double_quoted(
    chars: &mut std::str::CharIndices<'_>,
    open: usize,
    word: &mut String,
) -> Result<(), WordsError> {
    loop {
        match chars.next() {
            Some((_, '"')) => return Ok(()),
            Some((at, '\\')) => match chars.next() {
                Some((_, c @ ('"' | '\\' | '$' | '`'))) => word.push(c),
                // In a shell, a backslash before any other character is literal.
                Some((at, c)) => word.extend(['\\', no_control(c, at)?]),
                None => return Err(WordsError::Open { at }),
            },
            Some((at, found @ ('$' | '`' | '!'))) => return Err(WordsError::Meta { found, at }),
            Some((at, c)) => word.push(no_control(c, at)?),
            None => return Err(WordsError::Open { at: open }),
        }
    }
}

/// Refuses control characters. Tabs between words are blanks; within a word they are suspicious.
fn no_control(found: char, at: usize) -> Result<char, WordsError> {
    match found.is_control() {
        true => Err(WordsError::Control { found, at }),
        false => Ok(found),
    }
}

/// Quotes words as one line for a shell, which reads back these words.
pub(crate) fn quote<W: AsRef<str>>(words: &[W]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted_word(word.as_ref())).collect();
    words.join(" ")
}

/// Quotes a word in single quotes unless it is plain. The two characters that fish treats differently there are outside
/// of quotes, after a backslash, which all shells read alike. Nothing that csh or zsh would expand is left in quotes.
fn quoted_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = String::new();
    for piece in word.split_inclusive(['\'', '\\']) {
        let (plain, special) = match piece.strip_suffix(['\'', '\\']) {
            Some(plain) => (plain, &piece[plain.len()..]),
            None => (piece, ""),
        };
        if !plain.is_empty() {
            quoted.extend(["'", plain, "'"]);
        }
        if !special.is_empty() {
            quoted.extend(["\\", special]);
        }
    }
    if quoted.is_empty() {
        quoted.push_str("''");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_those_that_a_shell_would_make() {
        for (line, words) in [
            ("systemctl status nginx", &["systemctl", "status", "nginx"][..]),
            ("  a\t b  ", &["a", "b"]),
            ("grep -E 'a|b;$(c)' \"d e\"", &["grep", "-E", "a|b;$(c)", "d e"]),
            (r#"a\ b \; "\$x\"\\\n" ''"#, &["a b", ";", r#"$x"\\n"#, ""]),
            ("a'b'\"c\"d=e%^,", &["abcd=e%^,"]),
        ] {
            assert_eq!(parse(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn what_a_shell_would_act_on_is_refused_with_its_place() {
        for (line, at) in [
            ("a; b", 1),
            ("a && b", 2),
            ("a | b", 2),
            ("a > /b", 2),
            ("a $(b)", 2),
            ("a `b`", 2),
            ("a \"$b\"", 3),
            ("a *", 2),
            ("ls ~root", 3),
            ("a # b", 2),
            ("a {b,c}", 2),
            ("a [bc]", 2),
            ("a !b", 2),
            ("é <b", 3),
        ] {
            let error = parse(line).unwrap_err();
            assert!(
                matches!(error, WordsError::Meta { at: found, .. } if found == at),
                "{line}: {error}"
            );
        }
        for line in ["a\nb", "a 'b\nc'", "a\0b", "a\x1b[2Jb", "a\u{85}b", "a 'b\tc'"] {
            assert!(matches!(parse(line), Err(WordsError::Control { .. })), "{line:?}");
        }
        for line in ["a 'b", "a \"b", "a \\", "a \"\\"] {
            assert!(matches!(parse(line), Err(WordsError::Open { .. })), "{line:?}");
        }
        assert_eq!(parse(" \t "), Err(WordsError::Empty));
    }

    fn word() -> impl Strategy<Value = String> {
        prop_oneof!["[ -~]{0,12}", "[-'\\\\\"$`; ~*=a]{0,8}", "[a-zé€]{1,6}"]
    }

    proptest! {
        #[test]
        fn quoted_words_parse_back_to_themselves(words in prop::collection::vec(word(), 1..6)) {
            prop_assert_eq!(parse(&quote(&words)).unwrap(), words);
        }

        /// The remote shell reads back every accepted line as the same words.
        #[test]
        fn what_is_parsed_is_quoted_to_the_same(line in "[ -~é]{0,40}") {
            if let Ok(words) = parse(&line) {
                prop_assert_eq!(parse(&quote(&words)).unwrap(), words);
            }
        }
    }

    /// Every installed shell prints its arguments, each after a mark.
    #[test]
    fn shells_read_back_the_same_words() {
        let words = [
            "-n",
            "",
            "a b",
            "it's",
            "\\",
            "\\' ;id;",
            "$HOME",
            "`id`",
            "$(id)",
            "*",
            "~",
            "~root",
            "=ls",
            "!x",
            "!!",
            "#",
            "{a,b}",
            "a=b",
            "%self",
            "^x",
            "é",
            "\"",
            "a\\nb",
            ";",
            "&&",
            "|",
            ">x",
            "-oProxyCommand=id",
            "[a]",
            "?",
            "\\\\",
            "'\\'",
        ];
        let line = format!("printf '<%%s>\\n' {}", quote(&words)).replace("%%", "%");
        let expected: String = words.iter().map(|word| format!("<{word}>\n")).collect();
        let mut asked = 0;
        for shell in [
            "sh", "bash", "dash", "zsh", "fish", "csh", "tcsh", "ksh", "mksh", "busybox",
        ] {
            let mut command = Command::new(shell);
            if shell == "busybox" {
                command.arg("sh");
            }
            let Ok(output) = command.args(["-c", &line]).output() else {
                continue;
            };
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                expected,
                "{shell}: {line}"
            );
            asked += 1;
        }
        assert!(asked > 0, "no shell at all");
    }
}
