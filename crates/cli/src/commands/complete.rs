//! `trunkline complete`: completions of a command line. The scripts of `trunkline completions` run it at each Tab.
//!
//! It never takes longer than [`LIMIT`], and prints nothing on standard error.

mod quoting;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::CommandFactory as _;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _, complete,
};
use trunkline_control::client::Client;
use trunkline_control::protocol::{HostName, RemoteName, Reply, Request};
use trunkline_request::World;
use trunkline_request::hosts::{HostList, Target, is_pattern, matches};
use trunkline_request::ssh_options::{DIRECTIVES, Directive, SSH_OPTIONS, TypedOption, TypedOptions, Values};

use crate::Cli;
use crate::ask::ask;
use crate::backend::{Backend, Daemon, Running, host_request, runtime};
use crate::commands::ssh;

/// Arguments of `trunkline complete`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whose words they are.
    shell: Shell,
    /// The words up to the cursor; for bash, the line up to the cursor and the part of it that bash is going to
    /// replace.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Returns a shell's script, which runs `trunkline complete`.
pub(crate) fn script(shell: clap_complete::Shell) -> Option<&'static str> {
    match shell {
        clap_complete::Shell::Bash => Some(include_str!("complete/trunkline.bash")),
        clap_complete::Shell::Zsh => Some(include_str!("complete/trunkline.zsh")),
        clap_complete::Shell::Fish => Some(include_str!("complete/trunkline.fish")),
        _ => None,
    }
}

/// The time limit for the shared daemon, which answers within a millisecond or two.
const SHARED_LIMIT: Duration = Duration::from_millis(500);
/// The time limit for everything, with round trips to a server: the user waits at the keyboard.
const LIMIT: Duration = Duration::from_secs(2);

/// `trunkline complete`.
pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = Vec::new();
    match (args.shell, &*args.words) {
        (Shell::Bash, [line, replaced]) => {
            let line = line.to_string_lossy();
            let (words, last) = quoting::split(&line);
            let answers = candidates(words.into_iter().map(OsString::from).collect(), &last.text);
            for answer in answers {
                if let Some(insertion) = last.insertion(&answer.value, &replaced.to_string_lossy()) {
                    writeln!(out, "{insertion}")?;
                }
            }
        }
        (Shell::Bash, _) => {}
        (Shell::Zsh | Shell::Fish, words) => {
            let Some((last, before)) = words.split_last() else {
                return Ok(ExitCode::SUCCESS);
            };
            let last = last.to_string_lossy();
            let last = match args.shell {
                // fish passes the word as it was typed.
                Shell::Fish => quoting::split(&last).1.text,
                _ => last.into_owned(),
            };
            for Answer { value, help } in candidates(before.to_vec(), &last) {
                match help {
                    Some(help) => writeln!(out, "{value}\t{help}")?,
                    None => writeln!(out, "{value}")?,
                }
            }
        }
    }
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(&out).and_then(|()| stdout.flush());
    // Exits without waiting for a daemon, not even a private one: it ends with this process.
    std::process::exit(0);
}

/// A completion of the last word, with its description.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    value: String,
    help: Option<String>,
}

/// Returns the completions of `last` after the words before it. The first word is the program.
fn candidates(before: Vec<OsString>, last: &str) -> Vec<Answer> {
    let line = Arc::new(Line::parse(before));
    let mut command = line.clone().command();
    let mut words = line.words.clone();
    words.push(last.into());
    let index = words.len() - 1;
    let found = complete(
        &mut command,
        words,
        index,
        std::env::current_dir().ok().as_deref(),
    );
    let found = found.unwrap_or_default();
    // Options are offered once their dash is typed.
    let wants_options = last.starts_with('-');
    found
        .into_iter()
        .filter(|candidate| wants_options || !candidate.get_value().as_bytes().starts_with(b"-"))
        .filter_map(|candidate| {
            let value = candidate.get_value().to_str()?.to_owned();
            let is_plain = !value.chars().any(char::is_control);
            let help = candidate.get_help().map(ToString::to_string);
            let help = help.and_then(|help| help.lines().next().map(str::to_owned));
            is_plain.then_some(Answer { value, help })
        })
        .collect()
}

