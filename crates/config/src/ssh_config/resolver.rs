//! Runs `ssh -G` and caches its answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use lru::LruCache;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OnceCell, Semaphore};
use trunkline_text::Printable;

use super::HostConfig;
use super::account::Account;
use super::dump::{self, Departure, Directive};
use super::files::{Sources, Stamp};
use super::readers::{DefaultAlgorithms, Proxy, Surroundings};
use super::tokens::{self, VersionTokens};
use super::values::NameList;
use super::{CommandWorld, ConfigError, World};
use crate::destination::Destination;
use trunkline_local::child::Child;
use trunkline_local::lent::End;
use trunkline_request::ssh_options::{TypedOption, TypedOptions};

/// Resolves destinations through the user's own `ssh -G`, once for each request.
///
/// An answer is kept until one of its sources changes: the arguments, the configuration files (their times, sizes and
/// inodes, those of every `Include`, and files that were missing), the ssh program, and the environment variables that
/// these mention. If something else takes part (a `Match exec` other than `trunkline up`, a DNS look-up), it is kept
/// for ten seconds, and only for callers in the same environment.
#[derive(Debug)]
pub struct Resolver {
    /// The answers. The lock is never held while anything is read or run.
    cache: Mutex<LruCache<Question, Vec<Arc<Answer>>>>,
    /// The current runs, for which later callers with the same question wait.
    flights: Mutex<HashMap<(Question, Arc<World>), Flight>>,
    permits: Semaphore,
    /// The default algorithms of the last used ssh program.
    defaults: Mutex<Option<Defaults>>,
    /// Lists of algorithms: most of an answer, and much the same for all hosts.
    lists: Mutex<LruCache<NameList, NameList>>,
    time_limit: Duration,
}

/// A request: a destination, arguments as for ssh(1), and the caller's environment.
#[derive(Debug, Clone)]
pub struct Request {
    /// The destination.
    pub destination: Destination,
    /// Options of ssh(1) that affect the configuration (`-F`, `-o`, `-p`, `-l`, `-i`, `-J`, ...), as typed. They come
    /// before the destination's own user and port, and therefore win, as in ssh.
    pub ssh_args: Vec<OsString>,
    /// The caller's environment.
    pub world: Arc<World>,
    /// The caller runs LocalCommand itself, so that it does not require the system's ssh.
    pub runs_local_command: bool,
}

pub use trunkline_request::RESOLVING;

impl Request {
    /// Returns the existing ssh_config files that `ssh -G` reads for this request, or scans for files to read: the
    /// user's and the system's, or the argument of `-F`, and all that they include.
    ///
    /// # Errors
    /// [`ConfigError::NoAccount`].
    pub fn files(&self) -> Result<Vec<PathBuf>, ConfigError> {
        let sources = Sources::for_current_user(&self.world, config_file(&self.ssh_args).as_deref())?;
        let looked_at = sources.stamps.into_iter().map(|(path, _)| path);
        Ok(looked_at.filter(|path| path.is_file()).collect())
    }

    /// Creates a request without arguments.
    #[must_use]
    pub fn new(destination: Destination, world: Arc<World>) -> Self {
        Self {
            destination,
            ssh_args: Vec::new(),
            world,
            runs_local_command: false,
        }
    }

    /// Returns the request for the last of `hops` (see [`Proxy::Jump`]), reached through those before it; `None` if
    /// there are no hops. As in ssh, it inherits only the argument of `-F`.
    #[must_use]
    pub fn for_jump(&self, hops: &[Destination]) -> Option<Self> {
        let (last, before) = hops.split_last()?;
        let mut ssh_args = Vec::new();
        if let Some(file) = config_file(&self.ssh_args) {
            ssh_args.extend(["-F".into(), file]);
        }
        if !before.is_empty() {
            let hops: Vec<String> = before.iter().map(Destination::as_hop).collect();
            ssh_args.extend(["-J".into(), hops.join(",").into()]);
        }
        Some(Self {
            destination: last.clone(),
            ssh_args,
            world: Arc::clone(&self.world),
            runs_local_command: false,
        })
    }

    /// Returns whether the caller's own options set a directive, named in lower case.
    pub fn sets(&self, directive: &str) -> bool {
        typed_options(&self.ssh_args).any(|typed| typed.sets(directive))
    }

