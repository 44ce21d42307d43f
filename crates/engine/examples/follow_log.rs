//! Follows a log and prints its lines as they come, until Ctrl-C:
//! `cargo run --example follow_log -- db1 /var/log/syslog`

use tokio::io::{AsyncBufReadExt as _, BufReader};
use trunkline::{Command, Engine, Interaction};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(destination), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: follow_log DESTINATION PATH".into());
    };

    let engine = Engine::new(Default::default(), Default::default());
    let host = engine.host(&destination, &Interaction::standard()).await?;
    // The remote shell reads the command: a quote in the path would end the quoting.
    let command = format!("exec tail -n 10 -F -- '{}'", path.replace('\'', r"'\''"));
    let session = host.start(&Command::exec(command)).await?;

    // Reading returns window credit to the server: a reader that falls behind slows this session, and no other.
    let parts = session.into_parts();
    let mut lines = BufReader::new(parts.stdout).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => println!("{destination}: {line}"),
                None => break,
            },
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                parts.control.signal("TERM");
                parts.control.close();
                return Ok(());
            }
        }
    }
    let mut end = parts.end;
    println!("{destination}: {:?}", end.wait().await?);
    Ok(())
}
