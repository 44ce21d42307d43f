//! A stock sshd on loopback.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::port::PortReservation;
use crate::process::{self, MARKER, ProcessTree};
use crate::{Authority, Error, HostEntry, KeyPair, KeyType, ServerLog, program, write_ssh_config};

/// sshd's log line for each socket on which it listens. The kit waits for it rather than for a banner, because that
/// does not change the counts of connections, and causes no penalty for a connection that never authenticates
/// (`PerSourcePenalties`).
const READY: &str = "Server listening on ";

/// The maximum number of sockets that sshd listens on (`MAX_LISTEN_SOCKS` in sshd.c).
const MAX_LISTEN_SOCKETS: usize = 16;

/// A stock OpenSSH server on loopback. When it is dropped, it ends with everything that it started.
///
/// It logs in the user who runs the tests, with keys, certificates or a password of its own. Its configuration is
/// Debian's, except for the builder's settings, `StrictModes no`, `UsePAM no`, `PermitRootLogin yes` and, if the option
/// exists, `PerSourcePenalties no`. It runs as root and as an ordinary user. The user's account must not be locked (a
/// `!` in front of its password in `/etc/shadow`): if sshd can see that an account is locked, it refuses the user and
/// logs this.
///
/// Its port stays reserved between [`Sshd::stop`] and [`Sshd::start`]. Connections in between are refused. Sessions
/// have the environment variable `TRUNKLINE_TESTKIT`, and a `HOME` without start-up files ([`Sshd::home`]).
#[derive(Debug)]
pub struct Sshd {
    // Fields drop in order: the processes before the directory that they write to, and the ports last.
    process: Option<ProcessTree>,
    program: PathBuf,
    alias: String,
    user: String,
    endpoints: Vec<SocketAddr>,
    any_address: bool,
    host_keys: Vec<KeyPair>,
    host_authority: Option<Authority>,
    client_keys: Vec<KeyPair>,
    certified_keys: Vec<KeyPair>,
    user_authority: Option<Authority>,
    password: Option<String>,
    pam: Option<Pam>,
    log: ServerLog,
    dir: TempDir,
    _ports: Vec<PortReservation>,
}

impl Sshd {
    /// Starts a server with one Ed25519 host key and one authorised Ed25519 client key, on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// As [`SshdBuilder::start`].
    pub fn start_default() -> Result<Sshd, Error> {
        Sshd::builder().start()
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> SshdBuilder {
        SshdBuilder::default()
    }

    /// Returns the first address and port that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.endpoints[0]
    }

    /// Returns the first port that it listens on.
    pub fn port(&self) -> u16 {
        self.addr().port()
    }

    /// Returns every address and port that it listens on: for each port all addresses, in the builder's order.
    pub fn endpoints(&self) -> &[SocketAddr] {
        &self.endpoints
    }

    /// Returns the name of the user that it logs in, who is the user who runs the tests.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the alias in [`Sshd::ssh_config`].
    pub fn alias(&self) -> &str {
        &self.alias
    }

    /// Returns the host keys, in the server's order.
    pub fn host_keys(&self) -> &[KeyPair] {
        &self.host_keys
    }

    /// Returns the keys in the server's `authorized_keys`.
    pub fn client_keys(&self) -> &[KeyPair] {
        &self.client_keys
    }

    /// Returns the keys that the server accepts only because of their certificates.
    pub fn certified_keys(&self) -> &[KeyPair] {
        &self.certified_keys
    }

    /// Returns the authority that signed the host keys.
    pub fn host_authority(&self) -> Option<&Authority> {
        self.host_authority.as_ref()
    }

    /// Returns the authority in `TrustedUserCAKeys`.
    pub fn user_authority(&self) -> Option<&Authority> {
        self.user_authority.as_ref()
    }

    /// Returns the password, if one was set.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the path of a program for `SSH_ASKPASS` that answers every question with the password.
    pub fn askpass(&self) -> Option<PathBuf> {
        self.password.as_ref().map(|_| self.path("askpass"))
    }

