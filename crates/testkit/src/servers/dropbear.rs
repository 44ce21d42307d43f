//! A dropbear server on loopback.

use std::fs::{self, OpenOptions, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::port::PortReservation;
use crate::process::ProcessTree;
use crate::{Error, HostEntry, KeyPair, KeyType, ServerLog, program, write_ssh_config};

/// The line that dropbear logs once it listens.
const READY: &str = "Not backgrounding";

/// A dropbear server on loopback: the SSH of small machines, to compare with OpenSSH.
///
/// It logs in the user who runs the tests, with one Ed25519 key. Dropbear takes authorised keys only from the user's
/// home directory, so it runs under `libnss_wrapper` (Debian's `libnss-wrapper`), which gives it a home directory
/// inside the fixture's own. Sessions start there.
#[derive(Debug)]
pub struct Dropbear {
    // Fields drop in order: the process before the directory that it writes to.
    process: Option<ProcessTree>,
    arguments: Vec<String>,
    alias: String,
    user: String,
    addr: SocketAddr,
    client_key: KeyPair,
    log: ServerLog,
    dir: TempDir,
    _port: PortReservation,
}

impl Dropbear {
    /// Starts a server with one Ed25519 host key on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// As [`DropbearBuilder::start`].
    pub fn start_default() -> Result<Dropbear, Error> {
        Dropbear::builder().start()
    }

    /// Returns a builder for a server with other settings.
    pub fn builder() -> DropbearBuilder {
        DropbearBuilder::default()
    }

    /// Returns the address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the port that it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Returns the name of the user that it logs in, who is the user who runs the tests.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the alias in [`Dropbear::ssh_config`].
    pub fn alias(&self) -> &str {
        &self.alias
    }

    /// Returns the key that it accepts.
    pub fn client_key(&self) -> &KeyPair {
        &self.client_key
    }

    /// Returns the server's own directory, which is deleted with the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a `known_hosts` file with an entry for each host key.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir.path().join("known_hosts")
    }

    /// Returns a complete file for `ssh -F`.
    pub fn ssh_config(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// Returns the `Host` block for this server under a given alias.
    pub fn host_entry(&self, alias: &str) -> HostEntry {
        HostEntry {
            alias: alias.to_owned(),
            addr: self.addr,
            user: self.user.clone(),
            identities: vec![self.client_key.private_path().to_owned()],
            known_hosts: self.known_hosts(),
            may_ask: false,
            extra: Vec::new(),
        }
    }

    /// Returns a command for the stock `ssh` with this server's configuration. Add the alias and a command.
    pub fn ssh(&self) -> Command {
        crate::ssh(&self.ssh_config())
    }

    pub fn log(&self) -> &ServerLog {
        &self.log
    }

    /// Returns the number of successful log-ins.
    pub fn authentications(&self) -> usize {
        self.log.count("auth succeeded")
    }

    /// Returns the number of accepted TCP connections.
    pub fn connections(&self) -> usize {
        self.log.count("Child connection from")
    }

    /// Returns every process below the listener.
    pub fn session_pids(&self) -> Vec<u32> {
        self.process
            .as_ref()
            .map_or_else(Vec::new, ProcessTree::descendants)
    }

    /// Ends the server with all its connections. The port stays reserved.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts the server again on the same port, and waits until it listens.
    ///
    /// # Errors
    /// As [`DropbearBuilder::start`].
    pub fn start(&mut self) -> Result<(), Error> {
        self.stop();
        let announced = self.log.count(READY);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log.path())?;
        let mut command = Command::new(program::find("dropbear", "dropbear-bin")?);
        command
            .args(&self.arguments)
            .env(
                "LD_PRELOAD",
                program::find_library("libnss_wrapper.so", "libnss-wrapper")?,
            )
            .env("NSS_WRAPPER_PASSWD", self.dir.path().join("passwd"))
            .env("NSS_WRAPPER_GROUP", self.dir.path().join("group"))
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut process = ProcessTree::spawn(&mut command, self.dir.path(), None)?;
        self.log
            .wait_until_ready("dropbear", READY, announced + 1, || process.has_exited())?;
        self.process = Some(process);
        Ok(())
    }

    fn write_accounts(&self) -> Result<(), Error> {
        let home = self.dir.path().join("home");
        let ssh_directory = home.join(".ssh");
        fs::create_dir_all(&ssh_directory)?;
        fs::write(
            ssh_directory.join("authorized_keys"),
            format!("{}\n", self.client_key.public_line()),
        )?;
        // Dropbear trusts no file that others could have written to.
        fs::set_permissions(&home, Permissions::from_mode(0o700))?;
        fs::set_permissions(&ssh_directory, Permissions::from_mode(0o700))?;
        fs::set_permissions(
            ssh_directory.join("authorized_keys"),
            Permissions::from_mode(0o600),
        )?;
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let user = &self.user;
        let passwd = format!("{user}:x:{uid}:{gid}:{user}:{}:/bin/sh\n", home.display());
        fs::write(self.dir.path().join("passwd"), passwd)?;
        fs::write(self.dir.path().join("group"), format!("{user}:x:{gid}:\n"))?;
        Ok(())
    }
}

