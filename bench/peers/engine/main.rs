//! The engine as a program: `bench-peer-engine TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...]`, with the tasks that
//! bench/README.md describes for all peers.

#[path = "../process.rs"]
mod process;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::task::JoinSet;
use trunkline::config::{Request, World};
use trunkline::{Command, Engine, Host, Interaction, Session};

use process::{SETTLE, WELL_UNDER_WAY, address, print_times, raise_file_limit, resident};

/// The task runs on the runtime's own threads, as in a program with more than one thing to do: the thread of
/// `main` would be woken by the kernel for each piece of data.
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tokio::spawn(run(std::env::args().skip(1).collect())).await?
}

async fn run(arguments: Vec<String>) -> anyhow::Result<()> {
    let [task, address, user, key, known_hosts, rest @ ..] = arguments.as_slice() else {
        bail!("usage: bench-peer-engine TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...]");
    };
    let client = Client::new(user, key, known_hosts)?;
    let address: SocketAddr = address.parse().context("ADDRESS is host:port")?;
    match (task.as_str(), rest) {
        ("cold", []) => client.cold(address).await,
        ("warm", [count]) => client.warm(address, count.parse()?).await,
        ("together", [count]) => client.together(address, count.parse()?).await,
        ("bulk", [command]) => client.bulk(address, command).await,
        ("idle", [count]) => client.idle(address.port(), count.parse()?).await,
        ("beside", [load, count]) => client.time_beside(address, load, count.parse()?).await,
        _ => bail!("no such task: {task} with {} arguments", rest.len()),
    }
}

struct Client {
    engine: Engine,
    world: Arc<World>,
    user: String,
    ssh_args: Vec<OsString>,
}

impl Client {
    fn new(user: &str, key: &str, known_hosts: &str) -> anyhow::Result<Self> {
        let options = [
            "IdentitiesOnly=yes".to_owned(),
            "IdentityAgent=none".to_owned(),
            "BatchMode=yes".to_owned(),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
            format!("UserKnownHostsFile={known_hosts}"),
            "Ciphers=aes128-gcm@openssh.com".to_owned(),
        ];
        let mut ssh_args: Vec<OsString> = ["-F", "none", "-i", key].map(OsString::from).into();
        for option in options {
            ssh_args.extend(["-o".into(), option.into()]);
        }
        Ok(Self {
            engine: Engine::new(Default::default(), Default::default()),
            world: Arc::new(World::current()?),
            user: user.to_owned(),
            ssh_args,
        })
    }

    async fn host(&self, address: SocketAddr) -> anyhow::Result<Host> {
        let destination = format!("ssh://{}@{address}", self.user).parse()?;
        let mut request = Request::new(destination, self.world.clone());
        request.ssh_args.clone_from(&self.ssh_args);
        Ok(self.engine.host_for(&request, &Interaction::none()).await?)
    }

    /// Resolving the destination is part of it, as it is for ssh.
    async fn cold(&self, address: SocketAddr) -> anyhow::Result<()> {
        let begun = Instant::now();
        run_true(&self.host(address).await?).await?;
        println!("{}", begun.elapsed().as_nanos());
        Ok(())
    }

    async fn warm(&self, address: SocketAddr, count: usize) -> anyhow::Result<()> {
        let host = self.host(address).await?;
        run_many(&host, count / 10 + 1).await?;
        print_times(&run_many(&host, count).await?);
        Ok(())
    }

    /// [`AT_ONCE`] commands at once, so often.
    async fn together(&self, address: SocketAddr, count: usize) -> anyhow::Result<()> {
        let host = self.host(address).await?;
        let mut times = Vec::with_capacity(count);
        for number in 0..count / 10 + 1 + count {
            let begun = Instant::now();
            let running: JoinSet<_> = (0..AT_ONCE)
                .map(|_| {
                    let host = host.clone();
                    async move { run_true(&host).await }
                })
                .collect();
            running
                .join_all()
                .await
                .into_iter()
                .collect::<anyhow::Result<()>>()?;
            // The first are to warm up.
            if number > count / 10 {
                times.push(begun.elapsed());
            }
        }
        print_times(&times);
        Ok(())
    }

    async fn bulk(&self, address: SocketAddr, command: &str) -> anyhow::Result<()> {
        let mut session = self.host(address).await?.start(&Command::exec(command)).await?;
        println!("{}", read_until(&mut session, u64::MAX).await);
        ensure!(session.wait().await?.success(), "{command} failed");
        Ok(())
    }

    /// Connections to 127.0.0.1, 127.0.0.2 and so on, each of which has run a command.
    async fn idle(&self, port: u16, count: u32) -> anyhow::Result<()> {
        raise_file_limit()?;
        // The first connection loads the program's own pages, which belong to no connection.
        let first = self.host(address(0, port)).await?;
        run_true(&first).await?;
        tokio::time::sleep(SETTLE).await;
        let before = resident()?;
        let mut connecting = JoinSet::new();
        let mut hosts = Vec::new();
        for n in 1..=count {
            let host = self.host(address(n, port)).await?;
            connecting.spawn(async move { run_true(&host).await.map(|()| host) });
            if connecting.len() >= 32
                && let Some(host) = connecting.join_next().await
            {
                hosts.push(host??);
            }
        }
        while let Some(host) = connecting.join_next().await {
            hosts.push(host??);
        }
        tokio::time::sleep(SETTLE).await;
        ensure!(hosts.iter().all(Host::is_warm), "a connection was lost");
        println!("{}", resident()?.saturating_sub(before) / u64::from(count));
        Ok(())
    }

    async fn time_beside(&self, address: SocketAddr, load: &str, count: usize) -> anyhow::Result<()> {
        let host = self.host(address).await?;
        run_many(&host, 10).await?;
        let mut endless = match load {
            "idle" => None,
            _ => Some(host.start(&Command::exec("cat /dev/zero")).await?),
        };
        let mut unread = None;
        match load {
            "download" => {
                if let Some(mut session) = endless.take() {
                    read_until(&mut session, WELL_UNDER_WAY).await;
                    tokio::spawn(async move { read_until(&mut session, u64::MAX).await });
                }
            }
            _ => unread = endless,
        }
        // The pool looks at the traffic once a second; what comes before it has looked is not a steady state.
        tokio::time::sleep(SETTLE).await;
        print_times(&run_many(&host, count).await?);
        drop(unread);
        Ok(())
    }
}

/// Commands of the task `together`.
const AT_ONCE: usize = 100;

async fn run_true(host: &Host) -> anyhow::Result<()> {
    let output = host.run(&Command::exec("true")).await?;
    ensure!(output.status.success(), "true failed: {:?}", output.status);
    Ok(())
}

async fn run_many(host: &Host, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        run_true(host).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

async fn read_until(session: &mut Session, limit: u64) -> u64 {
    let mut bytes = 0;
    let mut pieces = Vec::new();
    while bytes < limit && session.stdout.chunks(&mut pieces, 64).await > 0 {
        bytes += pieces.drain(..).map(|piece| piece.len() as u64).sum::<u64>();
    }
    bytes
}
