//! Makes a Unix socket on a server reachable through a port here, until Ctrl-C:
//! `cargo run --example forward_socket -- db1 /run/postgresql/.s.PGSQL.5432`

use trunkline::config::{Forward, ForwardTarget, Listen};
use trunkline::{Engine, Interaction};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(destination), Some(socket)) = (arguments.next(), arguments.next()) else {
        return Err("usage: forward_socket DESTINATION SOCKET".into());
    };

    let engine = Engine::new(Default::default(), Default::default());
    let host = engine.host(&destination, &Interaction::standard()).await?;
    let forward = Forward {
        // Port 0: whichever is free. Without a host, only this machine's own programs can connect.
        listen: Listen::Tcp { host: None, port: 0 },
        target: ForwardTarget::Socket(socket.into()),
    };
    let handle = host.forward_local(&forward).await?;
    println!("listening on {:?}", handle.listening());

    // What goes wrong with a single client is told here, and ends nothing but that client.
    let mut events = handle.events();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => println!("{event:?}"),
                None => break,
            },
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                break;
            }
        }
    }
    println!("{:?}", handle.counters());
    handle.close().await;
    Ok(())
}
