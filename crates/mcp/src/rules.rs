//! `mcp.toml`: what an assistant may do. Everything without a rule is denied.

mod pattern;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use trunkline_request::destination::Destination;

pub(crate) use pattern::clean;
use pattern::{CommandPattern, Directory, HostPattern};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rules {
    /// The party to ask when a rule requires it.
    #[serde(deserialize_with = "asking")]
    pub(crate) ask: Asking,
    pub(crate) limits: Limits,
    /// The ssh_config to use instead of the user's own (`ssh -F`): an absolute path.
    #[serde(deserialize_with = "absolute")]
    pub(crate) ssh_config: Option<PathBuf>,
    /// Says if calls are recorded even if `config.toml` does not ask for an audit trail.
    pub(crate) record: Record,
    #[serde(rename = "allow")]
    allowing: Vec<Rule>,
    #[serde(rename = "ask-for")]
    asking: Vec<Rule>,
    #[serde(rename = "deny")]
    denying: Vec<Rule>,
    #[serde(skip)]
    path: PathBuf,
    /// The hosts to which this call's names resolve, if they differ: a denial of a host applies to every name of it.
    /// The lock is held for a look-up.
    #[serde(skip)]
    meant: Mutex<BTreeMap<String, String>>,
}

/// # Errors
/// A program without an absolute path.
fn asking<'de, D: Deserializer<'de>>(text: D) -> Result<Asking, D::Error> {
    match Asking::deserialize(text)? {
        Asking::Program(words) if !words.first().is_some_and(|program| program.starts_with('/')) => {
            Err(D::Error::custom("name the program by its absolute path"))
        }
        asking => Ok(asking),
    }
}

/// # Errors
/// A relative path.
fn absolute<'de, D: Deserializer<'de>>(text: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(text)?;
    match path.is_absolute() {
        true => Ok(Some(path)),
        false => Err(D::Error::custom("give an absolute path")),
    }
}

/// The setting for the record of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    #[default]
    Always,
    /// Only if `config.toml` sets `audit`.
    AsConfigured,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Asking {
    /// The assistant's user, through its client.
    #[default]
    Client,
    /// Nobody: actions that need a question are denied.
    Nobody,
    /// A program with its arguments; the first word is an absolute path.
    #[serde(untagged)]
    Program(Vec<String>),
}

/// The limits of one call, and of all calls.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// The time limit of a command.
    seconds: u32,
    /// The most bytes of each of a command's outputs that are kept.
    output: u64,
    /// The most concurrent commands and transfers on one host.
    pub(crate) at_once: usize,
    /// The most hosts in one call.
    pub(crate) hosts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            seconds: 600,
            output: 16 << 20,
            at_once: 8,
            hosts: 64,
        }
    }
}

impl Limits {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    pub(crate) fn output(&self) -> u64 {
        self.output
    }
}

/// The actions of a rule on some hosts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rule {
    hosts: Vec<HostPattern>,
    /// Users that may be named before a host. The one in ssh_config needs no name.
    users: Vec<String>,
    /// Ports, likewise.
    ports: Vec<u16>,
    commands: Vec<CommandPattern>,
    /// Commands as root, through `sudo -n`.
    sudo: Vec<CommandPattern>,
    /// True to allow any command line, for the remote shell.
    shell: bool,
    /// Directories whose files may be read.
    read: Vec<Directory>,
    /// Directories whose files may be written.
    write: Vec<Directory>,
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Deny,
    Allow,
    AskFor,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::AskFor => "ask-for",
        })
    }
}

/// An action on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Runs a command, given as words.
    Run { words: Vec<String>, sudo: bool },
    /// Runs a line in the remote shell.
    Shell(String),
    /// Reads a file or lists a directory: a clean path.
    Read(String),
    /// Writes a file.
    Write(String),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { words, sudo } => {
                let root = if *sudo { "sudo -n -- " } else { "" };
                write!(f, "run {root}{}", crate::words::quote(words))
            }
            Self::Shell(line) => write!(f, "run in a shell: {line}"),
            Self::Read(path) => write!(f, "read {path}"),
            Self::Write(path) => write!(f, "write {path}"),
        }
    }
}

/// The decision of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(String),
    /// Allowed by this rule if the user agrees.
    Ask(String),
    /// Denied, for this reason.
    Denied(String),
}

