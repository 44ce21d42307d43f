//! The files of ssh_config: finds them, what makes an answer short-lived, and whether they have changed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};

use super::account::Account;
use super::dump::Directive;
use super::{ForwardAgent, HostConfig, World};

/// The findings in the files that `ssh -G` reads.
///
/// This does not interpret ssh_config; ssh does. It follows every `Include`, even in blocks that do not match, so that
/// at worst ssh is asked again.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Every file read, every missing file and every directory that a wildcard searched.
    pub(crate) stamps: Vec<(PathBuf, Stamp)>,
    /// The mentioned environment variables.
    pub(crate) variables: BTreeSet<String>,
    /// The answer depends on more than files and variables: a foreign `Match exec`, the network, or files beyond the
    /// bounds below.
    pub(crate) volatile: bool,
    /// The user's commands took part in the answer, or may have: a foreign `Match exec`, or files that were not read.
    pub(crate) runs_commands: bool,
    /// `ForwardAgent no` or `-a` is set somewhere.
    pub(crate) refuses_agent: bool,
    /// A forwarding to a host called `socks` is set somewhere.
    pub(crate) forwards_to_socks: bool,
    /// Names of `Host` lines that are neither patterns nor negated, in the order of the files.
    pub(crate) aliases: Vec<String>,
    /// The values of `ControlPath`, as written, in the order of the files.
    pub(crate) control_paths: Vec<String>,
    /// The values of `UserKnownHostsFile` and `GlobalKnownHostsFile`, as written, in the order of the files.
    pub(crate) known_hosts: Vec<String>,
}

/// Returns every `ControlPath` of the files, absolute, with `~`, variables and `%d` expanded but no other tokens.
///
/// # Errors
/// [`super::ConfigError::NoAccount`].
pub fn control_paths(world: &World, config_file: Option<&OsStr>) -> Result<Vec<String>, super::ConfigError> {
    let account = Account::current()?;
    let sources = Sources::scan(&account, world, config_file);
    let home = account.home.to_string_lossy().replace('%', "%%");
    Ok(sources
        .control_paths
        .iter()
        .filter_map(|path| account.expand_tilde(path))
        .map(|path| expand_variables(&path, world).replace("%d", &home))
        .filter(|path| path.starts_with('/'))
        .collect())
}