    /// Returns the server's own directory, which tests can use for further files. It is deleted with the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the `HOME` of its sessions, an empty directory unless the configuration sets another. Sessions start in
    /// the user's real home directory.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Returns a `known_hosts` file with a plain entry, `[address]:port type key`, for each endpoint and host key.
    pub fn known_hosts(&self) -> PathBuf {
        self.path("known_hosts")
    }

    /// Returns a `known_hosts` file that trusts the host authority (`@cert-authority`) and lists no key. It is empty
    /// without [`SshdBuilder::host_certificates`].
    pub fn known_hosts_authority(&self) -> PathBuf {
        self.path("known_hosts_authority")
    }

    /// Returns a complete file for `ssh -F`, with the alias for the first endpoint, and `ALIAS-2`, `ALIAS-3`, … for the
    /// others.
    pub fn ssh_config(&self) -> PathBuf {
        self.path("ssh_config")
    }

    /// Returns the `Host` block for this server under a given alias.
    pub fn host_entry(&self, alias: &str) -> HostEntry {
        HostEntry {
            alias: alias.to_owned(),
            addr: self.addr(),
            user: self.user.clone(),
            identities: self
                .client_keys
                .iter()
                .chain(&self.certified_keys)
                .map(|key| key.private_path().to_owned())
                .collect(),
            known_hosts: self.known_hosts(),
            may_ask: self.password.is_some(),
            extra: Vec::new(),
        }
    }

    /// Writes an `ssh_config` that reaches this server through another address (a [`Relay`](crate::Relay)'s), and
    /// adds that address to [`Sshd::known_hosts`].
    ///
    /// # Errors
    /// [`Error::File`] when a file cannot be written.
    pub fn ssh_config_via(&self, alias: &str, addr: SocketAddr) -> Result<PathBuf, Error> {
        self.trust_at(addr)?;
        let path = self.path(&format!("ssh_config_{alias}"));
        write_ssh_config(&path, [self.host_entry(alias).with_address(addr)])?;
        Ok(path)
    }

    /// Adds another address of this server to [`Sshd::known_hosts`].
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be written.
    pub fn trust_at(&self, addr: SocketAddr) -> Result<(), Error> {
        let path = self.known_hosts();
        let failed = |source| Error::File {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new().append(true).open(&path).map_err(failed)?;
        file.write_all(self.known_hosts_lines(&host_pattern(addr)).as_bytes())
            .map_err(failed)
    }

    /// Returns a command for the stock `ssh` with this server's configuration. Add the alias (or options and the alias)
    /// and a command.
    pub fn ssh(&self) -> Command {
        crate::ssh(&self.ssh_config())
    }

    pub fn log(&self) -> &ServerLog {
        &self.log
    }

    /// Returns the number of successful log-ins.
    pub fn authentications(&self) -> usize {
        // "Accepted publickey for root from 127.0.0.1 port 4242 ssh2: …", and not "Accepted key … found at …".
        self.log
            .count_lines(|line| line.starts_with("Accepted ") && line.contains(" from "))
    }

    /// Returns the number of accepted TCP connections. Needs [`LogLevel::Verbose`] or more, which is the default.
    pub fn connections(&self) -> usize {
        self.log.count_lines(|line| line.starts_with("Connection from "))
    }

    /// Waits for one log line, as [`ServerLog::wait_for`] does.
    ///
    /// # Errors
    /// [`Error::Timeout`] after a minute.
    pub async fn wait_for_log(&self, pattern: &str) -> Result<(), Error> {
        self.log.wait_for(pattern, 1).await
    }

    /// Returns the process that listens; `None` while the server is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ProcessTree::pid)
    }

    /// Returns the processes that each serve one connection. As root there is a second process for each of them, which
    /// has the user's rights and holds the session.
    pub fn connection_pids(&self) -> Vec<u32> {
        self.process.as_ref().map_or_else(Vec::new, ProcessTree::children)
    }

    /// Returns every process below the listener: connections, sessions, and the commands that they run.
    pub fn session_pids(&self) -> Vec<u32> {
        self.process
            .as_ref()
            .map_or_else(Vec::new, ProcessTree::descendants)
    }

    /// Kills every connection and session, as a crash would. The server continues to listen.
    pub fn kill_connections(&self) {
        self.signal_sessions(Signal::KILL);
    }

