//! Runs a command on a host and says how it ended: `cargo run --example run_command -- db1 uptime -p`

use std::io::Write as _;
use std::process::ExitCode;

use trunkline::{Command, Engine, Execution, ExitStatus, Interaction};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(destination), command) = (arguments.next(), arguments.collect::<Vec<_>>().join(" ")) else {
        eprintln!("usage: run_command DESTINATION COMMAND...");
        return ExitCode::from(2);
    };

    let engine = Engine::new(Default::default(), Default::default());
    let outcome = async {
        // Whatever ssh_config says of the destination holds; questions are asked on the terminal, as ssh would.
        let host = engine.host(&destination, &Interaction::standard()).await?;
        host.run(&Command::exec(command)).await
    };
    match outcome.await {
        Ok(output) => {
            let written = std::io::stdout()
                .write_all(&output.stdout)
                .and(std::io::stderr().write_all(&output.stderr));
            match (written, output.status) {
                (Ok(()), ExitStatus::Exited(0)) => ExitCode::SUCCESS,
                (_, status) => {
                    eprintln!("{status:?}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => {
            // What a script has to know before it tries again.
            let again = match error.execution() {
                Execution::DidNotStart => "it did not start, so trying again is safe",
                Execution::MayHaveStarted => "it may have started",
                Execution::Finished => "it ran to its end",
            };
            eprintln!("{} error: {error} ({again})", error.kind().as_str());
            ExitCode::FAILURE
        }
    }
}