/// Returns the files that may list known hosts: the usual ones, and those that ssh_config names without tokens.
///
/// # Errors
/// [`super::ConfigError::NoAccount`].
pub(crate) fn known_hosts_files(
    world: &World,
    config_file: Option<&OsStr>,
) -> Result<BTreeSet<PathBuf>, super::ConfigError> {
    const USUAL: [&str; 4] = [
        "~/.ssh/known_hosts",
        "~/.ssh/known_hosts2",
        "/etc/ssh/ssh_known_hosts",
        "/etc/ssh/ssh_known_hosts2",
    ];
    let account = Account::current()?;
    let sources = Sources::scan(&account, world, config_file);
    let named = sources.known_hosts.iter().map(String::as_str);
    Ok(USUAL
        .into_iter()
        .chain(named)
        .filter(|file| !file.contains('%'))
        .filter_map(|file| account.expand_tilde(&expand_variables(file, world)))
        .filter(|file| file.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}

/// Replaces `${NAME}` by its value, which is not expanded again.
fn expand_variables(text: &str, world: &World) -> String {
    let mut text = text.to_owned();
    while let Some((before, rest)) = text.split_once("${") {
        let Some((name, after)) = rest.split_once('}') else {
            break;
        };
        let value = world.var(name).and_then(OsStr::to_str).unwrap_or_default();
        text = format!("{before}{}{after}", value.replace("${", ""));
    }
    text
}

impl Sources {
    /// As [`Sources::scan`], for the user of this process.
    pub(crate) fn for_current_user(
        world: &World,
        config_file: Option<&OsStr>,
    ) -> Result<Self, super::ConfigError> {
        Ok(Self::scan(&Account::current()?, world, config_file))
    }

    /// Reads the user's and the system's file, or only `config_file` (the argument of `-F`; "none" for no file).
    pub(crate) fn scan(account: &Account, world: &World, config_file: Option<&OsStr>) -> Self {
        let mut sources = Self::default();
        match config_file {
            Some(file) if file.eq_ignore_ascii_case("none") => {}
            Some(file) => sources.read(&world.absolute(file.as_ref()), Origin::User, account, world, 0),
            None => {
                sources.read(&account.home.join(".ssh/config"), Origin::User, account, world, 0);
                for file in SYSTEM_FILES {
                    sources.read(Path::new(file), Origin::System, account, world, 0);
                }
            }
        }
        sources
    }

    /// Returns whether all files are unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.stamps
            .iter()
            .all(|(path, stamp)| stamp.still_describes(path))
    }

    /// Notes the variables in an argument, and whether it makes the answer short-lived.
    pub(crate) fn note_argument(&mut self, argument: &OsStr) {
        let text = argument.to_string_lossy();
        note_variables(&text, &mut self.variables);
        let lower = text.to_ascii_lowercase();
        self.volatile |= lower.contains("canonicalizehostname");
        let says_no = lower.contains("forwardagent") && (lower.contains("no") || lower.contains("false"));
        self.refuses_agent |= says_no || has_flag(&text, 'a');
        self.forwards_to_socks |= text.contains(SOCKS);
    }

    /// Returns the directives that `ssh -G` printed without another setting. Of whether the agent is forwarded and its
    /// path, readconf.c prints only the path. It prints a forwarding to a host called `socks` as a dynamic one.
    pub(crate) fn ambiguous(&self, config: &HostConfig) -> Vec<Directive> {
        let mut ambiguous = Vec::new();
        let mut add = |keyword: &str, value: String| {
            ambiguous.push(Directive {
                keyword: keyword.into(),
                value,
            });
        };
        if let (true, ForwardAgent::Socket(path)) = (self.refuses_agent, &config.forward_agent) {
            add("forwardagent", path.display().to_string());
        }
        if let (true, [listen, ..]) = (self.forwards_to_socks, &*config.dynamic_forwards) {
            add("dynamicforward", listen.to_string());
        }
        ambiguous
    }

    fn read(&mut self, path: &Path, origin: Origin, account: &Account, world: &World, depth: u32) {
        if self.stamps.len() >= MOST_FILES || depth > DEEPEST_INCLUDE {
            return self.leave_unread();
        }
        // Stamped before it is read: a change in between makes the stamp wrong, never the answer stale.
        self.stamps.push((path.into(), Stamp::read(path)));
        let mut text = Vec::new();
        let opened = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut text));
        if opened.is_err() {
            return;
        }
        if text.len() as u64 > LONGEST_FILE {
            return self.leave_unread();
        }
        for line in String::from_utf8_lossy(&text).lines() {
            self.note_line(line, origin, account, world, depth);
        }
    }

    fn note_line(&mut self, line: &str, origin: Origin, account: &Account, world: &World, depth: u32) {
        let words = words(line);
        let Some((keyword, arguments)) = words.split_first() else {
            return;
        };
        note_variables(line, &mut self.variables);
        match keyword.to_ascii_lowercase().as_str() {
            "host" => {
                let literal = |name: &&String| !name.contains(['*', '?', '!', '%']);
                self.aliases.extend(arguments.iter().filter(literal).cloned());
            }
            "controlpath" => self
                .control_paths
                .extend(arguments.first().filter(|path| *path != "none").cloned()),
            "userknownhostsfile" | "globalknownhostsfile" => {
                self.known_hosts.extend(arguments.iter().cloned());
            }
            "match" => match foreign_condition(arguments) {
                Some(Foreign::Command) => (self.volatile, self.runs_commands) = (true, true),
                Some(Foreign::Addresses) => self.volatile = true,
                None => {}
            },
            "forwardagent" => {
                let says_no = |value: &String| matches!(value.to_ascii_lowercase().as_str(), "no" | "false");
                self.refuses_agent |= arguments.first().is_some_and(says_no);
            }
            "localforward" => {
                self.forwards_to_socks |= arguments.iter().any(|argument| argument.contains(SOCKS));
            }
            "canonicalizehostname" => self.volatile |= arguments.first().is_some_and(|value| value != "no"),
            "include" => {
                for pattern in arguments {
                    self.include(pattern, origin, account, world, depth);
                }
            }
            _ => {}
        }
    }

    /// Notes that there is more than was read: it may contain anything.
    fn leave_unread(&mut self) {
        (self.volatile, self.runs_commands) = (true, true);
    }

    /// Follows an Include (readconf.c, oInclude): relative to ~/.ssh or /etc/ssh; since 9.9 with variables and tokens.
    fn include(&mut self, pattern: &str, origin: Origin, account: &Account, world: &World, depth: u32) {
        let pattern = expand_variables(pattern, world);
        if pattern.contains('%') {
            // The file depends on the host.
            return self.leave_unread();
        }
        let Some(pattern) = account.expand_tilde(&pattern) else {
            return;
        };
        let base = match origin {
            Origin::User => account.home.join(".ssh"),
            Origin::System => PathBuf::from("/etc/ssh"),
        };
        let pattern = base.join(pattern);
        for file in self.matches(&pattern) {
            self.read(&file, origin, account, world, depth + 1);
        }
    }

    /// Returns the files that a pattern names, in glob(3)'s order. Searched directories are stamped, so that a new file
    /// in one is noticed.
    fn matches(&mut self, pattern: &Path) -> Vec<PathBuf> {
        const WILD: [char; 3] = ['*', '?', '['];
        let mut found = vec![PathBuf::new()];
        for component in pattern.components() {
            let Component::Normal(name) = component else {
                found.iter_mut().for_each(|path| path.push(component));
                continue;
            };
            let name = name.to_string_lossy();
            // Only ssh handles classes and escapes.
            if name.contains('\\') || name.contains("[:") {
                self.leave_unread();
                return Vec::new();
            }
            if !name.contains(WILD) {
                found.iter_mut().for_each(|path| path.push(&*name));
                continue;
            }
            let Ok(wanted) = glob::Pattern::new(&name) else {
                self.leave_unread();
                return Vec::new();
            };
            let mut deeper = Vec::new();
            for directory in found {
                if self.stamps.len() >= MOST_FILES || deeper.len() >= MOST_FILES {
                    self.leave_unread();
                    break;
                }
                self.stamps.push((directory.clone(), Stamp::read(&directory)));
                for name in names_in(&directory).unwrap_or_default() {
                    // glob(3): only a dot matches a leading dot.
                    let hidden = name.starts_with('.') && !wanted.as_str().starts_with('.');
                    if !hidden && wanted.matches(&name) {
                        deeper.push(directory.join(&name));
                    }
                }
            }
            found = deeper;
        }
        found
    }
}

