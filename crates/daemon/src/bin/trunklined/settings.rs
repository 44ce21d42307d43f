//! `config.toml`: the user's settings for trunkline itself.

use std::io::Write as _;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_same_table() {
        let guide = include_str!("../../../../../docs/guide/configuration.md");
        assert!(guide.contains(&table()), "{}", table());
    }
}