/// The words of a command line before the one that is completed.
struct Line {
    words: Vec<OsString>,
    /// The words after `trunkline ssh`.
    ssh: Option<Vec<OsString>>,
}

impl Line {
    fn parse(mut words: Vec<OsString>) -> Self {
        if words.is_empty() {
            words.push("trunkline".into());
        }
        let behind = words.iter().skip(1).position(|word| word != "--no-daemon");
        let command = behind.map(|behind| behind + 1);
        let ssh = command.filter(|&command| words[command] == "ssh").map(|command| {
            let mut arguments = words[command + 1..].to_vec();
            ssh::take_no_daemon(&mut arguments);
            arguments
        });
        Self { words, ssh }
    }

    /// Returns the program's arguments with completers for their values.
    fn command(self: Arc<Self>) -> clap::Command {
        let mut root = Cli::command();
        let names: Vec<String> = root
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        for name in names {
            root = root.mut_subcommand(&name, |command| self.furnish(command));
        }
        root
    }

    fn furnish(self: &Arc<Self>, command: clap::Command) -> clap::Command {
        let name = command.get_name().to_owned();
        command.mut_args(|argument| {
            let Some(kind) = Kind::from_argument(&name, &argument) else {
                return argument;
            };
            let line = self.clone();
            let completer = move |current: &OsStr| match current.to_str() {
                Some(current) => line.values(kind, current),
                None => Vec::new(),
            };
            argument.add(ArgValueCompleter::new(completer))
        })
    }

    fn values(&self, kind: Kind, current: &str) -> Vec<CompletionCandidate> {
        match kind {
            Kind::Host => self.hosts(current, ""),
            Kind::HostList => self.host_list(current),
            Kind::Place => self.places(current),
            Kind::Path => paths(current),
            Kind::Ssh => self.ssh_words(current),
            Kind::Directive => self.directive(current),
        }
    }

    /// Completes a line of ssh_config as in `-o`: `Name=value`.
    fn directive(&self, current: &str) -> Vec<CompletionCandidate> {
        let Some((name, value)) = current.split_once('=') else {
            // ssh ignores case; what was typed stays.
            let begun = |directive: &&Directive| {
                let name = directive.name.get(..current.len());
                name.is_some_and(|begin| begin.eq_ignore_ascii_case(current))
            };
            let rest = |directive: &Directive| format!("{current}{}=", &directive.name[current.len()..]);
            let found = DIRECTIVES.iter().filter(begun).map(rest);
            return found.map(CompletionCandidate::new).collect();
        };
        let values = Directive::by_name(name).map_or(Values::Any, |directive| directive.values);
        with_prefix(&format!("{name}="), self.directive_values(values, value))
    }

    fn directive_values(&self, values: Values, current: &str) -> Vec<CompletionCandidate> {
        match values {
            Values::Any => Vec::new(),
            Values::Words(words) => beginning(words, current),
            Values::List(words) => complete_list(words, current),
            // `+`, `-` and `^` change ssh's default list.
            Values::Query(what) => match current.split_at_checked(1) {
                Some((sign @ ("+" | "-" | "^"), rest)) => {
                    with_prefix(sign, complete_list(&ssh_query(what), rest))
                }
                _ => complete_list(&ssh_query(what), current),
            },
            Values::Path => paths(current),
            Values::Host => {
                let (before, last) = split_behind(current, ',');
                with_prefix(before, self.hosts(last, ""))
            }
        }
    }

    /// Completes the value of an option of ssh.
    fn ssh_value(&self, letter: u8, current: &str) -> Vec<CompletionCandidate> {
        match letter {
            b'F' | b'E' | b'S' | b'I' | b'i' => paths(current),
            b'c' => self.directive_values(Values::Query("cipher"), current),
            b'm' => self.directive_values(Values::Query("mac"), current),
            b'J' => self.directive_values(Values::Host, current),
            b'O' => beginning(&["check", "forward", "cancel", "exit", "stop", "proxy"], current),
            b'o' => self.directive(current),
            b'Q' => beginning(&ssh_query("help"), current),
            _ => Vec::new(),
        }
    }

