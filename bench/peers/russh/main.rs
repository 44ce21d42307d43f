//! russh as a program: `bench-peer-russh TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...]`, with the tasks that
//! bench/README.md describes for all peers. It takes any host key, which spares it a look-up.

#[path = "../process.rs"]
mod process;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use russh::client::{self, Handle, Msg};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate, load_secret_key};
use russh::{Channel, ChannelMsg, Preferred, cipher};
use tokio::task::JoinSet;

use process::{SETTLE, WELL_UNDER_WAY, address, print_times, raise_file_limit, resident};

/// The task runs on the runtime's own threads, as in a program with more than one thing to do: the thread of
/// `main` would be woken by the kernel for each piece of data.
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tokio::spawn(run(std::env::args().skip(1).collect())).await?
}

async fn run(arguments: Vec<String>) -> anyhow::Result<()> {
    let [task, address, user, key, _known_hosts, rest @ ..] = arguments.as_slice() else {
        bail!("usage: bench-peer-russh TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...]");
    };
    let client = Client {
        user: user.clone(),
        key: key.clone(),
    };
    let address: SocketAddr = address.parse().context("ADDRESS is host:port")?;
    match (task.as_str(), rest) {
        ("cold", []) => client.cold(address).await,
        ("warm", [count]) => client.warm(address, count.parse()?).await,
        ("bulk", [command]) => client.bulk(address, command).await,
        ("idle", [count]) => client.idle(address.port(), count.parse()?).await,
        ("beside", [load, count]) => client.time_beside(address, load, count.parse()?).await,
        _ => bail!("no such task: {task} with {} arguments", rest.len()),
    }
}

#[derive(Clone)]
struct Client {
    user: String,
    key: String,
}

/// Trusts everybody.
struct Trusting;

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

impl Client {
    async fn connect(&self, address: SocketAddr) -> anyhow::Result<Handle<Trusting>> {
        let config = client::Config {
            preferred: Preferred {
                cipher: Cow::Borrowed(&[cipher::AES_128_GCM]),
                ..Preferred::default()
            },
            nodelay: true,
            ..client::Config::default()
        };
        let mut handle = client::connect(Arc::new(config), address, Trusting).await?;
        let key = PrivateKeyWithHashAlg::new(Arc::new(load_secret_key(&self.key, None)?), None);
        ensure!(
            handle.authenticate_publickey(&self.user, key).await?.success(),
            "the key was refused"
        );
        Ok(handle)
    }

    async fn cold(&self, address: SocketAddr) -> anyhow::Result<()> {
        let begun = Instant::now();
        run_true(&self.connect(address).await?).await?;
        println!("{}", begun.elapsed().as_nanos());
        Ok(())
    }

    async fn warm(&self, address: SocketAddr, count: usize) -> anyhow::Result<()> {
        let handle = self.connect(address).await?;
        run_many(&handle, count / 10 + 1).await?;
        print_times(&run_many(&handle, count).await?);
        Ok(())
    }

    async fn bulk(&self, address: SocketAddr, command: &str) -> anyhow::Result<()> {
        let handle = self.connect(address).await?;
        let mut channel = start(&handle, command).await?;
        println!("{}", read_until(&mut channel, u64::MAX).await);
        Ok(())
    }

    async fn idle(&self, port: u16, count: u32) -> anyhow::Result<()> {
        raise_file_limit()?;
        let first = self.connect(address(0, port)).await?;
        run_true(&first).await?;
        tokio::time::sleep(SETTLE).await;
        let before = resident()?;
        let mut connecting = JoinSet::new();
        let mut handles = Vec::new();
        for n in 1..=count {
            let (client, address) = (self.clone(), address(n, port));
            connecting.spawn(async move {
                let handle = client.connect(address).await?;
                run_true(&handle).await?;
                anyhow::Ok(handle)
            });
            if connecting.len() >= 32
                && let Some(handle) = connecting.join_next().await
            {
                handles.push(handle??);
            }
        }
        while let Some(handle) = connecting.join_next().await {
            handles.push(handle??);
        }
        tokio::time::sleep(SETTLE).await;
        ensure!(
            handles.iter().all(|handle| !handle.is_closed()),
            "a connection was lost"
        );
        println!("{}", resident()?.saturating_sub(before) / u64::from(count));
        Ok(())
    }

    async fn time_beside(&self, address: SocketAddr, load: &str, count: usize) -> anyhow::Result<()> {
        let handle = self.connect(address).await?;
        run_many(&handle, 10).await?;
        let mut unread = None;
        match load {
            "idle" => {}
            "download" => {
                let mut channel = start(&handle, "cat /dev/zero").await?;
                read_until(&mut channel, WELL_UNDER_WAY).await;
                tokio::spawn(async move { read_until(&mut channel, u64::MAX).await });
            }
            _ => unread = Some(start(&handle, "cat /dev/zero").await?),
        }
        tokio::time::sleep(SETTLE).await;
        print_times(&run_many(&handle, count).await?);
        drop(unread);
        Ok(())
    }
}

async fn start(handle: &Handle<Trusting>, command: &str) -> anyhow::Result<Channel<Msg>> {
    let channel = handle.channel_open_session().await?;
    channel.exec(true, command).await?;
    Ok(channel)
}

async fn run_true(handle: &Handle<Trusting>) -> anyhow::Result<()> {
    let mut channel = start(handle, "true").await?;
    let mut status = None;
    while let Some(message) = channel.wait().await {
        if let ChannelMsg::ExitStatus { exit_status } = message {
            status = Some(exit_status);
        }
    }
    ensure!(status == Some(0), "true failed: {status:?}");
    Ok(())
}

async fn run_many(handle: &Handle<Trusting>, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        run_true(handle).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

async fn read_until(channel: &mut Channel<Msg>, limit: u64) -> u64 {
    let mut bytes = 0;
    while bytes < limit
        && let Some(message) = channel.wait().await
    {
        if let ChannelMsg::Data { data } = message {
            bytes += data.len() as u64;
        }
    }
    bytes
}