impl Drop for Dropbear {
    fn drop(&mut self) {
        self.log.tell_if_panicking("dropbear");
    }
}

/// The settings of a [`Dropbear`].
#[derive(Debug, Clone)]
pub struct DropbearBuilder {
    alias: String,
    address: IpAddr,
    host_keys: Vec<KeyType>,
    arguments: Vec<String>,
}

impl Default for DropbearBuilder {
    fn default() -> DropbearBuilder {
        DropbearBuilder {
            alias: "dropbear".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            host_keys: vec![KeyType::Ed25519],
            arguments: Vec::new(),
        }
    }
}

impl DropbearBuilder {
    /// Sets the alias in the server's `ssh_config`; `dropbear` by default.
    #[must_use]
    pub fn alias(mut self, alias: &str) -> DropbearBuilder {
        alias.clone_into(&mut self.alias);
        self
    }

    /// Sets the address to listen on; 127.0.0.1 by default.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> DropbearBuilder {
        self.address = address;
        self
    }

    /// Sets the types of the host keys; one Ed25519 key by default. Dropbear holds at most one ECDSA key.
    #[must_use]
    pub fn host_keys(mut self, types: impl IntoIterator<Item = KeyType>) -> DropbearBuilder {
        self.host_keys = types.into_iter().collect();
        self
    }

    /// Adds arguments of dropbear(8), such as `-W 65536` (window) or `-I 5` (idle timeout in seconds).
    #[must_use]
    pub fn arguments<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> DropbearBuilder {
        self.arguments.extend(arguments.into_iter().map(str::to_owned));
        self
    }

    /// Makes the keys, starts the server and waits until it listens.
    ///
    /// # Errors
    /// [`Error::MissingProgram`] when dropbear, dropbearkey, ssh-keygen or libnss-wrapper is missing;
    /// [`Error::Exited`], with the log, when dropbear refuses its arguments.
    pub fn start(self) -> Result<Dropbear, Error> {
        let dir = tempfile::Builder::new().prefix("trunkline-dropbear-").tempdir()?;
        let port = PortReservation::reserve(&[self.address])?;
        let addr = SocketAddr::new(self.address, port.port());
        let client_key = KeyPair::generate(dir.path(), "client_key", KeyType::Ed25519)?;

        // -F stay in the foreground, -E log to standard error, -s no passwords
        let mut arguments: Vec<String> = ["-F", "-E", "-s", "-p"].map(str::to_owned).to_vec();
        arguments.push(addr.to_string());
        arguments.extend(["-P".to_owned(), dir.path().join("pid").display().to_string()]);
        let mut known_hosts = String::new();
        for (index, &key_type) in self.host_keys.iter().enumerate() {
            let file = dir.path().join(format!("host_key_{index}"));
            let public = generate_host_key(&file, key_type)?;
            known_hosts += &format!("[{}]:{} {public}\n", addr.ip(), addr.port());
            arguments.extend(["-r".to_owned(), file.display().to_string()]);
        }
        arguments.extend(self.arguments);

        let mut server = Dropbear {
            process: None,
            arguments,
            alias: self.alias,
            user: program::current_user()?,
            addr,
            client_key,
            log: ServerLog::at_path(dir.path().join("dropbear.log")),
            dir,
            _port: port,
        };
        server.write_accounts()?;
        fs::write(server.known_hosts(), known_hosts)?;
        write_ssh_config(&server.ssh_config(), [server.host_entry(&server.alias)])?;
        server.start()?;
        Ok(server)
    }
}

/// Makes a key in dropbear's format and returns its public half as `algorithm base64`.
fn generate_host_key(file: &Path, key_type: KeyType) -> Result<String, Error> {
    let (family, bits) = key_type.family_and_bits();
    let mut command = Command::new(program::find("dropbearkey", "dropbear-bin")?);
    command.args(["-t", family, "-f"]).arg(file);
    if let Some(bits) = bits {
        command.args(["-s", bits]);
    }
    let output = program::run(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with(key_type.algorithm()));
    let public = line.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    public.ok_or_else(|| Error::Failed {
        command: format!("{command:?}"),
        stderr: text.into_owned(),
    })
}