    /// Completes hosts, also after `user@`.
    fn hosts(&self, current: &str, ending: &str) -> Vec<CompletionCandidate> {
        let (user, host) = split_behind(current, '@');
        let names = known_hosts(host, self.value_of(b'F'));
        names
            .into_iter()
            .map(|HostName { name, source }| {
                let help = source.as_str();
                CompletionCandidate::new(format!("{user}{name}{ending}")).help(Some(help.into()))
            })
            .collect()
    }

    /// Completes the last host of a list: `web1,db`.
    fn host_list(&self, current: &str) -> Vec<CompletionCandidate> {
        let (before, last) = split_behind(current, ',');
        let inside_brackets = before.matches('[').count() > before.matches(']').count();
        let (sign, last) = match last.strip_prefix('!') {
            Some(last) => ("!", last),
            None => ("", last),
        };
        let found = match last.strip_prefix('@') {
            _ if inside_brackets => Vec::new(),
            Some(file) => with_prefix("@", paths(file)),
            None => {
                let mut found = self.hosts(last, "");
                let is_listed = |name: &str| before.split(',').any(|listed| listed == name);
                found.retain(|host| !host.get_value().to_str().is_some_and(is_listed));
                found
            }
        };
        with_prefix(&format!("{before}{sign}"), found)
    }

    /// Completes an end of a copy: `HOST:PATH`, or a local path.
    fn places(&self, current: &str) -> Vec<CompletionCandidate> {
        // scp's rule: a colon before any slash ends a host.
        let colon = current
            .find([':', '/'])
            .filter(|&at| current[at..].starts_with(':'));
        if let Some(colon) = colon {
            let (host, path) = (&current[..colon], &current[colon + 1..]);
            let found = match host {
                "" => self.paths_of_many(path),
                host => self.remote_paths(host, path),
            };
            return with_prefix(&current[..=colon], found);
        }
        let mut found = paths(current);
        if !current.contains('/') {
            found.extend(self.hosts(current, ":"));
        }
        found
    }

