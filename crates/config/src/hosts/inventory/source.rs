//! The output of `ansible-inventory` about inventories.

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use trunkline_local::program::local_program;

use super::InventoryError;
use crate::ssh_config::World;

/// Finds the program as the caller's shell would.
pub(super) fn ansible_inventory(world: &World) -> Option<PathBuf> {
    let path = world.var("PATH")?;
    std::env::split_paths(path)
        .map(|directory| world.absolute(&directory).join("ansible-inventory"))
        .find(|program| {
            program
                .metadata()
                .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        })
}

/// The time limit, enough for scripts and plugins that ask clouds.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Room for 1,000,000 hosts of 128 bytes.
const LONGEST_OUTPUT: u64 = 128 * 1024 * 1024;
const LONGEST_COMPLAINT: u64 = 4096;

/// Without it, Ansible only warns of an unreadable source, and takes it for one without hosts.
const UNPARSED_FAILS: &str = "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED";

/// Returns the program's output about all sources together.
pub(super) async fn list(
    program: &Path,
    sources: &[PathBuf],
    world: &World,
) -> Result<Vec<u8>, InventoryError> {
    let mut spooled = Vec::new();
    let mut readable = Vec::new();
    for source in sources {
        let failed = |error| InventoryError::File {
            file: source.clone(),
            error,
        };
        // The program reads each source several times, but a pipe can be read once.
        let about = std::fs::metadata(source).map_err(failed)?;
        if about.is_file() || about.is_dir() {
            readable.push(source.clone());
            continue;
        }
        let copy = tokio::time::timeout(TIME_LIMIT, spool(source)).await;
        let copy = copy
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        readable.push(copy.path().to_owned());
        spooled.push(copy);
    }
    let mut command = local_program(program, world);
    if world.var(UNPARSED_FAILS).is_none() {
        command.env(UNPARSED_FAILS, "true");
    }
    for source in &readable {
        command.arg("-i").arg(source);
    }
    command.arg("--list");
    output_of(program, command).await
}

/// Returns the settings of Ansible's ssh plugin from ansible.cfg and the environment, as printed by the program beside
/// `ansible-inventory`; nothing if it is missing or older than the format (ansible-core 2.13).
pub(super) async fn ssh_options(inventory: &Path, world: &World) -> Result<Vec<u8>, InventoryError> {
    let program = inventory.with_file_name("ansible-config");
    if !program.exists() {
        return Ok(Vec::new());
    }
    let mut command = local_program(&program, world);
    command.args([
        "dump",
        "--only-changed",
        "--format",
        "json",
        "--type",
        "connection",
        "ssh",
    ]);
    output_of(&program, command).await
}

/// Copies the content of a pipe into a file.
async fn spool(source: &Path) -> io::Result<NamedTempFile> {
    let mut content = Vec::new();
    let pipe = tokio::fs::File::open(source).await?;
    pipe.take(LONGEST_OUTPUT).read_to_end(&mut content).await?;
    let mut copy = NamedTempFile::with_prefix("inventory-")?;
    copy.write_all(&content)?;
    Ok(copy)
}

async fn output_of(program: &Path, mut command: Command) -> Result<Vec<u8>, InventoryError> {
    let failed = |problem: String| InventoryError::Program {
        program: program.into(),
        problem,
    };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let finished = async {
        let mut limited = stdout.take(LONGEST_OUTPUT + 1);
        tokio::try_join!(limited.read_to_end(&mut output), async {
            let count = (&mut stderr)
                .take(LONGEST_COMPLAINT)
                .read_to_end(&mut complaint)
                .await?;
            // The rest is read and dropped, so that a talkative program can end.
            tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
            Ok(count)
        })?;
        child.wait().await
    };
    let status = tokio::time::timeout(TIME_LIMIT, finished)
        .await
        .map_err(|_| failed(format!("no answer within {TIME_LIMIT:?}")))?
        .map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(format!(
            "{status}: {}",
            String::from_utf8_lossy(&complaint).trim()
        )));
    }
    if output.len() as u64 > LONGEST_OUTPUT {
        return Err(failed("it printed more than 128 MiB".into()));
    }
    Ok(output)
}
