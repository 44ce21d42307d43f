//! Runs one command on many hosts at once: `cargo run --example many_hosts -- 'web[01-20],db1' uptime`

use std::sync::Arc;

use tokio::task::JoinSet;
use trunkline::config::{Request, World};
use trunkline::hosts::{Target, expand};
use trunkline::{Command, Engine, Interaction};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(hosts), command) = (arguments.next(), arguments.collect::<Vec<_>>().join(" ")) else {
        return Err("usage: many_hosts HOSTS COMMAND...".into());
    };

    // One engine for all: it paces the handshakes to each server and in all, so that there is no need to do so here.
    let engine = Engine::new(Default::default(), Default::default());
    let world = Arc::new(World::current()?);
    let command = Arc::new(Command::exec(command));
    let mut running = JoinSet::new();
    for name in expand(&hosts, &world.cwd)? {
        let target = Target::parse(&name)?;
        let mut request = Request::new(target.destination, world.clone());
        request.ssh_args = target.ssh_args;
        let (engine, command) = (engine.clone(), command.clone());
        running.spawn(async move {
            // Nobody is asked anything: with many hosts, nobody could tell which one asks.
            let outcome = match engine.host_for(&request, &Interaction::none()).await {
                Ok(host) => host.run(&command).await,
                Err(error) => Err(error),
            };
            (name, outcome)
        });
    }
    while let Some(finished) = running.join_next().await {
        match finished? {
            (name, Ok(output)) => {
                println!(
                    "{name}: {:?}: {}",
                    output.status,
                    String::from_utf8_lossy(&output.stdout).trim_end()
                );
            }
            (name, Err(error)) => println!("{name}: {error}; the command {}", error.execution().as_str()),
        }
    }
    Ok(())
}