    fn question(&self) -> Question {
        let mut bytes = Vec::with_capacity(256);
        let mut add = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        };
        let Destination { user, host, port } = &self.destination;
        add(&[u8::from(user.is_some())]);
        add(user.as_deref().unwrap_or_default().as_bytes());
        add(host.as_bytes());
        add(&port.unwrap_or(0).to_be_bytes());
        for argument in &self.ssh_args {
            add(argument.as_bytes());
        }
        let mut question = [0; 32];
        question.copy_from_slice(digest(&SHA256, &bytes).as_ref());
        Question(question)
    }
}

/// A digest of the destination and the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Question([u8; 32]);

/// The state of a program, and its default algorithms.
type Defaults = ((PathBuf, Stamp), Arc<DefaultAlgorithms>);

/// The output of `ssh -G`, and its standard error.
struct Dump {
    directives: Vec<Directive>,
    remarks: Vec<String>,
    /// The user was asked something.
    asked: bool,
}

/// The raw output, and the lines on standard error.
struct Printed {
    output: Vec<u8>,
    remarks: String,
    asked: bool,
}

type Flight = Arc<OnceCell<Result<Arc<Answer>, ConfigError>>>;

/// ssh's answer, and everything that it depends on.
#[derive(Debug)]
struct Answer {
    config: Arc<HostConfig>,
    /// The configuration with the parts that depend on the caller or on other answers, as last requested.
    complete: Mutex<Option<Arc<HostConfig>>>,
    /// The user's commands take part in who is reached or trusted.
    runs_commands: bool,
    sources: Sources,
    program: (PathBuf, Stamp),
    /// The variables that take part, with their values.
    variables: BTreeMap<String, Option<OsString>>,
    /// The working directory, if a relative path takes part.
    cwd: Option<PathBuf>,
    /// The whole environment, and the end of the answer's validity, if more than files and variables takes part.
    volatile: Option<(Arc<World>, Instant)>,
    /// The user was asked on the terminal: the answer is only for that user.
    asked: bool,
}

impl Answer {
    /// Returns the configuration for a caller in `world` and over a resolved jump host.
    fn complete(&self, world: &World, jump: Option<Arc<HostConfig>>) -> Arc<HostConfig> {
        if !self.runs_commands && jump.is_none() {
            return self.config.clone();
        }
        let commands = self
            .runs_commands
            .then(|| CommandWorld::from_world(world, |name| self.variables.contains_key(name)));
        let mut last = lock(&self.complete);
        if let Some(last) = &*last
            && last.commands == commands
            && same(last.jump.as_ref(), jump.as_ref())
        {
            return last.clone();
        }
        let complete = Arc::new(HostConfig {
            commands,
            jump,
            ..HostConfig::clone(&self.config)
        });
        *last = Some(complete.clone());
        complete
    }

    fn is_aged(&self) -> bool {
        let since = |(_, until): &(_, Instant)| VOLATILE_LIFE.saturating_sub(*until - Instant::now());
        !self.asked
            && self
                .volatile
                .as_ref()
                .is_some_and(|volatile| since(volatile) >= AGED_AFTER)
    }

    fn holds_for(&self, world: &Arc<World>) -> bool {
        let in_time = self.volatile.as_ref().is_none_or(|(same, until)| {
            Instant::now() < *until
                && (Arc::ptr_eq(same, world) || same == world)
                && (!self.asked || same.terminal.is_that_of(&world.terminal))
        });
        in_time
            && self.cwd.as_ref().is_none_or(|cwd| *cwd == world.cwd)
            && self
                .variables
                .iter()
                .all(|(name, value)| world.var(name) == value.as_deref())
            && Stamp::read(&self.program.0) == self.program.1
            && self.sources.is_unchanged()
    }
}

/// The lifetime of an answer with a foreign command in it. Long enough for a playbook's burst of commands.
const VOLATILE_LIFE: Duration = Duration::from_secs(10);

/// The age from which such an answer is not believed any more by who connects. Long enough for one command, which asks more
/// than once.
const AGED_AFTER: Duration = Duration::from_secs(2);

/// The time limit of `ssh -G`, including a `Match exec`, for which ssh itself waits without a limit.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// The most questions remembered, each in at most [`MOST_VARIANTS`] environments.
const MOST_QUESTIONS: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");
const MOST_VARIANTS: usize = 8;

/// The most lists of algorithms that answers share.
const MOST_LISTS: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// The most jump hosts in a chain. ssh, which starts itself for each, has no limit.
const MOST_JUMPS: usize = 32;

