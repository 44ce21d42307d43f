//! Patterns for host names, and suggestions for misspelt names.

/// Returns true if a name is a pattern, with `*` or `?`.
#[must_use]
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Returns true if a pattern matches a host, ignoring case.
#[must_use]
pub fn means_host(patterns: &[String], host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    patterns
        .iter()
        .any(|pattern| matches(host.as_bytes(), pattern.to_ascii_lowercase().as_bytes()))
}

/// Matches like match.c's `match_pattern`, case-sensitively but without its exponential worst case: backtracks only to
/// the last `*`.
#[must_use]
pub fn matches(text: &[u8], pattern: &[u8]) -> bool {
    let (mut t, mut p) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else {
                    return false;
                };
                star = Some((star_at, taken + 1));
                p = star_at + 1;
                t = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Returns the name in `known` that `typed` was probably meant to be; `None` if none is near. A pattern is compared
/// without `*` and `?`. Another number is another host and not a typing error: `web7` was not meant to be `web1`.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bare = typed.replace(['*', '?'], "");
    let compared = |name: &str| match is_pattern(typed) {
        // `wbe*` is compared with the beginning of `web1`.
        true => name.chars().take(bare.chars().count()).collect(),
        false => name.to_owned(),
    };
    // clap's measure, which overrates an error in a short word.
    let near = known.into_iter().filter_map(|name| {
        let compared = compared(name);
        let slips = strsim::damerau_levenshtein(&bare, &compared);
        let likeness = strsim::jaro_winkler(&bare, &compared);
        let is_near = likeness > 0.8 || (slips == 1 && bare.chars().count() > 2);
        let is_slip = without_digits(&bare) != without_digits(&compared);
        (is_near && is_slip).then_some((likeness, name))
    });
    // Among equally near names, the first.
    let best = near.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, name)| name)
}

fn without_digits(name: &str) -> String {
    name.replace(|c: char| c.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_is_recognised() {
        let known = ["web1", "web2", "db1", "bastion"];
        assert_eq!(nearest("wbe1", known), Some("web1"));
        assert_eq!(nearest("bastoin", known), Some("bastion"));
        assert_eq!(nearest("bsa*", known), Some("bastion"));
        assert_eq!(nearest("wbe*", known), Some("web1"));
        assert_eq!(nearest("mail", known), None);
        assert_eq!(nearest("web7", known), None);
        assert_eq!(nearest("web10", known), None);
        assert_eq!(nearest("web9*", known), None);
        assert_eq!(nearest("x*", []), None);
    }

    proptest! {
        #[test]
        fn a_pattern_means_what_the_expression_means(text in "[abA]{0,8}", pattern in "[ab*?]{0,8}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let expression = regex::Regex::new(&format!("^{expression}$")).unwrap();
            prop_assert_eq!(matches(text.as_bytes(), pattern.as_bytes()), expression.is_match(&text));
        }
    }
}
