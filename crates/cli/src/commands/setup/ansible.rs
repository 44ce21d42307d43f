//! `trunkline setup ansible`.
//!
//! Ansible's ssh plugin passes a ControlPath of its own whenever its arguments contain ControlPersist, as the default
//! ones do, and the command line wins. With other arguments, ssh_config decides.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::block::Block;
use super::edited_file::EditedFile;
use super::{FileArgs, Lines, Outcome, home, plain, program};

const BLOCK: Block = Block { name: "ansible" };

const SECTION: &str = "ssh_connection";

/// Arguments of `trunkline setup ansible`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    file: FileArgs,
    /// Instead of `setup ssh`: create a link to this program at this path, and have Ansible run that as its ssh. The
    /// link's name must begin with "ssh". --undo takes the link away, whether it is named or not.
    #[arg(long, value_name = "LINK")]
    drop_in: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    let (path, change) = match &args.file.file {
        Some(path) => (path.clone(), args.file.change),
        None => (effective_file()?, args.file.change),
    };
    let settings = match &args.drop_in {
        None => vec![("ssh_args", "-o ControlMaster=no".to_owned())],
        Some(link) => {
            let name = plain(link)?;
            if !link.is_absolute() || !crate::is_named_ssh(link.as_os_str()) {
                bail!("{name} must be an absolute path to a name that begins with \"ssh\"");
            }
            vec![
                ("ssh_executable", name.clone()),
                ("sftp_extra_args", format!("-S {name}")),
                ("scp_extra_args", format!("-S {name}")),
            ]
        }
    };
    let mut text = match args.drop_in {
        None => "# Ansible's default arguments contain ControlPersist, which adds a ControlPath that overrides ssh_config's.\n",
        Some(_) => "# trunkline; under this name it takes ssh's arguments.\n",
    }
    .to_owned();
    for (name, value) in &settings {
        text.push_str(&format!("{name} = {value}\n"));
    }
    let names: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
    let lines = Lines {
        block: BLOCK,
        lines: text.clone(),
        insert: &|without| insert(without, &text, &names),
        bridge: &|_| "",
    };
    // The link is created first: a configuration must not name a missing link.
    if let Some(link) = &args.drop_in
        && !(change.print || change.undo)
    {
        make_link(link)?;
    }
    let gone = match change.undo {
        true => args
            .drop_in
            .clone()
            .map_or_else(|| link_named_in(&path), |link| Ok(Some(link)))?,
        false => None,
    };
    let outcome = lines.change(&path, change)?;
    if let Some(link) = gone {
        remove_link(&link)?;
    }
    if outcome == Outcome::Written && !change.undo {
        match args.drop_in {
            None => println!(
                "Ansible's ssh now follows your ssh_config; run `trunkline setup ssh` if you have not yet"
            ),
            Some(_) => println!("Ansible now runs trunkline instead of ssh"),
        }
    }
    Ok(())
}

/// Returns the file that Ansible would read here (its documentation, "The configuration file"), or else the one to
/// create.
fn effective_file() -> anyhow::Result<PathBuf> {
    let home = home()?;
    let named = std::env::var_os("ANSIBLE_CONFIG").map(|named| {
        let path = Path::new(&named);
        let path = path
            .strip_prefix("~")
            .map_or(path.to_owned(), |path| home.join(path));
        if path.is_dir() {
            path.join("ansible.cfg")
        } else {
            path
        }
    });
    // In a world-writable directory, anyone could have created the file.
    let everybody_s =
        std::fs::metadata(".").is_ok_and(|directory| directory.permissions().mode() & 0o002 != 0);
    let here = (!everybody_s).then(|| PathBuf::from("ansible.cfg"));
    let made = named.clone().unwrap_or_else(|| home.join(".ansible.cfg"));
    let candidates = [
        named,
        here,
        Some(home.join(".ansible.cfg")),
        Some(PathBuf::from("/etc/ansible/ansible.cfg")),
    ];
    let read = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok();
    Ok(candidates.into_iter().flatten().find(read).unwrap_or(made))
}