/// The text in a forwarding to a host called `socks`.
const SOCKS: &str = "socks:";

/// Returns whether an argument consists of ssh's options without values, and includes this one.
fn has_flag(argument: &str, flag: char) -> bool {
    const FLAGS: &str = "46AaCfGgKkMNnqsTtVvXxYy";
    let Some(options) = argument.strip_prefix('-') else {
        return false;
    };
    let flags = options.chars().take_while(|option| FLAGS.contains(*option));
    flags.into_iter().any(|option| option == flag)
}

/// The owner of a file, which decides where a relative `Include` begins.
#[derive(Clone, Copy)]
enum Origin {
    User,
    System,
}

/// The system's file, and openSUSE's vendor file.
const SYSTEM_FILES: &[&str] = &["/etc/ssh/ssh_config", "/usr/etc/ssh/ssh_config"];

/// readconf.c READCONF_MAX_DEPTH.
const DEEPEST_INCLUDE: u32 = 16;

/// The most files, and the longest ones, that are watched; beyond that ssh is asked every time.
const MOST_FILES: usize = 1024;
const LONGEST_FILE: u64 = 4 * 1024 * 1024;

/// The state of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stamp {
    Missing,
    Present {
        device: u64,
        inode: u64,
        size: u64,
        modified: (i64, i64),
        changed: (i64, i64),
        /// A digest of the content, if the file was so new that a change might leave the same times.
        content: Option<Vec<u8>>,
    },
}

/// The age below which two changes may look like one: two seconds is the coarsest time granularity in use.
const YOUNG: Duration = Duration::from_secs(2);

impl Stamp {
    pub(crate) fn read(path: &Path) -> Self {
        let Ok(metadata) = fs::metadata(path) else {
            return Self::Missing;
        };
        let content = is_young(&metadata).then(|| content(path, &metadata));
        Self::new(&metadata, content)
    }

    fn new(metadata: &Metadata, content: Option<Vec<u8>>) -> Self {
        Self::Present {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            content,
        }
    }

    fn still_describes(&self, path: &Path) -> bool {
        match (self, fs::metadata(path)) {
            (Self::Missing, Err(_)) => true,
            (Self::Present { content: then, .. }, Ok(metadata)) => {
                let now = then.as_ref().map(|_| content(path, &metadata));
                *self == Self::new(&metadata, now)
            }
            _ => false,
        }
    }
}

fn is_young(metadata: &Metadata) -> bool {
    let seconds = u64::try_from(metadata.mtime().max(metadata.ctime())).unwrap_or(0);
    let touched = UNIX_EPOCH + Duration::from_secs(seconds);
    // A file from the future counts as new.
    SystemTime::now()
        .duration_since(touched)
        .map_or(true, |age| age < YOUNG)
}