    /// Stops the processes of every connection: the kernel still acknowledges data from the peer, but no program reads
    /// it.
    pub fn freeze_connections(&self) {
        self.signal_sessions(Signal::STOP);
    }

    /// Undoes [`Sshd::freeze_connections`].
    pub fn thaw_connections(&self) {
        self.signal_sessions(Signal::CONT);
    }

    /// Ends the server with all its connections. The port stays reserved.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts the server again, with the same keys and ports, and waits until it listens.
    ///
    /// # Errors
    /// As [`SshdBuilder::start`].
    pub fn start(&mut self) -> Result<(), Error> {
        self.stop();
        let announced = self.log.count(READY);
        let mut command = Command::new(&self.program);
        command
            .args(["-D", "-f"])
            .arg(self.path("sshd_config"))
            .arg("-E")
            .arg(self.log.path());
        // Errors that it reports before it opens its log are written to the log too.
        let log_file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log.path())
            .map_err(|source| Error::File {
                path: self.log.path().to_owned(),
                source,
            })?;
        command.stdout(log_file.try_clone()?).stderr(log_file);
        if self.pam.is_some() {
            Pam::preload_into(&mut command, &self.path("pam"));
        }
        let mut process = ProcessTree::spawn(&mut command, self.dir.path(), Some(self.mark()))?;
        let sockets = if self.any_address { 1 } else { self.endpoints.len() };
        self.log
            .wait_until_ready("sshd", READY, announced + sockets, || process.has_exited())?;
        self.process = Some(process);
        Ok(())
    }

    fn signal_sessions(&self, signal: Signal) {
        for pid in self.session_pids() {
            process::signal(pid, signal);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a name that is unique while the directory exists.
    fn mark(&self) -> String {
        self.dir
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    fn known_hosts_lines(&self, pattern: &str) -> String {
        self.host_keys
            .iter()
            .map(|key| format!("{pattern} {}\n", key.public_key()))
            .collect()
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.path(name);
        fs::write(&path, text).map_err(|source| Error::File { path, source })
    }

    fn write_client_files(&self) -> Result<(), Error> {
        let patterns: Vec<String> = if self.any_address {
            vec![format!("[127.*]:{}", self.port())]
        } else {
            self.endpoints.iter().copied().map(host_pattern).collect()
        };
        let known: String = patterns
            .iter()
            .map(|pattern| self.known_hosts_lines(pattern))
            .collect();
        self.write("known_hosts", &known)?;
        let trusted: String = self.host_authority.iter().fold(String::new(), |text, authority| {
            text + &format!(
                "@cert-authority {} {}\n",
                patterns.join(","),
                authority.key().public_key()
            )
        });
        self.write("known_hosts_authority", &trusted)?;
        if let Some(password) = &self.password {
            // In single quotes the shell changes nothing, but the quote itself has to be escaped.
            let quoted = password.replace('\'', r"'\''");
            self.write("askpass", &format!("#!/bin/sh\nprintf '%s\\n' '{quoted}'\n"))?;
            fs::set_permissions(self.path("askpass"), Permissions::from_mode(0o700))?;
        }
        let entries = self.endpoints.iter().enumerate().map(|(index, &addr)| {
            let alias = if index == 0 {
                self.alias.clone()
            } else {
                format!("{}-{}", self.alias, index + 1)
            };
            self.host_entry(&alias).with_address(addr)
        });
        write_ssh_config(&self.ssh_config(), entries)
    }

    fn write_server_files(&self, config: &[String], methods: Option<&str>) -> Result<(), Error> {
        let authorized: String = self
            .client_keys
            .iter()
            .map(|key| format!("{}\n", key.public_line()))
            .collect();
        self.write("authorized_keys", &authorized)?;
        let mut text = String::new();
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        // sshd uses the first value that it finds, so the test's lines go first. The test's Match blocks go last,
        // because all lines after them would belong to them.
        let is_match = |line: &String| starts_with_word(line, "match");
        let (global, matches) = config.split_at(config.iter().position(is_match).unwrap_or(config.len()));
        // The start-up files of the user who runs the tests must not be measured, print anything or wait: a login shell
        // reads ~/.profile, and `pyenv init` in it takes a lock of the whole machine, for up to a minute. So the server
        // has a HOME of its own, without such files. bash also finds ~/.bashrc by HOME, and reads it when sshd runs it
        // as the outermost shell.
        let is_environment = |words: &String| starts_with_word(words, "setenv");
        let mut mark = format!("{MARKER}={} SHLVL=1", self.mark());
        if !global
            .iter()
            .any(|words| is_environment(words) && words.contains(" HOME="))
        {
            mark += &format!(" HOME={}", self.home().display());
        }
        let sets_environment = global.iter().any(is_environment);
        for words in global {
            // Only the first SetEnv line counts.
            line(if is_environment(words) {
                format!("{words} {mark}")
            } else {
                words.clone()
            });
        }
        if !sets_environment {
            line(format!("SetEnv {mark}"));
        }
        if self.any_address {
            line(format!(
                "ListenAddress {}",
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.port()))
            ));
        } else {
            self.endpoints
                .iter()
                .for_each(|endpoint| line(format!("ListenAddress {endpoint}")));
        }
        for key in &self.host_keys {
            line(format!("HostKey \"{}\"", key.private_path().display()));
            if let Some(certificate) = key.certificate_path() {
                line(format!("HostCertificate \"{}\"", certificate.display()));
            }
        }
        line(format!(
            "AuthorizedKeysFile \"{}\"",
            self.path("authorized_keys").display()
        ));
        if let Some(authority) = &self.user_authority {
            line(format!(
                "TrustedUserCAKeys \"{}\"",
                authority.key().public_path().display()
            ));
        }
        let yes_no = |yes| if yes { "yes" } else { "no" };
        line(format!(
            "PasswordAuthentication {}",
            yes_no(self.password.is_some())
        ));
        line(format!(
            "KbdInteractiveAuthentication {}",
            yes_no(self.password.is_some())
        ));
        line(format!("UsePAM {}", yes_no(self.pam.is_some())));
        if has_penalties(&self.program) {
            line("PerSourcePenalties no".to_owned());
        }
        if let Some(methods) = methods {
            line(format!("AuthenticationMethods {methods}"));
        }
        line("PermitRootLogin yes".to_owned());
        // Other users can write to the parents of temporary directories.
        line("StrictModes no".to_owned());
        line("PermitUserRC no".to_owned());
        line("PrintMotd no".to_owned());
        line("PrintLastLog no".to_owned());
        line("PidFile none".to_owned());
        line("AcceptEnv LANG LC_*".to_owned());
        if !global.iter().any(|line| starts_with_word(line, "subsystem")) {
            let sftp = program::find("sftp-server", "openssh-sftp-server");
            line(format!(
                "Subsystem sftp {}",
                sftp.map_or("internal-sftp".into(), |path| path.display().to_string())
            ));
        }
        if self.any_address {
            line("Match Address *,!127.0.0.0/8\n    DenyUsers *".to_owned());
        }
        matches.iter().cloned().for_each(&mut line);
        self.write("sshd_config", &text)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.log.tell_if_panicking("sshd");
    }
}

