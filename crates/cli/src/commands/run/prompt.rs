//! `trunkline run` without a command: a prompt for many hosts. Each line runs on all of them.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use trunkline_request::hosts::{HostList, Target, matches, nearest};
use trunkline_text::{Printable, count_of};

use super::Run;
use super::command::{Command, Variable};
use super::hosts::suggestion;
use crate::backend::place;
use crate::report::fold::fold;
use crate::spool::Stdin;
use crate::terminal::interrupts::{Interrupts, status_of};

const HELP: &str = "\
A line is run on all hosts that are chosen. {host} in it is the host's name, {n}
its number.
  :hosts         list the hosts that are chosen
  :only HOSTS    choose some: a list, patterns, exclusions (web*,!web3)
  :failed        choose those on which the last line did not succeed
  :all           choose all again
  !COMMAND       run a command on this machine
  :help          show this
  :quit          end, as Ctrl-D does
Ctrl-C ends the line that runs. A line that begins with a space is not
remembered.
";

/// The number of lines that are remembered.
const REMEMBERED: usize = 1000;

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Run(&'a str),
    Local(&'a str),
    Hosts,
    Only(&'a str),
    Failed,
    All,
    Help,
    Quit,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if let Some(command) = line.strip_prefix('!') {
            return Self::Local(command.trim());
        }
        if !line.starts_with(':') {
            return match line {
                "" => Self::Nothing,
                "?" => Self::Help,
                "exit" | "quit" => Self::Quit,
                line => Self::Run(line),
            };
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim()) {
            (":only", hosts) if !hosts.is_empty() => Self::Only(hosts),
            (":hosts", "") => Self::Hosts,
            (":failed", "") => Self::Failed,
            (":all", "") => Self::All,
            (":help" | ":h", "") => Self::Help,
            (":quit" | ":q" | ":exit", "") => Self::Quit,
            _ => Self::Unknown(word),
        }
    }
}

/// The prompt's state: all hosts, and the chosen ones.
struct Prompt<'a> {
    run: Run<'a>,
    env: Vec<Variable>,
    all: Vec<Target>,
    chosen: Vec<Target>,
    /// The hosts on which the last line did not succeed.
    failed: Vec<String>,
    history: History,
}

impl Run<'_> {
    /// Runs commands from a prompt until the user ends it.
    pub(super) async fn converse(
        self,
        env: Vec<Variable>,
        targets: Vec<Target>,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<ExitCode> {
        Prompt::new(self, env, targets)?.converse(interrupts).await
    }
}

impl<'a> Prompt<'a> {
    fn new(run: Run<'a>, env: Vec<Variable>, targets: Vec<Target>) -> anyhow::Result<Self> {
        Ok(Self {
            run,
            env,
            chosen: targets.clone(),
            all: targets,
            failed: Vec::new(),
            history: History::open()?,
        })
    }

    /// Reads lines and runs them until there are no more.
    async fn converse(mut self, interrupts: &mut Interrupts) -> anyhow::Result<ExitCode> {
        let modes = tcgetattr(io::stdin()).context("the terminal")?;
        let mut editor = Editor::with_history(Config::default(), MemHistory::new())?;
        editor.set_max_history_size(REMEMBERED)?;
        editor.set_history_ignore_space(true);
        for line in self.history.lines() {
            editor.add_history_entry(line)?;
        }
        eprintln!(
            "{}: a line is run on all of them; :help lists what else there is",
            self.count()
        );
        loop {
            let prompt = self.text();
            let reading = tokio::task::spawn_blocking(move || {
                let line = editor.readline(&prompt);
                (editor, line)
            });
            let line;
            (editor, line) = until_read(reading, &modes, interrupts).await?;
            let line = match line {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
                Err(error) => return Err(error.into()),
            };
            if editor.add_history_entry(&line)? {
                self.history.add(&line);
            }
            interrupts.forget();
            self.run.backend.questions().begin_anew().await;
            if Line::parse(&line) == Line::Quit {
                return Ok(ExitCode::SUCCESS);
            }
            if let Err(error) = self.obey(&Line::parse(&line), interrupts).await {
                crate::report::tell(format_args!("{error:#}"));
            }
        }
    }

    async fn obey(&mut self, line: &Line<'_>, interrupts: &mut Interrupts) -> anyhow::Result<()> {
        match line {
            Line::Nothing | Line::Quit => {}
            Line::Run(line) => {
                let command = Command::new(vec![line.into()], self.env.clone(), None);
                let done = self
                    .run
                    .execute(&self.chosen, &command, &Stdin::Nothing, interrupts);
                self.failed = done
                    .await?
                    .unsuccessful(&self.chosen)
                    .map(str::to_owned)
                    .collect();
            }
            Line::Local(command) => {
                let status = std::process::Command::new("sh").args(["-c", command]).status()?;
                if !status.success() {
                    eprintln!("trunkline: {status}");
                }
            }
            Line::Hosts => {
                for target in &self.chosen {
                    println!("{}", Printable::line(target.name.as_str()));
                }
            }
            Line::Only(hosts) => {
                self.chosen = choose(&self.all, hosts, &self.run.world.cwd)?;
            }
            Line::Failed => {
                anyhow::ensure!(
                    !self.failed.is_empty(),
                    "the last line has not failed on any host"
                );
                self.chosen.retain(|target| self.failed.contains(&target.name));
            }
            Line::All => self.chosen.clone_from(&self.all),
            Line::Help => eprint!("{HELP}"),
            Line::Unknown(word) => {
                let words = [":hosts", ":only", ":failed", ":all", ":help", ":quit"];
                let near = if words.contains(word) {
                    None
                } else {
                    nearest(word, words)
                };
                let takes = if *word == ":only" {
                    " takes hosts"
                } else {
                    " is not understood"
                };
                anyhow::bail!("{word}{takes}{}; :help lists what is", suggestion(near));
            }
        }
        Ok(())
    }