/// The most concurrent `ssh -G`: each takes some 4 ms of one core.
const MOST_RUNS: usize = 8;

/// The longest output of `ssh -G`. It prints about 4 KiB; thousands of forwardings stay below this.
const LONGEST_OUTPUT: u64 = 4 * 1024 * 1024;

/// The beginnings of ssh.c's messages about files.
const OF_FILES: [&str; 2] = ["Warning: Identity file", "Cannot forward agent socket path"];

/// Parts of ssh.c's errors about a missing command.
const WANTS_COMMAND: [&str; 2] = ["specify a subsystem", "without a command"];

/// The longest error message that is kept.
const LONGEST_COMPLAINT: u64 = 8 * 1024;

/// Variables that take part in every answer: they select the program and the agent.
const ALWAYS: [&str; 4] = ["PATH", "TRUNKLINE_SSH", "SSH_AUTH_SOCK", "SSH_SK_PROVIDER"];

/// Finds the account, the ssh program and the files that take part in an answer.
async fn scan(request: &Request) -> Result<(Account, (PathBuf, Stamp), Sources), ConfigError> {
    let scanned = request.clone();
    // Home directories may be on a slow network, and the password database behind a directory service.
    let (account, program, mut sources) = tokio::task::spawn_blocking(move || {
        let account = Account::current()?;
        let program = ssh_program(&scanned.world)?;
        let sources = Sources::scan(
            &account,
            &scanned.world,
            config_file(&scanned.ssh_args).as_deref(),
        );
        let stamp = Stamp::read(&program);
        Ok::<_, ConfigError>((account, (program, stamp), sources))
    })
    .await
    .expect("the scan neither panics nor is cancelled")?;
    for argument in &request.ssh_args {
        sources.note_argument(argument);
    }
    Ok((account, program, sources))
}