/// The settings of an [`Sshd`]. Every setting has a default. If a setting is set twice, the last value applies.
#[derive(Debug, Clone)]
pub struct SshdBuilder {
    program: Option<PathBuf>,
    alias: String,
    addresses: Vec<IpAddr>,
    ports: usize,
    any_address: bool,
    host_keys: Vec<KeyType>,
    host_certificates: bool,
    client_keys: Vec<KeyType>,
    user_certificates: Vec<KeyType>,
    password: Option<String>,
    methods: Option<String>,
    log_level: LogLevel,
    config: Vec<String>,
}

impl Default for SshdBuilder {
    fn default() -> SshdBuilder {
        SshdBuilder {
            program: None,
            alias: "testbed".to_owned(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ports: 1,
            any_address: false,
            host_keys: vec![KeyType::Ed25519],
            host_certificates: false,
            client_keys: vec![KeyType::Ed25519],
            user_certificates: Vec::new(),
            password: None,
            methods: None,
            log_level: LogLevel::Debug,
            config: Vec::new(),
        }
    }
}

impl SshdBuilder {
    /// Sets the absolute path of an sshd to run instead of the installed one.
    #[must_use]
    pub fn program(mut self, path: &Path) -> SshdBuilder {
        self.program = Some(path.to_owned());
        self
    }