    /// Returns the prompt before a line.
    fn text(&self) -> String {
        let names = fold(self.chosen.iter().map(|target| target.name.as_str()));
        let names = Printable::line(names).into_string();
        if names.chars().count() > 40 {
            return format!("{}> ", self.count());
        }
        format!("{names}> ")
    }

    fn count(&self) -> String {
        count_of(self.chosen.len(), "host")
    }
}

/// Returns the hosts among `all` that a list selects.
fn choose(all: &[Target], hosts: &str, directory: &Path) -> anyhow::Result<Vec<Target>> {
    let mut list = HostList::read([hosts], directory)?;
    let wanted = list.take_wanted();
    let is_wanted = |target: &Target, wanted: &String| {
        [&target.name, &target.destination.host]
            .iter()
            .any(|name| matches(name.as_bytes(), wanted.as_bytes()))
    };
    for wanted in &wanted {
        if !all.iter().any(|target| is_wanted(target, wanted)) {
            let near = nearest(wanted, all.iter().map(|target| target.name.as_str()));
            anyhow::bail!("none of the hosts is {wanted}{}", suggestion(near));
        }
    }
    // Exclusions alone apply to all hosts.
    let named = all
        .iter()
        .filter(|target| wanted.is_empty() || wanted.iter().any(|wanted| is_wanted(target, wanted)));
    let names = list.without_excluded(named.map(|target| target.name.clone()).collect());
    anyhow::ensure!(!names.is_empty(), "no host is left");
    Ok(all
        .iter()
        .filter(|target| names.contains(&target.name))
        .cloned()
        .collect())
}

type Read = (Editor<(), MemHistory>, rustyline::Result<String>);

/// Waits for a line. A signal that ends the program restores the terminal first.
async fn until_read(
    reading: tokio::task::JoinHandle<Read>,
    modes: &Termios,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Read> {
    tokio::pin!(reading);
    loop {
        tokio::select! {
            read = &mut reading => return Ok(read?),
            number = interrupts.next() => {
                // Ctrl-C is a key to the editor, but another process may send SIGINT.
                if number != Signal::INT.as_raw() {
                    let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
                    std::process::exit(status_of(number).into());
                }
            }
        }
    }
}

/// Earlier lines, in a file that only the user may read.
struct History {
    path: PathBuf,
}

impl History {
    fn open() -> anyhow::Result<Self> {
        let place = place()?;
        place.make_state()?;
        Ok(Self {
            path: place.state.join("run.history"),
        })
    }

    /// Returns the last lines. Truncates the file to them when it has become twice as long.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(REMEMBERED)..];
        if lines.len() > 2 * REMEMBERED {
            let mut kept = last.join("\n");
            kept.push('\n');
            // On failure the file keeps its length.
            let _ = fs::write(&self.path, kept);
        }
        last.iter().map(|line| (*line).to_owned()).collect()
    }

    /// Adds a line. On failure the line is only remembered until the program ends.
    fn add(&self, line: &str) {
        let mut options = fs::OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(&self.path);
        let _ = file.and_then(|mut file| writeln!(file, "{}", line.replace('\n', " ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_mean_what_they_look_like() {
        for (line, meaning) in [
            ("", Line::Nothing),
            ("  uptime -s ", Line::Run("uptime -s")),
            ("! ls", Line::Local("ls")),
            (":only web*, !web3", Line::Only("web*, !web3")),
            (":only", Line::Unknown(":only")),
            (":hosts x", Line::Unknown(":hosts")),
            (":all", Line::All),
            (":q", Line::Quit),
            (":oly x", Line::Unknown(":oly")),
        ] {
            assert_eq!(Line::parse(line), meaning, "{line:?}");
        }
    }

    #[test]
    fn some_of_the_hosts_are_chosen_by_lists_and_patterns() {
        let all = ["web1", "web2", "me@db1:22"].map(|name| Target::parse(name).unwrap());
        let names = |hosts: &str| -> Result<Vec<String>, String> {
            let chosen = choose(&all, hosts, Path::new("/")).map_err(|error| error.to_string())?;
            Ok(chosen.into_iter().map(|target| target.name).collect())
        };
        assert_eq!(names("web*"), Ok(vec!["web1".into(), "web2".into()]));
        assert_eq!(names("db1,web2"), Ok(vec!["web2".into(), "me@db1:22".into()]));
        assert_eq!(names("!web*"), Ok(vec!["me@db1:22".into()]));
        assert_eq!(names("!*"), Err("no host is left".into()));
        assert_eq!(
            names("wbe1"),
            Err("none of the hosts is wbe1; did you mean web1?".into())
        );
    }
}
