//! A shell's command line split into words, and words quoted for a shell.

/// The word to be completed.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct LastWord {
    /// Its unquoted text so far.
    pub(super) text: String,
    typed: String,
    quote: Option<char>,
}

/// Returns the unquoted words of a line up to the cursor. The last one, which may be empty, is the one to complete; its
/// quote may be open.
pub(super) fn split(line: &str) -> (Vec<String>, LastWord) {
    let mut words = Vec::new();
    let mut word: Option<LastWord> = None;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        let quote = word.as_ref().and_then(|word| word.quote);
        if quote.is_none() && c.is_ascii_whitespace() {
            words.extend(word.take().map(|word| word.text));
            continue;
        }
        let word = word.get_or_insert_with(LastWord::default);
        word.typed.push(c);
        match (quote, c) {
            (None, '\'' | '"') => word.quote = Some(c),
            (Some(open), c) if open == c => word.quote = None,
            (Some('"'), '\\') if !matches!(characters.peek(), Some('"' | '\\' | '$' | '`')) => {
                word.text.push('\\');
            }
            (None | Some('"'), '\\') => {
                if let Some(escaped) = characters.next() {
                    word.typed.push(escaped);
                    word.text.push(escaped);
                }
            }
            _ => word.text.push(c),
        }
    }
    (words, word.unwrap_or_default())
}

impl LastWord {
    /// Returns the text with which bash has to replace `replaced` so that the word means `value`. `replaced` is the end
    /// of the word in bash's view, which splits words at colons and equals signs. Returns `None` if `value` cannot be
    /// written after the typed text.
    pub(super) fn insertion(&self, value: &str, replaced: &str) -> Option<String> {
        let written = match self.quote {
            // bash adds both quotes itself.
            Some(quote) => {
                let special: &[char] = if quote == '\'' {
                    &['\'']
                } else {
                    &['"', '\\', '$', '`', '!']
                };
                if value.contains(special) {
                    return None;
                }
                value.to_owned()
            }
            None => escape(value),
        };
        let typed = match self.quote {
            Some(quote) => self.typed.trim_start_matches(quote),
            None => &self.typed,
        };
        let replaced = match self.quote {
            Some(quote) => replaced.trim_start_matches(quote),
            None => replaced,
        };
        let kept = typed.strip_suffix(replaced)?;
        written.strip_prefix(kept).map(str::to_owned)
    }
}

/// Quotes a word for a shell with backslashes. A leading `~/` stays the home.
fn escape(value: &str) -> String {
    let mut written = String::with_capacity(value.len());
    let (home, rest) = match value.strip_prefix("~/") {
        Some(rest) => ("~/", rest),
        None => ("", value),
    };
    written.push_str(home);
    for c in rest.chars() {
        if !(c.is_alphanumeric() || "@%+=:,./_-".contains(c)) {
            written.push('\\');
        }
        written.push(c);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_shell() {
        let of = |line: &str| {
            let (words, last) = split(line);
            (words.join("|"), last.text, last.quote)
        };
        assert_eq!(
            of("trunkline ssh we"),
            ("trunkline|ssh".into(), "we".into(), None)
        );
        assert_eq!(of("t cp a\\ b "), ("t|cp|a b".into(), String::new(), None));
        assert_eq!(of("t 'a b' \"c d"), ("t|a b".into(), "c d".into(), Some('"')));
        assert_eq!(of("t \"a\\$b\\c\""), ("t".into(), "a$b\\c".into(), None));
    }

    #[test]
    fn bash_replaces_what_is_behind_a_colon() {
        let insertion = |line: &str, value: &str, replaced: &str| split(line).1.insertion(value, replaced);
        assert_eq!(
            insertion("t cp web1:/v", "web1:/var/", "/v").as_deref(),
            Some("/var/")
        );
        assert_eq!(insertion("t cp web1:", "web1:a b", "").as_deref(), Some("a\\ b"));
        assert_eq!(insertion("t cp we", "web1:", "we").as_deref(), Some("web1:"));
        assert_eq!(
            insertion("t cp a\\ ", "a b;c", "a\\ ").as_deref(),
            Some("a\\ b\\;c")
        );
        assert_eq!(
            insertion("t cp 'web1:/a ", "web1:/a b", "web1:/a ").as_deref(),
            Some("web1:/a b")
        );
        assert_eq!(insertion("t cp '", "it's", ""), None, "it cannot be written so");
        assert_eq!(insertion("t cp \"", "$(date)", ""), None);
        assert_eq!(
            insertion("t cp ", "$(date)", "").as_deref(),
            Some("\\$\\(date\\)")
        );
        assert_eq!(insertion("t cp ~/a", "~/a*", "~/a").as_deref(), Some("~/a\\*"));
    }
}
