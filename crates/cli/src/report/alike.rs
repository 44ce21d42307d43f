//! Comparison of messages about different hosts: equal except for names, addresses, ports, fingerprints and places in
//! files.

use std::net::IpAddr;

/// Returns the common part of equal messages; `names` are those of the message's host.
pub(crate) fn key(message: &str, names: &[&str]) -> String {
    let mut is_port = false;
    let words = message.split(' ').map(|word| {
        let core = core(word);
        let varies = is_port || is_of_a_host(core, names);
        is_port = core == "port";
        if varies {
            word.replace(core, "\0")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Combines messages with the same [`key`], with `…` where they differ.
pub(crate) fn fold<'a>(messages: impl IntoIterator<Item = &'a str>) -> String {
    let mut messages = messages.into_iter();
    let mut words: Vec<String> = match messages.next() {
        Some(first) => first.split(' ').map(str::to_owned).collect(),
        None => return String::new(),
    };
    for message in messages {
        for (word, other) in words.iter_mut().zip(message.split(' ')) {
            if word != other {
                *word = word.replace(core(word), &shorten(core(word), core(other)));
            }
        }
    }
    words.join(" ")
}

/// Returns the common prefix of two words, up to the end of a name in a path or an address.
fn shorten(one: &str, other: &str) -> String {
    let alike = one.char_indices().zip(other.chars());
    let alike = alike.take_while(|((_, one), other)| one == other);
    let end = alike
        .filter(|((_, c), _)| "/:@".contains(*c))
        .map(|((at, _), _)| at + 1)
        .last();
    format!("{}…", &one[..end.unwrap_or(0)])
}

/// Returns a word without the punctuation around it.
fn core(word: &str) -> &str {
    let core = word.trim_matches(|c: char| "\"'`(),;:".contains(c));
    if core.is_empty() { word } else { core }
}

fn is_of_a_host(word: &str, names: &[&str]) -> bool {
    let lower = word.to_ascii_lowercase();
    let names_it = names
        .iter()
        .any(|name| lower.contains(&name.to_ascii_lowercase()));
    // `user@host`, `[address]:port`.
    let bare = word.rsplit('@').next().unwrap_or(word);
    let bracketed = bare.strip_prefix('[').and_then(|bare| bare.split(']').next());
    let address = bracketed.unwrap_or_else(|| match bare.matches(':').count() {
        1 => bare.split(':').next().unwrap_or(bare),
        _ => bare,
    });
    let is_address = address.parse::<IpAddr>().is_ok();
    // A domain name, as ssh_config may make of an alias.
    let is_domain = address.trim_matches('.').contains('.')
        && address
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    let is_fingerprint = word.starts_with("SHA256:") || word.starts_with("MD5:");
    // A line of known_hosts.
    let is_place = word.starts_with('/') && {
        let line = word.rsplit(':').next().unwrap_or_default();
        !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
    };
    names_it || word.contains('@') || is_address || is_domain || is_fingerprint || is_place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_in_names_alone_is_the_same() {
        let pairs = [
            (
                "connecting to 10.0.0.1 port 22: Connection refused",
                "connecting to web2.example.com port 2222: Connection refused",
                "connecting to … port …: Connection refused",
            ),
            (
                "me@web1: permission denied (publickey)",
                "root@web2: permission denied (publickey)",
                "…: permission denied (publickey)",
            ),
            (
                "the key of the unknown host [10.0.0.1]:22 was not confirmed (SHA256:abc)",
                "the key of the unknown host [web2]:22 was not confirmed (SHA256:def)",
                "the key of the unknown host … was not confirmed (SHA256:…)",
            ),
            (
                "looking up web1: no such name",
                "looking up web2: no such name",
                "looking up …: no such name",
            ),
            (
                "conflicts with /h/known_hosts:3",
                "conflicts with /h/known_hosts:14",
                "conflicts with /h/known_hosts:…",
            ),
        ];
        for (one, other, both) in pairs {
            assert_eq!(key(one, &["web1"]), key(other, &["web2"]), "{one}");
            assert_eq!(fold([one, other, one]), both);
            assert_eq!(fold([one, one]), one);
        }
    }

    #[test]
    fn what_differs_in_its_sense_is_not() {
        for (one, other) in [
            (
                "connecting to a1: Connection refused",
                "connecting to a1: No route to host",
            ),
            ("exit 3", "exit 4"),
            ("no answer within 5 s", "no answer within 30 s"),
        ] {
            assert_ne!(key(one, &["a1"]), key(other, &["a1"]));
        }
    }
}
