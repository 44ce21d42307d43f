//! Finding and reading the parts of an inventory: files, folders, scripts, `group_vars` and `host_vars`.

use std::fs::{self, Metadata};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::{Inventory, InventoryError, ini, tree};
use crate::ssh_config::World;
use trunkline_local::program::local_program;

/// Reads `source` and what lies beside it into `inventory`.
pub(super) async fn load(
    inventory: &mut Inventory,
    source: &Path,
    world: &World,
) -> Result<(), InventoryError> {
    let about = metadata(source)?;
    if about.is_dir() {
        let mut files = Vec::new();
        gather(source, 0, &mut files)?;
        for file in files {
            load_file(inventory, &file, world).await?;
        }
        return read_var_folders(inventory, source);
    }
    load_file(inventory, source, world).await?;
    read_var_folders(inventory, source.parent().unwrap_or(Path::new("/")))
}

/// Names that Ansible passes over in a folder of inventories (INVENTORY_IGNORE_EXTS).
const IGNORED: [&str; 12] = [
    ".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry",
];

/// Folders within folders, at most this many deep.
const DEEPEST: u32 = 16;

/// The files of a folder of inventories, in the order of their names.
fn gather(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> Result<(), InventoryError> {
    for path in sorted(folder)? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let passed_over = name.starts_with('.')
            || ["group_vars", "host_vars"].contains(&name.as_str())
            || IGNORED.iter().any(|ending| name.ends_with(ending));
        if passed_over {
            continue;
        }
        if path.is_dir() {
            if depth < DEEPEST {
                gather(&path, depth + 1, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

async fn load_file(inventory: &mut Inventory, file: &Path, world: &World) -> Result<(), InventoryError> {
    let about = metadata(file)?;
    if is_script(file, &about) {
        return run_script(inventory, file, world).await;
    }
    let mut parsed = inventory.clone();
    match read_text(&mut parsed, file) {
        Ok(()) => {
            *inventory = parsed;
            Ok(())
        }
        Err(InventoryError::NeedsAnsible { file, why }) => match find("ansible-inventory", world) {
            Some(program) => {
                let arguments = ["-i".as_ref(), file.as_os_str(), "--list".as_ref()];
                let json = output_of(&program, &arguments, world).await?;
                tree::read_list(inventory, &json, &file).map(|_| ())
            }
            None => Err(InventoryError::NeedsAnsible { file, why }),
        },
        Err(error) => Err(error),
    }
}

/// The name's ending tells the format; without one the content does.
fn read_text(inventory: &mut Inventory, file: &Path) -> Result<(), InventoryError> {
    let text = read(file)?;
    if text.starts_with("$ANSIBLE_VAULT") {
        return Err(InventoryError::NeedsAnsible {
            file: file.into(),
            why: "is encrypted with ansible-vault",
        });
    }
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("yml" | "yaml") => tree::read_yaml(inventory, &text, file),
        Some("json") => {
            // Both forms of JSON are in use: what --list prints, and YAML's tree written as JSON.
            let listed = text.contains("\"_meta\"");
            if listed {
                tree::read_list(inventory, text.as_bytes(), file).map(|_| ())
            } else {
                tree::read_yaml(inventory, &text, file)
            }
        }
        Some("toml") => Err(InventoryError::NeedsAnsible {
            file: file.into(),
            why: "is an inventory in TOML",
        }),
        _ if looks_like_yaml(&text) => tree::read_yaml(inventory, &text, file),
        _ => ini::read(inventory, &text, file),
    }
}

/// A first line such as `---`, `all:` or `{`. An INI line never ends in a colon.
fn looks_like_yaml(text: &str) -> bool {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| line == "---" || line.starts_with('{') || line.ends_with(':'))
}

/// A file that may be executed and says how, as every script does. On some file systems all files are executable,
/// so the mode alone proves nothing.
fn is_script(file: &Path, about: &Metadata) -> bool {
    let starts = fs::File::open(file).and_then(|mut file| {
        let mut start = [0; 4];
        std::io::Read::read_exact(&mut file, &mut start).map(|()| start)
    });
    let runs = starts.is_ok_and(|start| start.starts_with(b"#!") || start == *b"\x7fELF");
    about.permissions().mode() & 0o111 != 0 && runs
}

async fn run_script(inventory: &mut Inventory, script: &Path, world: &World) -> Result<(), InventoryError> {
    let json = output_of(script, &["--list".as_ref()], world).await?;
    let before = inventory.hosts().len();
    if tree::read_list(inventory, &json, script)? {
        return Ok(());
    }
    // Scripts from before `_meta` are asked for each host.
    let added = inventory.hosts()[before..].to_vec();
    for host in added {
        let json = output_of(script, &["--host".as_ref(), host.as_ref()], world).await?;
        let variables = serde_json::from_slice(&json).map_err(|error| InventoryError::Program {
            program: script.into(),
            problem: format!("--host {host}: {error}"),
        })?;
        tree::keep_all(&mut inventory.add_host(&host)?.inventory, &variables);
    }
    Ok(())
}

/// How long an inventory program may take: they ask clouds.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// 1,000,000 hosts of 128 bytes.
const LONGEST_OUTPUT: u64 = 128 * 1024 * 1024;
const LONGEST_COMPLAINT: u64 = 4096;

async fn output_of(
    program: &Path,
    arguments: &[&std::ffi::OsStr],
    world: &World,
) -> Result<Vec<u8>, InventoryError> {
    let failed = |problem: String| InventoryError::Program {
        program: program.into(),
        problem,
    };
    let mut child = local_program(program, world)
        .args(arguments)
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

fn find(program: &str, world: &World) -> Option<PathBuf> {
    let path = world.var("PATH")?;
    std::env::split_paths(path)
        .map(|folder| world.absolute(&folder).join(program))
        .find(|program| {
            program
                .metadata()
                .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        })
}

/// Reads `group_vars` and `host_vars` beside an inventory, for the groups and hosts that it has.
fn read_var_folders(inventory: &mut Inventory, folder: &Path) -> Result<(), InventoryError> {
    inventory.add_group("all");
    let groups: Vec<String> = inventory.groups.keys().cloned().collect();
    let groups_folder = folder.join("group_vars");
    if groups_folder.is_dir() {
        for name in groups {
            for file in var_files(&groups_folder, &name)? {
                let text = read(&file)?;
                tree::read_vars(&mut inventory.add_group(&name).vars.files, &text, &file)?;
            }
        }
    }
    let hosts_folder = folder.join("host_vars");
    if hosts_folder.is_dir() {
        for name in inventory.hosts.clone() {
            for file in var_files(&hosts_folder, &name)? {
                let text = read(&file)?;
                tree::read_vars(&mut inventory.add_host(&name)?.files, &text, &file)?;
            }
        }
    }
    Ok(())
}

/// `name`, `name.yml`, `name.yaml`, `name.json`, or every such file in a folder `name`.
fn var_files(folder: &Path, name: &str) -> Result<Vec<PathBuf>, InventoryError> {
    // A name is no path.
    if name.contains('/') || name.starts_with('.') {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for ending in ["", ".yml", ".yaml", ".json"] {
        let path = folder.join(format!("{name}{ending}"));
        if path.is_file() {
            files.push(path);
        } else if ending.is_empty() && path.is_dir() {
            let readable = |path: &PathBuf| {
                let ending = path.extension().and_then(|ending| ending.to_str());
                let hidden = path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with('.'));
                path.is_file() && !hidden && matches!(ending, None | Some("yml" | "yaml" | "json"))
            };
            files.extend(sorted(&path)?.into_iter().filter(readable));
        }
    }
    Ok(files)
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, InventoryError> {
    let error = |error| InventoryError::File {
        file: folder.into(),
        error,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        paths.push(entry.map_err(error)?.path());
    }
    paths.sort_unstable();
    Ok(paths)
}

fn metadata(file: &Path) -> Result<Metadata, InventoryError> {
    fs::metadata(file).map_err(|error| InventoryError::File {
        file: file.into(),
        error,
    })
}

fn read(file: &Path) -> Result<String, InventoryError> {
    fs::read_to_string(file).map_err(|error| InventoryError::File {
        file: file.into(),
        error,
    })
}