/// Returns a request for the same destination without any configuration.
fn drop_config(request: &Request) -> Request {
    Request {
        destination: request.destination.clone(),
        ssh_args: vec!["-F".into(), "none".into()],
        world: Arc::clone(&request.world),
        runs_local_command: false,
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Resolver {
    /// Creates a resolver with an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cache: Mutex::new(LruCache::new(MOST_QUESTIONS)),
            flights: Mutex::default(),
            permits: Semaphore::new(MOST_RUNS),
            defaults: Mutex::default(),
            lists: Mutex::new(LruCache::new(MOST_LISTS)),
            time_limit: TIME_LIMIT,
        }
    }

    /// Sets the time limit of `ssh -G`.
    #[must_use]
    pub fn with_time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Returns the cached answer, if it still holds. Checks files' times and runs nothing.
    ///
    /// An answer in which a foreign command took part a while ago is forgotten if its caller `connects`: what the command makes
    /// for a log-in (a key, a certificate, a tunnel) may be gone. One for which the user was asked stays.
    #[must_use]
    pub fn find_cached(
        &self,
        request: &Request,
        connects: impl FnOnce(&HostConfig) -> bool,
    ) -> Option<Arc<HostConfig>> {
        let mut answers = vec![self.find_known(request)?];
        let mut behind = request.for_jump(answers[0].config.jump_hosts());
        while let Some(jump) = behind {
            if answers.len() > MOST_JUMPS {
                return None;
            }
            let answer = self.find_known(&jump)?;
            behind = jump.for_jump(answer.config.jump_hosts());
            answers.push(answer);
        }
        let config = complete(&request.world, &answers)?;
        answers.retain(|answer| answer.is_aged());
        if answers.is_empty() || !connects(&config) {
            return Some(config);
        }
        let is_aged = |known: &Arc<Answer>| answers.iter().any(|aged| Arc::ptr_eq(aged, known));
        for (_, variants) in lock(&self.cache).iter_mut() {
            variants.retain(|known| !is_aged(known));
        }
        None
    }

    /// Returns the cached answer to one request, without its jump hosts.
    fn find_known(&self, request: &Request) -> Option<Arc<Answer>> {
        let variants = lock(&self.cache).get(&request.question())?.clone();
        variants
            .iter()
            .find(|answer| answer.holds_for(&request.world))
            .cloned()
    }

    /// Resolves a destination, from the cache or by running `ssh -G` in the caller's environment, and its jump hosts,
    /// which may have further jump hosts.
    ///
    /// Concurrent callers with the same request share one run, and its failure. Dropping the future leaves the run to
    /// other waiting callers, or ends it.
    ///
    /// # Errors
    /// See [`ConfigError`]; failures are not cached.
    pub async fn resolve(&self, request: &Request) -> Result<Arc<HostConfig>, ConfigError> {
        let mut answers = vec![self.answer(request).await?];
        let mut behind = request.for_jump(answers[0].config.jump_hosts());
        while let Some(jump) = behind {
            if answers.len() > MOST_JUMPS {
                return Err(ConfigError::TooManyJumps(MOST_JUMPS));
            }
            let answer = self.answer(&jump).await?;
            behind = jump.for_jump(answer.config.jump_hosts());
            answers.push(answer);
        }
        Ok(complete(&request.world, &answers).expect("there is at least one answer"))
    }

    /// Returns the answer to one request, without its jump hosts.
    async fn answer(&self, request: &Request) -> Result<Arc<Answer>, ConfigError> {
        if let Some(answer) = self.find_known(request) {
            return Ok(answer);
        }
        let key = (request.question(), Arc::clone(&request.world));
        let flight = Arc::clone(lock(&self.flights).entry(key.clone()).or_default());
        let landing = Landing {
            resolver: self,
            key,
            flight,
        };
        let mut own = false;
        let ask = async {
            own = true;
            self.ask(request).await
        };
        let answer = landing.flight.get_or_init(|| ask).await.clone();
        // Another caller's user was asked, or could not be: that does not answer this one.
        let others = match &answer {
            Ok(answer) => answer.asked && !answer.holds_for(&request.world),
            Err(error) => matches!(error, ConfigError::Asks),
        };
        match others && !own {
            true => self.ask(request).await,
            false => answer,
        }
    }

    async fn ask(&self, request: &Request) -> Result<Arc<Answer>, ConfigError> {
        let _permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed");
        // A request from another environment may have brought the answer in the meantime.
        if let Some(answer) = self.find_known(request) {
            return Ok(answer);
        }
        // Boxed, because it is part of everything that resolves a host.
        let answer = Arc::new(Box::pin(self.run(request)).await?);
        let mut cache = lock(&self.cache);
        let variants = cache.get_or_insert_mut(request.question(), Vec::new);
        variants.retain(|old| {
            old.volatile
                .as_ref()
                .is_none_or(|(_, until)| Instant::now() < *until)
        });
        if variants.len() == MOST_VARIANTS {
            variants.remove(0);
        }
        variants.push(answer.clone());
        Ok(answer)
    }

    /// Returns where a request differs from ssh without configuration or options, in ssh's order. Runs ssh twice.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub async fn departures(&self, request: &Request) -> Result<Vec<Departure>, ConfigError> {
        let _permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let (_, (program, _), sources) = scan(request).await?;
        let breaking = Breaking::select(&sources.variables, &request.world);
        let (alone, nothing) = (drop_config(request), Breaking::default());
        let (configured, usual) = tokio::try_join!(
            self.dump(&program, request, &[], &breaking, sources.runs_commands),
            self.dump(&program, &alone, &[], &nothing, false),
        )?;
        Ok(dump::departures(&configured.directives, &usual.directives))
    }

    async fn run(&self, request: &Request) -> Result<Answer, ConfigError> {
        let (account, program, mut sources) = scan(request).await?;
        let breaking = Breaking::select(&sources.variables, &request.world);
        // Thousands of answers would each keep the names of thousands of hosts.
        sources.aliases = Vec::new();
        sources.control_paths = Vec::new();
        sources.known_hosts = Vec::new();
        let (dump, default_algorithms) = tokio::try_join!(
            self.dump(&program.0, request, &[], &breaking, sources.runs_commands),
            self.default_algorithms(&program, request),
        )?;
        let Dump {
            directives,
            remarks,
            asked: asked_user,
        } = dump;
        let asked = self
            .ask_for_tokens(
                &program.0,
                request,
                &directives,
                (&breaking, sources.runs_commands),
            )
            .await?;
        let read = |world: &World| {
            let around = Surroundings {
                world,
                account: &account,
                local_host: &tokens::local_host(),
                original_host: &request.destination.host,
                config_file: config_file(&request.ssh_args).map(|file| {
                    if file.eq_ignore_ascii_case("none") {
                        file.into()
                    } else {
                        world.absolute(file.as_ref())
                    }
                }),
                asked: asked.clone(),
                default_algorithms: &default_algorithms,
            };
            HostConfig::read(directives.clone(), &around).map_err(|error| {
                let reason = "no host name, user or port";
                error.unwrap_or(ConfigError::NotAConfiguration {
                    program: program.0.clone(),
                    reason,
                })
            })
        };
        let mut config = read(&request.world)?;
        self.share_lists(&mut config);
        // Reading with another working directory shows whether a relative path takes part.
        let elsewhere = World {
            cwd: request.world.cwd.join("elsewhere"),
            ..World::clone(&request.world)
        };
        let cwd = (read(&elsewhere)? != config).then(|| request.world.cwd.clone());
        let names = sources.variables.iter().cloned().chain(ALWAYS.map(str::to_owned));
        let variables = names
            .map(|name| (name.clone(), request.world.var(&name).map(OsStr::to_owned)))
            .collect();
        config.ambiguous = sources.ambiguous(&config);
        config.remarks = remarks;
        // A file that ssh misses may exist the next time.
        let misses_a_file = config
            .remarks
            .iter()
            .any(|remark| OF_FILES.iter().any(|of| remark.starts_with(of)));
        let life = match (sources.volatile, misses_a_file) {
            (true, _) => Some(VOLATILE_LIFE),
            (false, true) => Some(Duration::ZERO),
            (false, false) => None,
        };
        let volatile = life.map(|life| (Arc::clone(&request.world), Instant::now() + life));
        Ok(Answer {
            runs_commands: sources.runs_commands
                || matches!(config.proxy, Proxy::Command(_))
                || config.known_hosts_command.is_some(),
            complete: Mutex::default(),
            config: Arc::new(config),
            sources,
            program,
            variables,
            cwd,
            volatile,
            asked: asked_user,
        })
    }

    /// Replaces the lists of algorithms by equal ones of other hosts.
    fn share_lists(&self, config: &mut HostConfig) {
        let mut lists = lock(&self.lists);
        for list in [
            &mut config.ciphers,
            &mut config.macs,
            &mut config.kex_algorithms,
            &mut config.host_key_algorithms,
            &mut config.pubkey_accepted_algorithms,
            &mut config.ca_signature_algorithms,
        ] {
            *list = lists.get_or_insert(list.clone(), || list.clone()).clone();
        }
    }

    /// Returns the default algorithms, which are queried once for each ssh program.
    async fn default_algorithms(
        &self,
        program: &(PathBuf, Stamp),
        request: &Request,
    ) -> Result<Arc<DefaultAlgorithms>, ConfigError> {
        if let Some((known, algorithms)) = &*lock(&self.defaults)
            && known == program
        {
            return Ok(Arc::clone(algorithms));
        }
        let dump = self
            .dump(
                &program.0,
                &drop_config(request),
                &[],
                &Breaking::default(),
                false,
            )
            .await?;
        let list = |keyword: &str| -> Vec<String> {
            let found = dump
                .directives
                .iter()
                .find(|directive| directive.keyword == keyword);
            found.map_or_else(Vec::new, |list| {
                list.value.split(',').map(str::to_owned).collect()
            })
        };
        let algorithms = Arc::new(DefaultAlgorithms {
            host_key: list("hostkeyalgorithms"),
            kex: list("kexalgorithms"),
        });
        *lock(&self.defaults) = Some((program.clone(), Arc::clone(&algorithms)));
        Ok(algorithms)
    }

    /// Asks ssh for `%C` and `%j` if a value that it left unexpanded uses them.
    ///
    /// The probe is a forwarding with a socket named by the tokens: `ssh -G` prints its name expanded, and nothing else
    /// depends on it.
    async fn ask_for_tokens(
        &self,
        program: &Path,
        request: &Request,
        directives: &[Directive],
        (breaking, may_ask): (&Breaking, bool),
    ) -> Result<VersionTokens, ConfigError> {
        let uses = |token: &str| {
            directives.iter().any(|directive| {
                ["identityfile", "certificatefile", "localcommand"].contains(&directive.keyword.as_str())
                    && directive.value.contains(token)
            })
        };
        let jump = uses("%j");
        if !jump && !uses("%C") {
            return Ok(VersionTokens::default());
        }
        let probe = if jump {
            "LocalForward=/%C/%j 127.0.0.1:1"
        } else {
            "LocalForward=/%C/ 127.0.0.1:1"
        };
        let dump = self
            .dump(program, request, &["-o", probe], breaking, may_ask)
            .await?;
        let answer = dump
            .directives
            .iter()
            .filter(|directive| directive.keyword == "localforward")
            .find_map(|directive| {
                let (hash, rest) = directive.value.strip_prefix('/')?.split_once('/')?;
                let jump = rest.strip_suffix(" [127.0.0.1]:1")?;
                let is_hash = hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
                is_hash.then(|| (hash.to_owned(), jump.to_owned()))
            });
        // ClearAllForwardings also removes this one.
        Ok(
            answer.map_or_else(VersionTokens::default, |(hash, text)| VersionTokens {
                connection_hash: Some(hash),
                jump: jump.then_some(text),
            }),
        )
    }

    /// Returns the output of `ssh -G`, with `first` before the caller's arguments.
    async fn dump(
        &self,
        program: &Path,
        request: &Request,
        first: &[&str],
        breaking: &Breaking,
        may_ask: bool,
    ) -> Result<Dump, ConfigError> {
        check_arguments(&request.ssh_args)?;
        check_options(&request.ssh_args)?;
        let printed = match self.run_ssh(program, request, (first, &[]), may_ask).await {
            // `SessionType subsystem` and `ForkAfterAuthentication` require a command even for -G. Any will do, but it
            // is given only then, since ssh refuses one together with a RemoteCommand.
            Err(ConfigError::Refused(complaint))
                if WANTS_COMMAND.iter().any(|text| complaint.contains(text)) =>
            {
                self.run_ssh(program, request, (first, &["true"]), may_ask)
                    .await?
            }
            other => other?,
        };
        breaking.check(&printed.output)?;
        Ok(Dump {
            directives: dump::parse(&printed.output),
            remarks: printed.remarks.lines().map(str::to_owned).collect(),
            asked: printed.asked,
        })
    }

    async fn run_ssh(
        &self,
        program: &Path,
        request: &Request,
        (first, remote_command): (&[&str], &[&str]),
        may_ask: bool,
    ) -> Result<Printed, ConfigError> {
        let mut arguments = vec![OsString::from("-G")];
        arguments.extend(first.iter().map(OsString::from));
        arguments.extend_from_slice(&request.ssh_args);
        if let Some(port) = request.destination.port {
            arguments.extend(["-p".into(), port.to_string().into()]);
        }
        arguments.extend(["--".into(), request.destination.without_port().into()]);
        arguments.extend(remote_command.iter().map(OsString::from));
        let mut world = World::clone(&request.world);
        world.env.insert(RESOLVING.into(), "1".into());
        let start = |reason: String| ConfigError::Start {
            program: program.into(),
            reason,
        };
        let child = Child::start(program, &arguments, &world, may_ask).await;
        let mut run = Run(child.map_err(|error| start(error.to_string()))?);
        // A user who is asked takes their time, and can interrupt it.
        let finished = match run.0.process.may_ask() {
            true => run.finish().await,
            false => tokio::time::timeout(self.time_limit, run.finish())
                .await
                .map_err(|_| ConfigError::TimedOut(self.time_limit))?,
        };
        let (end, output, said) = finished.map_err(|error| start(error.to_string()))?;
        let asked = match end {
            End::Exited { success: true, asked } => asked,
            End::Exited { .. } => return Err(ConfigError::Refused(said)),
            End::WantedTerminal => return Err(ConfigError::Asks),
        };
        if output.len() as u64 > LONGEST_OUTPUT {
            let reason = "more than 4 MiB of output";
            return Err(ConfigError::NotAConfiguration {
                program: program.into(),
                reason,
            });
        }
        Ok(Printed {
            output,
            remarks: said,
            asked,
        })
    }
}

