//! The man pages: synopsis and options from the arguments, everything else from [`sections`].

use clap::Command;
use clap::builder::StyledStr;
use clap_mangen::Man;
use roff::{Roff, bold, italic, roman};

use super::sections::{self, Row, Sections};

/// The date of the last change to [`sections`].
const DATE: &str = "2026-11-29";

/// Returns every page with its file name.
///
/// # Errors
/// A command has no entry in [`sections`].
pub(super) fn pages() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut root = crate::arguments().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add(&root, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    pages.push(page(command)?);
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        add(subcommand, pages)?;
    }
    Ok(())
}

fn page(command: &Command) -> anyhow::Result<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let typed = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let sections = sections::for_command(typed)?;
    let man = Man::new(for_man(command, sections));

    let mut page = Vec::new();
    let mut head = Roff::new();
    let version = concat!("trunkline ", env!("CARGO_PKG_VERSION"));
    head.control(
        "TH",
        [&*name.to_uppercase(), "1", DATE, version, "Trunkline manual"],
    );
    head.to_writer(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    write_rows(&mut rest, "EXIT STATUS", sections.exit_status);
    write_rows(&mut rest, "ENVIRONMENT", sections.environment);
    write_rows(&mut rest, "FILES", sections.files);
    write_examples(&mut rest, sections.examples);
    write_see_also(&mut rest, sections.see_also);
    rest.to_writer(&mut page)?;
    Ok((format!("{name}.1"), page))
}

/// Adapts a command to clap_mangen: the synopsis of `--help`, a longer description than the name's line, and an
/// option's values in its text.
fn for_man(command: &Command, sections: &Sections) -> Command {
    let usage = match sections.synopsis {
        "" => command.clone().render_usage().to_string(),
        synopsis => synopsis.to_owned(),
    };
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let arguments: Vec<_> = command
        .get_arguments()
        .map(|argument| argument.get_id().clone())
        .collect();
    let command = command
        .clone()
        .override_usage(usage)
        .long_about(sections.description);
    arguments.into_iter().fold(command, |command, id| {
        command.mut_arg(id, |argument| {
            let Some(values) = values(&argument) else {
                return argument;
            };
            let help = argument.get_long_help().or_else(|| argument.get_help());
            let help = help.map(StyledStr::to_string).unwrap_or_default();
            argument
                .hide_possible_values(true)
                .long_help(format!("{}: {values}", help.trim_end_matches('.')))
        })
    })
}

/// Returns the possible values of an option: `lost (when the connection was lost), never`.
fn values(argument: &clap::Arg) -> Option<String> {
    if !argument.get_action().takes_values() {
        return None;
    }
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("{} ({})", value.get_name(), lower_first(&help.to_string())),
            None => value.get_name().to_owned(),
        })
        .collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_lowercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}

fn write_rows(roff: &mut Roff, title: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    roff.control("SH", [title]);
    for (term, text) in rows {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*text)]);
    }
}

/// Writes examples, each below its description, as typed in a shell.
fn write_examples(roff: &mut Roff, examples: &[Row]) {
    roff.control("SH", ["EXAMPLES"]);
    for (n, (text, command)) in examples.iter().enumerate() {
        if n > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*text)]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        for line in command.lines() {
            roff.text([bold(line)]);
        }
        roff.control("fi", []);
        roff.control("RE", []);
    }
}

fn write_see_also(roff: &mut Roff, pages: &[&str]) {
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (n, page) in pages.iter().enumerate() {
        if n > 0 {
            line.push(roman(", "));
        }
        let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
        line.extend([italic(name), roman(section)]);
    }
    roff.text(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_sections() {
        for (name, page) in pages().unwrap() {
            let page = String::from_utf8(page).unwrap();
            for section in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "EXIT STATUS",
                "FILES",
                "EXAMPLES",
            ] {
                let quoted = format!(".SH \"{section}\"");
                let plain = format!(".SH {section}");
                let is_there = page.lines().any(|line| line == quoted || line == plain);
                assert!(is_there, "{name}: {section}\n{page}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line_that_is_taken() {
        for (name, sections) in sections::ALL {
            for (_, example) in sections.examples {
                let lines = example.replace("\\\n", "");
                for words in lines.lines().filter_map(trunkline_words) {
                    // ssh's options are not clap's.
                    if words.get(1).is_some_and(|word| word == "ssh") {
                        continue;
                    }
                    if let Err(error) = crate::arguments().try_get_matches_from(&words) {
                        panic!("{name}: {words:?}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_example_fits_a_terminal_of_80_columns() {
        // 78 without man's margin, minus an indentation of eleven.
        const WIDTH: usize = 78 - 7 - 4;
        for (name, sections) in sections::ALL {
            for line in sections.examples.iter().flat_map(|(_, example)| example.lines()) {
                assert!(line.chars().count() <= WIDTH, "{name}: {line}");
            }
        }
    }

    /// Returns the words of a line that runs `trunkline`, without quotes, redirections and later commands.
    fn trunkline_words(line: &str) -> Option<Vec<String>> {
        let line = line
            .split(" > ")
            .next()?
            .split(" < ")
            .next()?
            .split(" && ")
            .next()?
            .split(" | ")
            .next()?;
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| word.replace('\'', ""))
            .collect();
        let begin = words.iter().position(|word| word == "trunkline")?;
        Some(words[begin..].to_vec())
    }
}