    /// Sets the alias in the server's `ssh_config`; `testbed` by default.
    #[must_use]
    pub fn alias(mut self, alias: &str) -> SshdBuilder {
        alias.clone_into(&mut self.alias);
        self
    }

    /// Sets the addresses to listen on, all with the same ports; 127.0.0.1 by default. Linux has all of 127.0.0.0/8.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> SshdBuilder {
        self.addresses = addresses.into_iter().collect();
        self
    }

    /// Sets the number of ports to listen on, on each address; 1 by default. sshd can listen on 16 sockets in all.
    #[must_use]
    pub fn ports(mut self, ports: usize) -> SshdBuilder {
        self.ports = ports;
        self
    }

    /// Listens on every address of 127.0.0.0/8, through one socket, so that one server can be a thousand hosts.
    ///
    /// The socket is bound to all of the machine's addresses, but nobody can log in from outside of 127.0.0.0/8.
    /// [`Sshd::endpoints`] and the `ssh_config` name only 127.0.0.1.
    #[must_use]
    pub fn any_loopback_address(mut self) -> SshdBuilder {
        self.any_address = true;
        self
    }

    /// Sets the types of the host keys, in the server's order; one Ed25519 key by default.
    #[must_use]
    pub fn host_keys(mut self, types: impl IntoIterator<Item = KeyType>) -> SshdBuilder {
        self.host_keys = types.into_iter().collect();
        self
    }

    /// Certifies every host key, for the server's addresses and its alias, by an authority of the server's own.
    #[must_use]
    pub fn host_certificates(mut self) -> SshdBuilder {
        self.host_certificates = true;
        self
    }

    /// Sets the types of the client keys to make and authorise; one Ed25519 key by default, none with an empty list.
    #[must_use]
    pub fn client_keys(mut self, types: impl IntoIterator<Item = KeyType>) -> SshdBuilder {
        self.client_keys = types.into_iter().collect();
        self
    }

    /// Sets the types of the client keys to make and to certify by an authority that the server trusts; none by
    /// default.
    #[must_use]
    pub fn user_certificates(mut self, types: impl IntoIterator<Item = KeyType>) -> SshdBuilder {
        self.user_certificates = types.into_iter().collect();
        self
    }

    /// Accepts this password for the current user, by `password` and by `keyboard-interactive` (one prompt).
    ///
    /// The machine's accounts are not changed: sshd runs with `UsePAM yes` and its own PAM directory, where
    /// `pam_matrix` (from Debian's `libpam-wrapper`) knows one password. The password must not contain `:` or newlines,
    /// because these separate the fields and lines of its file.
    #[must_use]
    pub fn password(mut self, password: &str) -> SshdBuilder {
        self.password = Some(password.to_owned());
        self
    }

    /// Sets `AuthenticationMethods`, for log-ins in several steps: `publickey,password`.
    #[must_use]
    pub fn authentication_methods(mut self, methods: &str) -> SshdBuilder {
        self.methods = Some(methods.to_owned());
        self
    }

    /// Sets the server's log level; [`LogLevel::Debug`] by default.
    #[must_use]
    pub fn log_level(mut self, level: LogLevel) -> SshdBuilder {
        self.log_level = level;
        self
    }

    /// Adds a line (or lines) to `sshd_config`. It takes precedence over the kit's own lines, and may start a `Match`
    /// block, which then contains all lines added after it.
    #[must_use]
    pub fn config(mut self, lines: &str) -> SshdBuilder {
        self.config
            .extend(lines.lines().map(|line| line.trim().to_owned()));
        self
    }

