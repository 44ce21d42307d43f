//! `trunkline setup rsync`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::bail;
use trunkline_control::protocol::{Reply, Request};

use super::block::Block;
use super::{FileArgs, Lines, Outcome, answer, home, program};
use crate::ask::unexpected_reply;
use crate::backend::Backend;

const BLOCK: Block = Block { name: "rsync" };

pub(super) fn main(args: &FileArgs, backend: &Backend) -> anyhow::Result<()> {
    let shell = std::env::var_os("SHELL").unwrap_or_default();
    let shell = Path::new(&shell)
        .file_name()
        .unwrap_or(OsStr::new("sh"))
        .to_owned();
    let value = format!("{} ssh", program()?);
    let path = match &args.file {
        Some(path) => path.clone(),
        None => match profile(&shell)? {
            Some(path) => path,
            None if args.change.undo => home()?.join(".profile"),
            None => bail!(
                "what {} reads is not known: have it set RSYNC_RSH to \"{value}\" (in csh and tcsh by the line \
                 `setenv RSYNC_RSH \"{value}\"` in ~/.login), or name a file that sh reads with --file",
                shell.display()
            ),
        },
    };
    // fish always reads its file; other shells only at log-in.
    let (lines, unset, used) = if path.extension() == Some(OsStr::new("fish")) {
        (
            format!("set -gx RSYNC_RSH \"{value}\"\n"),
            "set -e RSYNC_RSH",
            "new shells will use it",
        )
    } else {
        (
            format!("export RSYNC_RSH=\"{value}\"\n"),
            "unset RSYNC_RSH",
            "shells will use it from the next log-in on",
        )
    };
    let insert = |text: &str| Ok(BLOCK.append(text, &lines));
    let lines = Lines {
        block: BLOCK,
        lines: lines.clone(),
        insert: &insert,
        bridge: &|_| "",
    };
    if lines.change(&path, args.change)? == Outcome::Written {
        if args.change.undo {
            println!("shells that are open keep RSYNC_RSH until you type: {unset}");
            return Ok(());
        }
        println!("{used}");
        for line in tuned_lines(backend)? {
            println!("{line}");
        }
    }
    Ok(())
}

/// Returns the options that `trunkline tune` found for rsync, a line for each host. Cipher and compression need none:
/// they are the connection's.
fn tuned_lines(backend: &Backend) -> anyhow::Result<Vec<String>> {
    if !crate::backend::place()?.state.exists() {
        return Ok(Vec::new());
    }
    let choices = match answer(Request::Choices, backend)? {
        Reply::Choices(choices) => choices,
        other => return Err(unexpected_reply(&other)),
    };
    let lines = choices.into_iter().map(|(host, choice)| {
        let options = match choice.rsync.join(" ") {
            none if none.is_empty() => "no options of its own".into(),
            options => options,
        };
        format!("{host}: measured best with {options}, over {}", choice.describe())
    });
    Ok(lines.collect())
}

/// Returns the file that this shell reads at log-in, by its manual; `None` for an unknown shell.
fn profile(shell: &OsStr) -> anyhow::Result<Option<PathBuf>> {
    let home = home()?;
    Ok(Some(match shell.to_str() {
        Some("bash") => [".bash_profile", ".bash_login"]
            .map(|name| home.join(name))
            .into_iter()
            .find(|file| file.exists())
            .unwrap_or_else(|| home.join(".profile")),
        Some("zsh") => std::env::var_os("ZDOTDIR")
            .map_or(home, PathBuf::from)
            .join(".zprofile"),
        Some("fish") => std::env::var_os("XDG_CONFIG_HOME")
            .map_or_else(|| home.join(".config"), PathBuf::from)
            .join("fish/conf.d/trunkline.fish"),
        Some("sh" | "dash" | "ash" | "ksh" | "ksh93" | "mksh" | "yash") => home.join(".profile"),
        _ => return Ok(None),
    }))
}