/// Refuses arguments that `ssh -G` would print as several lines. Files cannot contain them: their lines end there.
///
/// A session's command is not among the arguments. The value of `-e` may be any other control character.
///
/// # Errors
/// [`ConfigError::ControlCharacter`].
pub(super) fn check_arguments(arguments: &[OsString]) -> Result<(), ConfigError> {
    let is_escape_character = |argument: &OsString| {
        let byte = argument
            .as_bytes()
            .strip_prefix(b"-e")
            .unwrap_or(argument.as_bytes());
        matches!(byte, [byte] if !LINE_BREAKS.contains(byte))
    };
    let mut before: Option<&OsString> = None;
    for argument in arguments {
        let bytes = argument.as_bytes();
        let held = bytes.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
        let for_escapes = before.is_some_and(|before| before == "-e") || bytes.starts_with(b"-e");
        if held && !(for_escapes && is_escape_character(argument)) {
            let shown = Printable::line(bytes).to_string();
            return Err(ConfigError::ControlCharacter(format!("the option \"{shown}\"")));
        }
        before = Some(argument);
    }
    Ok(())
}

/// Refuses arguments after which no more options are possible: the host would be another one.
///
/// # Errors
/// [`ConfigError::NotOptions`].
fn check_options(arguments: &[OsString]) -> Result<(), ConfigError> {
    const LAST: u8 = b'G';
    let all: Vec<OsString> = arguments.iter().cloned().chain(["-G".into()]).collect();
    let mut options = TypedOptions::from(&all, 0);
    let mut last = None;
    for option in &mut options {
        last = option.ok().map(|typed| typed.option.letter);
    }
    if last == Some(LAST) && options.position() == all.len() {
        return Ok(());
    }
    let words: Vec<String> = arguments
        .iter()
        .map(|word| Printable::line(word.as_bytes()).to_string())
        .collect();
    Err(ConfigError::NotOptions(words.join(" ")))
}