/// Returns a digest of a file's bytes or a directory's names.
fn content(path: &Path, metadata: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    if metadata.is_dir() {
        bytes = names_in(path).unwrap_or_default().join("/").into_bytes();
    } else if metadata.is_file() {
        let _ = File::open(path).and_then(|file| file.take(LONGEST_FILE).read_to_end(&mut bytes));
    }
    digest(&SHA256, &bytes).as_ref().to_vec()
}

/// Returns the names in a directory, sorted as by glob(3). Names that are not UTF-8 are left out.
fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Splits a line into its keyword and arguments (misc.c `strdelim` and `argv_split`): spaces, one `=` after the
/// keyword, quotes, and a comment from an unquoted `#` at the start of a word.
pub(crate) fn words(line: &str) -> Vec<String> {
    let line = line.trim();
    let keyword_end = line
        .find(|c: char| c.is_ascii_whitespace() || c == '=' || c == '"')
        .unwrap_or(line.len());
    let (keyword, rest) = match line.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
        None => line.split_at(keyword_end),
    };
    if keyword.is_empty() || keyword.starts_with('#') {
        return Vec::new();
    }
    let rest = rest.trim_start();
    let mut characters = rest.strip_prefix('=').unwrap_or(rest).chars().peekable();
    let mut words = vec![keyword.to_owned()];
    loop {
        while characters.next_if(char::is_ascii_whitespace).is_some() {}
        if matches!(characters.peek(), None | Some('#')) {
            return words;
        }
        let mut word = String::new();
        let mut quote = None;
        while let Some(&character) = characters.peek() {
            if quote.is_none() && character.is_ascii_whitespace() {
                break;
            }
            characters.next();
            match character {
                '\\' if matches!(characters.peek(), Some('"' | '\'' | '\\')) => {
                    word.extend(characters.next());
                }
                '"' | '\'' if quote.is_none() => quote = Some(character),
                _ if quote == Some(character) => quote = None,
                _ => word.push(character),
            }
        }
        words.push(word);
    }
}

/// The inputs of a `Match` line beside the names in the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Foreign {
    /// This machine's addresses.
    Addresses,
    /// A command other than `trunkline up`.
    Command,
}

/// Returns the most foreign input of a `Match` line's conditions.
fn foreign_condition(conditions: &[String]) -> Option<Foreign> {
    let mut conditions = conditions.iter();
    let mut most = None;
    while let Some(condition) = conditions.next() {
        let condition = condition.trim_start_matches('!');
        let (name, value) = condition.split_once('=').unwrap_or((condition, ""));
        if name.eq_ignore_ascii_case("localnetwork") {
            most = most.max(Some(Foreign::Addresses));
        }
        if name.eq_ignore_ascii_case("exec") {
            let command = if value.is_empty() {
                conditions.next().map_or("", String::as_str)
            } else {
                value
            };
            if !is_stanza(command) {
                most = Some(Foreign::Command);
            }
        }
    }
    most
}

/// Returns whether a command is that of `trunkline setup ssh`: the program, run with exec, after a test of its
/// existence.
fn is_stanza(command: &str) -> bool {
    let command = command.trim_start();
    let (tested, command) = match command
        .strip_prefix("test -x ")
        .and_then(|rest| rest.split_once(" && "))
    {
        Some((program, rest)) => (Some(program.trim()), rest),
        None => (None, command),
    };
    let mut words = command.split_whitespace().peekable();
    words.next_if_eq(&"exec");
    let program = words.next().unwrap_or_default();
    program.rsplit('/').next() == Some("trunkline")
        && tested.is_none_or(|tested| tested == program)
        && words.next() == Some("up")
        // Any shell construct after it is foreign.
        && !command.contains([';', '&', '|', '`', '$', '<', '>', '(', '\n'])
}

