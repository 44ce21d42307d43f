//! The input of each host's shell: the command with the host's name, its variables, a script, another user.
//!
//! A server's shell is whatever its user has. These commands are for shells of the Bourne family and fish; csh stops
//! before the command.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};

use trunkline_request::shell::quote;

use super::sudo::Tokens;

/// The command of a run, before a host's name is filled in.
#[derive(Debug, Clone)]
pub(super) struct Command {
    /// The command's words, or the script's arguments.
    words: Vec<OsString>,
    env: Vec<Variable>,
    script: Option<Script>,
}

/// A host of a run: the values of `{host}` and `{n}`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) name: &'a str,
    /// Its number in the list, from 1.
    pub(super) number: usize,
}

impl Command {
    pub(super) fn new(words: Vec<OsString>, env: Vec<Variable>, script: Option<Script>) -> Self {
        Self { words, env, script }
    }

    /// Returns the variables alone.
    pub(super) fn into_env(self) -> Vec<Variable> {
        self.env
    }

    /// Returns the script's text, which precedes all other input.
    pub(super) fn script(&self) -> Arc<[u8]> {
        self.script
            .as_ref()
            .map(|script| script.text.clone())
            .unwrap_or_default()
    }

    /// Returns the command for a host. With tokens for sudo, it runs as another user.
    ///
    /// # Errors
    /// The host's name cannot be put into the command.
    pub(super) fn for_host(&self, host: Host<'_>, sudo: Option<&Tokens>) -> anyhow::Result<Vec<u8>> {
        let mut line = Vec::new();
        for Variable { name, value } in &self.env {
            let value = quote(value.as_bytes());
            // A variable that cannot be set must not be missing silently.
            line.extend([b"export ", name.as_bytes(), b"=", &value, b" || exit 255; "].concat());
        }
        let words = self.words.iter().map(|word| fill_in(word.as_bytes(), host));
        let words = words.collect::<anyhow::Result<Vec<_>>>()?;
        match &self.script {
            Some(script) => {
                line.extend(script.runner());
                for word in &words {
                    line.push(b' ');
                    line.extend(quote(word));
                }
            }
            None => line.extend(words.join(&b' ')),
        }
        Ok(match sudo {
            Some(tokens) => tokens.wrap(&line),
            None => line,
        })
    }

    /// Returns the command for display: without sudo's tokens and the script's upload.
    pub(super) fn for_people(&self, host: Host<'_>) -> anyhow::Result<String> {
        let mut parts = Vec::new();
        for Variable { name, value } in &self.env {
            parts.push([name.as_bytes(), b"=", &quote(value.as_bytes())].concat());
        }
        if let Some(script) = &self.script {
            parts.push(script.name.as_bytes().to_vec());
        }
        for word in &self.words {
            let word = fill_in(word.as_bytes(), host)?;
            parts.push(if self.script.is_some() { quote(&word) } else { word });
        }
        Ok(String::from_utf8_lossy(&parts.join(&b' ')).into_owned())
    }
}

/// Replaces `{host}` and `{n}` with the host's name and number. `${n}` is the shell's, and `{{n}}` a template's.
fn fill_in(text: &[u8], host: Host<'_>) -> anyhow::Result<Vec<u8>> {
    let mut filled = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'{') {
        let (before, placeholder) = rest.split_at(at);
        filled.extend_from_slice(before);
        let others = filled.last().is_some_and(|last| b"${".contains(last));
        let value = [(&b"{host}"[..], true), (b"{n}", false)]
            .into_iter()
            .find(|(word, _)| !others && placeholder.starts_with(word));
        let taken = match value {
            Some((word, is_name)) if is_name => {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:%+@".contains(&byte);
                ensure!(
                    host.name.bytes().all(is_plain),
                    "the name {:?} cannot stand for {{host}}: it has characters that a shell would act on",
                    host.name
                );
                filled.extend_from_slice(host.name.as_bytes());
                word.len()
            }
            Some((word, _)) => {
                filled.extend_from_slice(host.number.to_string().as_bytes());
                word.len()
            }
            None => {
                filled.push(b'{');
                1
            }
        };
        rest = &placeholder[taken..];
    }
    filled.extend_from_slice(rest);
    Ok(filled)
}

/// A variable of `--env`.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    name: String,
    value: OsString,
}

impl Variable {
    /// Parses `NAME=VALUE`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(is_name) {
            return Err(format!("{name:?} is not the name of a variable"));
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.into(),
        })
    }
}

/// A local script.
#[derive(Debug, Clone)]
pub(super) struct Script {
    name: String,
    text: Arc<[u8]>,
    /// The interpreter in its first line; `sh` if there is none.
    interpreter: Vec<Vec<u8>>,
}