/// The bytes that end a line or a value for a reader.
const LINE_BREAKS: [u8; 3] = *b"\n\r\0";

/// Variables with line breaks that the configuration mentions. ssh prints the values of some directives expanded
/// (sockets of forwardings, ControlPath); others are for a shell, where any value is valid.
#[derive(Debug, Default)]
struct Breaking(Vec<(String, OsString)>);

impl Breaking {
    fn select(mentioned: &BTreeSet<String>, world: &World) -> Self {
        let is_break = |byte: &u8| LINE_BREAKS.contains(byte);
        // A value of nothing but line breaks is in every output, and harmless.
        let breaks =
            |value: &OsStr| value.as_bytes().iter().any(is_break) && !value.as_bytes().iter().all(is_break);
        let found = mentioned.iter().filter_map(|name| {
            let value = world.var(name).filter(|value| breaks(value))?;
            Some((name.clone(), value.to_owned()))
        });
        Self(found.collect())
    }

    /// Fails if one of the variables is in ssh's output: ssh inserts a value unchanged and as a whole (misc.c,
    /// `vdollar_percent_expand`).
    fn check(&self, output: &[u8]) -> Result<(), ConfigError> {
        let holds = |value: &OsString| {
            let value = value.as_bytes();
            output.windows(value.len()).any(|part| part == value)
        };
        match self.0.iter().find(|(_, value)| holds(value)) {
            Some((name, _)) => Err(ConfigError::ControlCharacter(format!("the variable {name}"))),
            None => Ok(()),
        }
    }
}

