//! `trunkline settings`: config.toml's settings that are in force.

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use trunkline_control::client::Client;
use trunkline_control::program;
use trunkline_control::protocol::{DaemonStatus, Reply, Request, SettingReport};
use trunkline_text::Printable;

use crate::ask::{ask, unexpected_reply};
use crate::backend::{Backend, Daemon, Running, runtime};
use crate::report::grid::Grid;
use crate::terminal;

/// Arguments of `trunkline settings`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// `trunkline settings`.
pub(crate) fn main(args: &Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let (file, running) = runtime()?.block_on(async {
        // A private daemon reads the file now.
        let file = match backend.connect(Daemon::Own).await {
            Ok(client) => status(client, backend).await,
            Err(error) => Err(error),
        };
        let running = match backend.find(Running::Anywhere).await? {
            Some(client) if !backend.is_told_to_be_private() => Some(status(client, backend).await?),
            _ => None,
        };
        anyhow::Ok((file, running))
    })?;
    let file = match file {
        Ok(file) => file,
        Err(error) if args.json => return Err(error),
        // A list of the settings helps the user most.
        Err(error) => {
            let page = Command::new(program::find()?).arg("--settings").status();
            page.context("printing the settings")?;
            return Err(error);
        }
    };
    let stale = running.as_ref().map_or_else(Vec::new, |running| {
        changed_settings(&running.settings, &file.settings)
    });
    let in_force = running.as_ref().unwrap_or(&file);
    let mut out = io::stdout();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &in_force.settings)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    write!(out, "{}", table(&in_force.settings, terminal::width(&out)))?;
    let is_set = in_force
        .settings
        .iter()
        .any(|setting| setting.value != setting.default);
    let what = if is_set { "* set in" } else { "nothing is set in" };
    let file = Printable::line(in_force.config.display().to_string());
    writeln!(out, "\n{what} {file}")?;
    if !stale.is_empty() {
        writeln!(
            out,
            "changed there since the daemon was started: {}; `trunkline stop` has the next daemon read it",
            stale.join(", ")
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(mut client: Client, backend: &Backend) -> anyhow::Result<DaemonStatus> {
    match ask(&mut client, Request::Status, backend).await? {
        Reply::Status(status) => Ok(*status),
        other => Err(unexpected_reply(&other)),
    }
}

/// Returns the settings whose values differ.
fn changed_settings<'a>(running: &'a [SettingReport], file: &[SettingReport]) -> Vec<&'a str> {
    let differs = |one: &&SettingReport| {
        let same = file.iter().find(|other| other.key == one.key);
        same.is_none_or(|other| other.value != one.value)
    };
    running
        .iter()
        .filter(differs)
        .map(|setting| &*setting.key)
        .collect()
}

/// Returns a row for each setting, with a mark if it is set, and a final newline.
fn table(settings: &[SettingReport], width: Option<u16>) -> String {
    let mut table = Grid::new(["SETTING", "VALUE", "DEFAULT", "MEANING"]);
    for setting in settings {
        let is_set = setting.value != setting.default;
        let mark = if is_set { "*" } else { "" };
        table.row([
            setting.key.clone(),
            Printable::line(format!("{}{mark}", setting.value)).into_string(),
            setting.default.clone(),
            setting.meaning.replace('`', ""),
        ]);
    }
    table.draw(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::forms::forms;

    fn setting(key: &str, value: &str) -> SettingReport {
        SettingReport {
            key: key.into(),
            value: value.into(),
            default: "600".into(),
            meaning: "Seconds that a connection without sessions is kept, where ControlPersist says nothing."
                .into(),
        }
    }

    #[test]
    fn what_is_set_is_marked() {
        let settings = [setting("idle_timeout", "600"), setting("probe_after", "5")];
        insta::assert_snapshot!(forms(|width, _| table(&settings, width)));
    }

    #[test]
    fn what_the_file_says_otherwise_is_named() {
        let running = [setting("a", "1"), setting("b", "2")];
        let file = [setting("a", "1"), setting("b", "3")];
        assert_eq!(changed_settings(&running, &file), ["b"]);
        assert!(changed_settings(&running, &running).is_empty());
    }
}