/// The reason why there are no rules.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    #[error("{} does not exist, so nothing is allowed: write it ('trunkline mcp check' tells what it says), see the guide on MCP", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is writable for others than you, or is not yours: 'chown' and 'chmod go-w' it, and check what it says", .0.display())]
    NotOwn(PathBuf),
    #[error("{}: {message}", path.display())]
    Mistake { path: PathBuf, message: String },
}

impl Rules {
    /// Reads the file. Errors have a line and a caret.
    ///
    /// # Errors
    /// [`RulesError`].
    pub(crate) fn load(path: &Path) -> Result<Self, RulesError> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => RulesError::Missing(path.into()),
            _ => RulesError::Read {
                path: path.into(),
                source,
            },
        };
        let mut file = std::fs::File::open(path).map_err(failed)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        // A user who can write to the directory can replace the file.
        for (path, metadata) in [
            (path, file.metadata().map_err(failed)?),
            (directory, std::fs::metadata(directory).map_err(failed)?),
        ] {
            let ours = [0, rustix::process::getuid().as_raw()].contains(&metadata.uid());
            if !ours || metadata.mode() & 0o022 != 0 {
                return Err(RulesError::NotOwn(path.into()));
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text, path)
    }

    /// # Errors
    /// [`RulesError::Mistake`].
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, RulesError> {
        let mistake = |message: String| RulesError::Mistake {
            path: path.into(),
            message,
        };
        let mut rules: Self = toml::from_str(text).map_err(|error| mistake(error.to_string()))?;
        rules.path = path.into();
        for (list, number, rule) in rules.enumerate_rules() {
            rule.check()
                .map_err(|wrong| mistake(Headings::parse(text).point_at(text, list, number, wrong)))?;
        }
        Ok(rules)
    }

    fn enumerate_rules(&self) -> impl Iterator<Item = (List, usize, &Rule)> {
        let lists = [
            (List::Deny, &self.denying),
            (List::Allow, &self.allowing),
            (List::AskFor, &self.asking),
        ];
        lists
            .into_iter()
            .flat_map(|(list, rules)| (1..).zip(rules).map(move |(number, rule)| (list, number, rule)))
    }

    /// Decides about an action. A denial overrides everything else; an action that is allowed needs no question.
    pub(crate) fn verdict(&self, host: &Destination, action: &Action) -> Verdict {
        let mut asks = None;
        for (list, number, rule) in self.enumerate_rules() {
            if !self.is_about(rule, host, list) || !rule.covers(action, list) {
                continue;
            }
            let name = format!("{list} {number}");
            match list {
                List::Deny => {
                    return Verdict::Denied(format!("{}: rule {name} denies it", self.path.display()));
                }
                List::Allow => return Verdict::Allowed(name),
                List::AskFor => asks = asks.or(Some(name)),
            }
        }
        match asks {
            Some(name) => Verdict::Ask(name),
            None => Verdict::Denied(format!(
                "{}: no rule allows {} to {action}",
                self.path.display(),
                host.as_hop()
            )),
        }
    }

    /// Returns true if a rule denies an action.
    pub(crate) fn denies(&self, host: &Destination, action: &Action) -> bool {
        let mut rules = self.denying.iter();
        rules.any(|rule| self.is_about(rule, host, List::Deny) && rule.covers(action, List::Deny))
    }

    /// Returns true if there are rules that deny.
    pub(crate) fn deny_anything(&self) -> bool {
        !self.denying.is_empty()
    }

    /// Notes the host name to which ssh_config resolves a host.
    pub(crate) fn means(&self, host: &Destination, hostname: &str) {
        if host.host != hostname {
            let mut meant = self.meant.lock().unwrap_or_else(PoisonError::into_inner);
            meant.insert(host.host.clone(), hostname.to_owned());
        }
    }

    /// Returns true if a rule applies to a host. A denial applies to every name of a host; other rules apply only to
    /// the name itself.
    fn is_about(&self, rule: &Rule, host: &Destination, list: List) -> bool {
        let by_meaning = || {
            let meant = self.meant.lock().unwrap_or_else(PoisonError::into_inner);
            let hostname = meant.get(&host.host)?;
            Destination::new(host.user.as_deref(), hostname, host.port).ok()
        };
        rule.is_about(host, list)
            || list == List::Deny && by_meaning().is_some_and(|meant| rule.is_about(&meant, list))
    }

    /// Returns true if anything is allowed on a host, or allowed after a question: if not, it may not even be connected
    /// to.
    pub(crate) fn knows(&self, host: &Destination) -> bool {
        let denied = self
            .denying
            .iter()
            .any(|rule| self.is_about(rule, host, List::Deny) && rule.is_bare());
        !denied
            && self
                .allowing
                .iter()
                .chain(&self.asking)
                .any(|rule| rule.is_about(host, List::Allow))
    }

    /// Returns the directories in the rules about a host, as written. Links may lead through them.
    pub(crate) fn directories(&self, host: &Destination) -> impl Iterator<Item = &str> {
        let rules = self.allowing.iter().chain(&self.asking);
        let rules = rules.filter(|rule| rule.is_about(host, List::Allow));
        rules.flat_map(|rule| rule.read.iter().chain(&rule.write).map(Directory::as_str))
    }

    /// Returns the hosts named without a pattern, and the patterns.
    pub(crate) fn hosts(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut names, mut patterns) = (Vec::new(), Vec::new());
        for pattern in self
            .allowing
            .iter()
            .chain(&self.asking)
            .flat_map(|rule| &rule.hosts)
        {
            match pattern.name() {
                Some(name) => names.push(name),
                None => patterns.push(pattern.as_str()),
            }
        }
        for list in [&mut names, &mut patterns] {
            list.sort_unstable();
            list.dedup();
        }
        (names, patterns)
    }

    /// Describes the actions that are allowed on a host.
    pub(crate) fn describe_for(&self, host: &Destination) -> Vec<String> {
        let mut lines = Vec::new();
        let rules = self
            .enumerate_rules()
            .filter(|(list, _, rule)| self.is_about(rule, host, *list));
        for (list, _, rule) in rules {
            let patterns = |patterns: &[CommandPattern]| {
                patterns
                    .iter()
                    .map(|one| one.as_str().to_owned())
                    .collect::<Vec<_>>()
            };
            lines.extend(
                patterns(&rule.commands)
                    .into_iter()
                    .map(|one| format!("{list} run: {one}")),
            );
            lines.extend(
                patterns(&rule.sudo)
                    .into_iter()
                    .map(|one| format!("{list} run with sudo: {one}")),
            );
            lines.extend(
                rule.read
                    .iter()
                    .map(|one| format!("{list} read: {}", one.as_str())),
            );
            lines.extend(
                rule.write
                    .iter()
                    .map(|one| format!("{list} write: {}", one.as_str())),
            );
            if rule.shell {
                lines.push(format!("{list} run with shell: any command line"));
            }
        }
        lines
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The positions of the rules in the file, for errors about a whole rule.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Headings {
    allow: Vec<Spanned<IgnoredAny>>,
    #[serde(rename = "ask-for")]
    ask_for: Vec<Spanned<IgnoredAny>>,
    deny: Vec<Spanned<IgnoredAny>>,
}

impl Headings {
    fn parse(text: &str) -> Self {
        toml::from_str(text).unwrap_or_default()
    }

    /// Formats an error about a rule like those of the parser.
    fn point_at(&self, text: &str, list: List, number: usize, wrong: &str) -> String {
        let headings = match list {
            List::Allow => &self.allow,
            List::AskFor => &self.ask_for,
            List::Deny => &self.deny,
        };
        let start = headings.get(number - 1).map_or(0, |heading| heading.span().start);
        let line = text[..start].matches('\n').count();
        let shown = text.lines().nth(line).unwrap_or_default().trim_end();
        let column = start - text[..start].rfind('\n').map_or(0, |end| end + 1);
        let line = (line + 1).to_string();
        let margin = " ".repeat(line.len());
        let carets = " ".repeat(column) + &"^".repeat(shown.len().saturating_sub(column).max(1));
        format!(
            "TOML parse error at line {line}, column {}\n{margin} |\n{line} | {shown}\n{margin} | {carets}\n{wrong}\n",
            column + 1
        )
    }
}

impl Rule {
    fn check(&self) -> Result<(), &'static str> {
        if self.hosts.is_empty() {
            return Err("hosts is missing, or empty");
        }
        if self.shell && self.hosts.iter().any(|host| host.name().is_none()) {
            return Err("shell = true allows everything the account can do: name each host, without * and ?");
        }
        Ok(())
    }

    /// Returns true if a host is one of the rule's. A denial applies to all users unless it names some; other rules
    /// apply only to the users that they name.
    fn is_about(&self, host: &Destination, list: List) -> bool {
        let denies = list == List::Deny;
        let user = host.user.as_ref().is_none_or(|user| self.users.contains(user));
        let port = host.port.is_none_or(|port| self.ports.contains(&port));
        let matches = |pattern: &HostPattern| match denies {
            true => pattern.encloses(&host.host),
            false => pattern.matches(&host.host),
        };
        (user || denies && self.users.is_empty())
            && (port || denies && self.ports.is_empty())
            && self.hosts.iter().any(matches)
    }

    /// Returns true if it only names hosts. Such a denial covers all actions on them.
    fn is_bare(&self) -> bool {
        let commands = self.commands.is_empty() && self.sudo.is_empty() && !self.shell;
        commands && self.read.is_empty() && self.write.is_empty()
    }

    fn covers(&self, action: &Action, list: List) -> bool {
        let denies = list == List::Deny;
        if denies && self.is_bare() {
            return true;
        }
        let any = |patterns: &[CommandPattern], words: &[String]| {
            patterns.iter().any(|one| match denies {
                true => one.encloses(words),
                false => one.matches(words),
            })
        };
        let holds = |directories: &[Directory], path: &str| {
            directories.iter().any(|one| match denies {
                true => one.encloses(path),
                false => one.holds(path),
            })
        };
        match action {
            // A denied command is denied as root, too.
            Action::Run { words, sudo: true } => {
                any(&self.sudo, words) || (denies && any(&self.commands, words))
            }
            Action::Run { words, sudo: false } => any(&self.commands, words),
            Action::Shell(_) => self.shell,
            Action::Read(path) => holds(&self.read, path),
            Action::Write(path) => holds(&self.write, path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [[allow]]
        hosts = ["web*", "db1"]
        users = ["deploy"]
        ports = [2222]
        commands = ["systemctl status *", "uptime"]
        sudo = ["systemctl reload nginx"]
        read = ["/var/log"]

        [[allow]]
        hosts = ["box"]
        shell = true

        [[ask-for]]
        hosts = ["web*"]
        commands = ["uptime"]
        sudo = ["systemctl restart *"]
        write = ["/etc/nginx"]

        [[deny]]
        hosts = ["web9"]

        [[deny]]
        hosts = ["*"]
        read = ["/var/log/private"]
        commands = ["systemctl ... "]
    "#;

    fn rules(text: &str) -> Rules {
        Rules::parse(text, Path::new("/x/mcp.toml")).unwrap()
    }

    fn run(line: &str, sudo: bool) -> Action {
        let words = crate::words::parse(line).unwrap();
        Action::Run { words, sudo }
    }

    #[test]
    fn what_no_rule_allows_is_denied() {
        let rules = rules(&RULES.replace("commands = [\"systemctl ... \"]", ""));
        let verdict = |host: &str, action: Action| rules.verdict(&host.parse().unwrap(), &action);
        let allowed = |name: &str| Verdict::Allowed(name.into());
        assert_eq!(verdict("web1", run("uptime", false)), allowed("allow 1"));
        assert_eq!(verdict("deploy@web1", run("uptime", false)), allowed("allow 1"));
        assert_eq!(
            verdict("web1", run("systemctl reload nginx", true)),
            allowed("allow 1")
        );
        assert_eq!(
            verdict("web1", Action::Read("/var/log/syslog".into())),
            allowed("allow 1")
        );
        assert_eq!(verdict("box", Action::Shell("a | b".into())), allowed("allow 2"));
        assert_eq!(
            verdict("web1", run("systemctl restart nginx", true)),
            Verdict::Ask("ask-for 1".into())
        );
        assert_eq!(
            verdict("web1", Action::Write("/etc/nginx/a".into())),
            Verdict::Ask("ask-for 1".into())
        );
        for (host, action) in [
            ("other", run("uptime", false)),
            ("web1.evil.com", run("uptime", false)),
            ("root@web1", run("uptime", false)),
            ("web1", run("reboot", false)),
            ("web1", run("uptime", true)),
            ("web1", run("systemctl reload nginx", false)),
            ("db1", run("systemctl restart nginx", true)),
            ("web1", Action::Shell("uptime".into())),
            ("web1", Action::Read("/etc/shadow".into())),
            ("web1", Action::Write("/var/log/x".into())),
            ("web9", run("uptime", false)),
            ("web1", Action::Read("/var/log/private/a".into())),
        ] {
            assert!(
                matches!(verdict(host, action.clone()), Verdict::Denied(_)),
                "{host} {action}"
            );
        }
        assert!(rules.knows(&"web1".parse().unwrap()) && !rules.knows(&"web9".parse().unwrap()));
        assert!(!rules.knows(&"root@web1".parse().unwrap()));
    }

    #[test]
    fn a_denial_counts_as_root_and_over_everything() {
        let rules = rules(RULES);
        for sudo in [false, true] {
            let verdict = rules.verdict(&"web1".parse().unwrap(), &run("systemctl reload nginx", sudo));
            assert!(matches!(verdict, Verdict::Denied(_)), "{verdict:?}");
        }
    }

    #[test]
    fn a_denial_is_for_every_user_port_and_domain_unless_it_names_some() {
        let text = RULES.replace(
            "hosts = [\"web*\", \"db1\"]",
            "hosts = [\"web*\", \"*.example.com\"]",
        );
        let rules = rules(&text.replace("commands = [\"systemctl ... \"]", ""));
        for host in ["web1", "deploy@web1", "ssh://deploy@web1:2222", "db.example.com"] {
            let verdict = |path: &str| rules.verdict(&host.parse().unwrap(), &Action::Read(path.into()));
            assert!(matches!(verdict("/var/log/a"), Verdict::Allowed(_)), "{host}");
            assert!(
                matches!(verdict("/var/log/private/a"), Verdict::Denied(_)),
                "{host}"
            );
        }
        assert!(!rules.knows(&"deploy@web9".parse().unwrap()));
    }

    #[test]
    fn what_is_denied_on_a_host_is_denied_by_every_name_of_it() {
        let text = "[[allow]]\nhosts = [\"*\"]\ncommands = [\"uptime\"]\n[[deny]]\nhosts = [\"db1\"]";
        let host: Destination = "alias".parse().unwrap();
        let of = |meaning: &str| {
            let rules = rules(text);
            rules.means(&host, meaning);
            (rules.verdict(&host, &run("uptime", false)), rules.knows(&host))
        };
        assert_eq!(of("web1"), (Verdict::Allowed("allow 1".into()), true));
        for denied in ["db1", "DB1"] {
            let (verdict, known) = of(denied);
            assert!(matches!(verdict, Verdict::Denied(_)) && !known, "{denied}");
        }
        // The host behind a name allows nothing.
        let only_db1 = rules("[[allow]]\nhosts = [\"db1\"]\ncommands = [\"uptime\"]");
        only_db1.means(&host, "db1");
        assert!(!only_db1.knows(&host));
    }

    #[test]
    fn nothing_is_allowed_by_an_empty_file() {
        let verdict = rules("").verdict(&"a".parse().unwrap(), &run("true", false));
        assert!(matches!(verdict, Verdict::Denied(_)));
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, line, words) in [
            (
                "[[allow]]\nhosts = [\"web1\"]\ncommand = [\"a\"]",
                3,
                "unknown field `command`",
            ),
            (
                "[[allow]]\nhosts = [\"web1\"]\ncommands = [\"a; b\"]",
                3,
                "is for a shell",
            ),
            ("[[allow]]\nhosts = [\"-o\"]", 2, "is not a host"),
            (
                "[[allow]]\nhosts = [\"a\"]\nread = [\"log\"]",
                3,
                "is not an absolute path",
            ),
            ("ask = \"me\"", 1, ""),
            (
                "[limits]\nseconds = 1\n[[deny]]\ncommands = [\"a\"]",
                3,
                "hosts is missing",
            ),
            (
                "[[allow]]\nhosts = [\"a\"]\n[[allow]]\nhosts = [\"a*\"]\nshell = true",
                3,
                "name each host",
            ),
            ("\nask = [\"zenity\"]", 2, "absolute path"),
            ("\nssh_config = \"config\"", 2, "absolute path"),
            ("[[allow]]\nhosts = [\"a\"]\nports = [70000]", 3, ""),
        ] {
            let error = Rules::parse(text, Path::new("/x/mcp.toml"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("line {line}")) && error.contains('^') && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn rules_that_others_can_write_are_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.toml");
        assert!(matches!(Rules::load(&path), Err(RulesError::Missing(_))));
        std::fs::write(&path, "").unwrap();
        for (mode, is_good) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Rules::load(&path).is_ok(), is_good, "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(Rules::load(&path), Err(RulesError::NotOwn(place)) if place == dir.path()));
    }
}