    /// Completes paths on the first host of `-H` that has some.
    fn paths_of_many(&self, path: &str) -> Vec<CompletionCandidate> {
        /// For hosts that are not connected, the daemon answers at once.
        const MOST: usize = 8;
        let begun = Instant::now();
        let hosts = self.many_hosts().into_iter().take(MOST);
        let hosts = hosts.take_while(|_| begun.elapsed() < SHARED_LIMIT);
        let found = hosts.map(|host| self.remote_paths(&host, path));
        found
            .into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// Returns the hosts of `-H` among the words, as destinations.
    fn many_hosts(&self) -> Vec<String> {
        let behind = self.words.iter().skip(1).map(Some).chain([None]);
        let lists = self.words.iter().zip(behind).filter_map(|(word, next)| {
            let word = word.to_str()?;
            if ["-H", "-w", "--hosts"].contains(&word) {
                return next?.to_str();
            }
            let attached = ["-H", "-w", "--hosts="].iter();
            attached.filter_map(|option| word.strip_prefix(option)).next()
        });
        let directory = std::env::current_dir().unwrap_or_default();
        let Ok(mut list) = HostList::read(lists, &directory) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for name in list.take_wanted() {
            if !is_pattern(&name) {
                names.push(name);
                continue;
            }
            let begin = name.split(['*', '?']).next().unwrap_or_default();
            let known = known_hosts(begin, self.value_of(b'F')).into_iter();
            let known = known.map(|host| host.name);
            names.extend(known.filter(|known| matches(known.as_bytes(), name.as_bytes())));
        }
        let names = list.without_excluded(names).into_iter();
        names
            .filter_map(|name| Some(Target::parse(&name).ok()?.destination.to_string()))
            .collect()
    }

    fn remote_paths(&self, host: &str, path: &str) -> Vec<CompletionCandidate> {
        let (directory, prefix) = split_behind(path, '/');
        let names = remote_names(host, self.ssh_args(), directory, prefix);
        names
            .into_iter()
            .map(|RemoteName { name, is_directory }| {
                let slash = if is_directory { "/" } else { "" };
                CompletionCandidate::new(format!("{directory}{name}{slash}"))
            })
            .collect()
    }

    /// Completes the arguments of ssh: its options' values, then a host. Later words are the server's.
    fn ssh_words(&self, current: &str) -> Vec<CompletionCandidate> {
        let words = self.ssh.as_deref().unwrap_or_default();
        let mut options = TypedOptions::from(words, 0);
        let mut waits_for_value = None;
        for option in options.by_ref() {
            match option {
                Ok(_) => {}
                Err(_) => waits_for_value = words.last(),
            }
        }
        if let Some(letter) = waits_for_value.and_then(|word| word.as_bytes().last()) {
            return self.ssh_value(*letter, current);
        }
        if options.position() < words.len() {
            return Vec::new();
        }
        // A value right after its letter: `-oPort=22`.
        let word = [OsString::from(current)];
        if let Some(Ok(TypedOption {
            option,
            value: Some(value),
        })) = TypedOptions::from(&word, 0).last()
            && let Some(value) = value.to_str()
        {
            let before = current.strip_suffix(value).unwrap_or_default();
            return with_prefix(before, self.ssh_value(option.letter, value));
        }
        if current.starts_with('-') {
            return SSH_OPTIONS
                .iter()
                .map(|option| {
                    let letter = char::from(option.letter);
                    let help = option.value.or(option.directive).map(Into::into);
                    CompletionCandidate::new(format!("-{letter}")).help(help)
                })
                .filter(|candidate| candidate.get_value().as_bytes().starts_with(current.as_bytes()))
                .collect();
        }
        self.hosts(current, "")
    }

    /// Returns the value of one of ssh's options among the words.
    fn value_of(&self, letter: u8) -> Option<OsString> {
        let option = [b'-', letter];
        let words = self.ssh.as_deref().unwrap_or(&self.words);
        words.iter().enumerate().find_map(|(at, word)| {
            let behind = word.as_bytes().strip_prefix(&option)?;
            match behind {
                [] => words.get(at + 1).map(|value| without_tilde(value)),
                value => Some(OsString::from_vec(value.to_vec())),
            }
        })
    }

    /// Returns the options that affect how a destination resolves.
    fn ssh_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        for letter in [b'F', b'p', b'l'] {
            if let Some(value) = self.value_of(letter) {
                args.push(OsString::from_vec(vec![b'-', letter]));
                args.push(value);
            }
        }
        for pair in self.words.windows(2).filter(|pair| pair[0] == "-o") {
            args.extend(pair.iter().cloned());
        }
        args
    }
}

/// The kind of an argument's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Host,
    HostList,
    /// A local or remote path.
    Place,
    /// A local path.
    Path,
    /// The arguments of ssh.
    Ssh,
    /// A line of ssh_config.
    Directive,
}

impl Kind {
    /// Returns the kind of an argument, by its value's name.
    fn from_argument(command: &str, argument: &clap::Arg) -> Option<Self> {
        let name = argument
            .get_value_names()
            .and_then(|names| names.first())
            .map_or("", |name| name.as_str());
        match (argument.get_id().as_str(), name) {
            ("arguments", _) if command == "ssh" => Some(Self::Ssh),
            ("paths", _) if command == "cp" => Some(Self::Place),
            ("destination" | "destinations", _) => Some(Self::Host),
            (_, "HOSTS") => Some(Self::HostList),
            (_, "KEY=VALUE") => Some(Self::Directive),
            (_, "FILE" | "DIR") => Some(Self::Path),
            _ => None,
        }
    }
}

/// Splits a text after its last `sign`.
fn split_behind(text: &str, sign: char) -> (&str, &str) {
    text.split_at(text.rfind(sign).map_or(0, |at| at + 1))
}

/// Expands a leading `~`, since the shell has not done so yet.
fn without_tilde(path: &OsStr) -> OsString {
    match (path.as_bytes().strip_prefix(b"~/"), std::env::var_os("HOME")) {
        (Some(below), Some(home)) => std::path::Path::new(&home).join(OsStr::from_bytes(below)).into(),
        _ => path.to_owned(),
    }
}