/// Inserts the lines at the start of the section, which is created if missing.
fn insert(text: &str, lines: &str, names: &[&str]) -> anyhow::Result<String> {
    let mut at = 0;
    let mut section = None;
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        at += line.len();
        // Text after the bracket, such as a comment, is ignored.
        if let Some((header, _)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            inside = header == SECTION;
            if inside {
                section = Some(at);
            }
        }
        // As in Ansible, names are case-insensitive.
        let name = line.split(['=', ':']).next().unwrap_or_default().trim();
        if inside && names.contains(&&*name.to_ascii_lowercase()) {
            bail!(
                "[{SECTION}] says `{}` already: remove that line, or change it to what --print shows",
                line.trim()
            );
        }
    }
    Ok(match section {
        Some(at) if text[..at].ends_with('\n') => {
            format!("{}{}{}", &text[..at], BLOCK.wrap(lines), &text[at..])
        }
        Some(_) => BLOCK.append(text, lines),
        None => BLOCK.append(text, &format!("[{SECTION}]\n{lines}")),
    })
}

fn make_link(link: &Path) -> anyhow::Result<()> {
    let program = program()?;
    let shown = link.display();
    match std::fs::read_link(link) {
        Ok(target) if target != Path::new(&program) => bail!(
            "{shown} is already a link, to {}: delete it first, or choose another name",
            target.display()
        ),
        Ok(_) => Ok(()),
        Err(_) if link.exists() => bail!("{shown} already exists and is not a link"),
        Err(_) => std::os::unix::fs::symlink(&program, link).with_context(|| format!("making {shown}")),
    }
}

/// Returns the link that the lines in this file make Ansible run.
fn link_named_in(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let file = EditedFile::open(path)?;
    let found = BLOCK
        .find(file.text())
        .with_context(|| file.path.display().to_string())?;
    let named = found.and_then(|found| {
        found
            .block
            .lines()
            .find_map(|line| line.strip_prefix("ssh_executable = "))
    });
    Ok(named.map(PathBuf::from))
}

/// Removes the link, unless it is not a link to this program.
fn remove_link(link: &Path) -> anyhow::Result<()> {
    let shown = link.display();
    match std::fs::read_link(link) {
        Ok(target) if target == Path::new(&program()?) => {
            std::fs::remove_file(link).with_context(|| format!("deleting {shown}"))?;
        }
        Ok(target) => println!("left {shown}, which leads to {}", target.display()),
        Err(_) if link.exists() => println!("left {shown}, which is not a link"),
        Err(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGS: [&str; 1] = ["ssh_args"];

    #[test]
    fn lines_go_into_their_section_and_out_again() {
        for text in [
            "",
            "[defaults]\nforks = 9\n",
            "[ssh_connection]",
            "[ssh_connection]\t; of ours\npipelining = true\n",
            "[defaults]\n; note\n[ssh_connection] \npipelining = true\n[x]\nssh_args = not this one\n",
        ] {
            let with = insert(text, "ssh_args = x\n", &ARGS).unwrap();
            let section = with.find("[ssh_connection]").unwrap();
            assert!(with.find("ssh_args = x").unwrap() > section, "{with}");
            assert_eq!(with.matches("[ssh_connection]").count(), 1);
            let found = BLOCK.find(&with).unwrap().unwrap();
            assert_eq!(found.remove_block(""), text);
        }
    }

    #[test]
    fn a_setting_of_the_users_own_is_not_overruled() {
        for own in ["ssh_args: -C", "SSH_Args = -C"] {
            let error = insert(&format!("[ssh_connection] ; x\n{own}\n"), "ssh_args = x\n", &ARGS);
            assert!(error.unwrap_err().to_string().contains(&format!("`{own}`")));
        }
    }
}