    /// Makes the keys, starts the server and waits until it listens.
    ///
    /// # Errors
    /// [`Error::MissingProgram`] when sshd, ssh-keygen or (for a password) cc or libpam-wrapper is missing;
    /// [`Error::Exited`], with the log, when sshd refuses its configuration; [`Error::Misused`] for more than 16
    /// sockets, no address, no port, no host key, or a password with characters that are not allowed.
    pub fn start(self) -> Result<Sshd, Error> {
        self.check()?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => program::find("sshd", "openssh-server")?,
        };
        let pam = self.password.as_ref().map(|_| Pam::find()).transpose()?;
        let dir = tempfile::Builder::new().prefix("trunkline-sshd-").tempdir()?;
        let user = program::current_user()?;
        make_privilege_separation_directory()?;

        let reserve_on = if self.any_address {
            vec![IpAddr::from(Ipv4Addr::UNSPECIFIED)]
        } else {
            self.addresses.clone()
        };
        let ports = (0..self.ports)
            .map(|_| PortReservation::reserve(&reserve_on))
            .collect::<Result<Vec<_>, _>>()?;
        let addresses = if self.any_address {
            vec![Ipv4Addr::LOCALHOST.into()]
        } else {
            self.addresses.clone()
        };
        let endpoints: Vec<SocketAddr> = ports
            .iter()
            .flat_map(|port| {
                addresses
                    .iter()
                    .map(|&address| SocketAddr::new(address, port.port()))
            })
            .collect();

        let generate = |types: &[KeyType], prefix: &str| {
            let keys = types.iter().enumerate();
            keys.map(|(index, &key_type)| {
                KeyPair::generate(dir.path(), &format!("{prefix}_{index}"), key_type)
            })
            .collect::<Result<Vec<_>, _>>()
        };
        let mut host_keys = generate(&self.host_keys, "host_key")?;
        let client_keys = generate(&self.client_keys, "client_key")?;
        let mut certified_keys = generate(&self.user_certificates, "certified_key")?;
        let authority =
            |wanted: bool, name| wanted.then(|| Authority::generate(dir.path(), name)).transpose();
        let host_authority = authority(self.host_certificates, "host_ca")?;
        if let Some(authority) = &host_authority {
            let mut names: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            names.extend([self.alias.clone(), "localhost".to_owned()]);
            host_keys
                .iter_mut()
                .try_for_each(|key| authority.sign_host(key, &names, "-5m:+1d"))?;
        }
        let user_authority = authority(!certified_keys.is_empty(), "user_ca")?;
        if let Some(authority) = &user_authority {
            let logins = std::slice::from_ref(&user);
            certified_keys
                .iter_mut()
                .try_for_each(|key| authority.sign_user(key, logins, "-5m:+1d"))?;
        }

        let mut config = self.config;
        config.insert(0, format!("LogLevel {}", self.log_level.directive()));
        let mut server = Sshd {
            process: None,
            program,
            alias: self.alias,
            user,
            endpoints,
            any_address: self.any_address,
            host_keys,
            host_authority,
            client_keys,
            certified_keys,
            user_authority,
            password: self.password,
            pam,
            log: ServerLog::at_path(dir.path().join("sshd.log")),
            dir,
            _ports: ports,
        };
        fs::create_dir(server.home())?;
        server.write_client_files()?;
        server.write_server_files(&config, self.methods.as_deref())?;
        if let (Some(pam), Some(password)) = (&server.pam, &server.password) {
            pam.make(&server.path("pam"), &server.user, password)?;
        }
        server.start()?;
        Ok(server)
    }

    fn check(&self) -> Result<(), Error> {
        let sockets = self.addresses.len() * self.ports;
        let complaint = if sockets == 0 || self.host_keys.is_empty() {
            "an sshd needs an address, a port and a host key".to_owned()
        } else if sockets > MAX_LISTEN_SOCKETS && !self.any_address {
            format!("an sshd listens on {MAX_LISTEN_SOCKETS} sockets at most, not on {sockets}")
        } else if self
            .password
            .as_ref()
            .is_some_and(|password| password.contains([':', '\n']))
        {
            "pam_matrix cannot hold a password with a colon or a newline".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Misused(complaint))
    }
}