/// Removes a finished or abandoned flight from the table.
struct Landing<'a> {
    resolver: &'a Resolver,
    key: (Question, Arc<World>),
    flight: Flight,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut flights = lock(&self.resolver.flights);
        let ours = flights
            .get(&self.key)
            .is_some_and(|flight| Arc::ptr_eq(flight, &self.flight));
        // Two references: the table's and ours. Otherwise others still wait, unless the run is over.
        if ours && (self.flight.initialized() || Arc::strong_count(&self.flight) == 2) {
            flights.remove(&self.key);
        }
    }
}

/// A running `ssh -G`. Dropping it kills its process group, which includes a `Match exec`.
struct Run(Child);

impl Run {
    /// Returns its end, standard output, and standard error: an error message, or warnings.
    async fn finish(&mut self) -> std::io::Result<(End, Vec<u8>, String)> {
        let Child {
            stdout,
            stderr,
            process,
            ..
        } = &mut self.0;
        let mut complaint = Vec::new();
        let (output, end) = {
            let main = async { tokio::try_join!(read_bounded(stdout, LONGEST_OUTPUT + 1), process.wait()) };
            tokio::pin!(main);
            let mut done = None;
            // Leftovers of a Match exec may hold stderr open forever. When ssh is gone and stdout at its end, ssh's own
            // messages are already in the pipe.
            while done.is_none() {
                let mut chunk = vec![0; 4096];
                tokio::select! {
                    result = &mut main => done = Some(result?),
                    read = stderr.read(&mut chunk) => match read? {
                        0 => done = Some((&mut main).await?),
                        count => keep(&mut complaint, &chunk[..count]),
                    },
                }
            }
            let (output, end) = done.expect("the loop ends with a result");
            // Warnings are not worth waiting for others that hold stderr.
            let patience = match end {
                End::Exited { success: true, .. } => AT_ONCE,
                _ => GRACE,
            };
            let rest = tokio::time::timeout(patience, async {
                let mut chunk = vec![0; 4096];
                while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
                    keep(&mut complaint, &chunk[..count]);
                }
            });
            let _ = rest.await;
            (output, end)
        };
        let mut said = lines_of(&complaint);
        if said.is_empty() && !matches!(end, End::Exited { success: true, .. }) {
            said = NO_REASON.into();
        }
        Ok((end, output, said))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.0.process.kill_group();
    }
}

