//! `config.toml`: the user's settings for trunkline itself.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use trunkline::Settings;

/// Prints the reference page, in Markdown.
pub(super) fn print() -> anyhow::Result<()> {
    let page = format!("# config.toml\n\n{}", table());
    match std::io::stdout().write_all(page.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn table() -> String {
    let mut table = String::from("| key | default | meaning |\n|---|---|---|\n");
    for setting in Settings::default().all() {
        table += &format!(
            "| `{}` | {} | {} |\n",
            setting.key, setting.default, setting.meaning
        );
    }
    table
}

/// Reads the file; a missing one means defaults.
pub(super) fn load(path: &Path) -> anyhow::Result<Settings> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Settings::default()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    parse(&text).with_context(|| format!("{} (see `trunkline settings`)", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Settings> {
    let settings: Settings = toml::from_str(text)?;
    anyhow::ensure!(settings.max_lanes > 0, "max_lanes must be at least 1");
    anyhow::ensure!(
        settings.busy_below <= settings.busy_above,
        "busy_below must not be above busy_above"
    );
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_setting_is_read_as_it_is_described() {
        for setting in Settings::default().all() {
            let line = format!("{} = {}", setting.key, setting.default);
            assert_eq!(parse(&line).unwrap(), Settings::default(), "{line}");
            assert!(setting.meaning.ends_with('.'), "{}", setting.meaning);
        }
        assert_eq!(
            parse("idle_timeout = 5").unwrap().idle_timeout,
            Duration::from_secs(5)
        );
    }

    #[test]
    fn the_guide_has_the_same_table() {
        let guide = include_str!("../../../../../docs/guide/configuration.md");
        assert!(guide.contains(&table()), "{}", table());
    }

    #[test]
    fn misspelt_keys_and_impossible_values_are_errors() {
        assert!(parse("idle_timeot = 5").is_err());
        assert!(parse("max_lanes = 0").is_err());
        assert!(parse("busy_below = 2000000").is_err());
    }
}