/// Collects `$NAME` and `${NAME}`.
fn note_variables(text: &str, variables: &mut BTreeSet<String>) {
    for part in text.split('$').skip(1) {
        let part = part.strip_prefix('{').unwrap_or(part);
        let end = part
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(part.len());
        if end > 0 {
            variables.insert(part[..end].to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Home {
        directory: tempfile::TempDir,
        account: Account,
        world: World,
    }

    impl Home {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join(".ssh")).unwrap();
            let account = Account {
                uid: 0,
                name: "me".into(),
                home: directory.path().into(),
            };
            let env = [("WHERE".into(), directory.path().into())].into();
            Self {
                world: World::new(directory.path(), 0, env),
                directory,
                account,
            }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(".ssh").join(name), text).unwrap();
        }

        fn scan(&self) -> Sources {
            Sources::scan(&self.account, &self.world, Some(".ssh/config".as_ref()))
        }
    }

    #[test]
    fn includes_are_followed_by_glob_tilde_variable_and_relative_path() {
        let home = Home::new();
        home.write(
            "config",
            "Host a *.x !b\nInclude=conf.d/*.conf ~/.ssh/tilde\n  include \"${WHERE}/.ssh/with space\"\n",
        );
        fs::create_dir(home.directory.path().join(".ssh/conf.d")).unwrap();
        home.write("conf.d/1.conf", "Host one\n");
        home.write("conf.d/.hidden.conf", "Host hidden\n");
        home.write("conf.d/other", "Host other\n");
        home.write("tilde", "Host tilde # comment\n");
        home.write("with space", "Host \"quoted\"\n");
        let sources = home.scan();
        assert_eq!(sources.aliases, ["a", "one", "tilde", "quoted"]);
        assert!(!sources.volatile && sources.is_unchanged());
        assert!(sources.variables.contains("WHERE"));
    }

    #[test]
    fn what_only_ssh_can_read_makes_an_answer_short_lived() {
        for line in [
            "Include [[:alpha:]]*",
            "Include a\\.conf",
            "Include [a",
            "Include a**",
            "\"Match\" exec x",
        ] {
            let home = Home::new();
            home.write("config", line);
            let sources = home.scan();
            assert!(sources.volatile && sources.runs_commands, "{line}");
        }
        let home = Home::new();
        home.write("config", "\"Include\" other\n");
        home.write("other", "Host other\n");
        assert_eq!(home.scan().aliases, ["other"]);
    }

    #[test]
    fn every_kind_of_change_is_noticed() {
        let home = Home::new();
        home.write("config", "Include conf.d/*\nInclude missing\n");
        fs::create_dir(home.directory.path().join(".ssh/conf.d")).unwrap();
        let before = home.scan();
        assert!(before.is_unchanged());
        home.write("conf.d/new", "Host new\n");
        assert!(!before.is_unchanged(), "a new file in a searched directory");
        let before = home.scan();
        home.write("missing", "Host found\n");
        assert!(!before.is_unchanged(), "a missing file that came");
        let before = home.scan();
        home.write("conf.d/new", "Host now\n");
        assert!(
            !before.is_unchanged(),
            "the same length within the clock's granularity"
        );
        let before = home.scan();
        fs::remove_file(home.directory.path().join(".ssh/config")).unwrap();
        assert!(!before.is_unchanged(), "a file that went");
    }

    #[test]
    fn only_a_foreign_condition_makes_the_answer_short_lived() {
        let volatile = |line: &str| {
            let home = Home::new();
            home.write("config", line);
            home.scan().volatile
        };
        assert!(!volatile("Match host x user y"));
        assert!(!volatile("Match exec \"trunkline up %n\""));
        assert!(!volatile(
            "Match host x exec \"/usr/bin/trunkline up --quiet %n\""
        ));
        assert!(!volatile("Match exec \"exec /usr/bin/trunkline up\""));
        let guarded = "test -x /usr/bin/trunkline && exec /usr/bin/trunkline up";
        assert!(!volatile(&format!("Match exec \"{guarded}\"")));
        assert!(volatile(&format!("Match exec \"{guarded} && test -f /x\"")));
        assert!(volatile(
            "Match exec \"test -x /usr/bin/other && exec /usr/bin/trunkline up\""
        ));
        assert!(volatile("Match exec \"test -f /x\""));
        assert!(volatile("match !exec test"));
        assert!(volatile("Match exec=\"test -f /x\""));
        assert!(volatile("Match exec \"trunkline up %n; test -f /x\""));
        assert!(volatile("Match localnetwork 10.0.0.0/8"));
        assert!(volatile("CanonicalizeHostname yes"));
        assert!(volatile("Include %h.conf"));
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let home = Home::new();
        home.write("config", "Include config\nInclude config\n");
        assert!(home.scan().volatile);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in any::<String>(), near in "[Ii]nclude[= \"'\\\\#*$\\[{}a~/%]{0,20}") {
            let home = Home::new();
            let mut sources = Sources::default();
            for line in [&line, &near] {
                let _ = words(line);
                sources.note_line(line, Origin::User, &home.account, &home.world, 0);
            }
        }
    }
}