/// The longest script. It is kept in memory.
const LONGEST: u64 = 16 << 20;

impl Script {
    /// Reads a script.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let cannot = || format!("cannot read the script {shown}");
        let mut text = Vec::new();
        let file = fs::File::open(path).with_context(cannot)?;
        std::io::Read::read_to_end(&mut std::io::Read::take(file, LONGEST + 1), &mut text)
            .with_context(cannot)?;
        ensure!(
            text.len() as u64 <= LONGEST,
            "{shown} is longer than {} MiB: copy it with trunkline cp first",
            LONGEST >> 20
        );
        ensure!(
            !text.starts_with(b"\x7fELF"),
            "{shown} is a program, not a script: copy it with trunkline cp first"
        );
        let name = path.file_name().unwrap_or(OsStr::new("script"));
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            interpreter: interpreter(&text),
            text: text.into(),
        })
    }

    /// Returns the words before the script's arguments. They copy the script from the start of standard input into a
    /// file, and unlink it before it runs, so that it cannot be left behind; the interpreter reads it through its
    /// descriptor. The rest of standard input is the script's.
    fn runner(&self) -> Vec<u8> {
        let interpreter: Vec<Vec<u8>> = self.interpreter.iter().map(|word| quote(word)).collect();
        let length = self.text.len().to_string();
        let runner = [
            br#"f=$(mktemp) || exit 255; trap 'rm -f "$f"' EXIT HUP INT TERM; head -c "#.as_slice(),
            length.as_bytes(),
            br#" >"$f"; if [ "$(wc -c <"$f")" -ne "#,
            length.as_bytes(),
            br#" ]; then echo "the script did not arrive whole" >&2; exit 255; fi; exec 9<"$f"; rm -f "$f"; exec "#,
            &interpreter.join(&b' '),
            br#" /dev/fd/9 "$@""#,
        ]
        .concat();
        [
            b"exec sh -c ",
            &*quote(&runner),
            b" ",
            &quote(self.name.as_bytes()),
        ]
        .concat()
    }
}

/// Returns the interpreter of the first line, as the kernel reads it: a path, and the rest of the line as one argument
/// (execve(2)).
fn interpreter(text: &[u8]) -> Vec<Vec<u8>> {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!") else {
        return vec![b"sh".to_vec()];
    };
    let line = line.trim_ascii();
    let end = line
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(line.len());
    let (path, argument) = line.split_at(end);
    if path.is_empty() {
        return vec![b"sh".to_vec()];
    }
    let argument = argument.trim_ascii();
    let mut words = vec![path.to_vec()];
    if !argument.is_empty() {
        words.push(argument.to_vec());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: Host<'_> = Host {
        name: "web1",
        number: 7,
    };

    fn fill(text: &str) -> String {
        String::from_utf8(fill_in(text.as_bytes(), WEB).unwrap()).unwrap()
    }

    #[test]
    fn the_name_and_the_number_stand_where_they_are_asked_for() {
        assert_eq!(fill("echo {host} {n}/{n}.{host}"), "echo web1 7/7.web1");
        for untouched in [
            "${n} ${host}",
            "{{host}} {{.Names}}",
            "{nn} {",
            "{}",
            "awk '{print}'",
            "{hos",
        ] {
            assert_eq!(fill(untouched), untouched);
        }
    }

    #[test]
    fn a_name_that_a_shell_would_act_on_is_refused() {
        let bad = Host {
            name: "web1;reboot",
            number: 1,
        };
        assert!(fill_in(b"echo {host}", bad).is_err());
        assert!(fill_in(b"echo {n}", bad).is_ok());
    }

    #[test]
    fn variables_have_names() {
        for wrong in ["A", "=b", "1A=b", "A B=c", "A;b=c", "a-b=c"] {
            assert!(Variable::parse(wrong).is_err(), "{wrong}");
        }
        let command = Command::new(
            vec!["env".into()],
            vec![Variable::parse("A=it's = $x").unwrap()],
            None,
        );
        let line = command.for_host(WEB, None).unwrap();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r"export A='it'\''s = $x' || exit 255; env"
        );
    }

    #[test]
    fn a_script_is_run_by_what_its_first_line_asks_for() {
        let asked = |text: &str| -> Vec<String> {
            let words = interpreter(text.as_bytes()).into_iter();
            words.map(|word| String::from_utf8(word).unwrap()).collect()
        };
        assert_eq!(asked("echo"), ["sh"]);
        assert_eq!(asked("#!\necho"), ["sh"]);
        assert_eq!(asked("#! /bin/bash -eu \necho"), ["/bin/bash", "-eu"]);
        assert_eq!(
            asked("#!/usr/bin/env python3 -u\n"),
            ["/usr/bin/env", "python3 -u"]
        );
    }
}