fn with_prefix(prefix: &str, candidates: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    candidates
        .into_iter()
        .map(|candidate| candidate.add_prefix(prefix))
        .collect()
}

/// Returns the words with this beginning.
fn beginning(words: &[impl AsRef<str>], current: &str) -> Vec<CompletionCandidate> {
    let words = words.iter().map(AsRef::as_ref);
    let words = words.filter(|word| word.starts_with(current));
    words.map(CompletionCandidate::new).collect()
}

/// Completes the last word of a comma-separated list, without words that are in it already.
fn complete_list(words: &[impl AsRef<str>], current: &str) -> Vec<CompletionCandidate> {
    let (before, last) = split_behind(current, ',');
    let words = words.iter().map(AsRef::as_ref);
    let left: Vec<&str> = words
        .filter(|word| !before.split(',').any(|listed| listed == *word))
        .collect();
    with_prefix(before, beginning(&left, last))
}

/// Returns the names that `ssh -Q` lists.
fn ssh_query(what: &str) -> Vec<String> {
    let mut ssh = std::process::Command::new("ssh");
    let printed = ssh
        .args(["-Q", what])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let printed = printed.map(|printed| printed.stdout).unwrap_or_default();
    let mut lines: Vec<String> = String::from_utf8_lossy(&printed)
        .lines()
        .map(str::to_owned)
        .collect();
    let mut seen = HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

/// Completes local paths. A leading `~` stays.
fn paths(current: &str) -> Vec<CompletionCandidate> {
    let home = std::env::var("HOME").ok().filter(|home| home.starts_with('/'));
    let below_home = current.strip_prefix("~/").zip(home);
    let Some((below, home)) = below_home else {
        return PathCompleter::any().complete(OsStr::new(current));
    };
    let home = format!("{}/", home.trim_end_matches('/'));
    let found = PathCompleter::any().complete(OsStr::new(&format!("{home}{below}")));
    found
        .into_iter()
        .filter_map(|candidate| {
            let below = candidate.get_value().to_str()?.strip_prefix(&home)?;
            Some(CompletionCandidate::new(format!("~/{below}")))
        })
        .collect()
}

/// Returns hosts whose names begin with `prefix`, from the running daemon, else from a private one, which reads the
/// same files.
fn known_hosts(prefix: &str, config_file: Option<OsString>) -> Vec<HostName> {
    let answer = answer_in_time(async |backend| {
        let request = Request::HostNames {
            prefix: prefix.to_owned(),
            world: World::current()?,
            config_file,
        };
        let shared = tokio::time::timeout(SHARED_LIMIT, async {
            match backend.find(Running::Here).await? {
                Some(client) => reply(client, request.clone(), backend).await,
                None => anyhow::bail!("no daemon runs"),
            }
        });
        if let Ok(Ok(reply)) = shared.await {
            return Ok(reply);
        }
        reply(backend.connect(Daemon::Own).await?, request, backend).await
    });
    match answer {
        Some(Reply::HostNames(names)) => names,
        _ => Vec::new(),
    }
}

/// Returns names in a directory of a host that begin with `prefix`. Only a running daemon can have a connection.
fn remote_names(host: &str, ssh_args: Vec<OsString>, directory: &str, prefix: &str) -> Vec<RemoteName> {
    let answer = answer_in_time(async |backend| {
        let request = Request::RemoteNames {
            host: host_request(host, ssh_args)?,
            directory: directory.to_owned(),
            prefix: prefix.to_owned(),
        };
        match backend.find(Running::Here).await? {
            Some(client) => reply(client, request, backend).await,
            None => Ok(Reply::Done),
        }
    });
    match answer {
        Some(Reply::RemoteNames(names)) => names,
        _ => Vec::new(),
    }
}

async fn reply(mut client: Client, request: Request, backend: &Backend) -> anyhow::Result<Reply> {
    ask(&mut client, request, backend).await
}

/// Asks a daemon, within the time that the user waits.
fn answer_in_time(question: impl AsyncFnOnce(&'static Backend) -> anyhow::Result<Reply>) -> Option<Reply> {
    // Leaked, since dropping it would wait for a private daemon to end.
    let backend = Box::leak(Box::new(Backend::new(false)));
    let runtime = runtime().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(LIMIT, question(backend)).await });
    runtime.shutdown_background();
    answer.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn values(line: &str, last: &str) -> Vec<String> {
        let answers = candidates(words(line), last);
        answers.into_iter().map(|answer| answer.value).collect()
    }

    #[test]
    fn commands_and_options_are_the_programs_own() {
        assert_eq!(values("trunkline", "sta"), ["status"]);
        assert!(
            values("trunkline ls", "").is_empty(),
            "options are not in the way"
        );
        assert!(values("trunkline ls", "--w").contains(&"--watch".to_owned()));
        assert!(!values("trunkline", "").contains(&"complete".to_owned()));
        assert!(values("trunkline ssh -p", "").is_empty());
        assert!(values("trunkline ssh", "-").contains(&"-L".to_owned()));
        assert!(
            values("trunkline ssh host", "upt").is_empty(),
            "that is the server's"
        );
    }

    #[test]
    fn options_of_ssh_config_and_their_values_are_completed() {
        let only = |line: &str, last: &str, value: &str| {
            assert_eq!(values(line, last), [value], "{line} {last}");
        };
        only("trunkline ssh -o", "StrictH", "StrictHostKeyChecking=");
        // The typed letters keep their case.
        only("trunkline ssh -v -o", "stricth", "stricthostKeyChecking=");
        only("trunkline ssh", "-oStrictH", "-oStrictHostKeyChecking=");
        only("trunkline ssh", "-voServerAliveI", "-voServerAliveInterval=");
        only("trunkline run -o", "BatchM", "BatchMode=");
        only("trunkline cp -o", "compression=y", "compression=yes");
        only(
            "trunkline ssh -o",
            "StrictHostKeyChecking=acc",
            "StrictHostKeyChecking=accept-new",
        );
        only("trunkline ssh -c", "aes128-g", "aes128-gcm@openssh.com");
        only(
            "trunkline ssh -c",
            "aes256-ctr,aes128-g",
            "aes256-ctr,aes128-gcm@openssh.com",
        );
        only("trunkline ssh", "-caes128-g", "-caes128-gcm@openssh.com");
        only(
            "trunkline ssh -m",
            "hmac-sha2-512-",
            "hmac-sha2-512-etm@openssh.com",
        );
        only(
            "trunkline warm -o",
            "MACs=+hmac-sha2-512-",
            "MACs=+hmac-sha2-512-etm@openssh.com",
        );
        only("trunkline ssh -O", "che", "check");
        assert_eq!(
            values("trunkline ssh -o", "UpdateHostKeys="),
            ["UpdateHostKeys=yes", "UpdateHostKeys=no", "UpdateHostKeys=ask"]
        );
        assert!(values("trunkline ssh -o", "Port=").is_empty());
        // No word twice in a list.
        assert!(values("trunkline ssh -c", "aes128-ctr,aes128-ct").is_empty());
    }

    #[test]
    fn arguments_about_hosts_and_files_are_completed_in_every_command() {
        let line = Arc::new(Line::parse(words("trunkline")));
        let mut without = Vec::new();
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                if help.starts_with("Hosts") && Kind::from_argument(command.get_name(), argument).is_none() {
                    without.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
        }
        without.retain(|argument| !argument.ends_with(" jobs"));
        assert!(without.is_empty(), "{without:?}");
        // Checks that all completed arguments exist.
        line.command().debug_assert();
    }

    #[test]
    fn options_of_ssh_among_the_words_decide_which_host_is_meant() {
        let line = Line::parse(words("trunkline cp -F /f -p22 -o User=jo x"));
        assert_eq!(line.ssh_args(), words("-F /f -p 22 -o User=jo"));
        assert_eq!(
            Line::parse(words("trunkline cp a")).ssh_args(),
            Vec::<OsString>::new()
        );
    }
}
