//! A daemon that serves stock ssh on a mux socket, and the clients that use it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trunkline_control::client::{Client, Starter};
use trunkline_control::place::Place;
use trunkline_control::protocol::{Failure, HostRequest, Reply, Request};
use trunkline_request::{Vantage, World};
use trunkline_testkit::Sshd;

use crate::home::{Home, assert_status, finish, program};

/// A host whose connections stock ssh can use.
pub(crate) struct Stock {
    pub(crate) home: Home,
    pub(crate) server: Sshd,
    pub(crate) socket: PathBuf,
    config: PathBuf,
}

impl Stock {
    /// Serves clients of `server`.
    pub(crate) fn new(server: Sshd) -> Self {
        let config = server.ssh_config();
        let stock = Self::with_config(server, config);
        assert!(stock.socket.exists());
        stock
    }

    /// The same, with a configuration of the test's own. Where the host cannot be reached, the daemon says so if it knows in
    /// time; the socket is there all the same.
    pub(crate) fn with_config(server: Sshd, config: PathBuf) -> Self {
        Self::in_home(Home::never_busy(), server, config)
    }

    /// The same, with a home of the test's own.
    pub(crate) fn in_home(home: Home, server: Sshd, config: PathBuf) -> Self {
        let socket = socket(&home, "host");
        let stock = Self {
            home,
            server,
            socket,
            config,
        };
        let _ = stock.listen();
        stock
    }

    /// Asks the daemon for the socket, again perhaps.
    pub(crate) fn listen(&self) -> Result<(), Failure> {
        let host = host(&self.home, &self.config, self.server.alias(), &[]);
        listen(&self.home, host, &self.socket)
    }

    /// ssh's configuration.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// `ssh` on the socket; add options, the alias and a command.
    pub(crate) fn ssh(&self) -> Command {
        let mut command = self.home.command("ssh");
        command.arg("-F").arg(&self.config).args(self.options());
        command
    }

    /// The options that make ssh use the socket.
    pub(crate) fn options(&self) -> [String; 4] {
        let path = format!("ControlPath={}", self.socket.display());
        ["-o".into(), "ControlMaster=no".into(), "-o".into(), path]
    }

    /// Runs a command line on the server.
    pub(crate) fn run(&self, command: impl AsRef<OsStr>) -> Output {
        finish(self.ssh().arg(self.server.alias()).arg(command))
    }

    /// `ssh -O`.
    pub(crate) fn control(&self, what: &[&str]) -> Output {
        finish(self.ssh().arg("-O").args(what).arg(self.server.alias()))
    }

    /// The log-ins that the daemon's connections have cost the server.
    #[track_caller]
    pub(crate) fn assert_logins(&self, count: usize) {
        assert_eq!(self.server.authentications(), count);
    }

    /// Connects, and sees that it works.
    pub(crate) fn warm(&self) {
        assert_status(&self.run("true"), 0);
    }
}

/// Where a home's mux sockets are.
pub(crate) fn socket(home: &Home, name: &str) -> PathBuf {
    home.trunkline_dir().join("mux").join(name)
}

/// A request for a host, from a caller in this home.
pub(crate) fn host(home: &Home, config: &Path, destination: &str, options: &[&str]) -> HostRequest {
    let file = ["-F".into(), config.into()];
    let caller = home.command("true");
    let mut env: std::collections::BTreeMap<_, _> = std::env::vars_os().collect();
    for (name, value) in caller.get_envs() {
        match value {
            Some(value) => env.insert(name.into(), value.into()),
            None => env.remove(name),
        };
    }
    let ssh_args = file.into_iter().chain(options.iter().map(Into::into)).collect();
    let world = World {
        vantage: Vantage::current(),
        ..World::new("/", 0o022, env)
    };
    HostRequest::new(destination.parse().unwrap(), ssh_args, world)
}

/// Asks the daemon, which is started if need be, for a socket.
pub(crate) fn listen(home: &Home, host: HostRequest, path: &Path) -> Result<(), Failure> {
    listen_for(home, host, path, None)
}

/// The same, for a process that will come.
pub(crate) fn listen_for(
    home: &Home,
    host: HostRequest,
    path: &Path,
    process: Option<u32>,
) -> Result<(), Failure> {
    let dir = home.trunkline_dir();
    let place = Place::find(|name| (name == "TRUNKLINE_DIR").then(|| dir.clone())).unwrap();
    let starter = Starter::Command(vec![
        "env".into(),
        format!("TRUNKLINE_DIR={}", dir.display()).into(),
        program().into(),
        "daemon".into(),
        "--detach".into(),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut client = Client::connect(&place, Some(&starter)).await.unwrap();
        let path = path.to_owned();
        client
            .send(&Request::MuxListen {
                host,
                path: Some(path),
                client: process,
            })
            .await
            .unwrap();
        match client.next().await.unwrap() {
            Reply::Done => Ok(()),
            Reply::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    })
}