/// The wait for a failed ssh's last messages.
const GRACE: Duration = Duration::from_millis(200);

/// The wait for messages that are already in the pipe.
const AT_ONCE: Duration = Duration::from_millis(1);

fn keep(complaint: &mut Vec<u8>, chunk: &[u8]) {
    let room = usize::try_from(LONGEST_COMPLAINT)
        .unwrap_or(usize::MAX)
        .saturating_sub(complaint.len());
    complaint.extend_from_slice(&chunk[..chunk.len().min(room)]);
}

async fn read_bounded(reader: impl AsyncRead + Unpin, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(limit).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// Returns the argument of `-F`; ssh uses the last one.
fn config_file(arguments: &[OsString]) -> Option<OsString> {
    typed_options(arguments)
        .filter(|typed| typed.option.letter == b'F')
        .last()
        .and_then(|typed| typed.value)
}

/// Returns the options among ssh's arguments, even after a word that is not an option. ssh itself reports unknown ones.
fn typed_options(arguments: &[OsString]) -> impl Iterator<Item = TypedOption> {
    let mut options = TypedOptions::from(arguments, 0);
    std::iter::from_fn(move || {
        loop {
            match options.next() {
                Some(Ok(typed)) => return Some(typed),
                Some(Err(_)) => {}
                None if options.position() < arguments.len() => {
                    options = TypedOptions::from(arguments, options.position() + 1);
                }
                None => return None,
            }
        }
    })
}

/// Returns `TRUNKLINE_SSH`, or the first `ssh` on the caller's `PATH` that is not this program under that name.
///
/// # Errors
/// [`ConfigError::NoProgram`].
pub fn ssh_program(world: &World) -> Result<PathBuf, ConfigError> {
    if let Some(program) = world.var("TRUNKLINE_SSH").filter(|program| !program.is_empty()) {
        return Ok(world.absolute(program.as_ref()));
    }
    let path = world
        .var("PATH")
        .unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let ourselves = std::env::current_exe()
        .and_then(|program| program.canonicalize())
        .ok();
    std::env::split_paths(path)
        .map(|directory| world.absolute(&directory).join("ssh"))
        .find(|program| {
            let executable = program
                .metadata()
                .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0);
            executable && (ourselves.is_none() || program.canonicalize().ok() != ourselves)
        })
        .ok_or_else(|| ConfigError::NoProgram(path.to_string_lossy().into_owned()))
}

/// Returns the last messages of an ssh that failed, in a line.
#[must_use]
pub fn complaint(stderr: &[u8]) -> String {
    match lines_of(stderr) {
        none if none.is_empty() => NO_REASON.to_owned(),
        lines => lines.replace('\n', "; "),
    }
}

/// The reason of an ssh that failed without a message.
const NO_REASON: &str = "it gave no reason";

/// Returns ssh's messages, without debug output and the messages that everyone without a terminal gets.
fn lines_of(stderr: &[u8]) -> String {
    let text = Printable::text(stderr);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("debug") && !line.starts_with("Pseudo-terminal"))
        .collect();
    lines.join("\n")
}

/// Returns the first answer's configuration, with the others as its jump hosts; `None` for no answers.
fn complete(world: &World, answers: &[Arc<Answer>]) -> Option<Arc<HostConfig>> {
    let behind = |jump, answer: &Arc<Answer>| Some(answer.complete(world, jump));
    answers.iter().rev().fold(None, behind)
}

fn same(a: Option<&Arc<HostConfig>>, b: Option<&Arc<HostConfig>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Locks a mutex, ignoring poisoning: a panic under one of these locks leaves consistent data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostConfig {
    /// Returns the jump hosts; may be empty.
    #[must_use]
    pub fn jump_hosts(&self) -> &[Destination] {
        match &self.proxy {
            Proxy::Jump(hops) => hops,
            Proxy::Direct | Proxy::Command(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests;