/// The `LogLevel` of sshd_config(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogLevel {
    /// Only log-ins, for benchmarks. [`Sshd::connections`] stays at zero.
    Info,
    /// Also connections.
    Verbose,
    /// Each step of the protocol (`DEBUG1`).
    Debug,
    /// Everything (`DEBUG3`).
    Debug3,
}

impl LogLevel {
    fn directive(self) -> &'static str {
        match self {
            LogLevel::Info => "INFO",
            LogLevel::Verbose => "VERBOSE",
            LogLevel::Debug => "DEBUG1",
            LogLevel::Debug3 => "DEBUG3",
        }
    }
}

/// Passwords without accounts: sshd's PAM services are in a directory of the kit's own.
///
/// `libpam_wrapper` does this as well, but not reliably: each process takes the first free one of 62 names in /tmp, and
/// if two processes that start at the same time choose the same name, one refuses the right password.
#[derive(Debug)]
struct Pam {
    matrix: PathBuf,
}

impl Pam {
    fn find() -> Result<Pam, Error> {
        Ok(Pam {
            matrix: program::find_library("pam_wrapper/pam_matrix.so", "libpam-wrapper")?,
        })
    }

    /// Makes the directory with the one service in it, and next to it the library that makes sshd use it.
    fn make(&self, directory: &Path, user: &str, password: &str) -> Result<(), Error> {
        fs::create_dir(directory)?;
        let passdb = directory.with_file_name("passdb");
        fs::write(&passdb, format!("{user}:{password}:sshd\n"))?;
        let mut service = File::create(directory.join("sshd"))?;
        for facility in ["auth", "account", "session"] {
            let (module, passdb) = (self.matrix.display(), passdb.display());
            writeln!(service, "{facility} required {module} passdb={passdb}")?;
        }
        let source = directory.with_file_name("pam_directory.c");
        fs::write(&source, include_str!("pam_directory.c"))?;
        // Bound lazily: sshd itself loads libpam.
        let mut compile = Command::new(program::find("cc", "gcc")?);
        compile.args(["-shared", "-fPIC", "-Wl,-z,lazy", "-o"]);
        program::run(compile.arg(Self::library(directory)).arg(source))?;
        Ok(())
    }

    fn library(directory: &Path) -> PathBuf {
        directory.with_file_name("pam_directory.so")
    }

    fn preload_into(command: &mut Command, directory: &Path) {
        command
            .env("LD_PRELOAD", Self::library(directory))
            .env("TESTKIT_PAM_DIRECTORY", directory);
    }
}

/// Returns true if sshd blocks addresses that fail to log in (`PerSourcePenalties`, from OpenSSH 9.8 on). All tests use
/// the same address.
fn has_penalties(sshd: &Path) -> bool {
    static KNOWN: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(sshd.to_owned()).or_insert_with(|| {
        // This command fails because there are no host keys. It names the option only if it does not know it.
        let tried = Command::new(sshd)
            .args(["-t", "-f", "/dev/null", "-o", "PerSourcePenalties=no"])
            .output();
        tried.is_ok_and(|tried| !String::from_utf8_lossy(&tried.stderr).contains("Bad configuration option"))
    })
}

/// Makes `/run/sshd` if the caller is root: sshd as root confines its unprivileged half to this directory, and does not
/// start without it. The service's unit makes it at boot. [`Sshd`] calls this by itself.
///
/// # Errors
/// [`Error::Io`] when the directory cannot be made.
pub fn make_privilege_separation_directory() -> Result<(), Error> {
    let directory = Path::new("/run/sshd");
    if rustix::process::geteuid().is_root() && !directory.exists() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Formats an address like ssh when it looks up a host: `[127.0.0.1]:2222`, or just the address for port 22.
fn host_pattern(addr: SocketAddr) -> String {
    if addr.port() == 22 {
        addr.ip().to_string()
    } else {
        format!("[{}]:{}", addr.ip(), addr.port())
    }
}

/// Compares the first word of a line. Keywords of sshd_config are case-insensitive.
fn starts_with_word(line: &str, word: &str) -> bool {
    line.split(|c: char| c.is_ascii_whitespace() || c == '=')
        .next()
        .is_some_and(|first| first.eq_ignore_ascii_case(word))
}
